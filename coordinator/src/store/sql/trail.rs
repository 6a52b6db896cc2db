//! Device keys, signatures of results, and the audit log.

use cipherhop_proto::signing::{PublicKey, Signature};
use cipherhop_proto::{AttemptId, DeviceId};
use sqlx::{query, query_scalar};

use super::rows::{Columns, int, text, uuid};
use crate::domain::time::Timestamp;
use crate::store::types::{AuditEntry, AuditStart, Result, ResultSignature};

type Db = super::Connection;

pub(super) async fn device_key(db: &mut Db, device: DeviceId) -> Result<Option<PublicKey>> {
    let sql = "SELECT public_key FROM device_keys WHERE device_id = $1";
    let row = query(sql)
        .bind(uuid(device.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).bytes("public_key")).transpose()
}

pub(super) async fn device_of_key(db: &mut Db, key: PublicKey) -> Result<Option<DeviceId>> {
    let sql = "SELECT device_id FROM device_keys WHERE public_key = $1";
    let row = query(sql)
        .bind(key.as_bytes().to_vec())
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).id("device_id")).transpose()
}

pub(super) async fn device_keys(db: &mut Db) -> Result<Vec<(DeviceId, PublicKey)>> {
    query("SELECT device_id, public_key FROM device_keys")
        .fetch_all(db)
        .await?
        .iter()
        .map(|row| {
            let row = Columns(row);
            Ok((row.id("device_id")?, row.bytes("public_key")?))
        })
        .collect()
}

pub(super) async fn insert_device_key(
    db: &mut Db,
    device: DeviceId,
    key: PublicKey,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO device_keys (device_id, public_key, created_us) VALUES ($1, $2, $3)";
    query(sql)
        .bind(uuid(device.as_bytes()))
        .bind(key.as_bytes().to_vec())
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn put_signature(
    db: &mut Db,
    signed: &ResultSignature,
    now: Timestamp,
) -> Result<()> {
    let sql =
        "INSERT INTO attempt_signatures (attempt_id, public_key, output, trace_root, signature,
            signed_us)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (attempt_id) DO UPDATE SET public_key = excluded.public_key,
            output = excluded.output, trace_root = excluded.trace_root,
            signature = excluded.signature";
    query(sql)
        .bind(uuid(signed.attempt.as_bytes()))
        .bind(signed.key.as_bytes().to_vec())
        .bind(signed.output.to_vec())
        .bind(signed.trace_root.to_vec())
        .bind(signed.signature.to_vec())
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn signature(db: &mut Db, attempt: AttemptId) -> Result<Option<ResultSignature>> {
    let sql = "SELECT public_key, output, trace_root, signature FROM attempt_signatures
        WHERE attempt_id = $1";
    let row = query(sql)
        .bind(uuid(attempt.as_bytes()))
        .fetch_optional(db)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let row = Columns(&row);
    Ok(Some(ResultSignature {
        attempt,
        key: row.bytes("public_key")?,
        output: row.bytes("output")?,
        trace_root: row.bytes("trace_root")?,
        signature: row.bytes::<Signature>("signature")?,
    }))
}

pub(super) async fn insert_audit(db: &mut Db, start: &AuditStart, now: Timestamp) -> Result<u64> {
    let sql = "INSERT INTO audit (at_us, token_id, account, action, target, detail)
        VALUES ($1, $2, $3, $4, $5, $6) RETURNING number";
    let number: i64 = query_scalar(sql)
        .bind(now.micros())
        .bind(uuid(start.token.as_bytes()))
        .bind(text(&start.account))
        .bind(text(start.action))
        .bind(text(&start.target))
        .bind(text(&start.detail))
        .fetch_one(db)
        .await?;
    u64::try_from(number).map_err(|_| super::rows::damaged("number", number))
}

pub(super) async fn end_audit(db: &mut Db, number: u64, outcome: &str) -> Result<bool> {
    let sql = "UPDATE audit SET outcome = $1 WHERE number = $2 AND outcome IS NULL";
    let done = query(sql)
        .bind(text(outcome))
        .bind(int(number))
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn audit(db: &mut Db, before: u64, limit: u32) -> Result<Vec<AuditEntry>> {
    let sql = "SELECT * FROM audit WHERE number < $1 ORDER BY number DESC LIMIT $2";
    query(sql)
        .bind(int(before))
        .bind(i64::from(limit))
        .fetch_all(db)
        .await?
        .iter()
        .map(|row| {
            let row = Columns(row);
            Ok(AuditEntry {
                number: row.long("number")?,
                at: row.time("at_us")?,
                token: row.id("token_id")?,
                account: row.text("account")?,
                action: row.text("action")?,
                target: row.text("target")?,
                detail: row.text("detail")?,
                outcome: row.maybe_text("outcome")?,
            })
        })
        .collect()
}
