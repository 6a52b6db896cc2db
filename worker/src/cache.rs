//! The content cache: blobs by digest, shared by the hops of a chain. A quota bounds it; the least recently used
//! blob goes first, and one that is in use never goes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cipherhop_proto::Digest;

use crate::error::WorkerError;

/// The cache of one data folder.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    quota: u64,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Digest, Entry>,
    /// Bytes promised to downloads under way.
    reserved: u64,
    /// Counts uses; higher is later.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    size: u64,
    used: u64,
    pins: u32,
}

impl Inner {
    fn stored(&self) -> u64 {
        self.entries.values().map(|e| e.size).sum()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// While it lives, the blob stays in the cache.
#[derive(Debug)]
pub struct Pin {
    cache: Cache,
    digest: Digest,
}

/// Room kept free for blobs about to be fetched.
#[derive(Debug)]
pub struct Reservation {
    cache: Cache,
    bytes: u64,
}

/// Bytes and blobs in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CacheUse {
    /// Bytes stored.
    pub bytes: u64,
    /// Bytes of blobs in use.
    pub in_use: u64,
    /// Number of blobs.
    pub blobs: usize,
    /// The limit, bytes.
    pub quota: u64,
}

impl Cache {
    /// Reads the folder. Parts of broken downloads are left for resuming, for a week.
    pub fn open(folder: &Path, quota: u64) -> Result<Cache, WorkerError> {
        let mut found: Vec<(SystemTime, Digest, u64)> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(WorkerError::file(folder))? {
            let entry = entry.map_err(WorkerError::file(folder))?;
            let meta = entry.metadata().map_err(WorkerError::file(&entry.path()))?;
            let name = entry.file_name();
            if Path::new(&name).extension().is_some_and(|e| e == "part") && is_stale(&meta) {
                std::fs::remove_file(entry.path()).map_err(WorkerError::file(&entry.path()))?;
                continue;
            }
            if let (true, Some(Ok(digest))) =
                (meta.is_file(), name.to_str().map(str::parse::<Digest>))
            {
                found.push((
                    meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    digest,
                    meta.len(),
                ));
            }
        }
        found.sort();
        let mut inner = Inner::default();
        for (_, digest, size) in found {
            let used = inner.tick();
            inner.entries.insert(
                digest,
                Entry {
                    size,
                    used,
                    pins: 0,
                },
            );
        }
        Ok(Cache {
            folder: folder.to_owned(),
            quota,
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// Where a blob lies, or will.
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// The folder with all blobs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Marks a blob as used now and keeps it for as long as the pin lives; `None` when it is not here with this size.
    pub fn pin(&self, digest: &Digest, size: u64) -> Option<Pin> {
        let mut inner = self.lock();
        let used = inner.tick();
        let entry = inner
            .entries
            .get_mut(digest)
            .filter(|entry| entry.size == size)?;
        entry.used = used;
        entry.pins += 1;
        drop(inner);
        // The order survives a restart in the files' times; without it only the order is lost.
        let touched = std::fs::File::options()
            .append(true)
            .open(self.path(digest));
        if let Err(error) = touched.and_then(|file| file.set_modified(SystemTime::now())) {
            tracing::debug!(%digest, %error, "the time of use was not kept");
        }
        Some(Pin {
            cache: self.clone(),
            digest: *digest,
        })
    }

    /// Makes room for `bytes` by removing blobs that are not in use, oldest first.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, WorkerError> {
        let mut inner = self.lock();
        let pinned: u64 = inner
            .entries
            .values()
            .filter(|e| e.pins > 0)
            .map(|e| e.size)
            .sum();
        let fixed = pinned.saturating_add(inner.reserved).saturating_add(bytes);
        if fixed > self.quota {
            return Err(WorkerError::Resources(format!(
                "the cache's quota of {} does not hold the {} this hop needs at once: raise --cache",
                crate::units::bytes(self.quota),
                crate::units::bytes(fixed)
            )));
        }
        while inner
            .stored()
            .saturating_add(inner.reserved)
            .saturating_add(bytes)
            > self.quota
        {
            let oldest = inner
                .entries
                .iter()
                .filter(|(_, e)| e.pins == 0)
                .min_by_key(|(_, e)| e.used);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else {
                break;
            };
            self.remove_file(&digest)?;
            inner.entries.remove(&digest);
            tracing::debug!(%digest, "removed from the cache to make room");
        }
        inner.reserved = inner.reserved.saturating_add(bytes);
        Ok(Reservation {
            cache: self.clone(),
            bytes,
        })
    }

    /// Takes a blob that was just fetched to its path.
    pub fn insert(&self, digest: &Digest, size: u64) -> Pin {
        let mut inner = self.lock();
        let used = inner.tick();
        let entry = inner.entries.entry(*digest).or_insert(Entry {
            size,
            used,
            pins: 0,
        });
        *entry = Entry {
            size,
            used,
            pins: entry.pins + 1,
        };
        Pin {
            cache: self.clone(),
            digest: *digest,
        }
    }

    /// Throws a damaged blob away, in use or not.
    pub fn discard(&self, digest: &Digest) -> Result<(), WorkerError> {
        let mut inner = self.lock();
        inner.entries.remove(digest);
        self.remove_file(digest)
    }

    /// Digests, last used first, at most `limit`: the hint for the coordinator's choice.
    pub fn recent(&self, limit: usize) -> Vec<Digest> {
        let inner = self.lock();
        let mut all: Vec<(u64, Digest)> = inner.entries.iter().map(|(d, e)| (e.used, *d)).collect();
        all.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
        all.into_iter()
            .take(limit)
            .map(|(_, digest)| digest)
            .collect()
    }

    /// How full it is.
    pub fn usage(&self) -> CacheUse {
        let inner = self.lock();
        CacheUse {
            bytes: inner.stored(),
            in_use: inner
                .entries
                .values()
                .filter(|e| e.pins > 0)
                .map(|e| e.size)
                .sum(),
            blobs: inner.entries.len(),
            quota: self.quota,
        }
    }

    fn remove_file(&self, digest: &Digest) -> Result<(), WorkerError> {
        let path = self.path(digest);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(WorkerError::file(&path)(error))
            }
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the guard is dropped, so a panic elsewhere leaves a usable state.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Not written to for a week.
fn is_stale(meta: &std::fs::Metadata) -> bool {
    let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age > std::time::Duration::from_secs(7 * 24 * 3600))
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(entry) = self.cache.lock().entries.get_mut(&self.digest) {
            entry.pins = entry.pins.saturating_sub(1);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut inner = self.cache.lock();
        inner.reserved = inner.reserved.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &Cache, byte: u8, size: usize) -> (Digest, Pin) {
        let bytes = vec![byte; size];
        let digest = Digest::of(&bytes);
        let room = cache.reserve(size as u64).unwrap();
        std::fs::write(cache.path(&digest), &bytes).unwrap();
        drop(room);
        (digest, cache.insert(&digest, size as u64))
    }

    #[test]
    fn the_least_recently_used_blob_goes_first_and_one_in_use_never() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 100).unwrap();
        let (a, pin_a) = put(&cache, 1, 40);
        let (b, pin_b) = put(&cache, 2, 30);
        let (c, pin_c) = put(&cache, 3, 30);
        drop((pin_b, pin_c));
        drop(cache.pin(&b, 30).unwrap());
        // a is the oldest but in use, so c (used before b) goes.
        let (d, pin_d) = put(&cache, 4, 20);
        assert!(cache.pin(&c, 30).is_none() && !cache.path(&c).exists());
        assert!(cache.pin(&b, 30).is_some());
        assert_eq!(cache.recent(9)[0], b);
        assert_eq!(cache.recent(2).len(), 2);
        assert_eq!(
            cache.usage(),
            CacheUse {
                bytes: 90,
                in_use: 60,
                blobs: 3,
                quota: 100
            }
        );
        // a and d are in use: 41 more do not fit however much is removed, and nothing is removed for the attempt.
        assert!(matches!(cache.reserve(41), Err(WorkerError::Resources(_))));
        assert!(cache.path(&b).exists());
        drop((pin_a, pin_d));
        cache.reserve(100).unwrap();
        assert!(!cache.path(&a).exists() && !cache.path(&d).exists());
    }

    #[test]
    fn room_promised_to_one_download_is_not_promised_twice() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 100).unwrap();
        let first = cache.reserve(60).unwrap();
        assert!(cache.reserve(60).is_err());
        drop(first);
        cache.reserve(60).unwrap();
    }

    #[test]
    fn content_and_order_survive_a_restart_and_a_blob_of_another_size_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), 100).unwrap();
        let (a, _) = put(&cache, 1, 10);
        let (b, _) = put(&cache, 2, 10);
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(cache.pin(&a, 10).unwrap());
        std::fs::write(dir.path().join("x.part"), b"half").unwrap();
        let again = Cache::open(dir.path(), 100).unwrap();
        assert_eq!(again.recent(9), vec![a, b]);
        assert!(again.pin(&a, 11).is_none());
        again.discard(&a).unwrap();
        assert_eq!(again.recent(9), vec![b]);
        assert!(!again.path(&a).exists());
    }
}
