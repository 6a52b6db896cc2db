//! Writing into an open upload of a local folder, by one stream at a time.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;

use super::partial::Partial;
use super::{Appender, BlobError, StorageLimit, io};

/// One upload in memory. The generation says who may write: opening or appending anew cuts off older streams.
#[derive(Default)]
pub(super) struct Slot {
    pub state: Mutex<SlotState>,
}

#[derive(Default)]
pub(super) struct SlotState {
    pub generation: u64,
    pub partial: Option<Partial>,
    /// Finish found another digest. The bytes stay for one repair.
    pub refused: bool,
}

/// A panic while holding one of these locks leaves no half-made state behind: every file operation is resumable.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(BlobError::Io {
            action: "run a storage task",
            source: std::io::Error::other(e),
        }),
    }
}

pub(super) struct LocalAppender {
    pub slot: Arc<Slot>,
    pub generation: u64,
}

/// Works on the files as long as nobody took the upload over.
fn with<T: Send + 'static>(
    slot: &Arc<Slot>,
    generation: u64,
    work: impl FnOnce(&mut Partial) -> Result<T, BlobError> + Send + 'static,
) -> BoxFuture<'static, Result<T, BlobError>> {
    let slot = slot.clone();
    Box::pin(blocking(move || {
        let mut state = lock(&slot.state);
        let current = state.generation == generation;
        match &mut state.partial {
            Some(partial) if current => work(partial),
            _ => Err(BlobError::TakenOver),
        }
    }))
}

/// A write that failed; a full disk by its name.
fn no_room(error: std::io::Error, bytes: usize) -> BlobError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => BlobError::StorageFull {
            needed: bytes as u64,
            available: 0,
            limit: StorageLimit::DiskHeadroom,
        },
        _ => io("write an upload")(error),
    }
}

/// Writes over bytes of an upload that was refused. What it holds is as long as before.
pub(super) struct LocalReplacer {
    pub slot: Arc<Slot>,
    pub generation: u64,
    pub at: u64,
}

impl Appender for LocalReplacer {
    fn write(&mut self, data: Vec<u8>) -> BoxFuture<'_, Result<(), BlobError>> {
        let at = self.at;
        self.at = at.saturating_add(data.len() as u64);
        with(&self.slot, self.generation, move |partial| {
            let got = at.saturating_add(data.len() as u64);
            if got > partial.committed {
                return Err(BlobError::TooLong {
                    declared: partial.committed,
                    got,
                });
            }
            partial
                .overwrite(&data, at)
                .map_err(|e| no_room(e, data.len()))
        })
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        with(&self.slot, self.generation, |partial| {
            partial.sync_all().map_err(io("make an upload durable"))?;
            Ok(partial.committed)
        })
    }
}

impl Drop for LocalReplacer {
    fn drop(&mut self) {
        close(&self.slot, self.generation);
    }
}

/// Closes the files of an idle upload.
fn close(slot: &Slot, generation: u64) {
    let mut state = lock(&slot.state);
    if state.generation == generation {
        state.partial = None;
    }
}

impl Appender for LocalAppender {
    fn write(&mut self, data: Vec<u8>) -> BoxFuture<'_, Result<(), BlobError>> {
        with(&self.slot, self.generation, move |partial| {
            let got = partial.written.saturating_add(data.len() as u64);
            if got > partial.size {
                return Err(BlobError::TooLong {
                    declared: partial.size,
                    got,
                });
            }
            partial.write(&data).map_err(|e| no_room(e, data.len()))
        })
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        with(&self.slot, self.generation, |partial| {
            partial.commit().map_err(io("make an upload durable"))
        })
    }
}

impl Drop for LocalAppender {
    fn drop(&mut self) {
        close(&self.slot, self.generation);
    }
}
