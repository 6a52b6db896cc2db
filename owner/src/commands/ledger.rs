//! `chain verify`: is the archive what the coordinator signed, and are the outputs what the archive names.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use cipherhop_proto::{
    ChainId, Digest,
    client::{Connection, UNARY_DEADLINE, unary},
    ledger::{Checker, Entry},
    signing::PublicKey,
    v1::{ExportArchiveRequest, GetLedgerRequest},
};
use serde_json::json;

use super::chain::verified_outputs;
use crate::{
    chainfolder::ChainFolder,
    cli::ChainVerify,
    report::{Outcome, Output},
};

/// Most rows of one chain: a hundred generations of the longest chain.
const MOST_ROWS: usize = 1 << 20;

/// `chain verify`
pub async fn verify(args: &ChainVerify, out: &Output) -> anyhow::Result<Outcome> {
    let mut folder = ChainFolder::open(&args.chain)?;
    // A folder of an older program, or a chain of an older coordinator, has no key yet: this look is what later ones are
    // held against.
    let first = folder.state.ledger_keys.is_empty();
    let given = args.trust_key.as_deref().map(public_key).transpose()?;
    let chain = folder.state.chain_id;
    let connection = folder.connect()?;
    let (checked, entries, current) = ledger(&connection, chain).await?;
    let mut trusted = folder.state.ledger_keys.clone();
    let new = given.or(current.filter(|_| first)).map(|k| k.to_string());
    trusted.extend(new.filter(|key| !folder.state.ledger_keys.contains(key)));
    let mut problems = Vec::new();
    for (key, rows) in checked.signers() {
        if !trusted.contains(&key.to_string()) {
            problems.push(format!(
                "{rows} rows are signed with the key {key}, which is none that you trust; if the operator confirms it, \
                 run this again with --trust-key {key}"
            ));
        }
    }
    if !first && checked.unsigned() > folder.state.unsigned_rows {
        problems.push(format!("{} rows are not signed", checked.unsigned()));
    }
    problems.extend(outputs(&folder, &connection, &entries).await?);
    let accepted = problems.is_empty();
    if accepted && trusted != folder.state.ledger_keys {
        folder.state.ledger_keys = trusted;
        if first {
            folder.state.unsigned_rows = checked.unsigned();
        }
        folder.save()?;
    }
    let signers: BTreeMap<String, u64> = checked
        .signers()
        .iter()
        .map(|(key, rows)| (key.to_string(), *rows))
        .collect();
    let value = json!({
        "chain_id": chain, "rows": checked.rows(), "unsigned": checked.unsigned(), "signers": signers,
        "ledger_key": current.map(|key| key.to_string()), "accepted": accepted, "problems": problems,
    });
    let mut text = format!("{} rows, the hash chain is whole", checked.rows());
    for (key, rows) in &signers {
        text += &format!("; {rows} signed with {key}");
    }
    if checked.unsigned() > 0 {
        text += &format!("; {} not signed", checked.unsigned());
    }
    text += &match accepted {
        true => "; every verified output is the one the archive names".into(),
        false => format!("\nNOT accepted: {}", problems.join("; ")),
    };
    out.result(&value, &text)?;
    Ok(match accepted {
        true => Outcome::Success,
        false => Outcome::NotAccepted,
    })
}

fn public_key(text: &str) -> anyhow::Result<PublicKey> {
    let bytes = hex::decode(text.trim()).unwrap_or_default();
    PublicKey::from_slice(&bytes)
        .with_context(|| format!("--trust-key {text}: want a key of 64 hexadecimal digits"))
}

/// Fetches and checks every row; the entries, and the key the coordinator signs with now.
async fn ledger(
    connection: &Connection,
    chain: ChainId,
) -> anyhow::Result<(Checker, Vec<Entry>, Option<PublicKey>)> {
    let mut checker = Checker::default();
    let mut entries = Vec::new();
    loop {
        let request = GetLedgerRequest {
            chain_id: chain.to_vec(),
            position: checker.rows(),
        };
        let answer = unary(UNARY_DEADLINE, connection.chain().get_ledger(request)).await?;
        for row in &answer.rows {
            let entry = checker.next_message(chain, row);
            entries.push(entry.context("the archive was tampered with, or rows of it are lost")?);
        }
        if !answer.more || answer.rows.is_empty() {
            return Ok((checker, entries, key(&answer.ledger_key)));
        }
        if entries.len() > MOST_ROWS {
            bail!("the coordinator sends more than {MOST_ROWS} rows for one chain");
        }
    }
}

/// A public key as the wire carries it.
fn key(bytes: &[u8]) -> Option<PublicKey> {
    PublicKey::from_slice(bytes).ok()
}

/// What is wrong between the archive and the outputs that the coordinator gives.
async fn outputs(
    folder: &ChainFolder,
    connection: &Connection,
    entries: &[Entry],
) -> anyhow::Result<Vec<String>> {
    let (chain, outputs) = verified_outputs(folder, connection).await?;
    // Hops before the one that was invalidated keep the row of an older generation.
    let mut named: BTreeMap<u32, (u32, Digest)> = BTreeMap::new();
    for entry in entries.iter().filter(|e| e.generation <= chain.generation) {
        let known = named
            .entry(entry.hop)
            .or_insert((entry.generation, entry.output));
        if entry.generation >= known.0 {
            *known = (entry.generation, entry.output);
        }
    }
    let mut problems = Vec::new();
    for (hop, blob) in (0u32..).zip(&outputs) {
        match named.get(&hop) {
            None => problems.push(format!("the archive has no row for hop {hop}")),
            Some((_, digest)) if digest.as_bytes()[..] != blob.digest[..] => {
                problems.push(format!(
                    "hop {hop}'s output is not the one the archive names"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(problems)
}

/// The key the coordinator says it signs with, to hold it to that later.
pub(super) async fn current_key(
    connection: &Connection,
    chain: ChainId,
) -> anyhow::Result<Option<String>> {
    let request = ExportArchiveRequest {
        chain_id: chain.to_vec(),
    };
    let answer = unary(UNARY_DEADLINE, connection.chain().export_archive(request)).await?;
    Ok(key(&answer.ledger_key).map(|key| key.to_string()))
}
