//! Brings a hop's blobs into the cache: room first, then three at a time, resumed where an earlier run broke off.

use std::collections::BTreeMap;

use cipherhop_proto::Digest;
use cipherhop_proto::client::{AttemptRef, ClientError, download};
use futures::{StreamExt as _, TryStreamExt as _};

use super::Agent;
use crate::cache::Pin;
use crate::error::WorkerError;
use crate::journal::{Blob, Lease};
use crate::machine;
use crate::report::Event;

/// Downloads at a time.
const PARALLEL: usize = 3;

/// Fetches what is missing and pins everything. A transfer that got no byte for a while is an error here; the caller
/// decides by its reason.
pub(super) async fn fetch(agent: &Agent, lease: &Lease) -> Result<Vec<Pin>, WorkerError> {
    let wanted: BTreeMap<Digest, &Blob> =
        lease.blobs.iter().map(|blob| (blob.digest, blob)).collect();
    let mut pins = Vec::new();
    let mut missing = Vec::new();
    for blob in wanted.into_values() {
        match agent.cache.pin(&blob.digest, blob.size) {
            Some(pin) => pins.push(pin),
            None => missing.push(blob),
        }
    }
    if missing.is_empty() {
        return Ok(pins);
    }
    let bytes = missing
        .iter()
        .fold(0u64, |sum, blob| sum.saturating_add(blob.size));
    let _room = agent.cache.reserve(bytes)?;
    machine::check_disk(agent.cache.folder(), bytes)?;
    agent.tell(Event::Fetching {
        missing: missing.len(),
        bytes,
        cached: pins.len(),
    });
    let from = AttemptRef {
        attempt_id: lease.attempt.to_vec(),
        epoch: lease.epoch,
    };
    let policy = agent.policy();
    let fetched: Vec<Pin> = futures::stream::iter(missing)
        .map(|blob| {
            let (from, policy) = (&from, &policy);
            async move {
                let path = agent.cache.path(&blob.digest);
                download(
                    &agent.connection,
                    &blob.to_wire(),
                    &path,
                    Some(from),
                    policy,
                    &|_| (),
                )
                .await?;
                cipherhop_failpoint::at("cache.insert.before");
                Ok::<_, ClientError>(agent.cache.insert(&blob.digest, blob.size))
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await?;
    pins.extend(fetched);
    Ok(pins)
}

/// Hashes the hop's blobs in the cache and throws damaged ones away. Returns how many there were.
pub(super) async fn discard_damaged(agent: &Agent, lease: &Lease) -> Result<usize, WorkerError> {
    let (cache, blobs) = (agent.cache.clone(), lease.blobs.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let mut damaged = 0;
        for blob in blobs {
            if hash_file(&cache.path(&blob.digest)).ok() != Some(blob.digest) {
                cache.discard(&blob.digest)?;
                damaged += 1;
            }
        }
        Ok(damaged)
    });
    checked.await.unwrap_or(Ok(0))
}

/// SHA-256 of a file.
pub(super) fn hash_file(path: &std::path::Path) -> std::io::Result<Digest> {
    use std::io::Read as _;
    let mut file = std::fs::File::open(path)?;
    let mut hasher = cipherhop_proto::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.update(&buffer[..count]),
        }
    }
}
