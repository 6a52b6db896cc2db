//! What never changes once it is there, kept in memory, so that a request for work does not read it each time: sizes of
//! blobs and the keys of a chain. Also when a device was last noted as seen, which need not be exact.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest};
use tokio::sync::watch;

use super::heads::Heads;
use super::tokens::Tokens;
use crate::domain::chain::Chain;
use crate::domain::hop::Hop;
use crate::domain::time::Timestamp;
use crate::domain::view::{BlobRole, NeededBlob};

/// A device that keeps calling is noted as seen this often.
const SEEN_EVERY: Duration = Duration::from_secs(5);
/// How long another replica's accepted attempts may be missing from a chain's usual durations.
const DURATIONS_COUNT: Duration = Duration::from_secs(1);

/// A map that starts anew when it is full.
struct Bounded<K, V> {
    most: usize,
    map: Mutex<HashMap<K, V>>,
}

impl<K: Eq + Hash, V: Clone> Bounded<K, V> {
    fn new(most: usize) -> Self {
        Self {
            most,
            map: Mutex::default(),
        }
    }

    fn get(&self, key: &K) -> Option<V> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(key).cloned()
    }

    fn remove(&self, key: &K) {
        self.map
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }

    fn put(&self, key: K, value: V) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= self.most {
            map.clear();
        }
        map.insert(key, value);
    }
}

/// Shared by all transactions of a process.
pub(super) struct Known {
    sizes: Bounded<Digest, u64>,
    keys: Bounded<ChainId, Arc<[NeededBlob]>>,
    seen: Bounded<DeviceId, Timestamp>,
    accounts: Bounded<DeviceId, AccountId>,
    places: Bounded<AttemptId, (ChainId, u32, u32)>,
    durations: Bounded<ChainId, (Usual, Instant)>,
    pub heads: Heads,
    pub tokens: Tokens,
}

/// Middle and 95th percentile of a chain's newest accepted attempts.
pub(super) type Usual = (Option<Duration>, Option<Duration>);

impl Known {
    /// `revocations` counts up at every revocation of a token that this process hears of.
    pub fn new(revocations: watch::Sender<u64>) -> Self {
        Self {
            sizes: Bounded::new(1 << 16),
            keys: Bounded::new(256),
            seen: Bounded::new(1 << 16),
            accounts: Bounded::new(1 << 16),
            places: Bounded::new(1 << 16),
            durations: Bounded::new(1 << 12),
            heads: Heads::default(),
            tokens: Tokens::new(revocations),
        }
    }

    pub fn size(&self, digest: Digest) -> Option<u64> {
        self.sizes.get(&digest)
    }

    /// Of a blob that a committed row refers to; such a blob stays.
    pub fn keep_size(&self, digest: Digest, size: u64) {
        self.sizes.put(digest, size);
    }

    pub fn keys(&self, chain: ChainId) -> Option<Arc<[NeededBlob]>> {
        self.keys.get(&chain)
    }

    pub fn keep_keys(&self, chain: ChainId, keys: Arc<[NeededBlob]>) {
        self.keys.put(chain, keys);
    }

    /// The blobs of a hop, where the size of each is known here.
    pub fn needed(&self, chain: &Chain, hop: &Hop) -> Option<Vec<NeededBlob>> {
        let mut blobs = Vec::new();
        for (digest, role) in singles(chain, hop) {
            let size = self.size(digest)?;
            blobs.push(NeededBlob { digest, size, role });
        }
        blobs.extend_from_slice(&self.keys(chain.id)?);
        Some(blobs)
    }

    pub fn account(&self, device: DeviceId) -> Option<AccountId> {
        self.accounts.get(&device)
    }

    /// A device stays with its account.
    pub fn keep_account(&self, device: DeviceId, account: AccountId) {
        self.accounts.put(device, account);
    }

    pub fn place(&self, attempt: AttemptId) -> Option<(ChainId, u32, u32)> {
        self.places.get(&attempt)
    }

    pub fn keep_place(&self, attempt: AttemptId, place: (ChainId, u32, u32)) {
        self.places.put(attempt, place);
    }

    pub fn durations(&self, chain: ChainId) -> Option<Usual> {
        let (usual, at) = self.durations.get(&chain)?;
        (at.elapsed() < DURATIONS_COUNT).then_some(usual)
    }

    /// `at`: from before the rows were read.
    pub fn keep_durations(&self, chain: ChainId, usual: Usual, at: Instant) {
        self.durations.put(chain, (usual, at));
    }

    pub fn forget_durations(&self, chain: ChainId) {
        self.durations.remove(&chain);
    }

    /// Whether the device's row shall say that it was seen.
    pub fn is_due(&self, device: DeviceId, now: Timestamp) -> bool {
        let last = self.seen.get(&device);
        last.is_none_or(|last| now >= last.plus(SEEN_EVERY))
    }

    pub fn saw(&self, device: DeviceId, now: Timestamp) {
        self.seen.put(device, now);
    }
}

/// The blobs of a hop that are one of a kind.
pub(super) fn singles(chain: &Chain, hop: &Hop) -> impl Iterator<Item = (Digest, BlobRole)> {
    let single = [
        (Some(chain.spec.program), BlobRole::Program),
        (Some(hop.weights), BlobRole::Weights),
        (Some(chain.spec.key_manifest), BlobRole::KeyManifest),
        (hop.input, BlobRole::Input),
    ];
    single
        .into_iter()
        .filter_map(|(digest, role)| Some((digest?, role)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_starts_anew_and_seen_is_due_again_after_a_while() {
        let map = Bounded::new(2);
        (0..3).for_each(|key| map.put(key, key));
        assert_eq!((map.get(&1), map.get(&2)), (None, Some(2)));
        let (known, device) = (Known::new(watch::Sender::new(0)), DeviceId::generate());
        let start = Timestamp::from_micros(0);
        assert!(known.is_due(device, start));
        known.saw(device, start);
        assert!(!known.is_due(device, start.plus(SEEN_EVERY / 2)));
        assert!(known.is_due(device, start.plus(SEEN_EVERY)));
    }
}
