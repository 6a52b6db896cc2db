//! The blob store's promises: durable offsets, resume, refusal of lies.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use cipherhop_coordinator::blobs::{
    BlobError, BlobStore, LocalBlobs, LocalLimits, Opened, UploadKey, read_all,
};
use cipherhop_proto::Digest;
use futures::TryStreamExt;
use sha2::Digest as _;

fn digest(bytes: &[u8]) -> Digest {
    Digest::from_bytes(sha2::Sha256::digest(bytes).into())
}

fn id(sender: u8, bytes: &[u8]) -> UploadKey {
    UploadKey {
        sender: [sender; 16],
        digest: digest(bytes),
    }
}

fn open(path: &Path) -> LocalBlobs {
    LocalBlobs::open(
        path,
        LocalLimits {
            headroom_bytes: 0,
            ..LocalLimits::default()
        },
    )
    .unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

async fn send(store: &LocalBlobs, id: UploadKey, offset: u64, bytes: &[u8]) -> u64 {
    let mut appender = store.append(id, offset).await.unwrap();
    for frame in bytes.chunks(1000) {
        appender.write(frame.to_vec()).await.unwrap();
    }
    appender.commit().await.unwrap()
}

#[tokio::test]
async fn a_blob_comes_back_whole_and_by_range() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(3 << 20);
    let id = id(1, &bytes);
    assert_eq!(
        store.open_upload(id, bytes.len() as u64).await.unwrap(),
        Opened::Resume(0)
    );
    assert_eq!(send(&store, id, 0, &bytes).await, bytes.len() as u64);
    assert_eq!(
        store.stat(id.digest).await.unwrap(),
        None,
        "not visible before finish"
    );
    assert_eq!(store.finish(id).await.unwrap(), bytes.len() as u64);
    assert_eq!(
        store.finish(id).await.unwrap(),
        bytes.len() as u64,
        "finish is idempotent"
    );
    assert_eq!(
        store.open_upload(id, bytes.len() as u64).await.unwrap(),
        Opened::Complete(bytes.len() as u64)
    );
    assert_eq!(read_all(&store, id.digest, u64::MAX).await.unwrap(), bytes);
    let reader = store.read(id.digest, 1_000_001, 1_500_000).await.unwrap();
    let part: Vec<Vec<u8>> = reader.frames.try_collect().await.unwrap();
    assert!(part.iter().all(|f| f.len() <= 1 << 20));
    assert_eq!(part.concat(), bytes[1_000_001..2_500_001]);
    assert!(matches!(
        store.read(id.digest, 4 << 20, 0).await,
        Err(BlobError::OutOfRange { .. })
    ));
    assert!(matches!(
        store.read(digest(b"other"), 0, 0).await,
        Err(BlobError::NotFound(_))
    ));
    assert!(matches!(
        read_all(&store, id.digest, 10).await,
        Err(BlobError::TooLarge { .. })
    ));
}

#[tokio::test]
async fn an_upload_goes_on_from_its_durable_offset_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = pattern(10_000);
    let id = id(1, &bytes);
    {
        let store = open(dir.path());
        store.open_upload(id, 10_000).await.unwrap();
        send(&store, id, 0, &bytes[..4000]).await;
        let mut appender = store.append(id, 4000).await.unwrap();
        appender.write(bytes[4000..5000].to_vec()).await.unwrap(); // never committed
    }
    let store = open(dir.path());
    assert_eq!(store.committed(id).await.unwrap(), 4000);
    assert_eq!(
        store.open_upload(id, 10_000).await.unwrap(),
        Opened::Resume(4000)
    );
    send(&store, id, 4000, &bytes[4000..]).await;
    store.finish(id).await.unwrap();
    assert_eq!(read_all(&store, id.digest, u64::MAX).await.unwrap(), bytes);
}

#[tokio::test]
async fn wrong_offset_names_the_committed_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(100);
    let id = id(1, &bytes);
    assert!(matches!(
        store.append(id, 0).await.err(),
        Some(BlobError::NoUpload(_))
    ));
    store.open_upload(id, 100).await.unwrap();
    send(&store, id, 0, &bytes[..40]).await;
    for offset in [0, 39, 41, u64::MAX] {
        let error = store.append(id, offset).await.err().unwrap();
        assert!(
            matches!(error, BlobError::WrongOffset { committed: 40, .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn lies_about_size_and_content_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(100);
    let id = id(1, &bytes);
    store.open_upload(id, 60).await.unwrap();
    let mut appender = store.append(id, 0).await.unwrap();
    appender.write(bytes[..50].to_vec()).await.unwrap();
    let error = appender.write(bytes[50..].to_vec()).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::TooLong {
                declared: 60,
                got: 100
            }
        ),
        "{error}"
    );
    drop(appender);
    // Truncated: the sender stops early.
    store.open_upload(id, 60).await.unwrap();
    send(&store, id, 0, &bytes[..50]).await;
    let error = store.finish(id).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::Truncated {
                declared: 60,
                committed: 50
            }
        ),
        "{error}"
    );
    // All declared bytes there, but not the bytes of the digest.
    send(&store, id, 50, &bytes[50..60]).await;
    let error = store.finish(id).await.unwrap_err();
    assert!(matches!(error, BlobError::DigestMismatch { .. }), "{error}");
    assert_eq!(store.stat(id.digest).await.unwrap(), None);
    // A corrected upload starts from zero and works.
    assert_eq!(store.open_upload(id, 100).await.unwrap(), Opened::Resume(0));
    send(&store, id, 0, &bytes).await;
    store.finish(id).await.unwrap();
    let error = store.open_upload(id, 99).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::SizeConflict {
                before: 100,
                now: 99,
                ..
            }
        ),
        "{error}"
    );
    // A huge declared size allocates nothing and is refused.
    let error = store
        .open_upload(
            UploadKey {
                digest: digest(b"x"),
                ..id
            },
            u64::MAX,
        )
        .await
        .unwrap_err();
    assert!(matches!(error, BlobError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn one_sender_cannot_spoil_the_upload_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(100);
    let (bad, good) = (id(1, &bytes), id(2, &bytes));
    store.open_upload(bad, 100).await.unwrap();
    store.open_upload(good, 100).await.unwrap();
    send(&store, bad, 0, &[7; 100]).await;
    send(&store, good, 0, &bytes).await;
    assert!(store.finish(bad).await.is_err());
    store.finish(good).await.unwrap();
    assert_eq!(read_all(&store, good.digest, 100).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_newer_stream_takes_over_and_keeps_what_arrived() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(100);
    let id = id(1, &bytes);
    store.open_upload(id, 100).await.unwrap();
    let mut old = store.append(id, 0).await.unwrap();
    old.write(bytes[..30].to_vec()).await.unwrap();
    assert_eq!(
        store.open_upload(id, 100).await.unwrap(),
        Opened::Resume(30)
    );
    assert!(matches!(
        old.write(vec![9; 10]).await,
        Err(BlobError::TakenOver)
    ));
    assert!(matches!(old.commit().await, Err(BlobError::TakenOver)));
    send(&store, id, 30, &bytes[30..]).await;
    store.finish(id).await.unwrap();
}

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
    let store = open(dir.path());
    let size = (4u64 << 30) + 5;
    // A sparse file stands in for a published blob; hashing 4 GiB would be slow.
    let digest = digest(b"sparse");
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
