//! What lies in the bucket and for how long, and its removal, while other replicas work.
//!
//! S3 has no conditional delete that every storage knows. So a record is marked on a condition first, which makes
//! everybody keep off it, and whoever finds a mark that is fresh waits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cipherhop_proto::Digest;
use futures::TryStreamExt as _;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore};

use super::super::append::lock;
use super::super::upkeep::upload_of;
use super::super::{BlobError, Stored, UploadKey};
use super::objects::{Found, Written, age};
use super::records::{Entry, Upload, uuid};
use super::{Inner, TRIES};

/// A mark older than this is of a process that died.
pub(super) const SETTLED: Duration = Duration::from_secs(600);

impl Inner {
    pub async fn list(&self, first: u8) -> Result<Vec<Stored>, BlobError> {
        let listed = self.client.list(Some(&self.layout.entries(first)));
        let listed: Vec<_> = listed
            .try_collect()
            .await
            .map_err(self.failed("list blobs"))?;
        let stored = listed.iter().filter_map(|meta| {
            Some(Stored {
                digest: self.layout.entry_digest(&meta.location)?,
                age: age(meta),
            })
        });
        Ok(stored.collect())
    }

    pub async fn remove(&self, digest: Digest, unused_for: Duration) -> Result<bool, BlobError> {
        const ACTION: &str = "remove a blob";
        let path = self.layout.entry(&digest);
        let (found, version) = self.get::<Entry>(&path, ACTION).await?;
        let Some(version) = version else {
            return Err(BlobError::NotFound(digest));
        };
        let Some(found) = found else {
            // Not in our form: nobody can read it.
            return self.delete(&path).await.map(|()| true);
        };
        let patience = match found.record.removing {
            true => SETTLED,
            false => unused_for,
        };
        if found.age < patience {
            return Ok(false);
        }
        let mut entry = found.record;
        entry.removing = true;
        entry.mark = uuid();
        if let Written::Lost = self.put(&path, &entry, Some(version), ACTION).await? {
            return Ok(false);
        }
        let marked = Instant::now();
        lock(&self.entries).remove(&digest);
        self.delete(&entry.path()).await?;
        // Held up for so long that others may have stopped waiting: the next round does it.
        if marked.elapsed() > SETTLED / 4 {
            return Ok(false);
        }
        self.delete(&path).await?;
        Ok(true)
    }

    pub async fn abandoned(&self, idle: Duration) -> Result<Vec<UploadKey>, BlobError> {
        let listed = self.client.list(Some(&self.layout.uploads()));
        let listed: Vec<_> = listed
            .try_collect()
            .await
            .map_err(self.failed("list uploads"))?;
        // The record is written with every commit.
        let idle = listed.iter().filter(|meta| age(meta) >= idle);
        let named = idle.filter_map(|meta| upload_of(meta.location.filename()?));
        Ok(named.collect())
    }

    pub async fn discard(&self, id: UploadKey) -> Result<(), BlobError> {
        let slot = self.slot(id);
        let mut state = slot.state.lock().await;
        state.generation += 1;
        state.writer = None;
        self.clear(id).await
    }

    /// Removes an upload and its bytes, but for those that became a blob.
    pub(super) async fn clear(&self, id: UploadKey) -> Result<(), BlobError> {
        let path = self.layout.upload(id);
        for _ in 0..TRIES {
            let (found, version) = self.upload(id).await?;
            let Some(found) = found else {
                return match version {
                    Some(_) => self.delete(&path).await,
                    None => Ok(()),
                };
            };
            // Its entry is being written; what is left of it is found later.
            if found.record.publishing && found.age < SETTLED {
                return Ok(());
            }
            if self.mark_removing(id, found).await?.is_some() {
                return self.delete(&path).await;
            }
        }
        Err(BlobError::TakenOver)
    }

    /// Cuts off whoever writes and removes the bytes; the record stays. `None` where somebody else changed it.
    pub(super) async fn mark_removing(
        &self,
        id: UploadKey,
        found: Found<Upload>,
    ) -> Result<Option<object_store::UpdateVersion>, BlobError> {
        let path = self.layout.upload(id);
        let mut record = found.record;
        record.removing = true;
        record.mark = uuid();
        let over = Some(found.version);
        let written = self.put(&path, &record, over, "give an upload up").await?;
        let Written::Done(version) = written else {
            return Ok(None);
        };
        let entry = self.layout.entry(&id.digest);
        let (entry, _) = self.get::<Entry>(&entry, "give an upload up").await?;
        let kept = entry.map(|found| found.record.path());
        if let Some(multipart) = &record.multipart {
            let ended = self.client.abort_multipart(&record.path(), multipart).await;
            if let Err(error) = ended {
                let error_at = self.failed("give an upload up");
                match error {
                    // Complete already, or gone: no parts are left either way.
                    Error::NotFound { .. } => {}
                    // Some say so to an upload that is gone, too.
                    Error::PermissionDenied { .. } => {
                        tracing::warn!(upload = %id, error = %error_at(error), "a multipart upload could not be ended");
                    }
                    error => return Err(error_at(error)),
                }
            }
        }
        for object in [Some(record.path()), record.tail_path()] {
            if let Some(object) = object.filter(|object| Some(object) != kept.as_ref()) {
                self.delete(&object).await?;
            }
        }
        Ok(Some(version))
    }

    /// Removes bytes that no entry and no upload speaks of.
    pub async fn sweep(&self, unused_for: Duration) -> Result<u64, BlobError> {
        // Uploads before entries: an upload's record goes only after its entry is written.
        let mut owned = HashSet::new();
        for id in self.abandoned(Duration::ZERO).await? {
            if let (Some(found), _) = self.upload(id).await? {
                owned.insert(found.record.path());
                owned.extend(found.record.tail_path());
            }
        }
        let listed = self.client.list(Some(&self.layout.data()));
        let listed: Vec<_> = listed
            .try_filter(|meta| std::future::ready(age(meta) >= unused_for))
            .map_ok(|meta| meta.location)
            .try_collect()
            .await
            .map_err(self.failed("list bytes"))?;
        let mut swept = 0;
        for path in listed {
            let Some(digest) = self.layout.data_digest(&path) else {
                continue;
            };
            if !owned.contains(&path) && !self.entered(&digest, &path).await? {
                self.delete(&path).await?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    async fn entered(&self, digest: &Digest, object: &Path) -> Result<bool, BlobError> {
        let known = lock(&self.entries).get(digest).map(Entry::path);
        if known.as_ref() == Some(object) {
            return Ok(true);
        }
        let entry = self.layout.entry(digest);
        let (found, _) = self.get::<Entry>(&entry, "look up a blob").await?;
        Ok(found.is_some_and(|found| found.record.path() == *object))
    }
}
