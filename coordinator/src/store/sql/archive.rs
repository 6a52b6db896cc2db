//! The archive's rows and accuracy figures.

use cipherhop_proto::ledger::Seal;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{ChainId, Digest};
use sqlx::query;

use super::chains::{method_columns, method_of};
use super::rows::{Columns, damaged, int, uuid};
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::view::Accuracy;
use crate::store::types::Result;

type Db = super::Connection;

pub(super) async fn archive(db: &mut Db, chain: ChainId) -> Result<Vec<ArchiveRow>> {
    let sql = "SELECT * FROM archive WHERE chain_id = $1 ORDER BY position";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .fetch_all(&mut *db)
        .await?;
    let mut archive = Vec::with_capacity(rows.len());
    for row in &rows {
        let row = Columns(row);
        archive.push(ArchiveRow {
            chain: row.id("chain_id")?,
            position: row.long("position")?,
            generation: row.short("generation")?,
            hop: row.short("hop")?,
            digest: row.bytes("digest")?,
            method: method_of(row)?,
            attempts: Vec::new(),
            at: row.time("at_us")?,
            previous: row.bytes("previous")?,
            hash: row.bytes("hash")?,
            seal: match (row.maybe_bytes("signer")?, row.maybe_bytes("signature")?) {
                (Some(signer), Some(signature)) => Some(Seal { signer, signature }),
                (None, None) => None,
                _ => return Err(damaged("signature", "without its key, or the key alone")),
            },
        });
    }
    let sql = "SELECT position, attempt_id FROM archive_attempts WHERE chain_id = $1
        ORDER BY position, attempt_id";
    for row in &query(sql)
        .bind(uuid(chain.as_bytes()))
        .fetch_all(db)
        .await?
    {
        let row = Columns(row);
        let position = usize::try_from(row.long("position")?).unwrap_or(usize::MAX);
        let entry = archive.get_mut(position);
        let entry = entry.ok_or_else(|| damaged("position", position))?;
        entry.attempts.push(row.id("attempt_id")?);
    }
    Ok(archive)
}

pub(super) async fn archive_tip(db: &mut Db, chain: ChainId) -> Result<Option<(u64, Digest)>> {
    let sql = "SELECT position, hash FROM archive WHERE chain_id = $1
        ORDER BY position DESC LIMIT 1";
    let row = query(sql)
        .bind(uuid(chain.as_bytes()))
        .fetch_optional(db)
        .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some((
        Columns(&row).long("position")?,
        Columns(&row).bytes("hash")?,
    )))
}

pub(super) async fn insert_archive(db: &mut Db, row: &ArchiveRow) -> Result<()> {
    let sql = "INSERT INTO archive (chain_id, position, generation, hop, digest, method, at_us,
        previous, hash, alone, signer, signature)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    let (method, alone) = method_columns(row.method);
    query(sql)
        .bind(uuid(row.chain.as_bytes()))
        .bind(int(row.position))
        .bind(int(row.generation))
        .bind(int(row.hop))
        .bind(row.digest.to_vec())
        .bind(method)
        .bind(row.at.micros())
        .bind(row.previous.to_vec())
        .bind(row.hash.to_vec())
        .bind(alone)
        .bind(row.seal.map(|seal| seal.signer.as_bytes().to_vec()))
        .bind(row.seal.map(|seal| seal.signature.to_vec()))
        .execute(&mut *db)
        .await?;
    for attempt in &row.attempts {
        let sql =
            "INSERT INTO archive_attempts (chain_id, position, attempt_id) VALUES ($1, $2, $3)";
        let insert = query(sql)
            .bind(uuid(row.chain.as_bytes()))
            .bind(int(row.position));
        insert
            .bind(uuid(attempt.as_bytes()))
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

pub(super) async fn ledger_keys(db: &mut Db) -> Result<Vec<PublicKey>> {
    let sql = "SELECT public_key FROM ledger_keys ORDER BY number";
    let rows = query(sql).fetch_all(db).await?;
    rows.iter()
        .map(|row| Columns(row).bytes("public_key"))
        .collect()
}

pub(super) async fn insert_ledger_key(
    db: &mut Db,
    number: u64,
    key: PublicKey,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO ledger_keys (number, public_key, since_us) VALUES ($1, $2, $3)";
    query(sql)
        .bind(int(number))
        .bind(key.as_bytes().to_vec())
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn accuracies(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
) -> Result<Vec<Accuracy>> {
    let sql = "SELECT * FROM accuracies WHERE chain_id = $1 AND generation = $2 ORDER BY hop";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .fetch_all(db)
        .await?;
    let accuracy = |row| {
        let row = Columns(row);
        Ok(Accuracy {
            hop: row.short("hop")?,
            max_err_over_f: row.real("max_err_over_f")?,
            worst_rel_rms: row.real("worst_rel_rms")?,
        })
    };
    rows.iter().map(accuracy).collect()
}

pub(super) async fn put_accuracy(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    given: Accuracy,
) -> Result<()> {
    let sql = "INSERT INTO accuracies (chain_id, generation, hop, max_err_over_f, worst_rel_rms)
        VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (chain_id, generation, hop) DO UPDATE SET
            max_err_over_f = excluded.max_err_over_f, worst_rel_rms = excluded.worst_rel_rms";
    query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .bind(int(given.hop))
        .bind(given.max_err_over_f)
        .bind(given.worst_rel_rms)
        .execute(db)
        .await?;
    Ok(())
}
