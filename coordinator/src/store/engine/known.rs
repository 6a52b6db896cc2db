//! What never changes once it is there, kept in memory, so that a request for work does not read it each time: sizes of
//! blobs and the keys of a chain. Also when a device was last noted as seen, which need not be exact.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cipherhop_proto::{ChainId, DeviceId, Digest};

use crate::domain::time::Timestamp;
use crate::domain::view::NeededBlob;

/// A device that keeps calling is noted as seen this often.
const SEEN_EVERY: Duration = Duration::from_secs(5);

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
}

impl Default for Known {
    fn default() -> Self {
        Self {
            sizes: Bounded::new(1 << 16),
            keys: Bounded::new(256),
            seen: Bounded::new(1 << 16),
        }
    }
}

impl Known {
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

    /// Whether the device's row shall say that it was seen.
    pub fn is_due(&self, device: DeviceId, now: Timestamp) -> bool {
        let last = self.seen.get(&device);
        last.is_none_or(|last| now >= last.plus(SEEN_EVERY))
    }

    pub fn saw(&self, device: DeviceId, now: Timestamp) {
        self.seen.put(device, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_starts_anew_and_seen_is_due_again_after_a_while() {
        let map = Bounded::new(2);
        (0..3).for_each(|key| map.put(key, key));
        assert_eq!((map.get(&1), map.get(&2)), (None, Some(2)));
        let (known, device) = (Known::default(), DeviceId::generate());
        let start = Timestamp::from_micros(0);
        assert!(known.is_due(device, start));
        known.saw(device, start);
        assert!(!known.is_due(device, start.plus(SEEN_EVERY / 2)));
        assert!(known.is_due(device, start.plus(SEEN_EVERY)));
    }
}
