//! The archive's hash chain: each row's hash covers the row before it, so that no row can be
//! changed, dropped or reordered unseen.

use cipherhop_proto::{AttemptId, ChainId, Digest, Hasher};

use super::hop::Method;
use super::time::Timestamp;

/// A row of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRow {
    /// The chain.
    pub chain: ChainId,
    /// Position in the chain's archive, from 0.
    pub position: u64,
    /// The chain's generation.
    pub generation: u32,
    /// The hop.
    pub hop: u32,
    /// Digest of the accepted output.
    pub digest: Digest,
    /// How it was accepted.
    pub method: Method,
    /// The attempts it rests on, sorted.
    pub attempts: Vec<AttemptId>,
    /// When.
    pub at: Timestamp,
    /// Hash of the row before; zeros for the first.
    pub previous: Digest,
    /// Hash of this row.
    pub hash: Digest,
}

/// What the first row refers to.
pub const GENESIS: Digest = Digest::from_bytes([0; 32]);

impl ArchiveRow {
    /// The hash this row must have: SHA-256 over its fields in order, integers little-endian.
    pub fn computed_hash(&self) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(b"cipherhop archive row v1\0");
        hasher.update(self.previous.as_bytes());
        hasher.update(self.chain.as_bytes());
        hasher.update(&self.position.to_le_bytes());
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&self.hop.to_le_bytes());
        hasher.update(self.digest.as_bytes());
        hasher.update(&[match self.method {
            Method::Archive => 1,
            Method::Quorum => 2,
            Method::Trusted => 3,
            Method::Referee => 4,
        }]);
        hasher.update(&(self.attempts.len() as u64).to_le_bytes());
        for attempt in &self.attempts {
            hasher.update(attempt.as_bytes());
        }
        hasher.update(&self.at.micros().to_le_bytes());
        hasher.finish()
    }
}

/// An archive whose hash chain is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the archive's hash chain is broken at position {position}")]
pub struct BrokenLedger {
    /// First row that does not fit.
    pub position: u64,
}

/// Checks positions, links and hashes of a whole archive in order.
pub fn verify(rows: &[ArchiveRow]) -> Result<(), BrokenLedger> {
    let mut previous = GENESIS;
    for (position, row) in (0u64..).zip(rows) {
        let linked = row.position == position && row.previous == previous;
        if !linked || row.hash != row.computed_hash() {
            return Err(BrokenLedger { position });
        }
        previous = row.hash;
    }
    Ok(())
}
