//! The stores that the suite runs on. Opening one again is a restart of the coordinator.

use std::sync::Arc;

use cipherhop_coordinator::blobs::{BlobStore, Blobs, LocalBlobs, LocalLimits, UploadKey};
use cipherhop_proto::Digest;
use tempfile::TempDir;

use crate::s3::S3;

pub enum Site {
    Local(TempDir),
    S3(S3),
}

impl Site {
    pub fn local() -> Site {
        Site::Local(tempfile::tempdir().unwrap())
    }

    pub async fn s3() -> Site {
        Site::S3(S3::start().await)
    }

    pub async fn open(&self) -> Blobs {
        match self {
            Site::Local(dir) => {
                let limits = LocalLimits {
                    headroom_bytes: 0,
                    ..LocalLimits::default()
                };
                Arc::new(LocalBlobs::open(dir.path(), limits).unwrap())
            }
            Site::S3(s3) => Arc::new(s3.open().await),
        }
    }
}

pub fn id(sender: u8, bytes: &[u8]) -> UploadKey {
    UploadKey {
        sender: [sender; 16],
        digest: Digest::of(bytes),
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Appends everything and commits; the committed bytes.
pub async fn send(store: &dyn BlobStore, id: UploadKey, offset: u64, bytes: &[u8]) -> u64 {
    let mut appender = store.append(id, offset).await.unwrap();
    for frame in bytes.chunks((bytes.len() / 50).max(1000)) {
        appender.write(frame.to_vec()).await.unwrap();
    }
    appender.commit().await.unwrap()
}

/// A whole blob.
pub async fn put(store: &dyn BlobStore, id: UploadKey, bytes: &[u8]) {
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    send(store, id, 0, bytes).await;
    assert_eq!(store.finish(id).await.unwrap(), bytes.len() as u64);
}
