//! Attempts, credits and events.

use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Nonce};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Sqlite, SqliteConnection, query, query_scalar};

use super::rows::{Columns, int, maybe_digest, micros};
use crate::domain::attempt::{Attempt, AttemptState, Claim, Progress};
use crate::domain::event::{Event, EventKind, NewEvent};
use crate::domain::time::Timestamp;
use crate::store::types::Result;

type Db = SqliteConnection;

fn attempt_of(row: &SqliteRow) -> Result<Attempt> {
    let row = Columns(row);
    let claim = match row.maybe_bytes("claim_output")? {
        Some(output) => Some(Claim {
            output,
            output_size: row.long("claim_output_size")?,
            trace_root: row.bytes("claim_trace_root")?,
            trace: row.bytes("claim_trace")?,
            trace_size: row.long("claim_trace_size")?,
            compute: row.duration("claim_compute_us")?,
        }),
        None => None,
    };
    let eta = match (
        row.maybe_long("eta_low_us")?,
        row.maybe_long("eta_high_us")?,
    ) {
        (Some(low), Some(high)) => Some((
            std::time::Duration::from_micros(low),
            std::time::Duration::from_micros(high),
        )),
        _ => None,
    };
    Ok(Attempt {
        id: row.bytes("id")?,
        chain: row.bytes("chain_id")?,
        generation: row.short("generation")?,
        hop: row.short("hop")?,
        device: row.bytes("device_id")?,
        account: row.bytes("account_id")?,
        nonce: row.bytes("nonce")?,
        epoch: row.long("epoch")?,
        state: row.named("state", &AttemptState::ALL, AttemptState::name)?,
        reason: row.maybe_reason("reason")?,
        late: row.flag("late")?,
        silent: row.flag("silent")?,
        leased: row.time("leased_us")?,
        soft_expiry: row.time("soft_expiry_us")?,
        hard_deadline: row.time("hard_deadline_us")?,
        last_seen: row.time("last_seen_us")?,
        ended: row.maybe_time("ended_us")?,
        progress: Progress {
            steps_done: row.short("steps_done")?,
            steps_total: row.short("steps_total")?,
            step: row.text("step")?,
            compute: row.duration("compute_us")?,
            eta,
        },
        claim,
    })
}

fn all(rows: &[SqliteRow]) -> Result<Vec<Attempt>> {
    rows.iter().map(attempt_of).collect()
}

pub(super) async fn attempt(db: &mut Db, id: AttemptId) -> Result<Option<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE id = ?";
    let row = query(sql).bind(id.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(attempt_of).transpose()
}

pub(super) async fn attempt_by_nonce(
    db: &mut Db,
    device: DeviceId,
    nonce: Nonce,
) -> Result<Option<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE device_id = ? AND nonce = ?";
    let row = query(sql)
        .bind(device.to_vec())
        .bind(nonce.to_vec())
        .fetch_optional(db)
        .await?;
    row.as_ref().map(attempt_of).transpose()
}

pub(super) async fn attempts_of_hop(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    hop: u32,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE chain_id = ? AND generation = ? AND hop = ?
        ORDER BY epoch";
    let rows = query(sql)
        .bind(chain.to_vec())
        .bind(generation)
        .bind(hop)
        .fetch_all(db)
        .await?;
    all(&rows)
}

pub(super) async fn attempts_of_chain(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE chain_id = ? AND generation = ? ORDER BY hop, epoch";
    let rows = query(sql)
        .bind(chain.to_vec())
        .bind(generation)
        .fetch_all(db)
        .await?;
    all(&rows)
}

pub(super) async fn live_attempts(db: &mut Db) -> Result<Vec<Attempt>> {
    // Both conditions: the first lets SQLite use the partial index.
    let sql = "SELECT * FROM attempts
        WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND state <> 'Submitted'";
    all(&query(sql).fetch_all(db).await?)
}

pub(super) async fn pending_of_device(db: &mut Db, device: DeviceId) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts
        WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND device_id = ?";
    all(&query(sql).bind(device.to_vec()).fetch_all(db).await?)
}

pub(super) async fn insert_attempt(db: &mut Db, attempt: &Attempt) -> Result<()> {
    let sql = "INSERT INTO attempts (state, reason, late, silent, soft_expiry_us, last_seen_us,
            ended_us, steps_done, steps_total, step, compute_us, eta_low_us, eta_high_us,
            claim_output, claim_output_size, claim_trace_root, claim_trace, claim_trace_size,
            claim_compute_us, result, id, chain_id, generation, hop, device_id, account_id, nonce,
            epoch, leased_us, hard_deadline_us)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
            ?, ?)";
    bind_changing(sql, attempt)
        .bind(attempt.id.to_vec())
        .bind(attempt.chain.to_vec())
        .bind(attempt.generation)
        .bind(attempt.hop)
        .bind(attempt.device.to_vec())
        .bind(attempt.account.to_vec())
        .bind(attempt.nonce.to_vec())
        .bind(int(attempt.epoch))
        .bind(attempt.leased.micros())
        .bind(attempt.hard_deadline.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn update_attempt(db: &mut Db, attempt: &Attempt) -> Result<()> {
    let sql = "UPDATE attempts SET state = ?, reason = ?, late = ?, silent = ?, soft_expiry_us = ?,
            last_seen_us = ?, ended_us = ?, steps_done = ?, steps_total = ?, step = ?,
            compute_us = ?, eta_low_us = ?, eta_high_us = ?, claim_output = ?,
            claim_output_size = ?, claim_trace_root = ?, claim_trace = ?, claim_trace_size = ?,
            claim_compute_us = ?, result = ?
        WHERE id = ?";
    bind_changing(sql, attempt)
        .bind(attempt.id.to_vec())
        .execute(db)
        .await?;
    Ok(())
}

/// Binds the columns that change during an attempt's life, in the order both statements name them.
fn bind_changing<'q>(
    sql: &'static str,
    attempt: &'q Attempt,
) -> Query<'q, Sqlite, SqliteArguments> {
    let (progress, claim) = (&attempt.progress, attempt.claim.as_ref());
    let counts = matches!(
        attempt.state,
        AttemptState::Submitted | AttemptState::Matched | AttemptState::LateValid
    );
    let output = claim.map(|claim| claim.output);
    query(sql)
        .bind(attempt.state.name())
        .bind(attempt.reason.map(|reason| reason.as_str()))
        .bind(attempt.late)
        .bind(attempt.silent)
        .bind(attempt.soft_expiry.micros())
        .bind(attempt.last_seen.micros())
        .bind(attempt.ended.map(|at| at.micros()))
        .bind(progress.steps_done)
        .bind(progress.steps_total)
        .bind(&progress.step)
        .bind(micros(progress.compute))
        .bind(progress.eta.map(|(low, _)| micros(low)))
        .bind(progress.eta.map(|(_, high)| micros(high)))
        .bind(maybe_digest(output))
        .bind(claim.map(|claim| int(claim.output_size)))
        .bind(maybe_digest(claim.map(|claim| claim.trace_root)))
        .bind(maybe_digest(claim.map(|claim| claim.trace)))
        .bind(claim.map(|claim| int(claim.trace_size)))
        .bind(claim.map(|claim| micros(claim.compute)))
        .bind(maybe_digest(output.filter(|_| counts)))
}

pub(super) async fn accepted_durations(
    db: &mut Db,
    chain: ChainId,
    limit: u32,
) -> Result<Vec<u64>> {
    let sql = "SELECT MAX(ended_us - leased_us, 0) FROM attempts
        WHERE chain_id = ? AND state = 'Matched' ORDER BY ended_us DESC LIMIT ?";
    let rows: Vec<i64> = query_scalar(sql)
        .bind(chain.to_vec())
        .bind(limit)
        .fetch_all(db)
        .await?;
    Ok(rows
        .into_iter()
        .map(|micros| micros.unsigned_abs())
        .collect())
}

pub(super) async fn insert_credit(
    db: &mut Db,
    attempt: AttemptId,
    account: AccountId,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO credits (attempt_id, account_id, earned_us) VALUES (?, ?, ?)";
    let row = query(sql)
        .bind(attempt.to_vec())
        .bind(account.to_vec())
        .bind(now.micros());
    row.execute(db).await?;
    Ok(())
}

pub(super) async fn credits(db: &mut Db, account: AccountId) -> Result<u64> {
    let sql = "SELECT COUNT(*) FROM credits WHERE account_id = ?";
    let count: i64 = query_scalar(sql)
        .bind(account.to_vec())
        .fetch_one(db)
        .await?;
    Ok(count.unsigned_abs())
}

pub(super) async fn append_event(
    db: &mut Db,
    chain: ChainId,
    event: &NewEvent,
    now: Timestamp,
) -> Result<u64> {
    let sql = "INSERT INTO events (chain_id, kind, hop, attempt_id, detail, at_us)
        VALUES (?, ?, ?, ?, ?, ?)";
    let done = query(sql)
        .bind(chain.to_vec())
        .bind(event.kind.as_str())
        .bind(event.hop)
        .bind(event.attempt.map(Vec::from))
        .bind(&event.detail)
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(done.last_insert_rowid().unsigned_abs())
}

pub(super) async fn events(
    db: &mut Db,
    chain: ChainId,
    after: u64,
    limit: u32,
) -> Result<Vec<Event>> {
    let sql = "SELECT * FROM events WHERE chain_id = ? AND sequence > ?
        ORDER BY sequence LIMIT ?";
    let rows = query(sql)
        .bind(chain.to_vec())
        .bind(int(after))
        .bind(limit)
        .fetch_all(db)
        .await?;
    let event = |row| {
        let row = Columns(row);
        let hop = row
            .maybe_long("hop")?
            .map(|hop| u32::try_from(hop).unwrap_or(u32::MAX));
        Ok(Event {
            sequence: row.long("sequence")?,
            chain: row.bytes("chain_id")?,
            event: NewEvent {
                kind: row.named("kind", EventKind::ALL, EventKind::as_str)?,
                hop,
                attempt: row.maybe_bytes("attempt_id")?,
                detail: row.text("detail")?,
            },
            at: row.time("at_us")?,
        })
    };
    rows.iter().map(event).collect()
}

pub(super) async fn last_sequence(db: &mut Db, chain: ChainId) -> Result<u64> {
    let sql = "SELECT COALESCE(MAX(sequence), 0) FROM events WHERE chain_id = ?";
    let last: i64 = query_scalar(sql).bind(chain.to_vec()).fetch_one(db).await?;
    Ok(last.unsigned_abs())
}
