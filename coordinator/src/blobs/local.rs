//! Blobs in a local folder: `sha256/ab/REST` for complete ones, `uploads/` for partial ones.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cipherhop_proto::Digest;
use futures::future::BoxFuture;

use super::append::{LocalAppender, LocalReplacer, Slot, SlotState, blocking, lock};
use super::partial::{self, Partial, sync_dir};
use super::upkeep;
use super::{
    Appender, BlobError, BlobReader, BlobStore, Opened, StorageLimit, Stored, UploadKey,
    check_range, io,
};

/// What a local blob folder may use.
#[derive(Clone, Copy, Debug)]
pub struct LocalLimits {
    /// Disk space that is left to others, bytes.
    pub headroom_bytes: u64,
    /// Most that complete blobs and open uploads may take together, bytes.
    pub quota_bytes: Option<u64>,
    /// Largest single blob, bytes.
    pub max_blob_bytes: u64,
}

impl Default for LocalLimits {
    fn default() -> Self {
        LocalLimits {
            headroom_bytes: 256 << 20,
            quota_bytes: None,
            max_blob_bytes: 64 << 30,
        }
    }
}

/// Blob store in a local folder.
#[derive(Clone)]
pub struct LocalBlobs {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    limits: LocalLimits,
    ledger: Mutex<Ledger>,
}

/// What is in the folder and what is promised to open uploads.
#[derive(Default)]
struct Ledger {
    complete_bytes: u64,
    /// Declared size of each open upload, bytes.
    promised: HashMap<UploadKey, u64>,
    active: HashMap<UploadKey, Arc<Slot>>,
}

impl LocalBlobs {
    /// Opens the folder, making it when new. Counts what is there; nothing is deleted.
    pub fn open(root: &Path, limits: LocalLimits) -> Result<LocalBlobs, BlobError> {
        let inner = Inner {
            root: root.to_owned(),
            limits,
            ledger: Mutex::default(),
        };
        for folder in [inner.uploads(), inner.complete()] {
            fs::create_dir_all(&folder).map_err(io("make the blob folder"))?;
        }
        sync_dir(root).map_err(io("make the blob folder durable"))?;
        let mut ledger = Ledger::default();
        for shard in fs::read_dir(inner.complete()).map_err(io("list blobs"))? {
            for file in
                fs::read_dir(shard.map_err(io("list blobs"))?.path()).map_err(io("list blobs"))?
            {
                ledger.complete_bytes += file
                    .and_then(|f| f.metadata())
                    .map_err(io("list blobs"))?
                    .len();
            }
        }
        for file in fs::read_dir(inner.uploads()).map_err(io("list uploads"))? {
            let name = file.map_err(io("list uploads"))?.file_name();
            let Some(name) = name.to_str().and_then(|n| n.strip_suffix(".state")) else {
                continue;
            };
            let Some(id) = upkeep::upload_of(name) else {
                continue;
            };
            if let Some((size, _)) = partial::peek(&inner.uploads(), name) {
                ledger.promised.insert(id, size);
            }
        }
        *lock(&inner.ledger) = ledger;
        Ok(LocalBlobs {
            inner: Arc::new(inner),
        })
    }
}

/// Folder of the complete blobs.
const COMPLETE: &str = "sha256";

/// Path of a complete blob below the blob folder `root`.
pub(crate) fn place(root: &Path, digest: &Digest) -> PathBuf {
    let name = hex::encode(digest.as_bytes());
    root.join(COMPLETE).join(&name[..2]).join(&name[2..])
}

impl Inner {
    fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    fn complete(&self) -> PathBuf {
        self.root.join(COMPLETE)
    }

    /// Folder and path of a complete blob.
    fn place(&self, digest: &Digest) -> (PathBuf, PathBuf) {
        let path = place(&self.root, digest);
        let shard = path.parent().unwrap_or(&self.root).to_owned();
        (shard, path)
    }

    fn size_of(&self, digest: &Digest) -> Result<Option<u64>, BlobError> {
        match fs::metadata(self.place(digest).1) {
            Ok(meta) => Ok(Some(meta.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io("look up a blob")(e)),
        }
    }

    fn slot(&self, id: UploadKey) -> Arc<Slot> {
        let mut ledger = lock(&self.ledger);
        if ledger.active.len() > 1024 {
            ledger.active.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        ledger.active.entry(id).or_default().clone()
    }

    /// Checks that `size` bytes for this upload, `have` of them on disk already, fit beside everything promised.
    fn reserve(&self, id: UploadKey, size: u64, have: u64) -> Result<(), BlobError> {
        let disk = nix::sys::statvfs::statvfs(&self.root)
            .map_err(|e| io("ask for free space")(e.into()))?;
        #[allow(clippy::unnecessary_cast)] // narrower types on some platforms
        let free = (disk.blocks_available() as u64).saturating_mul(disk.fragment_size() as u64);
        let mut ledger = lock(&self.ledger);
        // Bytes that other uploads have on disk already are counted twice here; the error is on the safe side.
        let others: u64 = ledger
            .promised
            .iter()
            .filter(|(other, _)| **other != id)
            .map(|(_, size)| size)
            .sum();
        let needed = size - have.min(size);
        let mut room = vec![(
            free.saturating_sub(self.limits.headroom_bytes + others),
            StorageLimit::DiskHeadroom,
        )];
        if let Some(quota) = self.limits.quota_bytes {
            room.push((
                quota.saturating_sub(ledger.complete_bytes + others + have),
                StorageLimit::Quota,
            ));
        }
        for (available, limit) in room {
            if needed > available {
                return Err(BlobError::StorageFull {
                    needed,
                    available,
                    limit,
                });
            }
        }
        ledger.promised.insert(id, size);
        Ok(())
    }

    fn open_upload(&self, id: UploadKey, size: u64) -> Result<Opened, BlobError> {
        let slot = self.slot(id);
        let mut state = lock(&slot.state);
        if let Some(complete) = self.size_of(&id.digest)? {
            if complete != size {
                return Err(BlobError::SizeConflict {
                    digest: id.digest,
                    before: complete,
                    now: size,
                });
            }
            return Ok(Opened::Complete(complete));
        }
        if size > self.limits.max_blob_bytes {
            return Err(BlobError::TooLarge {
                size,
                limit: self.limits.max_blob_bytes,
            });
        }
        state.generation += 1;
        if let Some(open) = &mut state.partial {
            // What the cut-off stream wrote is worth keeping.
            open.commit().map_err(io("make an upload durable"))?;
        }
        state.partial = None;
        let name = id.to_string();
        let found = Partial::open(&self.uploads(), &name).map_err(io("open an upload"))?;
        // A sender that changes its mind about the size starts anew, and so does one whose bytes were refused.
        let refused = std::mem::take(&mut state.refused);
        if let Some(found) = found.filter(|found| found.size == size && !refused) {
            self.reserve(id, size, found.committed)?;
            return Ok(Opened::Resume(found.committed));
        }
        self.reserve(id, size, 0)?;
        Partial::create(&self.uploads(), &name, size).map_err(io("start an upload"))?;
        Ok(Opened::Resume(0))
    }

    fn append(self: &Arc<Self>, id: UploadKey, offset: u64) -> Result<LocalAppender, BlobError> {
        let slot = self.slot(id);
        let mut state = lock(&slot.state);
        if let Some(open) = &mut state.partial {
            open.commit().map_err(io("make an upload durable"))?;
        }
        state.partial = None;
        let found =
            Partial::open(&self.uploads(), &id.to_string()).map_err(io("open an upload"))?;
        let found = found.ok_or(BlobError::NoUpload(id))?;
        if offset != found.committed {
            return Err(BlobError::WrongOffset {
                offset,
                committed: found.committed,
            });
        }
        state.generation += 1;
        let generation = state.generation;
        state.partial = Some(found);
        drop(state);
        Ok(LocalAppender { slot, generation })
    }

    fn finish(&self, id: UploadKey) -> Result<u64, BlobError> {
        let slot = self.slot(id);
        let mut state = lock(&slot.state);
        if let Some(size) = self.size_of(&id.digest)? {
            self.forget(id);
            return Ok(size);
        }
        if let Some(open) = &mut state.partial {
            open.commit().map_err(io("make an upload durable"))?;
        }
        state.generation += 1;
        state.partial = None;
        let found =
            Partial::open(&self.uploads(), &id.to_string()).map_err(io("open an upload"))?;
        let found = found.ok_or(BlobError::NoUpload(id))?;
        if found.committed < found.size {
            return Err(BlobError::Truncated {
                declared: found.size,
                committed: found.committed,
            });
        }
        let actual = Digest::from_bytes(found.hash().map_err(io("hash an upload"))?);
        let refused = std::mem::replace(&mut state.refused, actual != id.digest);
        if actual != id.digest {
            if refused {
                // Replacing did not help.
                state.refused = false;
                self.forget(id);
            }
            return Err(BlobError::DigestMismatch {
                declared: id.digest,
                actual,
            });
        }
        self.publish(id, &found).map_err(io("publish a blob"))?;
        cipherhop_failpoint::at("publish.durable");
        lock(&self.ledger).complete_bytes += found.size;
        self.forget(id);
        Ok(found.size)
    }

    /// An upload that was refused, for reading it or replacing parts of it.
    fn refused(&self, id: UploadKey, state: &mut SlotState) -> Result<Partial, BlobError> {
        if !state.refused {
            return Err(BlobError::NoUpload(id));
        }
        state.generation += 1;
        state.partial = None;
        let found =
            Partial::open(&self.uploads(), &id.to_string()).map_err(io("open an upload"))?;
        found.ok_or(BlobError::NoUpload(id))
    }

    fn read_refused(&self, id: UploadKey) -> Result<BlobReader, BlobError> {
        let slot = self.slot(id);
        let found = self.refused(id, &mut lock(&slot.state))?;
        let committed = found.committed;
        Ok(BlobReader::of_file(
            found.into_part(),
            committed,
            0,
            committed,
        ))
    }

    fn replace(&self, id: UploadKey, offset: u64) -> Result<LocalReplacer, BlobError> {
        let slot = self.slot(id);
        let mut state = lock(&slot.state);
        state.partial = Some(self.refused(id, &mut state)?);
        let generation = state.generation;
        drop(state);
        Ok(LocalReplacer {
            slot,
            generation,
            at: offset,
        })
    }

    /// After this the blob is durable under its digest.
    fn publish(&self, id: UploadKey, found: &Partial) -> std::io::Result<()> {
        found.sync_all()?;
        let (shard, path) = self.place(&id.digest);
        if !shard.is_dir() {
            fs::create_dir_all(&shard)?;
            sync_dir(&self.complete())?;
        }
        let (part, _) = partial::paths(&self.uploads(), &id.to_string());
        cipherhop_failpoint::at("publish.rename.before");
        fs::rename(part, path)?;
        cipherhop_failpoint::at("publish.renamed");
        sync_dir(&shard)?;
        sync_dir(&self.uploads())
    }

    fn remove(&self, digest: Digest) -> Result<(), BlobError> {
        let (shard, path) = self.place(&digest);
        let size = self.size_of(&digest)?.ok_or(BlobError::NotFound(digest))?;
        fs::remove_file(path).map_err(io("remove a blob"))?;
        let mut ledger = lock(&self.ledger);
        ledger.complete_bytes = ledger.complete_bytes.saturating_sub(size);
        drop(ledger);
        sync_dir(&shard).map_err(io("remove a blob"))
    }

    /// Drops what is left of an upload; a leftover file is harmless, so failures are ignored.
    fn forget(&self, id: UploadKey) {
        let (part, state) = partial::paths(&self.uploads(), &id.to_string());
        let _ = fs::remove_file(state);
        let _ = fs::remove_file(part);
        lock(&self.ledger).promised.remove(&id);
    }
}

impl BlobStore for LocalBlobs {
    fn open_upload(&self, id: UploadKey, size: u64) -> BoxFuture<'_, Result<Opened, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || inner.open_upload(id, size)))
    }

    fn append(
        &self,
        id: UploadKey,
        offset: u64,
    ) -> BoxFuture<'_, Result<Box<dyn Appender>, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || {
            inner
                .append(id, offset)
                .map(|a| Box::new(a) as Box<dyn Appender>)
        }))
    }

    fn finish(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || inner.finish(id)))
    }

    fn discard(&self, id: UploadKey) -> BoxFuture<'_, Result<(), BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || {
            let slot = inner.slot(id);
            let mut state = lock(&slot.state);
            state.generation += 1;
            state.partial = None;
            inner.forget(id);
            Ok(())
        }))
    }

    fn committed(&self, id: UploadKey) -> BoxFuture<'_, Result<u64, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || {
            Ok(partial::peek(&inner.uploads(), &id.to_string())
                .map_or(0, |(_, committed)| committed))
        }))
    }

    fn read_refused(&self, id: UploadKey) -> BoxFuture<'_, Result<BlobReader, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || inner.read_refused(id)))
    }

    fn replace(
        &self,
        id: UploadKey,
        offset: u64,
    ) -> BoxFuture<'_, Result<Box<dyn Appender>, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || {
            inner
                .replace(id, offset)
                .map(|a| Box::new(a) as Box<dyn Appender>)
        }))
    }

    fn list(&self, first: u8) -> BoxFuture<'_, Result<Vec<Stored>, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || upkeep::list(&inner.complete(), first)))
    }

    fn remove(&self, digest: Digest, _: Duration) -> BoxFuture<'_, Result<bool, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || inner.remove(digest).map(|()| true)))
    }

    fn abandoned(&self, idle: Duration) -> BoxFuture<'_, Result<Vec<UploadKey>, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || upkeep::abandoned(&inner.uploads(), idle)))
    }

    fn stat(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || inner.size_of(&digest)))
    }

    fn read(
        &self,
        digest: Digest,
        offset: u64,
        length: u64,
    ) -> BoxFuture<'_, Result<BlobReader, BlobError>> {
        let inner = self.inner.clone();
        Box::pin(blocking(move || {
            let file = File::open(inner.place(&digest).1).map_err(|e| match e.kind() {
                ErrorKind::NotFound => BlobError::NotFound(digest),
                _ => io("open a blob")(e),
            })?;
            let size = file.metadata().map_err(io("open a blob"))?.len();
            let end = check_range(size, offset, length)?;
            Ok(BlobReader::of_file(file, size, offset, end))
        }))
    }
}
