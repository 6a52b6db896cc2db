//! Whether the archive is what the coordinators wrote: hash chains and signatures.

use std::collections::BTreeMap;
use std::path::Path;

use cipherhop_proto::ledger::{BrokenLedger, Checker, Entry, Seal};
use cipherhop_proto::{AttemptId, ChainId, Digest};
use sqlx::types::Uuid;

use super::{Findings, Grade};
use crate::domain::hop::Method;
use crate::ledger_key;

/// chain, position, generation, hop, digest, how it was accepted, time, previous, hash, signer, signature.
pub(super) type Row = (
    Uuid,
    i64,
    i64,
    i64,
    Vec<u8>,
    String,
    i64,
    Vec<u8>,
    Vec<u8>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
);

pub(super) const ROWS: &str = "SELECT chain_id, position, generation, hop, digest, COALESCE(alone, method), at_us, previous, hash,
    signer, signature FROM archive ORDER BY chain_id, position";
pub(super) const ATTEMPTS: &str = "SELECT chain_id, position, attempt_id FROM archive_attempts
    ORDER BY chain_id, position, attempt_id";

/// The archive of all chains.
pub(super) struct Archive {
    pub(super) rows: Vec<Row>,
    pub(super) attempts: Vec<(Uuid, i64, Uuid)>,
    /// Keys the coordinators of this database signed with, the newest last.
    pub(super) keys: Vec<Vec<u8>>,
}

fn entry(row: &Row, attempts: Vec<AttemptId>) -> Option<(Entry, Digest, Digest, Option<Seal>)> {
    let (chain, position, generation, hop, digest, method, at, previous, hash, signer, signature) =
        row;
    let seal = match (signer, signature) {
        (None, None) => None,
        (Some(signer), Some(signature)) => Some(Seal::from_slices(signer, signature)?),
        _ => return None,
    };
    let entry = Entry {
        chain: ChainId::from_bytes(*chain.as_bytes()),
        position: u64::try_from(*position).ok()?,
        generation: u32::try_from(*generation).ok()?,
        hop: u32::try_from(*hop).ok()?,
        output: Digest::from_slice(digest).ok()?,
        method: Method::ALL.into_iter().find(|m| m.name() == method)?.into(),
        attempts,
        at_micros: *at,
    };
    let previous = Digest::from_slice(previous).ok()?;
    Some((entry, previous, Digest::from_slice(hash).ok()?, seal))
}

/// Rows, unsigned rows, and who signed how many, of all chains.
type Checked = (u64, u64, BTreeMap<String, u64>);

fn check(archive: &Archive) -> Result<Checked, (Uuid, BrokenLedger)> {
    let mut attempts: BTreeMap<(Uuid, i64), Vec<AttemptId>> = BTreeMap::new();
    for (chain, position, attempt) in &archive.attempts {
        let of_row = attempts.entry((*chain, *position)).or_default();
        of_row.push(AttemptId::from_bytes(*attempt.as_bytes()));
    }
    let mut checkers: BTreeMap<Uuid, Checker> = BTreeMap::new();
    for row in &archive.rows {
        let checker = checkers.entry(row.0).or_default();
        let position = checker.rows();
        let attempts = attempts.remove(&(row.0, row.1)).unwrap_or_default();
        let (entry, previous, hash, seal) =
            entry(row, attempts).ok_or((row.0, BrokenLedger::Malformed { position }))?;
        let next = checker.next(&entry, previous, hash, seal.as_ref());
        next.map_err(|broken| (row.0, broken))?;
    }
    let mut signers = BTreeMap::new();
    for (key, rows) in checkers.values().flat_map(Checker::signers) {
        *signers.entry(key.to_string()).or_default() += rows;
    }
    let rows = checkers.values().map(Checker::rows).sum();
    let unsigned = checkers.values().map(Checker::unsigned).sum();
    Ok((rows, unsigned, signers))
}

/// Judges the archive, and the key file against what the database knows.
pub(super) fn judge(archive: &Archive, key_file: &Path, found: &mut Findings) {
    match check(archive) {
        Err((chain, broken)) => {
            let text = format!(
                "chain {chain}: {broken}: somebody changed the database; restore a backup from before"
            );
            found.add("ledger", Grade::Bad, text);
        }
        Ok((rows, unsigned, mut signers)) => {
            let mut text = format!("the hash chains of {rows} rows are whole");
            if unsigned > 0 {
                text += &format!("; {unsigned} rows from before ledgers were signed");
            }
            let known: Vec<String> = archive.keys.iter().map(hex::encode).collect();
            for key in &known {
                if let Some(rows) = signers.remove(key) {
                    text += &format!("; {rows} signed with {key}");
                }
            }
            let strangers = !signers.is_empty();
            for (key, rows) in signers {
                text += &format!(
                    "; {rows} signed with {key}, which no coordinator of this database had: who wrote them?"
                );
            }
            let grade = if strangers { Grade::Bad } else { Grade::Good };
            found.add("ledger", grade, text);
        }
    }
    let newest = archive.keys.last();
    match (ledger_key::read(key_file), newest) {
        (Err(e), _) => found.add("ledger key", Grade::Bad, e.to_string()),
        (Ok(Some(key)), Some(newest)) if key.public().as_bytes()[..] != newest[..] => {
            let text = format!(
                "{} has the public key {}, but the archive is signed with {} now: bring the other coordinators' key here",
                key_file.display(),
                key.public(),
                hex::encode(newest)
            );
            found.add("ledger key", Grade::Warning, text);
        }
        (Ok(Some(key)), _) => {
            let text = format!("public key {}; only its owner may read it", key.public());
            found.add("ledger key", Grade::Good, text);
        }
        (Ok(None), None) => found.add(
            "ledger key",
            Grade::Good,
            "there is none yet; `serve` makes it",
        ),
        (Ok(None), Some(newest)) => {
            let text = format!(
                "{} is missing (backups do not hold it): bring the key {} back from a safe place, or `serve` makes a new \
                 one and key holders have to be told",
                key_file.display(),
                hex::encode(newest)
            );
            found.add("ledger key", Grade::Warning, text);
        }
    }
}
