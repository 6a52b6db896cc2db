//! Who holds which token, remembered for a moment, so that a call does not read it each time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cipherhop_proto::Digest;
use tokio::sync::watch;

use crate::store::types::Identity;

/// Longest time an answer is believed. A revocation ends all of them at once, here and on replicas that hear of it;
/// this bounds how long a replica goes on that hears nothing.
const BELIEVED: Duration = Duration::from_secs(1);
/// Most tokens remembered.
const MOST: usize = 1 << 14;

struct Remembered {
    identity: Identity,
    round: u64,
    at: Instant,
}

/// Tokens found good a moment ago.
pub(super) struct Tokens {
    map: Mutex<HashMap<Digest, Remembered>>,
    /// Counts up at every revocation, this process's or another's: what was read before it counts no more.
    round: watch::Sender<u64>,
}

impl Tokens {
    pub fn new(round: watch::Sender<u64>) -> Self {
        Self {
            map: Mutex::default(),
            round,
        }
    }

    /// To be asked for before the token's row is read.
    pub fn round(&self) -> u64 {
        *self.round.borrow()
    }

    pub fn get(&self, hash: Digest) -> Option<Identity> {
        let round = self.round();
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let known = map.get(&hash)?;
        let counts = known.round == round && known.at.elapsed() < BELIEVED;
        counts.then(|| known.identity.clone())
    }

    /// `round`, `at`: from before the row was read.
    pub fn put(&self, hash: Digest, identity: Identity, round: u64, at: Instant) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= MOST {
            map.clear();
        }
        let known = Remembered {
            identity,
            round,
            at,
        };
        map.insert(hash, known);
    }

    /// Forgets every token when the guard goes, whether the revocation came to its end or its caller went away.
    pub fn revoking(&self) -> Revoking<'_> {
        Revoking(self)
    }
}

pub(super) struct Revoking<'a>(&'a Tokens);

impl Drop for Revoking<'_> {
    fn drop(&mut self) {
        self.0.round.send_modify(|round| *round += 1);
    }
}
