//! Messages in words and as JSON: the same for the command line and the HTTP pages.

use cipherhop_proto::{ChainId, v1};
use serde_json::{Value, json};

pub(crate) fn chain_id(bytes: &[u8]) -> String {
    ChainId::from_slice(bytes)
        .map(|id| id.to_string())
        .unwrap_or_default()
}

pub(crate) fn chain_state(state: i32) -> &'static str {
    use v1::ChainState as S;
    match S::try_from(state).unwrap_or_default() {
        S::Unspecified => "unknown",
        S::Active => "active",
        S::Paused => "paused",
        S::Stuck => "stuck",
        S::Completed => "completed",
        S::Cancelled => "cancelled",
    }
}

pub(crate) fn hop_state(state: i32) -> &'static str {
    use v1::HopState as S;
    match S::try_from(state).unwrap_or_default() {
        S::Unspecified => "unknown",
        S::Blocked => "blocked",
        S::Ready => "ready",
        S::Running => "running",
        S::Verifying => "verifying",
        S::Verified => "verified",
        S::Stuck => "stuck",
        S::Cancelled => "cancelled",
    }
}

pub(crate) fn method(method: i32) -> Option<&'static str> {
    use v1::VerificationMethod as M;
    match M::try_from(method).unwrap_or_default() {
        M::Unspecified => None,
        M::Archive => Some("archive"),
        M::Quorum => Some("quorum"),
        M::Trusted => Some("trusted"),
        M::Referee => Some("referee"),
    }
}

pub(crate) fn phase(phase: i32) -> &'static str {
    use v1::AttemptPhase as P;
    match P::try_from(phase).unwrap_or_default() {
        P::Unspecified => "unknown",
        P::Leased => "handed out",
        P::Fetching => "fetching",
        P::Computing => "computing",
        P::Uploading => "uploading",
        P::Submitted => "submitted",
    }
}

/// Lowest and highest estimate of the remaining seconds; `None` while there is no basis for one.
pub(crate) fn eta(progress: &v1::Progress) -> Option<[f64; 2]> {
    let range = [progress.eta_low_seconds, progress.eta_high_seconds];
    (range[1] > 0.0).then_some(range)
}

/// 75 -> "1m15s".
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

pub(crate) fn chain_json(chain: &v1::Chain) -> Value {
    json!({
        "chain_id": chain_id(&chain.chain_id), "name": chain.name, "state": chain_state(chain.state),
        "state_reason": chain.state_reason, "hops": chain.hops, "head": chain.head,
        "generation": chain.generation, "quorum": chain.quorum, "parameter_set": chain.parameter_set,
        "insecure": chain.insecure, "program_digest": hex::encode(&chain.program_digest),
        "age_seconds": chain.age_seconds,
    })
}

pub(crate) fn hop_json(hop: &v1::HopStatus) -> Value {
    let running: Vec<Value> = hop.running.iter().map(|r| {
        let p = r.progress.clone().unwrap_or_default();
        json!({
            "volunteer": r.volunteer, "phase": phase(r.phase), "step": p.step, "steps_done": p.steps_done,
            "steps_total": p.steps_total, "compute_seconds": p.compute_seconds, "eta_seconds": eta(&p),
            "seconds_since_sync": r.seconds_since_sync,
        })
    }).collect();
    json!({
        "hop": hop.hop, "state": hop_state(hop.state), "reason": hop.reason, "archived": hop.archived,
        "attempts": hop.attempts, "results_waiting": hop.results_waiting, "running": running,
        "digest": (!hop.digest.is_empty()).then(|| hex::encode(&hop.digest)), "method": method(hop.method),
        "verified_by": hop.verified_by, "seconds_in_state": hop.seconds_in_state,
        "max_err_over_f": hop.max_err_over_f, "worst_rel_rms": hop.worst_rel_rms,
    })
}
