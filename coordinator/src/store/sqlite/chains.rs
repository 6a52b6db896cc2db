//! Chains, hops, archive, accuracy figures.

use cipherhop_proto::ChainId;
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteConnection, query};

use super::people::blob_of;
use super::rows::{Columns, damaged, int, maybe_digest, micros};
use crate::domain::chain::{Chain, ChainSpec, ChainState, NewChain, Policy};
use crate::domain::hop::{Accepted, Failures, Hop, HopState, LastFailure, Method};
use crate::store::types::{BlobRecord, Result};

type Db = SqliteConnection;

pub(super) const METHODS: [Method; 2] = [Method::Archive, Method::Quorum];

fn chain_of(row: &SqliteRow) -> Result<Chain> {
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
        id: row.bytes("id")?,
        name: row.text("name")?,
        owner: row.bytes("owner_id")?,
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

pub(super) async fn chain(db: &mut Db, id: ChainId) -> Result<Option<Chain>> {
    let sql = "SELECT * FROM chains WHERE id = ?";
    let row = query(sql).bind(id.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(chain_of).transpose()
}

pub(super) async fn chain_by_name(db: &mut Db, name: &str) -> Result<Option<Chain>> {
    let row = query("SELECT * FROM chains WHERE name = ?")
        .bind(name)
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

pub(super) async fn active_heads(db: &mut Db) -> Result<Vec<(Chain, Hop)>> {
    let sql = "SELECT * FROM chains WHERE state = 'Active' ORDER BY created_us, id";
    let chains = query(sql).fetch_all(&mut *db).await?;
    let sql = "SELECT h.* FROM chains c
        JOIN hops h ON h.chain_id = c.id AND h.generation = c.generation AND h.hop = c.head
        WHERE c.state = 'Active' ORDER BY c.created_us, c.id";
    let hops = query(sql).fetch_all(db).await?;
    let pair = |(chain, hop): (&SqliteRow, &SqliteRow)| Ok((chain_of(chain)?, hop_of(hop)?));
    chains.iter().zip(&hops).map(pair).collect()
}

pub(super) async fn insert_chain(db: &mut Db, chain: &Chain, new: &NewChain) -> Result<()> {
    let sql = "INSERT INTO chains (id, name, owner_id, state, note, hops, head, generation, quorum,
            soft_lease_us, grace_us, deadline_floor_us, compute_budget, disconnect_budget,
            mismatch_budget, backoff_base_us, backoff_cap_us, program, parameter_set, parameters,
            insecure, key_manifest, boundary_level, boundary_bytes, worker_memory_bytes,
            created_us)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let (policy, spec) = (&chain.policy, &chain.spec);
    query(sql)
        .bind(chain.id.to_vec())
        .bind(&chain.name)
        .bind(chain.owner.to_vec())
        .bind(chain.state.name())
        .bind(chain.state.note())
        .bind(chain.hops)
        .bind(chain.head)
        .bind(chain.generation)
        .bind(policy.quorum)
        .bind(micros(policy.soft_lease))
        .bind(micros(policy.grace))
        .bind(micros(policy.deadline_floor))
        .bind(policy.compute_budget)
        .bind(policy.disconnect_budget)
        .bind(policy.mismatch_budget)
        .bind(micros(policy.backoff_base))
        .bind(micros(policy.backoff_cap))
        .bind(spec.program.to_vec())
        .bind(&spec.parameter_set)
        .bind(spec.parameters.to_vec())
        .bind(spec.insecure)
        .bind(spec.key_manifest.to_vec())
        .bind(spec.boundary_level)
        .bind(int(spec.boundary_bytes))
        .bind(int(spec.worker_memory_bytes))
        .bind(chain.created.micros())
        .execute(&mut *db)
        .await?;
    for (position, key) in (0i64..).zip(&new.keys) {
        let sql = "INSERT INTO chain_keys (chain_id, position, digest) VALUES (?, ?, ?)";
        let row = query(sql)
            .bind(chain.id.to_vec())
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
    let sql = "UPDATE chains SET state = ?, note = ?, head = ?, generation = ?
        WHERE id = ? AND head = ? AND generation = ?";
    let done = query(sql)
        .bind(chain.state.name())
        .bind(chain.state.note())
        .bind(chain.head)
        .bind(chain.generation)
        .bind(chain.id.to_vec())
        .bind(head)
        .bind(generation)
        .execute(db)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn chain_keys(db: &mut Db, id: ChainId) -> Result<Vec<BlobRecord>> {
    let sql = "SELECT b.digest, b.size, b.completed_us
        FROM chain_keys k JOIN blobs b ON b.digest = k.digest
        WHERE k.chain_id = ? ORDER BY k.position";
    query(sql)
        .bind(id.to_vec())
        .fetch_all(db)
        .await?
        .iter()
        .map(blob_of)
        .collect()
}

fn hop_of(row: &SqliteRow) -> Result<Hop> {
    let row = Columns(row);
    let state = match row.text("state")?.as_str() {
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
            method: row.named("method", &METHODS, Method::name)?,
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
        chain: row.bytes("chain_id")?,
        generation: row.short("generation")?,
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
        last_failed_device: row.maybe_bytes("last_failed_device")?,
        not_before: row.maybe_time("not_before_us")?,
        reopened: row.short("reopened")?,
        since: row.time("since_us")?,
    })
}

pub(super) async fn hop(
    db: &mut Db,
    chain: ChainId,
    generation: u32,
    index: u32,
) -> Result<Option<Hop>> {
    let sql = "SELECT * FROM hops WHERE chain_id = ? AND generation = ? AND hop = ?";
    let row = query(sql).bind(chain.to_vec()).bind(generation).bind(index);
    row.fetch_optional(db)
        .await?
        .as_ref()
        .map(hop_of)
        .transpose()
}

pub(super) async fn hops(db: &mut Db, chain: ChainId, generation: u32) -> Result<Vec<Hop>> {
    let sql = "SELECT * FROM hops WHERE chain_id = ? AND generation = ? ORDER BY hop";
    let rows = query(sql)
        .bind(chain.to_vec())
        .bind(generation)
        .fetch_all(db)
        .await?;
    rows.iter().map(hop_of).collect()
}

pub(super) async fn put_hop(db: &mut Db, hop: &Hop) -> Result<()> {
    let sql = "INSERT INTO hops (chain_id, generation, hop, weights, state, stuck_reason, epoch,
            input, expected, output, method, compute_failures, disconnect_failures,
            mismatch_failures, failure_reason, failure_detail, failure_us, last_failed_device,
            not_before_us, reopened, since_us)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (chain_id, generation, hop) DO UPDATE SET state = excluded.state,
            stuck_reason = excluded.stuck_reason, epoch = excluded.epoch, input = excluded.input,
            expected = excluded.expected, output = excluded.output, method = excluded.method,
            compute_failures = excluded.compute_failures,
            disconnect_failures = excluded.disconnect_failures,
            mismatch_failures = excluded.mismatch_failures,
            failure_reason = excluded.failure_reason, failure_detail = excluded.failure_detail,
            failure_us = excluded.failure_us, last_failed_device = excluded.last_failed_device,
            not_before_us = excluded.not_before_us, reopened = excluded.reopened,
            since_us = excluded.since_us";
    let stuck = match hop.state {
        HopState::Stuck(reason) => Some(reason.as_str()),
        _ => None,
    };
    let failure = hop.last_failure.as_ref();
    query(sql)
        .bind(hop.chain.to_vec())
        .bind(hop.generation)
        .bind(hop.index)
        .bind(hop.weights.to_vec())
        .bind(hop.state.name())
        .bind(stuck)
        .bind(int(hop.epoch))
        .bind(maybe_digest(hop.input))
        .bind(maybe_digest(hop.expected))
        .bind(maybe_digest(hop.accepted.map(|accepted| accepted.digest)))
        .bind(hop.accepted.map(|accepted| accepted.method.name()))
        .bind(hop.failures.compute)
        .bind(hop.failures.disconnect)
        .bind(hop.failures.mismatch)
        .bind(failure.map(|failure| failure.reason.as_str()))
        .bind(failure.map(|failure| failure.detail.as_str()))
        .bind(failure.map(|failure| failure.at.micros()))
        .bind(hop.last_failed_device.map(Vec::from))
        .bind(hop.not_before.map(|at| at.micros()))
        .bind(hop.reopened)
        .bind(hop.since.micros())
        .execute(db)
        .await?;
    Ok(())
}
