//! Blobs between a backup and a bucket.

use std::path::Path;

use cipherhop_proto::{Digest, Hasher};
use futures::StreamExt as _;
use tokio::fs::{self, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::{BackupError, Result, failed};
use crate::blobs::{BlobError, BlobStore, FRAME_BYTES, Opened, UploadKey};

/// Bytes between two commits of an upload.
const COMMIT_EVERY: u64 = 64 << 20;

/// Whoever restores, as the sender of uploads.
const RESTORE: [u8; 16] = *b"cipherhop-backup";

/// Writes a blob into a new file, durable, and checks its bytes on the way; how many.
pub(super) async fn fetch(blobs: &dyn BlobStore, digest: Digest, to: &Path) -> Result<u64> {
    let mut reader = match blobs.read(digest, 0, 0).await {
        Ok(reader) => reader,
        Err(BlobError::NotFound(_)) => return Err(BackupError::Missing(digest)),
        Err(e) => return Err(e.into()),
    };
    if let Some(folder) = to.parent() {
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder).await;
        made.map_err(failed(folder))?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(to).await.map_err(failed(to))?;
    let mut hasher = Hasher::new();
    while let Some(frame) = reader.frames.next().await {
        let frame = frame?;
        hasher.update(&frame);
        file.write_all(&frame).await.map_err(failed(to))?;
    }
    if hasher.finish() != digest {
        return Err(BackupError::DamagedBlob(digest));
    }
    file.sync_all().await.map_err(failed(to))?;
    Ok(reader.size)
}

/// Puts a file of a backup into the store, which checks its digest; what is there already is not sent again.
pub(super) async fn put(blobs: &dyn BlobStore, digest: Digest, from: &Path) -> Result<u64> {
    let mut file = fs::File::open(from).await.map_err(failed(from))?;
    let size = file.metadata().await.map_err(failed(from))?.len();
    let id = UploadKey {
        sender: RESTORE,
        digest,
    };
    let mut at = match blobs.open_upload(id, size).await? {
        Opened::Complete(size) => return Ok(size),
        Opened::Resume(at) => at,
    };
    let seek = file.seek(std::io::SeekFrom::Start(at)).await;
    seek.map_err(failed(from))?;
    while at < size {
        let mut appender = blobs.append(id, at).await?;
        let end = size.min(at + COMMIT_EVERY);
        while at < end {
            let mut frame = vec![0; (end - at).min(FRAME_BYTES as u64) as usize];
            file.read_exact(&mut frame).await.map_err(failed(from))?;
            at += frame.len() as u64;
            appender.write(frame).await?;
        }
        appender.commit().await?;
    }
    match blobs.finish(id).await {
        Ok(size) => Ok(size),
        Err(BlobError::DigestMismatch { .. }) => Err(BackupError::Damaged(from.to_owned())),
        Err(e) => Err(e.into()),
    }
}
