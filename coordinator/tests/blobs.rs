//! The blob stores' promises: durable offsets, resume, refusal of lies; on local files and on an S3 server.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "blobs/bucket.rs"]
mod bucket;
#[path = "common/s3.rs"]
mod s3;
#[path = "blobs/site.rs"]
mod site;
#[path = "blobs/suite.rs"]
mod suite;

use cipherhop_coordinator::blobs::{BlobError, BlobStore, LocalBlobs, LocalLimits};
use cipherhop_proto::Digest;
use futures::TryStreamExt;
use site::{id, pattern, send};

#[tokio::test]
async fn quota_counts_complete_blobs_and_promises() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LocalLimits {
        headroom_bytes: 0,
        quota_bytes: Some(1000),
        max_blob_bytes: 1 << 30,
    };
    let store = LocalBlobs::open(dir.path(), limits).unwrap();
    let a = pattern(600);
    store.open_upload(id(1, &a), 600).await.unwrap();
    let error = store.open_upload(id(1, b"b"), 500).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::StorageFull {
                needed: 500,
                available: 400,
                ..
            }
        ),
        "{error}"
    );
    send(&store, id(1, &a), 0, &a).await;
    store.finish(id(1, &a)).await.unwrap();
    drop(store);
    let store = LocalBlobs::open(dir.path(), limits).unwrap();
    assert!(store.open_upload(id(1, b"b"), 401).await.is_err());
    store.open_upload(id(1, b"b"), 400).await.unwrap();
    // No disk has this much headroom.
    let dir = tempfile::tempdir().unwrap();
    let limits = LocalLimits {
        headroom_bytes: u64::MAX / 2,
        ..LocalLimits::default()
    };
    let store = LocalBlobs::open(dir.path(), limits).unwrap();
    assert!(matches!(
        store.open_upload(id(1, &a), 600).await,
        Err(BlobError::StorageFull { .. })
    ));
}

#[tokio::test]
async fn offsets_go_past_4_gib() {
    let dir = tempfile::tempdir().unwrap();
    let limits = LocalLimits {
        headroom_bytes: 0,
        ..LocalLimits::default()
    };
    let store = LocalBlobs::open(dir.path(), limits).unwrap();
    let size = (4u64 << 30) + 5;
    // A sparse file stands in for a published blob; hashing 4 GiB would be slow.
    let digest = Digest::of(b"sparse");
    let name = hex::encode(digest.as_bytes());
    let shard = dir.path().join("sha256").join(&name[..2]);
    std::fs::create_dir_all(&shard).unwrap();
    std::fs::File::create(shard.join(&name[2..]))
        .unwrap()
        .set_len(size)
        .unwrap();
    assert_eq!(store.stat(digest).await.unwrap(), Some(size));
    let reader = store.read(digest, (4 << 30) + 1, 0).await.unwrap();
    let frames: Vec<Vec<u8>> = reader.frames.try_collect().await.unwrap();
    assert_eq!(frames, [[0; 4]]);
}
