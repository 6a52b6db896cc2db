//! What clients were told, kept outside, and the comparison with what is stored after a kill.

use std::collections::BTreeMap;
use std::path::Path;

use cipherhop_coordinator::blobs::{BlobStore, LocalBlobs, LocalLimits, UploadKey, read_all};
use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::ledger;
use cipherhop_coordinator::store::Store;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::{AttemptId, ChainId, Digest, UploadId};

/// How often an entry is compared; once more at the end.
const LOOKS: u32 = 3;

/// Acknowledged values, each with how often it was compared.
#[derive(Clone, Debug)]
pub struct Acked<K, V>(BTreeMap<K, (V, u32)>);

impl<K, V> Default for Acked<K, V> {
    fn default() -> Self {
        Acked(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Acked<K, V> {
    pub fn set(&mut self, key: K, value: V) {
        self.0.insert(key, (value, 0));
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key).map(|(value, _)| value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Entries to compare: new ones, or all.
    fn due(&mut self, all: bool) -> Self {
        let due = self
            .0
            .iter_mut()
            .filter(|(_, (_, looks))| all || *looks < LOOKS);
        let due = due.map(|(key, (value, looks))| {
            *looks += 1;
            (key.clone(), (value.clone(), *looks))
        });
        Acked(due.collect())
    }

    fn all(&self) -> impl Iterator<Item = (K, V)> {
        let all = self.0.iter();
        all.map(|(key, (value, _))| (key.clone(), value.clone()))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bytes {
    pub digest: Digest,
    pub committed: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Hashes of tokens handed out.
    pub tokens: Acked<Digest, ()>,
    /// Bytes said to be durable.
    pub uploads: Acked<UploadId, Bytes>,
    /// Blobs said to be complete, with their sizes.
    pub blobs: Acked<Digest, u64>,
    /// Epochs of leases.
    pub leases: Acked<AttemptId, u64>,
    /// Digests handed in, and what was said of them.
    pub submits: Acked<AttemptId, (Digest, Outcome)>,
    /// Generation, hop and digest of verified hops.
    pub verified: Acked<(ChainId, u32, u32), Digest>,
    /// Highest generation and head seen of each chain.
    pub heads: Acked<ChainId, (u32, u32)>,
    pub completed: u64,
    /// Bytes acknowledged, counted once.
    pub bytes: u64,
}

impl Ledger {
    /// What is to be compared now.
    pub fn due(&mut self, all: bool) -> Ledger {
        Ledger {
            tokens: self.tokens.due(all),
            uploads: self.uploads.due(all),
            blobs: self.blobs.due(all),
            leases: self.leases.due(all),
            submits: self.submits.due(all),
            verified: self.verified.due(all),
            heads: self.heads.due(all),
            ..Ledger::default()
        }
    }

    /// Compares with what is stored. Panics at the first loss.
    pub async fn check(&self, store: &dyn Store, blobs: &Path) {
        let files = LocalBlobs::open(blobs, LocalLimits::default()).unwrap();
        for (hash, ()) in self.tokens.all() {
            store.identify(hash).await.expect("a token is lost");
        }
        for (id, acked) in self.uploads.all() {
            match store.upload(id).await {
                Ok(row) => {
                    assert!(row.committed >= acked.committed, "I5: {row:?} {acked:?}");
                    let key = UploadKey {
                        sender: *row.account.as_bytes(),
                        digest: row.digest,
                    };
                    let there = match files.stat(row.digest).await.unwrap() {
                        Some(size) => size,
                        None => files.committed(key).await.unwrap(),
                    };
                    assert!(there >= acked.committed, "I5: {there} bytes of {acked:?}");
                }
                Err(_) => {
                    let blob = store.blob(acked.digest).await.unwrap();
                    assert!(blob.is_some(), "I5: the upload {id} of {acked:?} is gone");
                }
            }
        }
        for (digest, size) in self.blobs.all() {
            let row = store.blob(digest).await.unwrap().expect("I5: a blob's row");
            assert_eq!(row.size, size);
            let bytes = read_all(&files, digest, size).await.unwrap();
            assert_eq!(Digest::of(&bytes), digest, "I3: bytes of a complete blob");
        }
        for (id, epoch) in self.leases.all() {
            let attempt = store.attempt(id).await.expect("a lease is lost");
            assert_eq!(attempt.epoch, epoch);
        }
        for (id, (digest, outcome)) in self.submits.all() {
            let attempt = store.attempt(id).await.unwrap();
            let claim = attempt.claim.as_ref().expect("I5: a submit is lost");
            assert_eq!(claim.output, digest);
            let judged = !attempt.state.is_live();
            assert!(judged, "I5: {outcome:?} was said, {attempt:?} is stored");
            if outcome == Outcome::AcceptedMatched {
                assert_eq!(attempt.state, AttemptState::Matched, "a verdict is lost");
            }
        }
        for (id, seen) in self.heads.all() {
            let chain = store.chain(id).await.expect("a chain is lost");
            assert!((chain.generation, chain.head) >= seen, "I2: {chain:?}");
            let archive = store.archive(id).await.unwrap();
            ledger::verify(&archive).unwrap();
            let rows = archive
                .iter()
                .filter(|row| row.generation == chain.generation);
            assert_eq!(rows.count(), chain.head as usize, "I1: {chain:?}");
            let whole = chain.head == chain.hops;
            assert_eq!(chain.state == ChainState::Completed, whole);
            for row in archive {
                let key = (id, row.generation, row.hop);
                let known = self.verified.get(&key);
                assert!(known.is_none_or(|digest| *digest == row.digest), "I1");
                for attempt in row.attempts {
                    let attempt = store.attempt(attempt).await.unwrap();
                    assert_eq!(attempt.claim.unwrap().output, row.digest);
                }
                assert!(store.blob(row.digest).await.unwrap().is_some(), "I3");
            }
        }
        for ((chain, generation, hop), digest) in self.verified.all() {
            let archive = store.archive(chain).await.unwrap();
            let row = archive
                .iter()
                .find(|row| (row.generation, row.hop) == (generation, hop));
            assert_eq!(row.expect("a verified hop is lost").digest, digest, "I1");
        }
    }
}
