//! Chains, hops, archive, accuracy figures.

use cipherhop_proto::ChainId;
use sqlx::query;

use super::people::blob_of;
use super::rows::{Columns, damaged, int, maybe_digest, micros, text, uuid};
use crate::domain::chain::{Chain, ChainSpec, ChainState, NewChain, Policy};
use crate::domain::hop::{Accepted, Failures, Hop, HopState, LastFailure, Method};
use crate::store::types::{BlobRecord, Result};

type Db = super::Connection;

/// How a result was accepted: `method`, and `alone` where that says more.
pub(super) fn method_of(row: Columns<'_>) -> Result<Method> {
    let column = match row.maybe_text("alone")? {
        Some(_) => "alone",
        None => "method",
    };
    row.named(column, &Method::ALL, Method::name)
}

/// The columns `method` and `alone` of a method.
pub(super) const fn method_columns(method: Method) -> (&'static str, Option<&'static str>) {
    match method.rests_on_one() {
        true => (Method::Quorum.name(), Some(method.name())),
        false => (method.name(), None),
    }
}

fn chain_of(row: &super::Row) -> Result<Chain> {
    let row = Columns(row);
    let note = row.text("note")?;
    let state = match row.text("state")?.as_str() {
        "Active" => ChainState::Active,
        "Paused" => ChainState::Paused(note),
        "Stuck" => ChainState::Stuck(note.parse().map_err(|_| damaged("note", note))?),
        "Completed" => ChainState::Completed,
        "Cancelled" => ChainState::Cancelled(note),
        other => return Err(damaged("state", other)),
    };
    Ok(Chain {
        id: row.id("id")?,
        name: row.text("name")?,
        owner: row.id("owner_id")?,
        state,
        hops: row.short("hops")?,
        head: row.short("head")?,
        generation: row.short("generation")?,
        policy: Policy {
            quorum: row.short("quorum")?,
            soft_lease: row.duration("soft_lease_us")?,
            grace: row.duration("grace_us")?,
            deadline_floor: row.duration("deadline_floor_us")?,
            compute_budget: row.short("compute_budget")?,
            disconnect_budget: row.short("disconnect_budget")?,
            mismatch_budget: row.short("mismatch_budget")?,
            backoff_base: row.duration("backoff_base_us")?,
            backoff_cap: row.duration("backoff_cap_us")?,
        },
        spec: ChainSpec {
            program: row.bytes("program")?,
            parameter_set: row.text("parameter_set")?,
            parameters: row.bytes("parameters")?,
            insecure: row.flag("insecure")?,
            key_manifest: row.bytes("key_manifest")?,
            boundary_level: row.short("boundary_level")?,
            boundary_bytes: row.long("boundary_bytes")?,
            worker_memory_bytes: row.long("worker_memory_bytes")?,
        },
        created: row.time("created_us")?,
    })
}

/// `lock`: nobody else changes the chain, its hops and attempts before this transaction ends.
pub(super) async fn chain(db: &mut Db, id: ChainId, lock: bool) -> Result<Option<Chain>> {
    let sql = locking!(lock, "SELECT * FROM chains WHERE id = $1");
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(chain_of).transpose()
}

/// Locks it; `None` also when another transaction has the chain.
pub(super) async fn chain_if_free(db: &mut Db, id: ChainId) -> Result<Option<Chain>> {
    let sql = skip_locked!("SELECT * FROM chains WHERE id = $1");
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(chain_of).transpose()
}

pub(super) async fn chain_by_name(db: &mut Db, name: &str) -> Result<Option<Chain>> {
    let row = query("SELECT * FROM chains WHERE name = $1")
        .bind(text(name))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(chain_of).transpose()
}

pub(super) async fn chains(db: &mut Db) -> Result<Vec<Chain>> {
    let sql = "SELECT * FROM chains ORDER BY created_us, id";
    query(sql)
        .fetch_all(db)
        .await?
        .iter()
        .map(chain_of)
        .collect()
}

// The columns of both tables, but the two names that both have.
macro_rules! with_hop {
    ($rest:literal) => {
        concat!(
            "SELECT c.*, h.state AS hop_state, h.generation AS hop_generation, h.chain_id, h.hop, h.stuck_reason,
            h.epoch, h.weights, h.input, h.expected, h.output, h.method, h.alone, h.compute_failures,
            h.disconnect_failures, h.mismatch_failures, h.failure_reason, h.failure_detail, h.failure_us,
            h.last_failed_device, h.not_before_us, h.reopened, h.recheck, h.since_us
        FROM chains c JOIN hops h ON h.chain_id = c.id ",
            $rest
        )
    };
}

const JOINED: (&str, &str) = ("hop_state", "hop_generation");
const ALONE: (&str, &str) = ("state", "generation");

/// A chain and its head hop, not locked.
pub(super) async fn head(db: &mut Db, id: ChainId) -> Result<Option<(Chain, Option<Hop>)>> {
    let sql = with_hop!(
        "AND h.generation = c.generation AND h.hop = CASE WHEN c.head < c.hops THEN c.head ELSE c.hops - 1 END
        WHERE c.id = $1"
    );
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    let pair = |row: &super::Row| Ok((chain_of(row)?, Some(hop_in(row, JOINED)?)));
    row.as_ref().map(pair).transpose()
}

/// A chain and one of its hops, not locked.
pub(super) async fn chain_and_hop(
    db: &mut Db,
    id: ChainId,
    generation: u32,
    index: u32,
) -> Result<Option<(Chain, Option<Hop>)>> {
    let sql = with_hop!("AND h.generation = $2 AND h.hop = $3 WHERE c.id = $1");
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .bind(int(generation))
        .bind(int(index))
        .fetch_optional(db)
        .await?;
    let pair = |row: &super::Row| Ok((chain_of(row)?, Some(hop_in(row, JOINED)?)));
    row.as_ref().map(pair).transpose()
}

pub(super) async fn active_heads(db: &mut Db) -> Result<Vec<(Chain, Hop)>> {
    let sql = with_hop!(
        "AND h.generation = c.generation AND h.hop = c.head
        WHERE c.state = 'Active' ORDER BY c.created_us, c.id"
    );
    let rows = query(sql).fetch_all(db).await?;
    let pair = |row| Ok((chain_of(row)?, hop_in(row, JOINED)?));
    rows.iter().map(pair).collect()
}

pub(super) async fn insert_chain(db: &mut Db, chain: &Chain, new: &NewChain) -> Result<()> {
    let sql = "INSERT INTO chains (id, name, owner_id, state, note, hops, head, generation, quorum,
            soft_lease_us, grace_us, deadline_floor_us, compute_budget, disconnect_budget,
            mismatch_budget, backoff_base_us, backoff_cap_us, program, parameter_set, parameters,
            insecure, key_manifest, boundary_level, boundary_bytes, worker_memory_bytes,
            created_us)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26)";
    let (policy, spec) = (&chain.policy, &chain.spec);
    query(sql)
        .bind(uuid(chain.id.as_bytes()))
        .bind(text(&chain.name))
        .bind(uuid(chain.owner.as_bytes()))
        .bind(chain.state.name())
        .bind(text(chain.state.note()))
        .bind(int(chain.hops))
        .bind(int(chain.head))
        .bind(int(chain.generation))
        .bind(int(policy.quorum))
        .bind(micros(policy.soft_lease))
        .bind(micros(policy.grace))
        .bind(micros(policy.deadline_floor))
        .bind(int(policy.compute_budget))
        .bind(int(policy.disconnect_budget))
        .bind(int(policy.mismatch_budget))
        .bind(micros(policy.backoff_base))
        .bind(micros(policy.backoff_cap))
        .bind(spec.program.to_vec())
        .bind(&spec.parameter_set)
        .bind(spec.parameters.to_vec())
        .bind(spec.insecure)
        .bind(spec.key_manifest.to_vec())
        .bind(int(spec.boundary_level))
        .bind(int(spec.boundary_bytes))
        .bind(int(spec.worker_memory_bytes))
        .bind(chain.created.micros())
        .execute(&mut *db)
        .await?;
    for (position, key) in (0i64..).zip(&new.keys) {
        let sql = "INSERT INTO chain_keys (chain_id, position, digest) VALUES ($1, $2, $3)";
        let row = query(sql)
            .bind(uuid(chain.id.as_bytes()))
            .bind(position)
            .bind(key.to_vec());
        row.execute(&mut *db).await?;
    }
    Ok(())
}

pub(super) async fn update_chain(
    db: &mut Db,
    chain: &Chain,
    head: u32,
    generation: u32,
) -> Result<bool> {
    let sql = "UPDATE chains SET state = $1, note = $2, head = $3, generation = $4
        WHERE id = $5 AND head = $6 AND generation = $7";
    let done = query(sql)
        .bind(chain.state.name())
        .bind(text(chain.state.note()))
        .bind(int(chain.head))
        .bind(int(chain.generation))
        .bind(uuid(chain.id.as_bytes()))
        .bind(int(head))
        .bind(int(generation))
        .execute(db)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn chain_keys(db: &mut Db, id: ChainId) -> Result<Vec<BlobRecord>> {
    let sql = "SELECT b.digest, b.size, b.completed_us
        FROM chain_keys k JOIN blobs b ON b.digest = k.digest
        WHERE k.chain_id = $1 ORDER BY k.position";
    query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_all(db)
        .await?
        .iter()
        .map(blob_of)
        .collect()
}

fn hop_of(row: &super::Row) -> Result<Hop> {
    hop_in(row, ALONE)
}

/// `state`, `generation`: names of the columns that are the hop's.
fn hop_in(row: &super::Row, (state, generation): (&str, &str)) -> Result<Hop> {
    let row = Columns(row);
    let state = match row.text(state)?.as_str() {
        "Blocked" => HopState::Blocked,
        "Ready" => HopState::Ready,
        "Running" => HopState::Running,
        "Verifying" => HopState::Verifying,
        "Verified" => HopState::Verified,
        "Stuck" => {
            let reason = row.maybe_reason("stuck_reason")?;
            HopState::Stuck(reason.ok_or_else(|| damaged("stuck_reason", "missing"))?)
        }
        "Cancelled" => HopState::Cancelled,
        other => return Err(damaged("state", other)),
    };
    let accepted = match row.maybe_bytes("output")? {
        Some(digest) => Some(Accepted {
            digest,
            method: method_of(row)?,
        }),
        None => None,
    };
    let last_failure = match row.maybe_reason("failure_reason")? {
        Some(reason) => Some(LastFailure {
            reason,
            detail: row.maybe_text("failure_detail")?.unwrap_or_default(),
            at: row.maybe_time("failure_us")?.unwrap_or_default(),
        }),
        None => None,
    };
    Ok(Hop {
        chain: row.id("chain_id")?,
        generation: row.short(generation)?,
        index: row.short("hop")?,
        state,
        epoch: row.long("epoch")?,
        weights: row.bytes("weights")?,
        input: row.maybe_bytes("input")?,
        expected: row.maybe_bytes("expected")?,
        accepted,
        failures: Failures {
            compute: row.short("compute_failures")?,
            disconnect: row.short("disconnect_failures")?,
            mismatch: row.short("mismatch_failures")?,
        },
        last_failure,
        last_failed_device: row.maybe_id("last_failed_device")?,
        not_before: row.maybe_time("not_before_us")?,
        reopened: row.short("reopened")?,
        recheck: row.flag("recheck")?,
        since: row.time("since_us")?,
    })
}

pub(super) async fn hop(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    index: u32,
) -> Result<Option<Hop>> {
    let sql = "SELECT * FROM hops WHERE chain_id = $1 AND generation = $2 AND hop = $3";
    let row = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .bind(int(index));
    row.fetch_optional(db)
        .await?
        .as_ref()
        .map(hop_of)
        .transpose()
}

pub(super) async fn hops(db: &mut Db, chain: ChainId, generation: u32) -> Result<Vec<Hop>> {
    let sql = "SELECT * FROM hops WHERE chain_id = $1 AND generation = $2 ORDER BY hop";
    let rows = query(sql)
        .bind(uuid(chain.as_bytes()))
        .bind(int(generation))
        .fetch_all(db)
        .await?;
    rows.iter().map(hop_of).collect()
}

pub(super) async fn rechecks(db: &mut Db) -> Result<Vec<Hop>> {
    let sql = concat!(
        "SELECT h.* FROM hops h
        JOIN chains c ON c.id = h.chain_id AND c.generation = h.generation WHERE ",
        is_set!("h.recheck"),
        " ORDER BY h.since_us, h.chain_id, h.hop"
    );
    query(sql).fetch_all(db).await?.iter().map(hop_of).collect()
}

pub(super) async fn put_hop(db: &mut Db, hop: &Hop) -> Result<()> {
    let sql = "INSERT INTO hops (chain_id, generation, hop, weights, state, stuck_reason, epoch,
            input, expected, output, method, compute_failures, disconnect_failures,
            mismatch_failures, failure_reason, failure_detail, failure_us, last_failed_device,
            not_before_us, reopened, since_us, alone, recheck)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
        ON CONFLICT (chain_id, generation, hop) DO UPDATE SET state = excluded.state,
            stuck_reason = excluded.stuck_reason, epoch = excluded.epoch, input = excluded.input,
            expected = excluded.expected, output = excluded.output, method = excluded.method,
            compute_failures = excluded.compute_failures,
            disconnect_failures = excluded.disconnect_failures,
            mismatch_failures = excluded.mismatch_failures,
            failure_reason = excluded.failure_reason, failure_detail = excluded.failure_detail,
            failure_us = excluded.failure_us, last_failed_device = excluded.last_failed_device,
            not_before_us = excluded.not_before_us, reopened = excluded.reopened,
            since_us = excluded.since_us, alone = excluded.alone, recheck = excluded.recheck";
    let stuck = match hop.state {
        HopState::Stuck(reason) => Some(reason.as_str()),
        _ => None,
    };
    let failure = hop.last_failure.as_ref();
    let method = hop.accepted.map(|accepted| method_columns(accepted.method));
    query(sql)
        .bind(uuid(hop.chain.as_bytes()))
        .bind(int(hop.generation))
        .bind(int(hop.index))
        .bind(hop.weights.to_vec())
        .bind(hop.state.name())
        .bind(stuck)
        .bind(int(hop.epoch))
        .bind(maybe_digest(hop.input))
        .bind(maybe_digest(hop.expected))
        .bind(maybe_digest(hop.accepted.map(|accepted| accepted.digest)))
        .bind(method.map(|(method, _)| method))
        .bind(int(hop.failures.compute))
        .bind(int(hop.failures.disconnect))
        .bind(int(hop.failures.mismatch))
        .bind(failure.map(|failure| failure.reason.as_str()))
        .bind(failure.map(|failure| text(&failure.detail)))
        .bind(failure.map(|failure| failure.at.micros()))
        .bind(hop.last_failed_device.map(|id| uuid(id.as_bytes())))
        .bind(hop.not_before.map(|at| at.micros()))
        .bind(int(hop.reopened))
        .bind(hop.since.micros())
        .bind(method.and_then(|(_, alone)| alone))
        .bind(hop.recheck)
        .execute(db)
        .await?;
    Ok(())
}
