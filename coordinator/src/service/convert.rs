//! From domain types to messages.

use cipherhop_proto::v1;

use crate::domain::attempt::{AttemptState, Phase, Progress};
use crate::domain::chain::{Chain, ChainState};
use crate::domain::command::Outcome;
use crate::domain::hop::HopState;
use crate::domain::reconcile::{Fate, Held};
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Assignment, BlobRole, HopView, NeededBlob, RunningView};
use crate::store::AuditEntry;

pub(crate) fn chain(chain: &Chain, now: Timestamp) -> v1::Chain {
    v1::Chain {
        chain_id: chain.id.to_vec(),
        name: chain.name.clone(),
        state: chain_state(&chain.state).into(),
        state_reason: chain.state.note().to_owned(),
        hops: chain.hops,
        head: chain.head,
        generation: chain.generation,
        quorum: chain.policy.quorum,
        parameter_set: chain.spec.parameter_set.clone(),
        insecure: chain.spec.insecure,
        program_digest: chain.spec.program.to_vec(),
        age_seconds: now.since(chain.created).as_secs_f64(),
    }
}

fn chain_state(state: &ChainState) -> v1::ChainState {
    match state {
        ChainState::Active => v1::ChainState::Active,
        ChainState::Paused(_) => v1::ChainState::Paused,
        ChainState::Stuck(_) => v1::ChainState::Stuck,
        ChainState::Completed => v1::ChainState::Completed,
        ChainState::Cancelled(_) => v1::ChainState::Cancelled,
    }
}

pub(super) fn hop_state(state: HopState) -> v1::HopState {
    match state {
        HopState::Blocked => v1::HopState::Blocked,
        HopState::Ready => v1::HopState::Ready,
        HopState::Running => v1::HopState::Running,
        HopState::Verifying => v1::HopState::Verifying,
        HopState::Verified => v1::HopState::Verified,
        HopState::Stuck(_) => v1::HopState::Stuck,
        HopState::Cancelled => v1::HopState::Cancelled,
    }
}

/// The public status of a hop. The digest comes from `accepted` alone (I7).
pub(crate) fn hop(hop: &HopView, now: Timestamp) -> v1::HopStatus {
    let failure = hop.last_failure.as_ref();
    let failure = failure.map(|failure| format!("{}: {}", failure.reason, failure.detail));
    let reason = match (hop.stuck, failure) {
        (Some(stuck), Some(failure)) if !failure.starts_with(stuck.as_str()) => {
            format!("{stuck}: {} The last failure was {failure}", stuck.advice())
        }
        (Some(stuck), _) => format!("{stuck}: {}", stuck.advice()),
        (None, Some(failure)) if hop.accepted.is_none() => failure,
        _ => String::new(),
    };
    v1::HopStatus {
        hop: hop.index,
        state: hop_state(hop.state).into(),
        reason,
        archived: hop.archived,
        attempts: hop.attempts,
        results_waiting: hop.results_waiting,
        running: hop.running.iter().map(|r| running(r, now)).collect(),
        digest: hop.accepted.map(|a| a.digest.to_vec()).unwrap_or_default(),
        method: hop
            .accepted
            .map_or(v1::VerificationMethod::Unspecified, |a| a.method.into())
            .into(),
        verified_by: hop.verified_by.clone(),
        seconds_in_state: now.since(hop.since).as_secs_f64(),
        max_err_over_f: hop.accuracy.map(|a| a.max_err_over_f),
        worst_rel_rms: hop.accuracy.map(|a| a.worst_rel_rms),
    }
}

fn running(running: &RunningView, now: Timestamp) -> v1::RunningAttempt {
    v1::RunningAttempt {
        volunteer: running.volunteer.clone(),
        phase: phase(running.state).into(),
        progress: Some(progress(&running.progress)),
        seconds_since_sync: now.since(running.last_seen).as_secs_f64(),
    }
}

fn phase(state: AttemptState) -> v1::AttemptPhase {
    match state {
        AttemptState::Live(Phase::Leased) => v1::AttemptPhase::Leased,
        AttemptState::Live(Phase::Fetching) => v1::AttemptPhase::Fetching,
        AttemptState::Live(Phase::Computing) => v1::AttemptPhase::Computing,
        AttemptState::Live(Phase::Uploading) => v1::AttemptPhase::Uploading,
        AttemptState::Submitted => v1::AttemptPhase::Submitted,
        _ => v1::AttemptPhase::Unspecified,
    }
}

fn progress(progress: &Progress) -> v1::Progress {
    let (low, high) = progress.eta.unwrap_or_default();
    v1::Progress {
        steps_done: progress.steps_done,
        steps_total: progress.steps_total,
        step: progress.step.clone(),
        compute_seconds: progress.compute.as_secs_f64(),
        eta_low_seconds: low.as_secs_f64(),
        eta_high_seconds: high.as_secs_f64(),
    }
}

pub(super) fn blob(blob: &NeededBlob) -> v1::BlobRef {
    let role = match blob.role {
        BlobRole::Program => v1::BlobRole::Program,
        BlobRole::Weights => v1::BlobRole::Weights,
        BlobRole::KeyManifest => v1::BlobRole::KeyManifest,
        BlobRole::EvaluationKey => v1::BlobRole::EvaluationKey,
        BlobRole::Input => v1::BlobRole::Input,
        BlobRole::Output => v1::BlobRole::Output,
        BlobRole::Trace => v1::BlobRole::Trace,
    };
    v1::BlobRef {
        digest: blob.digest.to_vec(),
        size: blob.size,
        role: role.into(),
        name: String::new(),
    }
}

pub(super) fn assignment(given: &Assignment, now: Timestamp) -> v1::Assignment {
    let (chain, attempt) = (&given.chain, &given.attempt);
    v1::Assignment {
        chain_id: chain.id.to_vec(),
        chain_name: chain.name.clone(),
        hop: attempt.hop,
        generation: attempt.generation,
        attempt_id: attempt.id.to_vec(),
        epoch: attempt.epoch,
        program_digest: chain.spec.program.to_vec(),
        parameter_set: chain.spec.parameter_set.clone(),
        parameter_digest: chain.spec.parameters.to_vec(),
        blobs: given.blobs.iter().map(blob).collect(),
        expected_output_bytes: chain.spec.boundary_bytes,
        soft_lease_seconds: given.soft_lease(now).as_secs_f64(),
        hard_deadline_seconds: given.hard_deadline(now).as_secs_f64(),
        insecure: chain.spec.insecure,
    }
}

/// What a worker does with an attempt it holds.
pub(super) fn held(held: &Held, fate: Fate) -> v1::HeldAnswer {
    use v1::held_answer::Action;
    let (action, reason) = match fate {
        Fate::Continue => (Action::Continue, None),
        Fate::Submit => (Action::Submit, None),
        Fate::Drop(reason) => (Action::Drop, Some(reason)),
        Fate::Keep(reason) => (Action::Keep, Some(reason)),
    };
    v1::HeldAnswer {
        attempt_id: held.holder.attempt.to_vec(),
        action: action.into(),
        reason: reason.map(|reason| reason.to_string()).unwrap_or_default(),
    }
}

pub(super) fn device(device: &Device, now: Timestamp) -> v1::Device {
    v1::Device {
        device_id: device.id.to_vec(),
        account: device.account_name.clone(),
        display_name: device.display_name.clone(),
        state: device.state.name().to_lowercase(),
        consecutive_valid: device.consecutive_valid,
        seconds_since_seen: now.since(device.last_seen).as_secs_f64(),
        public_key: Vec::new(),
    }
}

/// An entry of the audit log.
pub(super) fn audit(entry: AuditEntry, now: Timestamp) -> v1::AuditEntry {
    v1::AuditEntry {
        number: entry.number,
        age_seconds: now.since(entry.at).as_secs_f64(),
        account: entry.account,
        token_id: entry.token.to_vec(),
        action: entry.action,
        target: entry.target,
        detail: entry.detail,
        outcome: entry.outcome.unwrap_or_default(),
    }
}

/// The outcome of a submit; a malformed output is answered as an error instead.
pub(super) fn outcome(outcome: Outcome) -> v1::submit_response::Outcome {
    use v1::submit_response::Outcome as O;
    match outcome {
        Outcome::NeedUpload => O::NeedUpload,
        Outcome::Verifying => O::AcceptedVerifying,
        Outcome::Matched => O::AcceptedMatched,
        Outcome::Mismatched | Outcome::Malformed(_) => O::AcceptedMismatched,
        Outcome::Duplicate => O::Duplicate,
        Outcome::LateUnneeded => O::LateUnneeded,
        Outcome::HopClosed => O::HopClosed,
    }
}
