//! The archive's rows, as the coordinator keeps them. Hashes and signatures: [`cipherhop_proto::ledger`].

use cipherhop_proto::ledger::{BrokenLedger, Checker, Entry, Seal};
use cipherhop_proto::v1::VerificationMethod;
use cipherhop_proto::{AttemptId, ChainId, Digest};

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
    /// The coordinator's signature of the hash; none in rows from before ledgers were signed.
    pub seal: Option<Seal>,
}

impl From<Method> for VerificationMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Archive => VerificationMethod::Archive,
            Method::Quorum => VerificationMethod::Quorum,
            Method::Trusted => VerificationMethod::Trusted,
            Method::Referee => VerificationMethod::Referee,
        }
    }
}

impl ArchiveRow {
    /// What the row says.
    pub fn entry(&self) -> Entry {
        Entry {
            chain: self.chain,
            position: self.position,
            generation: self.generation,
            hop: self.hop,
            output: self.digest,
            method: self.method.into(),
            attempts: self.attempts.clone(),
            at_micros: self.at.micros(),
        }
    }

    /// The hash this row must have.
    pub fn computed_hash(&self) -> Digest {
        self.entry().hash(&self.previous)
    }
}

/// Checks positions, links, hashes and signatures of a chain's whole archive in order.
pub fn verify(rows: &[ArchiveRow]) -> Result<Checker, BrokenLedger> {
    let mut checker = Checker::default();
    for row in rows {
        checker.next(&row.entry(), row.previous, row.hash, row.seal.as_ref())?;
    }
    Ok(checker)
}
