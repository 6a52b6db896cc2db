//! A change of one attempt, its hop and the event that tells of it, written at once: most changes are of this form, and
//! each statement is a way to the database and back.

use super::chains::method_columns;
use super::rows::{Columns, int, maybe_digest, text, uuid};
use super::work::{bind_changing, bind_fixed};
use crate::domain::attempt::Attempt;
use crate::domain::event::NewEvent;
use crate::domain::hop::{Hop, HopState};
use crate::domain::time::Timestamp;
use crate::store::types::Result;

const LEASE: &str = together!(
    "INSERT INTO attempts (state, reason, late, silent, soft_expiry_us, last_seen_us,
            ended_us, steps_done, steps_total, step, compute_us, eta_low_us, eta_high_us,
            claim_output, claim_output_size, claim_trace_root, claim_trace, claim_trace_size,
            claim_compute_us, result, id, chain_id, generation, hop, device_id, account_id, nonce,
            epoch, leased_us, hard_deadline_us, purpose, solo)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
            $31, $32)",
    "UPDATE hops SET state = $39, stuck_reason = $40, epoch = $41, input = $42, expected = $43, output = $44,
            method = $45, compute_failures = $46, disconnect_failures = $47, mismatch_failures = $48,
            failure_reason = $49, failure_detail = $50, failure_us = $51, last_failed_device = $52,
            not_before_us = $53, reopened = $54, since_us = $55, alone = $56, recheck = $57
        WHERE chain_id = $58 AND generation = $59 AND hop = $60",
    "INSERT INTO events (chain_id, kind, hop, attempt_id, detail, at_us)
        VALUES ($33, $34, $35, $36, $37, $38) RETURNING sequence"
);

const CHANGE: &str = together!(
    "UPDATE attempts SET state = $1, reason = $2, late = $3, silent = $4, soft_expiry_us = $5,
            last_seen_us = $6, ended_us = $7, steps_done = $8, steps_total = $9, step = $10,
            compute_us = $11, eta_low_us = $12, eta_high_us = $13, claim_output = $14,
            claim_output_size = $15, claim_trace_root = $16, claim_trace = $17, claim_trace_size = $18,
            claim_compute_us = $19, result = $20
        WHERE id = $21",
    "UPDATE hops SET state = $28, stuck_reason = $29, epoch = $30, input = $31, expected = $32, output = $33,
            method = $34, compute_failures = $35, disconnect_failures = $36, mismatch_failures = $37,
            failure_reason = $38, failure_detail = $39, failure_us = $40, last_failed_device = $41,
            not_before_us = $42, reopened = $43, since_us = $44, alone = $45, recheck = $46
        WHERE chain_id = $47 AND generation = $48 AND hop = $49",
    "INSERT INTO events (chain_id, kind, hop, attempt_id, detail, at_us)
        VALUES ($22, $23, $24, $25, $26, $27) RETURNING sequence"
);

/// Writes a new attempt (`made`) or a changed one, its changed hop, and the event; the event's sequence number.
pub(super) async fn record(
    db: &mut super::Connection,
    attempt: &Attempt,
    made: bool,
    hop: &Hop,
    event: &NewEvent,
    now: Timestamp,
) -> Result<u64> {
    let bound = match made {
        true => bind_fixed(bind_changing(LEASE, attempt), attempt),
        false => bind_changing(CHANGE, attempt).bind(uuid(attempt.id.as_bytes())),
    };
    let stuck = match hop.state {
        HopState::Stuck(reason) => Some(reason.as_str()),
        _ => None,
    };
    let failure = hop.last_failure.as_ref();
    let method = hop.accepted.map(|accepted| method_columns(accepted.method));
    let row = bound
        .bind(uuid(hop.chain.as_bytes()))
        .bind(event.kind.as_str())
        .bind(event.hop.map(int))
        .bind(event.attempt.map(|id| uuid(id.as_bytes())))
        .bind(text(&event.detail))
        .bind(now.micros())
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
        .bind(uuid(hop.chain.as_bytes()))
        .bind(int(hop.generation))
        .bind(int(hop.index))
        .fetch_one(db)
        .await?;
    Columns(&row).long("sequence")
}
