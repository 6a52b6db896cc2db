//! The archive's ledger: rows that form a hash chain, each signed with the coordinator's ledger key, so that no row can
//! be changed, dropped or reordered unseen, and nobody but a coordinator can make one.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use crate::signing::{DeviceKey, ParseKeyError, PublicKey, Signature, Statement};
use crate::v1::{self, VerificationMethod};
use crate::{AttemptId, ChainId, Digest, Hasher};

const ROW: &[u8; 32] = b"cipherhop.v1 archive row\0\0\0\0\0\0\0\0";

/// What the first row of a chain refers to.
pub const GENESIS: Digest = Digest::from_bytes([0; 32]);

/// What a row says, without the hash before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The chain.
    pub chain: ChainId,
    /// Position in the chain's archive, from 0.
    pub position: u64,
    /// The chain's generation.
    pub generation: u32,
    /// The hop.
    pub hop: u32,
    /// Digest of the accepted output.
    pub output: Digest,
    /// How it was accepted; not UNSPECIFIED.
    pub method: VerificationMethod,
    /// The attempts it rests on, sorted.
    pub attempts: Vec<AttemptId>,
    /// When, microseconds since 1970.
    pub at_micros: i64,
}

impl Entry {
    /// The row's hash: SHA-256 over the hash before it and the fields in order, integers little-endian.
    pub fn hash(&self, previous: &Digest) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(b"cipherhop archive row v1\0");
        hasher.update(previous.as_bytes());
        hasher.update(self.chain.as_bytes());
        hasher.update(&self.position.to_le_bytes());
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&self.hop.to_le_bytes());
        hasher.update(self.output.as_bytes());
        hasher.update(&[self.method as u8]);
        hasher.update(&(self.attempts.len() as u64).to_le_bytes());
        for attempt in &self.attempts {
            hasher.update(attempt.as_bytes());
        }
        hasher.update(&self.at_micros.to_le_bytes());
        hasher.finish()
    }
}

/// A key and what it signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The ledger key.
    pub signer: PublicKey,
    /// Its signature of the row's hash.
    pub signature: Signature,
}

struct RowStatement(Digest);

impl Statement for RowStatement {
    fn message(&self) -> Vec<u8> {
        [ROW.as_slice(), self.0.as_bytes()].concat()
    }
}

impl Seal {
    /// From the bytes of both; `None` where one of them is malformed.
    pub fn from_slices(signer: &[u8], signature: &[u8]) -> Option<Seal> {
        Some(Seal {
            signer: PublicKey::from_slice(signer).ok()?,
            signature: Signature::try_from(signature).ok()?,
        })
    }

    /// Whether the signer signed this hash.
    pub fn fits(&self, hash: Digest) -> bool {
        self.signer.verify(&RowStatement(hash), &self.signature)
    }
}

/// A coordinator's secret key for its ledger. Wiped from memory when dropped; its `Debug` shows nothing.
#[derive(Clone)]
pub struct LedgerKey(DeviceKey);

impl LedgerKey {
    /// A key out of 32 random bytes.
    pub fn from_secret(secret: &[u8; 32]) -> LedgerKey {
        LedgerKey(DeviceKey::from_secret(secret))
    }

    /// The secret as 64 hexadecimal digits, for the coordinator's own file.
    pub fn to_secret_text(&self) -> Zeroizing<String> {
        self.0.to_secret_text()
    }

    /// The key that others check with.
    pub fn public(&self) -> PublicKey {
        self.0.public()
    }

    /// Signs a row's hash.
    pub fn seal(&self, hash: Digest) -> Seal {
        Seal {
            signer: self.public(),
            signature: self.0.sign(&RowStatement(hash)),
        }
    }
}

impl fmt::Debug for LedgerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LedgerKey(..)")
    }
}

impl FromStr for LedgerKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(LedgerKey)
    }
}

/// What is wrong with a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenLedger {
    /// A row is missing, out of place, or other than when it was hashed.
    #[error("the hash chain is broken at position {position}")]
    Chain {
        /// First row that does not fit.
        position: u64,
    },
    /// A signature does not fit its row.
    #[error("the signature of the row at position {position} is not of its key")]
    Signature {
        /// The row.
        position: u64,
    },
    /// A row without a signature stands behind a signed one: coordinators that sign do not stop.
    #[error("the row at position {position} is not signed, although an earlier one is")]
    Unsigned {
        /// The row.
        position: u64,
    },
    /// A field is malformed.
    #[error("the row at position {position} is malformed")]
    Malformed {
        /// The row.
        position: u64,
    },
}

/// Checks a ledger row by row, from its first one.
#[derive(Clone, Debug)]
pub struct Checker {
    position: u64,
    previous: Digest,
    unsigned: u64,
    signers: Vec<(PublicKey, u64)>,
}

impl Default for Checker {
    fn default() -> Self {
        Checker {
            position: 0,
            previous: GENESIS,
            unsigned: 0,
            signers: Vec::new(),
        }
    }
}

impl Checker {
    /// The next row: position, link, hash, and where there is one, the signature. Rows from before ledgers were signed have
    /// none.
    pub fn next(
        &mut self,
        entry: &Entry,
        previous: Digest,
        hash: Digest,
        seal: Option<&Seal>,
    ) -> Result<(), BrokenLedger> {
        let position = self.position;
        let linked = entry.position == position && previous == self.previous;
        if !linked || hash != entry.hash(&previous) {
            return Err(BrokenLedger::Chain { position });
        }
        match seal {
            Some(seal) if !seal.fits(hash) => return Err(BrokenLedger::Signature { position }),
            Some(seal) => match self.signers.iter_mut().find(|(key, _)| *key == seal.signer) {
                Some((_, rows)) => *rows += 1,
                None => self.signers.push((seal.signer, 1)),
            },
            None if !self.signers.is_empty() => return Err(BrokenLedger::Unsigned { position }),
            None => self.unsigned += 1,
        }
        self.position += 1;
        self.previous = hash;
        Ok(())
    }

    /// The same for a row as it travels; the row's entry.
    pub fn next_message(
        &mut self,
        chain: ChainId,
        row: &v1::LedgerRow,
    ) -> Result<Entry, BrokenLedger> {
        let position = self.position;
        let malformed = BrokenLedger::Malformed { position };
        let (entry, previous, hash, seal) = parse(chain, row).ok_or(malformed)?;
        self.next(&entry, previous, hash, seal.as_ref())?;
        Ok(entry)
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.position
    }

    /// Rows without a signature, all before the first signed one.
    pub fn unsigned(&self) -> u64 {
        self.unsigned
    }

    /// Who signed how many rows, in order of their first.
    pub fn signers(&self) -> &[(PublicKey, u64)] {
        &self.signers
    }
}

type Parts = (Entry, Digest, Digest, Option<Seal>);

fn parse(chain: ChainId, row: &v1::LedgerRow) -> Option<Parts> {
    let attempts = row.attempt_ids.iter();
    let attempts: Result<Vec<_>, _> = attempts.map(|id| AttemptId::from_slice(id)).collect();
    let method = row.method();
    let entry = Entry {
        chain,
        position: row.position,
        generation: row.generation,
        hop: row.hop,
        output: Digest::from_slice(&row.output_digest).ok()?,
        method: Some(method).filter(|m| *m != VerificationMethod::Unspecified)?,
        attempts: attempts.ok()?,
        at_micros: row.at_micros,
    };
    let seal = match (row.signer.is_empty(), row.signature.is_empty()) {
        (true, true) => None,
        _ => Some(Seal::from_slices(&row.signer, &row.signature)?),
    };
    let previous = Digest::from_slice(&row.previous).ok()?;
    Some((entry, previous, Digest::from_slice(&row.hash).ok()?, seal))
}

/// A row as it travels.
pub fn message(
    entry: &Entry,
    previous: Digest,
    hash: Digest,
    seal: Option<&Seal>,
) -> v1::LedgerRow {
    v1::LedgerRow {
        position: entry.position,
        generation: entry.generation,
        hop: entry.hop,
        output_digest: entry.output.to_vec(),
        method: entry.method.into(),
        attempt_ids: entry.attempts.iter().map(|id| id.to_vec()).collect(),
        at_micros: entry.at_micros,
        previous: previous.to_vec(),
        hash: hash.to_vec(),
        signer: seal
            .map(|s| s.signer.as_bytes().to_vec())
            .unwrap_or_default(),
        signature: seal.map(|s| s.signature.to_vec()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(seals: &[Option<&LedgerKey>]) -> Vec<v1::LedgerRow> {
        let mut previous = GENESIS;
        let mut made = Vec::new();
        for (position, key) in (0u64..).zip(seals) {
            let entry = Entry {
                chain: ChainId::from_bytes([1; 16]),
                position,
                generation: 0,
                hop: position as u32,
                output: Digest::of(&position.to_le_bytes()),
                method: VerificationMethod::Quorum,
                attempts: vec![AttemptId::from_bytes([2; 16])],
                at_micros: 1_790_000_000_000_000,
            };
            let hash = entry.hash(&previous);
            let seal = key.map(|key| key.seal(hash));
            made.push(message(&entry, previous, hash, seal.as_ref()));
            previous = hash;
        }
        made
    }

    fn check(rows: &[v1::LedgerRow]) -> Result<Checker, BrokenLedger> {
        let mut checker = Checker::default();
        for row in rows {
            checker.next_message(ChainId::from_bytes([1; 16]), row)?;
        }
        Ok(checker)
    }

    #[test]
    fn signed_rows_behind_unsigned_ones_are_in_order_and_their_keys_are_told() {
        let (a, b) = (
            LedgerKey::from_secret(&[7; 32]),
            LedgerKey::from_secret(&[8; 32]),
        );
        let checked = check(&rows(&[None, Some(&a), Some(&a), Some(&b)])).unwrap();
        assert_eq!((checked.rows(), checked.unsigned()), (4, 1));
        assert_eq!(checked.signers(), [(a.public(), 2), (b.public(), 1)]);
    }

    #[test]
    fn every_change_of_a_row_is_found() {
        let key = LedgerKey::from_secret(&[7; 32]);
        let good = rows(&[Some(&key), Some(&key), Some(&key)]);
        type Change = fn(&mut v1::LedgerRow);
        let changes: &[Change] = &[
            |r| r.position += 1,
            |r| r.generation += 1,
            |r| r.hop += 1,
            |r| r.output_digest[0] ^= 1,
            |r| r.method = VerificationMethod::Trusted.into(),
            |r| r.attempt_ids.clear(),
            |r| r.at_micros += 1,
            |r| r.previous[0] ^= 1,
            |r| r.hash[0] ^= 1,
            |r| r.signature[0] ^= 1,
            |r| {
                r.signer = LedgerKey::from_secret(&[9; 32])
                    .public()
                    .as_bytes()
                    .to_vec()
            },
            |r| (r.signer, r.signature) = Default::default(),
            |r| r.signature.clear(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut bad = good.clone();
            change(&mut bad[1]);
            assert!(check(&bad).is_err(), "change {number}");
        }
        let mut shorter = good.clone();
        shorter.remove(1);
        assert_eq!(
            check(&shorter).unwrap_err(),
            BrokenLedger::Chain { position: 1 }
        );
    }

    /// A row rewritten with a right hash needs the key.
    #[test]
    fn rows_hashed_anew_without_the_key_are_found() {
        let key = LedgerKey::from_secret(&[7; 32]);
        let stranger = LedgerKey::from_secret(&[9; 32]);
        let mut forged = rows(&[Some(&key), Some(&stranger)]);
        let theirs = Seal {
            signer: key.public(),
            ..stranger.seal(Digest::from_slice(&forged[1].hash).unwrap())
        };
        forged[1].signer = theirs.signer.as_bytes().to_vec();
        assert_eq!(
            check(&forged).unwrap_err(),
            BrokenLedger::Signature { position: 1 }
        );
    }

    #[test]
    fn a_seal_stands_for_one_hash_and_the_secret_is_not_shown() {
        let key = LedgerKey::from_secret(&[7; 32]);
        let seal = key.seal(Digest::of(b"a"));
        assert!(seal.fits(Digest::of(b"a")) && !seal.fits(Digest::of(b"b")));
        let text = key.to_secret_text();
        assert!(!format!("{key:?}").contains(&text[..8]));
        assert_eq!(text.parse::<LedgerKey>().unwrap().public(), key.public());
        assert_eq!(RowStatement(GENESIS).message().len(), 64);
    }
}
