//! What crashes and people who gave up leave in blob storage, and its removal.
//!
//! A blob's bytes come before its row (I3). Between the two stands a lock per digest: without it the collector could
//! take bytes away whose row is just being written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cipherhop_proto::Digest;
use tokio::sync::OwnedMutexGuard;
use tonic::Status;

use super::Core;
use super::error::{of_blob, of_store};

/// Younger bytes may belong to a step that is being taken.
const SETTLED: Duration = Duration::from_secs(600);

type Held = HashMap<Digest, Arc<tokio::sync::Mutex<()>>>;

/// One lock per digest that somebody is about to publish or to remove.
#[derive(Default)]
pub(super) struct DigestLocks {
    held: Mutex<Held>,
}

impl DigestLocks {
    fn of(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody else holds can go.
        if held.len() >= 64 {
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        held.entry(digest).or_default().clone()
    }

    /// Waits until nobody else works on this digest.
    pub async fn lock(&self, digest: Digest) -> OwnedMutexGuard<()> {
        self.of(digest).lock_owned().await
    }
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Bytes under a digest without a row.
    pub blobs: u64,
    /// Uploads that nobody went on with.
    pub uploads: u64,
    /// Bytes that belonged to no blob and no upload.
    pub strays: u64,
}

impl Core {
    /// Removes complete blobs of at least this age that no row speaks of, and uploads that idled for so long.
    pub async fn collect_orphans(
        &self,
        orphan: Duration,
        abandoned: Duration,
    ) -> Result<Collected, Status> {
        let mut collected = Collected::default();
        for first in 0..=u8::MAX {
            let stored = self.blobs.list(first).await.map_err(of_blob)?;
            for blob in stored.into_iter().filter(|blob| blob.age >= orphan) {
                let _publishing = self.publishing.lock(blob.digest).await;
                let row = self.store.blob(blob.digest).await;
                if row.map_err(of_store("collect_orphans"))?.is_none() {
                    cipherhop_failpoint::at("collect.remove.before");
                    let removed = self.blobs.remove(blob.digest, orphan).await;
                    if removed.map_err(of_blob)? {
                        cipherhop_failpoint::at("collect.removed");
                        collected.blobs += 1;
                        tracing::info!(digest = %blob.digest, "bytes without a row were removed");
                    }
                }
            }
        }
        for upload in self.blobs.abandoned(abandoned).await.map_err(of_blob)? {
            cipherhop_failpoint::at("collect.discard.before");
            self.blobs.discard(upload).await.map_err(of_blob)?;
            cipherhop_failpoint::at("collect.discarded");
            collected.uploads += 1;
            tracing::info!(%upload, "an upload was given up: no byte came for too long");
        }
        let swept = self.blobs.sweep(orphan.max(SETTLED)).await;
        collected.strays = swept.map_err(of_blob)?;
        if collected.strays > 0 {
            let strays = collected.strays;
            tracing::info!(strays, "bytes of no blob and no upload were removed");
        }
        Ok(collected)
    }
}
