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

impl LocalAppender {
    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Partial) -> Result<T, BlobError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, BlobError>> {
        let (slot, generation) = (self.slot.clone(), self.generation);
        Box::pin(blocking(move || {
            let mut state = lock(&slot.state);
            let current = state.generation == generation;
            match &mut state.partial {
                Some(partial) if current => work(partial),
                _ => Err(BlobError::TakenOver),
            }
        }))
    }
}

impl Appender for LocalAppender {
    fn write(&mut self, data: Vec<u8>) -> BoxFuture<'_, Result<(), BlobError>> {
        self.with(move |partial| {
            let got = partial.written.saturating_add(data.len() as u64);
            if got > partial.size {
                return Err(BlobError::TooLong {
                    declared: partial.size,
                    got,
                });
            }
            partial.write(&data).map_err(|e| match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => BlobError::StorageFull {
                    needed: data.len() as u64,
                    available: 0,
                    limit: StorageLimit::DiskHeadroom,
                },
                _ => io("write an upload")(e),
            })
        })
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        self.with(|partial| partial.commit().map_err(io("make an upload durable")))
    }
}

impl Drop for LocalAppender {
    /// Closes the files of an idle upload.
    fn drop(&mut self) {
        let mut state = lock(&self.slot.state);
        if state.generation == self.generation {
            state.partial = None;
        }
    }
}
