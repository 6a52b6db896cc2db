//! Content-addressed bytes: ciphertexts, evaluation keys, weights, traces.
//!
//! The rest of the coordinator sees only [`BlobStore`]. An upload survives a crash of either side: bytes are made
//! durable before their offset is acknowledged, and the next [`BlobStore::open_upload`] says where to go on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cipherhop_proto::Digest;
use futures::future::BoxFuture;

mod append;
mod local;
mod partial;
mod reader;
mod s3;
mod upkeep;

pub(crate) use local::place;
pub use local::{LocalBlobs, LocalLimits};
pub use reader::{BlobReader, check_range};
pub use s3::{CredentialsError, LARGEST_PART, S3Blobs, S3Error, S3Settings, SMALLEST_PART};

/// Largest piece of a blob in one message, bytes.
pub const FRAME_BYTES: usize = 1 << 20;

/// Name of an upload: who sends it (16 bytes) and what (the digest). It is computed, not stored, so the same sender
/// finds its upload again after a restart of either side, and two senders never write into one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UploadKey {
    /// Device or account that sends.
    pub sender: [u8; 16],
    /// Content address of the finished blob.
    pub digest: Digest,
}

impl UploadKey {
    /// 48 bytes: sender, then digest.
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.sender[..], &self.digest.as_bytes()[..]].concat()
    }

    /// Parses what [`UploadKey::to_bytes`] wrote; `None` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (sender, digest) = bytes.split_at_checked(16)?;
        Some(UploadKey {
            sender: sender.try_into().ok()?,
            digest: Digest::from_bytes(digest.try_into().ok()?),
        })
    }
}

impl fmt::Display for UploadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", hex::encode(self.sender), self.digest)
    }
}

/// Answer to [`BlobStore::open_upload`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The blob is there already, of this many bytes.
    Complete(u64),
    /// Send the bytes from this offset on; all before it are durable.
    Resume(u64),
}

/// What can go wrong with a blob.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// No complete blob has this digest.
    #[error("blob {0} is not on this coordinator")]
    NotFound(Digest),
    /// Nobody opened this upload, or it was given up.
    #[error("upload {0} is not open; open it again to continue")]
    NoUpload(UploadKey),
    /// Bytes must follow on what is durable.
    #[error("append at offset {offset}, but {committed} bytes are committed; continue from there")]
    WrongOffset {
        /// Offset the sender used, bytes.
        offset: u64,
        /// Durable bytes.
        committed: u64,
    },
    /// More bytes than the upload declared.
    #[error("{got} bytes sent for an upload that declared {declared}")]
    TooLong {
        /// Bytes declared when the upload was opened.
        declared: u64,
        /// Bytes the sender would have reached.
        got: u64,
    },
    /// Finish before all bytes arrived.
    #[error("upload has {committed} of {declared} bytes; continue from offset {committed}")]
    Truncated {
        /// Bytes declared when the upload was opened.
        declared: u64,
        /// Durable bytes.
        committed: u64,
    },
    /// The bytes are not what the digest promised. The upload starts again from zero, unless its sender replaces the
    /// damaged ones first.
    #[error("the uploaded bytes hash to {actual}, not to the declared {declared}")]
    DigestMismatch {
        /// Digest of the upload.
        declared: Digest,
        /// Digest of the bytes received.
        actual: Digest,
    },
    /// The same blob was announced with another size.
    #[error("blob {digest} was announced with {before} bytes, now with {now}")]
    SizeConflict {
        /// The blob.
        digest: Digest,
        /// Size known before, bytes.
        before: u64,
        /// Size declared now, bytes.
        now: u64,
    },
    /// The blob is larger than this coordinator takes.
    #[error("blob of {size} bytes is above the limit of {limit} bytes for one blob")]
    TooLarge {
        /// Declared size, bytes.
        size: u64,
        /// Configured limit, bytes.
        limit: u64,
    },
    /// No room. Nothing that was acknowledged is lost.
    #[error(
        "no room for {needed} more bytes: {available} bytes are available below the {limit}; ask the operator for space"
    )]
    StorageFull {
        /// Bytes still to be written.
        needed: u64,
        /// Bytes that may still be used.
        available: u64,
        /// Which limit was met.
        limit: StorageLimit,
    },
    /// A newer connection took the upload over.
    #[error("another connection continues this upload")]
    TakenOver,
    /// A range beyond the blob's end.
    #[error("range at offset {offset} of length {length} is outside the blob's {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Size of the blob, bytes.
        size: u64,
    },
    /// The storage below failed.
    #[error("blob storage: {action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The storage elsewhere failed or refused.
    #[error("blob storage: {action}: {problem}")]
    Remote {
        /// What was being done.
        action: &'static str,
        /// What is wrong and what to do about it.
        problem: String,
    },
}

/// The limit that an upload met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageLimit {
    /// Free disk space that the operator keeps for other uses.
    DiskHeadroom,
    /// Quota of the blob folder.
    Quota,
}

impl fmt::Display for StorageLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StorageLimit::DiskHeadroom => "disk headroom limit",
            StorageLimit::Quota => "blob quota",
        })
    }
}

pub(crate) fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> BlobError {
    move |source| BlobError::Io { action, source }
}

/// A complete blob in storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its name.
    pub digest: Digest,
    /// Time since it was published.
    pub age: Duration,
}

/// One open stream of bytes into an upload.
pub trait Appender: Send + Sync {
    /// Writes the next bytes. They are not acknowledged before [`Appender::commit`].
    fn write(&mut self, data: Vec<u8>) -> BoxFuture<'_, Result<(), BlobError>>;
    /// In the middle of a stream: makes durable what can be made so without waiting for much, and returns how many bytes
    /// are durable in all.
    fn checkpoint(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        self.commit()
    }
    /// Makes all written bytes durable and returns how many there are in all.
    fn commit(&mut self) -> BoxFuture<'_, Result<u64, BlobError>>;
}

/// Storage of content-addressed blobs.
pub trait BlobStore: Send + Sync + 'static {
    /// Starts or finds an upload. Streams that were open on it are cut off.
    fn open_upload(&self, id: UploadKey, size: u64) -> BoxFuture<'_, Result<Opened, BlobError>>;
    /// Continues an upload at `offset`, which must be its committed length.
    fn append(
        &self,
        id: UploadKey,
        offset: u64,
    ) -> BoxFuture<'_, Result<Box<dyn Appender>, BlobError>>;
    /// Hashes all bytes and publishes the blob under its digest; returns its size. Idempotent. Bytes of another digest
    /// are refused; opening the upload again starts it anew.
    fn finish(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>>;
    /// Gives an upload up and frees its space. Does nothing where there is none.
    fn discard(&self, id: UploadKey) -> BoxFuture<'_, Result<(), BlobError>>;
    /// Durable bytes of an upload, 0 where there is none.
    fn committed(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>>;
    /// The bytes of an upload that [`BlobStore::finish`] has just refused for their digest, for finding the damaged
    /// ones. A store that cannot mend uploads has nothing to show.
    fn read_refused(&self, id: UploadKey) -> BoxFuture<'_, Result<BlobReader, BlobError>> {
        Box::pin(async move { Err(BlobError::NoUpload(id)) })
    }
    /// Replaces bytes of such an upload from `offset` on.
    fn replace(
        &self,
        id: UploadKey,
        offset: u64,
    ) -> BoxFuture<'_, Result<Box<dyn Appender>, BlobError>> {
        let _ = offset;
        Box::pin(async move { Err(BlobError::NoUpload(id)) })
    }
    /// Size of a complete blob.
    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, BlobError>>;
    /// Bytes `offset..offset + length` (to the end where `length` is 0), in frames of at most [`FRAME_BYTES`].
    fn read(
        &self,
        digest: Digest,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'_, Result<BlobReader, BlobError>>;
    /// What is stored under digests that begin with this byte, whether a row speaks of it or not. A store that has its
    /// own ways to clean up shows nothing.
    fn list(&self, first: u8) -> BoxFuture<'_, Result<Vec<Stored>, BlobError>> {
        let _ = first;
        Box::pin(async { Ok(Vec::new()) })
    }
    /// Removes a complete blob. The caller has made sure that no row speaks of it. False, and it stays, where it was
    /// published or counted on more recently than `unused_for`, or somebody else removes it; a store of one process
    /// need not look.
    fn remove(
        &self,
        digest: Digest,
        unused_for: Duration,
    ) -> BoxFuture<'_, Result<bool, BlobError>> {
        let _ = unused_for;
        Box::pin(async move { Err(BlobError::NotFound(digest)) })
    }
    /// Removes bytes that crashes left behind and that belong to no blob and no upload, unless they are younger than
    /// this; how many there were.
    fn sweep(&self, unused_for: Duration) -> BoxFuture<'_, Result<u64, BlobError>> {
        let _ = unused_for;
        Box::pin(async { Ok(0) })
    }
    /// Uploads without a new byte for so long.
    fn abandoned(&self, idle: Duration) -> BoxFuture<'_, Result<Vec<UploadKey>, BlobError>> {
        let _ = idle;
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Shared blob store.
pub type Blobs = Arc<dyn BlobStore>;

/// The whole blob, refused above `limit` bytes.
pub async fn read_all(
    blobs: &dyn BlobStore,
    digest: Digest,
    limit: u64,
) -> Result<Vec<u8>, BlobError> {
    use futures::TryStreamExt;
    let mut reader = blobs.read(digest, 0, 0).await?;
    if reader.size > limit {
        return Err(BlobError::TooLarge {
            size: reader.size,
            limit,
        });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(reader.size).unwrap_or(0));
    while let Some(frame) = reader.frames.try_next().await? {
        bytes.extend_from_slice(&frame);
    }
    Ok(bytes)
}
