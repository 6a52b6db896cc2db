//! Attempts, credits and events.

use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Nonce};
use sqlx::query::Query;
use sqlx::{query, query_scalar};

use super::rows::{Columns, int, maybe_digest, micros, text, uuid};
use crate::domain::attempt::{Attempt, AttemptState, Claim, Progress, Purpose};
use crate::domain::event::{Event, EventKind, NewEvent};
use crate::domain::time::Timestamp;
use crate::store::types::Result;

type Db = super::Connection;

fn attempt_of(row: &super::Row) -> Result<Attempt> {
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
        id: row.id("id")?,
        chain: row.id("chain_id")?,
        generation: row.short("generation")?,
        hop: row.short("hop")?,
        device: row.id("device_id")?,
        account: row.id("account_id")?,
        nonce: row.id("nonce")?,
        epoch: row.long("epoch")?,
        purpose: row.named("purpose", &Purpose::ALL, Purpose::name)?,
        solo: row.flag("solo")?,
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

fn all(rows: &[super::Row]) -> Result<Vec<Attempt>> {
    rows.iter().map(attempt_of).collect()
}

pub(super) async fn attempt(db: &mut Db, id: AttemptId) -> Result<Option<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE id = $1";
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(attempt_of).transpose()
}

pub(super) async fn own_attempts(
    db: &mut Db,
    device: DeviceId,
    nonce: Nonce,
) -> Result<Vec<Attempt>> {
    // Two selects, so that each has its index.
    let sql = "SELECT * FROM attempts WHERE device_id = $1 AND nonce = $2
        UNION ALL
        SELECT * FROM attempts
        WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND device_id = $1 AND nonce <> $2";
    let rows = query(sql)
        .bind(uuid(device.as_bytes()))
        .bind(uuid(nonce.as_bytes()))
        .fetch_all(db)
        .await?;
    all(&rows)
}

pub(super) async fn pending_of_hop(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    hop: u32,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts
        WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND chain_id = $1 AND generation = $2 AND hop = $3
        ORDER BY epoch";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .bind(int(hop))
        .fetch_all(db)
        .await?;
    all(&rows)
}

pub(super) async fn attempts_of_hop(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    hop: u32,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE chain_id = $1 AND generation = $2 AND hop = $3
        ORDER BY epoch";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .bind(int(hop))
        .fetch_all(db)
        .await?;
    all(&rows)
}

pub(super) async fn pending_of_heads(db: &mut Db) -> Result<Vec<Attempt>> {
    let sql = "SELECT a.* FROM attempts a
        JOIN chains c ON c.id = a.chain_id AND c.generation = a.generation AND c.head = a.hop
        WHERE a.state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND c.state = 'Active'
        ORDER BY a.epoch";
    all(&query(sql).fetch_all(db).await?)
}

pub(super) async fn attempts_of_chain(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts WHERE chain_id = $1 AND generation = $2 ORDER BY hop, epoch";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
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

// Of live attempts, with the time at which each needs a look: as [`Attempt::wake_at`]. The first condition lets SQLite use
// the partial index.
macro_rules! wakes {
    ($columns:literal, $rest:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM (SELECT a.*, CASE WHEN ",
            is_set!("a.silent"),
            " OR a.soft_expiry_us + c.grace_us > a.hard_deadline_us THEN a.hard_deadline_us
                ELSE a.soft_expiry_us + c.grace_us END AS wake_us
            FROM attempts a JOIN chains c ON c.id = a.chain_id
            WHERE a.state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
                AND a.state <> 'Submitted') live ",
            $rest
        )
    };
}

pub(super) async fn due_attempts(db: &mut Db, now: Timestamp) -> Result<Vec<Attempt>> {
    let sql = wakes!("*", "WHERE wake_us <= $1");
    all(&query(sql).bind(now.micros()).fetch_all(db).await?)
}

pub(super) async fn next_wake(db: &mut Db, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
    let sql = wakes!("MIN(wake_us)", "WHERE wake_us > $1");
    let after = after.map_or(i64::MIN, Timestamp::micros);
    let next: Option<i64> = query_scalar(sql).bind(after).fetch_one(db).await?;
    Ok(next.map(Timestamp::from_micros))
}

pub(super) async fn pending_of_device(db: &mut Db, device: DeviceId) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts
        WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted')
            AND device_id = $1";
    all(&query(sql)
        .bind(uuid(device.as_bytes()))
        .fetch_all(db)
        .await?)
}

pub(super) async fn accepted_of_device(
    db: &mut Db,
    device: DeviceId,
    since: Timestamp,
) -> Result<Vec<Attempt>> {
    let sql = "SELECT * FROM attempts
        WHERE state IN ('Matched', 'LateValid') AND device_id = $1 AND ended_us > $2";
    let rows = query(sql)
        .bind(uuid(device.as_bytes()))
        .bind(since.micros());
    all(&rows.fetch_all(db).await?)
}

pub(super) async fn insert_attempt(db: &mut Db, attempt: &Attempt) -> Result<()> {
    let sql = "INSERT INTO attempts (state, reason, late, silent, soft_expiry_us, last_seen_us,
            ended_us, steps_done, steps_total, step, compute_us, eta_low_us, eta_high_us,
            claim_output, claim_output_size, claim_trace_root, claim_trace, claim_trace_size,
            claim_compute_us, result, id, chain_id, generation, hop, device_id, account_id, nonce,
            epoch, leased_us, hard_deadline_us, purpose, solo)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
            $31, $32)";
    bind_fixed(bind_changing(sql, attempt), attempt)
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn update_attempt(db: &mut Db, attempt: &Attempt) -> Result<()> {
    let sql = "UPDATE attempts SET state = $1, reason = $2, late = $3, silent = $4, soft_expiry_us = $5,
            last_seen_us = $6, ended_us = $7, steps_done = $8, steps_total = $9, step = $10,
            compute_us = $11, eta_low_us = $12, eta_high_us = $13, claim_output = $14,
            claim_output_size = $15, claim_trace_root = $16, claim_trace = $17, claim_trace_size = $18,
            claim_compute_us = $19, result = $20
        WHERE id = $21";
    bind_changing(sql, attempt)
        .bind(uuid(attempt.id.as_bytes()))
        .execute(db)
        .await?;
    Ok(())
}

type Bound<'q> = Query<'q, super::Database, super::Arguments>;

/// Binds the columns that do not change, in the order of INSERT.
pub(super) fn bind_fixed<'q>(bound: Bound<'q>, attempt: &'q Attempt) -> Bound<'q> {
    bound
        .bind(uuid(attempt.id.as_bytes()))
        .bind(uuid(attempt.chain.as_bytes()))
        .bind(int(attempt.generation))
        .bind(int(attempt.hop))
        .bind(uuid(attempt.device.as_bytes()))
        .bind(uuid(attempt.account.as_bytes()))
        .bind(uuid(attempt.nonce.as_bytes()))
        .bind(int(attempt.epoch))
        .bind(attempt.leased.micros())
        .bind(attempt.hard_deadline.micros())
        .bind(attempt.purpose.name())
        .bind(attempt.solo)
}

/// Binds the columns that change during an attempt's life, in the order both statements name them.
pub(super) fn bind_changing<'q>(sql: &'static str, attempt: &'q Attempt) -> Bound<'q> {
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
        .bind(int(progress.steps_done))
        .bind(int(progress.steps_total))
        .bind(text(&progress.step))
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
    let sql = "SELECT ended_us - leased_us FROM attempts
        WHERE chain_id = $1 AND state = 'Matched' ORDER BY ended_us DESC LIMIT $2";
    let rows: Vec<i64> = query_scalar(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(limit))
        .fetch_all(db)
        .await?;
    Ok(rows
        .into_iter()
        .map(|micros| u64::try_from(micros).unwrap_or(0))
        .collect())
}

pub(super) async fn insert_credit(
    db: &mut Db,
    attempt: AttemptId,
    account: AccountId,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO credits (attempt_id, account_id, earned_us) VALUES ($1, $2, $3)";
    let row = query(sql)
        .bind(uuid(attempt.as_bytes()))
        .bind(uuid(account.as_bytes()))
        .bind(now.micros());
    row.execute(db).await?;
    Ok(())
}

pub(super) async fn credits(db: &mut Db, account: AccountId) -> Result<u64> {
    let sql = "SELECT COUNT(*) FROM credits WHERE account_id = $1";
    let count: i64 = query_scalar(sql)
        .bind(uuid(account.as_bytes()))
        .fetch_one(db)
        .await?;
    Ok(count.unsigned_abs())
}

pub(super) async fn credit_seconds(db: &mut Db, account: AccountId) -> Result<f64> {
    // strangers claim these times, and whole numbers of them could overflow
    let sql = "SELECT COALESCE(SUM(CAST(claim_compute_us AS DOUBLE PRECISION)), 0.0)
        FROM credits JOIN attempts ON attempts.id = credits.attempt_id
        WHERE credits.account_id = $1";
    let micros: f64 = query_scalar(sql)
        .bind(uuid(account.as_bytes()))
        .fetch_one(db)
        .await?;
    Ok(micros / 1e6)
}

pub(super) async fn append_event(
    db: &mut Db,
    chain: ChainId,
    event: &NewEvent,
    now: Timestamp,
) -> Result<u64> {
    let sql = "INSERT INTO events (chain_id, kind, hop, attempt_id, detail, at_us)
        VALUES ($1, $2, $3, $4, $5, $6)
        RETURNING sequence";
    let sequence: i64 = query_scalar(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(event.kind.as_str())
        .bind(event.hop.map(int))
        .bind(event.attempt.map(|id| uuid(id.as_bytes())))
        .bind(text(&event.detail))
        .bind(now.micros())
        .fetch_one(db)
        .await?;
    Ok(sequence.unsigned_abs())
}

pub(super) async fn events(
    db: &mut Db,
    chain: ChainId,
    after: u64,
    limit: u32,
) -> Result<Vec<Event>> {
    let sql = "SELECT * FROM events WHERE chain_id = $1 AND sequence > $2
        ORDER BY sequence LIMIT $3";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(after))
        .bind(int(limit))
        .fetch_all(db)
        .await?;
    let event = |row| {
        let row = Columns(row);
        let hop = row
            .maybe_long("hop")?
            .map(|hop| u32::try_from(hop).unwrap_or(u32::MAX));
        Ok(Event {
            sequence: row.long("sequence")?,
            chain: row.id("chain_id")?,
            event: NewEvent {
                kind: row.named("kind", EventKind::ALL, EventKind::as_str)?,
                hop,
                attempt: row.maybe_id("attempt_id")?,
                detail: row.text("detail")?,
            },
            at: row.time("at_us")?,
        })
    };
    rows.iter().map(event).collect()
}

pub(super) async fn last_sequence(db: &mut Db, chain: ChainId) -> Result<u64> {
    let sql = "SELECT COALESCE(MAX(sequence), 0) FROM events WHERE chain_id = $1";
    let last: i64 = query_scalar(sql)
        .bind(uuid(chain.as_bytes()))
        .fetch_one(db)
        .await?;
    Ok(last.unsigned_abs())
}
