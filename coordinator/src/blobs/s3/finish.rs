//! From the last byte to a blob: assemble, read back, hash, and only then the entry.

use std::sync::Arc;
use std::time::Duration;

use cipherhop_proto::{Digest, Hasher};
use futures::StreamExt as _;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _, PutPayload};

use super::super::{BlobError, UploadKey};
use super::objects::{Found, Written};
use super::records::{Entry, Upload, uuid};
use super::upkeep::SETTLED;
use super::{Inner, reader};

/// Time between two looks at an entry that another replica removes.
const LOOK: Duration = Duration::from_millis(500);
/// Looks before the sender has to come back later.
const LOOKS: u32 = 40;

impl Inner {
    pub async fn finish(self: &Arc<Self>, id: UploadKey) -> Result<u64, BlobError> {
        let slot = self.slot(id);
        let mut state = slot.state.lock().await;
        if let Some(size) = self.complete(&id.digest).await? {
            state.writer = None;
            state.generation += 1;
            self.clear(id).await?;
            return Ok(size);
        }
        if let Some(mut open) = state.writer.take() {
            open.commit(self).await?;
        }
        state.generation += 1;
        let found = self.live(id).await?.ok_or(BlobError::NoUpload(id))?;
        let (size, committed) = (found.record.size, found.record.committed());
        if committed < size {
            return Err(BlobError::Truncated {
                declared: size,
                committed,
            });
        }
        let whole = found.record.whole();
        let actual = match self.assemble(&found.record).await? {
            true => self.hash(&whole, size).await?,
            false => None,
        };
        let Some(actual) = actual else {
            tracing::warn!(upload = %id, "the storage lost parts of an upload; it starts anew");
            self.clear(id).await?;
            return Err(BlobError::Truncated {
                declared: size,
                committed: 0,
            });
        };
        if actual != id.digest {
            self.clear(id).await?;
            return Err(BlobError::DigestMismatch {
                declared: id.digest,
                actual,
            });
        }
        self.publish(id, found, &whole).await?;
        Ok(size)
    }

    /// Makes one object of the parts; false where the storage does not have them any more.
    async fn assemble(&self, record: &Upload) -> Result<bool, BlobError> {
        const ACTION: &str = "assemble an upload";
        if record.size == 0 {
            let put = self.client.put(&record.path(), PutPayload::new()).await;
            return put.map(|_| true).map_err(self.failed(ACTION));
        }
        if record.single() {
            return Ok(true);
        }
        let Some(multipart) = &record.multipart else {
            return Ok(false);
        };
        let parts = record.parts.iter().map(|part| PartId {
            content_id: part.clone(),
        });
        let path = record.path();
        let done = self
            .client
            .complete_multipart(&path, multipart, parts.collect())
            .await;
        let Err(error) = done else { return Ok(true) };
        // Done before, by a process that died, or by another replica.
        if self.size_at(&path).await? == Some(record.size) {
            return Ok(true);
        }
        let text = error.to_string();
        let lost = matches!(error, Error::NotFound { .. })
            || text.contains("NoSuchUpload")
            || text.contains("InvalidPart");
        match lost {
            true => Ok(false),
            false => Err(self.failed(ACTION)(error)),
        }
    }

    /// Digest of the bytes that the storage gives back; `None` where they are not as many as they should be.
    async fn hash(self: &Arc<Self>, path: &Path, size: u64) -> Result<Option<Digest>, BlobError> {
        if self.size_at(path).await? != Some(size) {
            return Ok(None);
        }
        let mut frames = match reader::open(self.clone(), path.clone(), 0, size, reader::HASH).await
        {
            Ok(frames) => frames,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.failed("hash an upload")(e)),
        };
        let mut hasher = Hasher::new();
        while let Some(frame) = frames.next().await {
            hasher.update(&frame?);
        }
        Ok(Some(hasher.finish()))
    }

    /// After this the blob is there for everybody.
    async fn publish(
        &self,
        id: UploadKey,
        found: Found<Upload>,
        whole: &Path,
    ) -> Result<(), BlobError> {
        // Whoever gives uploads up keeps off this one from here on.
        let mut record = found.record;
        record.publishing = true;
        record.mark = uuid();
        let (path, over) = (self.layout.upload(id), Some(found.version));
        if let Written::Lost = self.put(&path, &record, over, "publish a blob").await? {
            return Err(BlobError::TakenOver);
        }
        let entry = Entry {
            object: whole.to_string(),
            size: record.size,
            removing: false,
            mark: uuid(),
        };
        let ours = self.enter(&id.digest, &entry).await?;
        for object in [Some(record.path()), record.tail_path()] {
            if let Some(object) = object.filter(|object| !ours || object != whole) {
                self.tidy(&object).await;
            }
        }
        self.tidy(&path).await;
        Ok(())
    }

    /// Writes the entry; false where another sender was quicker, whose bytes are as good.
    async fn enter(&self, digest: &Digest, entry: &Entry) -> Result<bool, BlobError> {
        const ACTION: &str = "publish a blob";
        let path = self.layout.entry(digest);
        let mut over = None;
        for _ in 0..LOOKS {
            if let Written::Done(_) = self.put(&path, entry, over.take(), ACTION).await? {
                return Ok(true);
            }
            let (found, version) = self.get::<Entry>(&path, ACTION).await?;
            match found {
                // Written, and the answer was lost on the way.
                Some(found) if found.record.object == entry.object => return Ok(true),
                Some(found) if !found.record.removing => return Ok(false),
                // Whoever removes it is done in a moment, or died long ago.
                Some(found) if found.age < SETTLED => tokio::time::sleep(LOOK).await,
                _ => over = version,
            }
        }
        Err(BlobError::Remote {
            action: ACTION,
            problem: "another coordinator is removing this blob; send it again later".into(),
        })
    }
}
