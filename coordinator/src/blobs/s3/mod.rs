//! Blobs in S3-compatible storage. All state is in the bucket, so several coordinators may share one.
//!
//! What is acknowledged is durable: whole parts of a multipart upload that the storage has taken, and behind them a tail
//! too short for a part, which is an object of its own (a part that is not the last must have 5 MiB, and a local spool
//! would tie the upload to one replica). The upload's record, written on a condition, names both. Finish assembles the
//! object, reads it back to hash it, and only then writes the entry that makes it a blob; nothing is copied.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cipherhop_proto::Digest;
use futures::future::BoxFuture;
use object_store::aws::AmazonS3;
use object_store::{Error, UpdateVersion};

use super::append::lock;
use super::{Appender, BlobError, BlobReader, BlobStore, Opened, Stored, UploadKey, check_range};

mod connect;
mod credentials;
mod finish;
mod objects;
mod reader;
mod records;
mod upkeep;
mod writer;

pub use connect::{LARGEST_PART, S3Error, S3Settings, SMALLEST_PART};
pub use credentials::CredentialsError;
use objects::{Found, Written};
use records::{Entry, Layout, Upload, uuid};
use upkeep::SETTLED;
use writer::{S3Appender, Slot, Writer};

/// Entries that are remembered for reading.
const REMEMBERED: usize = 1 << 16;
/// Attempts of a change that others interfere with.
const TRIES: usize = 5;

/// Blob store in a bucket.
#[derive(Clone)]
pub struct S3Blobs {
    inner: Arc<Inner>,
}

struct Inner {
    client: AmazonS3,
    layout: Layout,
    settings: S3Settings,
    max_blob_bytes: u64,
    slots: Mutex<HashMap<UploadKey, Arc<Slot>>>,
    /// Entries read before. Bytes never change, so an old one is wrong only when the blob was removed.
    entries: Mutex<HashMap<Digest, Entry>>,
}

impl S3Blobs {
    /// Opens the bucket and tries what a coordinator needs of it, so that a wrong setting is told at the start.
    pub async fn open(settings: S3Settings, max_blob_bytes: u64) -> Result<S3Blobs, S3Error> {
        let client = connect::client(&settings)?;
        let layout = Layout::new(&settings.prefix);
        connect::probe(&client, &layout, &settings).await?;
        Ok(S3Blobs {
            inner: Arc::new(Inner {
                client,
                layout,
                settings,
                max_blob_bytes,
                slots: Mutex::default(),
                entries: Mutex::default(),
            }),
        })
    }

    /// Size of a complete blob's bytes as the storage has them, which may be damaged; `None` where they are missing.
    pub async fn stored_size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let inner = &self.inner;
        let Some(found) = inner.entry(&digest).await? else {
            return Ok(None);
        };
        inner.size_at(&found.record.path()).await
    }
}

impl Inner {
    /// The entry of a blob, asked of the storage. One on its way out is none.
    async fn entry(&self, digest: &Digest) -> Result<Option<Found<Entry>>, BlobError> {
        let path = self.layout.entry(digest);
        let (found, _) = self.get::<Entry>(&path, "look up a blob").await?;
        let found = found.filter(|found| !found.record.removing);
        let mut entries = lock(&self.entries);
        match &found {
            Some(found) => {
                if entries.len() >= REMEMBERED {
                    entries.clear();
                }
                entries.insert(*digest, found.record.clone());
            }
            None => {
                entries.remove(digest);
            }
        }
        drop(entries);
        Ok(found)
    }

    async fn upload(
        &self,
        id: UploadKey,
    ) -> Result<(Option<Found<Upload>>, Option<UpdateVersion>), BlobError> {
        let path = self.layout.upload(id);
        self.get(&path, "look up an upload").await
    }

    /// An upload that can go on.
    async fn live(&self, id: UploadKey) -> Result<Option<Found<Upload>>, BlobError> {
        let (found, _) = self.upload(id).await?;
        Ok(found.filter(|found| !found.record.removing))
    }

    fn slot(&self, id: UploadKey) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if slots.len() > 1024 {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(id).or_default().clone()
    }

    async fn open_upload(self: &Arc<Self>, id: UploadKey, size: u64) -> Result<Opened, BlobError> {
        let slot = self.slot(id);
        let mut state = slot.state.lock().await;
        if let Some(complete) = self.complete(&id.digest).await? {
            if complete != size {
                return Err(BlobError::SizeConflict {
                    digest: id.digest,
                    before: complete,
                    now: size,
                });
            }
            return Ok(Opened::Complete(complete));
        }
        if size > self.max_blob_bytes {
            return Err(BlobError::TooLarge {
                size,
                limit: self.max_blob_bytes,
            });
        }
        state.generation += 1;
        if let Some(mut open) = state.writer.take() {
            // What the cut-off stream wrote is worth keeping.
            open.commit(self).await?;
        }
        for _ in 0..TRIES {
            if let Some(committed) = self.begin(id, size).await? {
                return Ok(Opened::Resume(committed));
            }
        }
        Err(BlobError::TakenOver)
    }

    /// Takes an upload over or starts it: its committed bytes. `None` where somebody else changed it meanwhile.
    async fn begin(&self, id: UploadKey, size: u64) -> Result<Option<u64>, BlobError> {
        let (found, mut version) = self.upload(id).await?;
        let fresh = || {
            let object = self.layout.fresh_data(&id.digest);
            Upload::new(size, self.settings.part_bytes, &object)
        };
        let mut record = match found {
            // Another replica publishes it: Finish will find that.
            Some(found) if found.record.publishing && found.age < SETTLED => {
                return match found.record.size == size {
                    true => Ok(Some(found.record.committed())),
                    false => Err(BlobError::TakenOver),
                };
            }
            Some(found) if found.record.size == size && !found.record.removing => found.record,
            // A sender that changes its mind about the size starts anew.
            Some(found) => {
                version = self.mark_removing(id, found).await?;
                if version.is_none() {
                    return Ok(None);
                }
                fresh()
            }
            None => fresh(),
        };
        record.mark = uuid();
        record.publishing = false;
        let path = self.layout.upload(id);
        match self.put(&path, &record, version, "open an upload").await? {
            Written::Done(_) => Ok(Some(record.committed())),
            Written::Lost => Ok(None),
        }
    }

    /// Size of a complete blob that somebody is about to count on. The entry is written anew, so that nobody removes it
    /// for being old and unused.
    async fn complete(&self, digest: &Digest) -> Result<Option<u64>, BlobError> {
        let path = self.layout.entry(digest);
        for _ in 0..TRIES {
            let Some(found) = self.entry(digest).await? else {
                return Ok(None);
            };
            let mut entry = found.record;
            entry.mark = uuid();
            let over = Some(found.version);
            if let Written::Done(_) = self.put(&path, &entry, over, "look up a blob").await? {
                return Ok(Some(entry.size));
            }
        }
        Err(BlobError::TakenOver)
    }

    async fn append(self: &Arc<Self>, id: UploadKey, offset: u64) -> Result<S3Appender, BlobError> {
        let slot = self.slot(id);
        let mut state = slot.state.lock().await;
        if let Some(mut open) = state.writer.take() {
            open.commit(self).await?;
        }
        let found = self.live(id).await?.ok_or(BlobError::NoUpload(id))?;
        let committed = found.record.committed();
        if offset != committed {
            return Err(BlobError::WrongOffset { offset, committed });
        }
        let writer = Writer::open(self, id, found.record, found.version).await?;
        state.generation += 1;
        state.writer = Some(writer);
        let generation = state.generation;
        drop(state);
        Ok(S3Appender {
            inner: self.clone(),
            slot,
            generation,
        })
    }

    async fn read(
        self: &Arc<Self>,
        digest: Digest,
        offset: u64,
        length: u64,
    ) -> Result<BlobReader, BlobError> {
        let known = lock(&self.entries).get(&digest).cloned();
        let entry = match known {
            Some(entry) => entry,
            None => match self.entry(&digest).await? {
                Some(found) => found.record,
                None => return Err(BlobError::NotFound(digest)),
            },
        };
        match self.reader(&digest, &entry, offset, length).await {
            Err(BlobError::NotFound(_)) => {}
            other => return other,
        }
        // What was remembered may be of a blob that was removed, and sent again, by another replica.
        match self.entry(&digest).await? {
            Some(found) => self.reader(&digest, &found.record, offset, length).await,
            None => Err(BlobError::NotFound(digest)),
        }
    }

    async fn reader(
        self: &Arc<Self>,
        digest: &Digest,
        entry: &Entry,
        offset: u64,
        length: u64,
    ) -> Result<BlobReader, BlobError> {
        let end = check_range(entry.size, offset, length)?;
        match reader::open(self.clone(), entry.path(), offset, end, reader::CLIENT).await {
            Ok(frames) => Ok(BlobReader {
                size: entry.size,
                frames,
            }),
            Err(Error::NotFound { .. }) => Err(BlobError::NotFound(*digest)),
            Err(e) => Err(self.failed("read a blob")(e)),
        }
    }
}

impl BlobStore for S3Blobs {
    fn open_upload(&self, id: UploadKey, size: u64) -> BoxFuture<'_, Result<Opened, BlobError>> {
        Box::pin(self.inner.open_upload(id, size))
    }

    fn append(
        &self,
        id: UploadKey,
        offset: u64,
    ) -> BoxFuture<'_, Result<Box<dyn Appender>, BlobError>> {
        Box::pin(async move {
            let appender = self.inner.append(id, offset).await?;
            Ok(Box::new(appender) as Box<dyn Appender>)
        })
    }

    fn finish(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(async move {
            // It goes on when the caller gives up: reading gigabytes back takes a while, and who asks again finds it done.
            let finishing = tokio::spawn(async move { inner.finish(id).await });
            finishing.await.unwrap_or_else(|e| {
                Err(BlobError::Io {
                    action: "finish an upload",
                    source: std::io::Error::other(e),
                })
            })
        })
    }

    fn discard(&self, id: UploadKey) -> BoxFuture<'_, Result<(), BlobError>> {
        Box::pin(self.inner.discard(id))
    }

    fn committed(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>> {
        Box::pin(async move {
            let found = self.inner.live(id).await?;
            Ok(found.map_or(0, |found| found.record.committed()))
        })
    }

    fn list(&self, first: u8) -> BoxFuture<'_, Result<Vec<Stored>, BlobError>> {
        Box::pin(self.inner.list(first))
    }

    fn remove(
        &self,
        digest: Digest,
        unused_for: Duration,
    ) -> BoxFuture<'_, Result<bool, BlobError>> {
        Box::pin(self.inner.remove(digest, unused_for))
    }

    fn abandoned(&self, idle: Duration) -> BoxFuture<'_, Result<Vec<UploadKey>, BlobError>> {
        Box::pin(self.inner.abandoned(idle))
    }

    fn sweep(&self, unused_for: Duration) -> BoxFuture<'_, Result<u64, BlobError>> {
        Box::pin(self.inner.sweep(unused_for))
    }

    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        Box::pin(async move {
            let found = self.inner.entry(&digest).await?;
            Ok(found.map(|found| found.record.size))
        })
    }

    fn read(
        &self,
        digest: Digest,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'_, Result<BlobReader, BlobError>> {
        Box::pin(self.inner.read(digest, offset, length))
    }
}
