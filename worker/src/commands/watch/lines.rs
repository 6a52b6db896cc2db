//! The chain as lines of text, and as JSON.

use std::collections::BTreeMap;

use cipherhop_proto::v1::{
    AttemptPhase, Chain, HopState, HopStatus, RunningAttempt, WatchChainResponse,
};
use serde_json::{Value, json};

use crate::report::say;
use crate::units;

/// What was printed last, so that only news are printed.
#[derive(Debug, Default)]
pub(super) struct Lines {
    hops: BTreeMap<u32, String>,
    chain: String,
}

impl Lines {
    pub(super) fn chain(&mut self, chain: &Chain) {
        let line = chain_line(chain);
        if self.chain != line {
            say(&line);
            self.chain = line;
        }
    }

    pub(super) fn hop(&mut self, hop: &HopStatus) {
        let line = hop_line(hop);
        // Hops nobody has touched yet are in the chain's line.
        let fresh = hop.state() == HopState::Blocked && !self.hops.contains_key(&hop.hop);
        if !fresh && self.hops.get(&hop.hop) != Some(&line) {
            say(&line);
            self.hops.insert(hop.hop, line);
        }
    }
}

pub(super) fn state_name(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

pub(super) fn with_reason(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    }
}

pub(super) fn chain_line(chain: &Chain) -> String {
    let state = state_name(chain.state().as_str_name(), "CHAIN_STATE_");
    format!(
        "chain {}: {state}{}, {} of {} hops verified",
        chain.name,
        with_reason(&chain.state_reason),
        chain.head,
        chain.hops
    )
}

pub(super) fn hop_line(hop: &HopStatus) -> String {
    let state = state_name(hop.state().as_str_name(), "HOP_STATE_");
    let mut line = format!("hop {} {state}{}", hop.hop, with_reason(&hop.reason));
    for running in &hop.running {
        line.push_str("; ");
        line.push_str(&running_text(running));
    }
    match hop.state() {
        HopState::Verified => {
            let by = if hop.verified_by.is_empty() {
                String::new()
            } else {
                format!(" by {}", hop.verified_by.join(", "))
            };
            line.push_str(&by);
        }
        HopState::Running | HopState::Verifying if hop.results_waiting > 0 => {
            line.push_str(&format!(
                "; {} results wait for others",
                hop.results_waiting
            ));
        }
        _ => {}
    }
    if let (Some(err), Some(rms)) = (hop.max_err_over_f, hop.worst_rel_rms) {
        line.push_str(&format!("; max|err|/F {err:.1e}, relative rms {rms:.1e}"));
    }
    line
}

fn running_text(running: &RunningAttempt) -> String {
    let phase = state_name(running.phase().as_str_name(), "ATTEMPT_PHASE_");
    let mut text = format!("{} {phase}", running.volunteer);
    if let Some(progress) = &running.progress
        && running.phase() == AttemptPhase::Computing
        && progress.steps_total > 0
    {
        text.push_str(&format!(
            " step {}/{} {}, left: {}",
            progress.steps_done,
            progress.steps_total,
            progress.step,
            units::eta(progress.eta_low_seconds, progress.eta_high_seconds)
        ));
    }
    if running.seconds_since_sync > 90.0 {
        text.push_str(&format!(
            ", silent for {}",
            units::seconds(running.seconds_since_sync)
        ));
    }
    text
}

pub(super) fn chain_json(chain: &Chain) -> Value {
    json!({
        "id": hex::encode(&chain.chain_id), "name": chain.name,
        "state": state_name(chain.state().as_str_name(), "CHAIN_STATE_"), "reason": chain.state_reason,
        "hops": chain.hops, "head": chain.head, "generation": chain.generation, "insecure": chain.insecure,
    })
}

pub(super) fn hop_json(hop: &HopStatus) -> Value {
    let running: Vec<Value> = hop.running.iter().map(|running| {
        let progress = running.progress.clone().unwrap_or_default();
        let eta = (progress.eta_high_seconds > 0.0).then_some([progress.eta_low_seconds, progress.eta_high_seconds]);
        json!({
            "volunteer": running.volunteer, "phase": state_name(running.phase().as_str_name(), "ATTEMPT_PHASE_"),
            "step": progress.step, "steps_done": progress.steps_done, "steps_total": progress.steps_total,
            "eta_seconds": eta, "seconds_since_sync": running.seconds_since_sync,
        })
    }).collect();
    json!({
        "hop": hop.hop, "state": state_name(hop.state().as_str_name(), "HOP_STATE_"), "reason": hop.reason,
        "attempts": hop.attempts, "results_waiting": hop.results_waiting, "running": running,
        "digest": hex::encode(&hop.digest), "verified_by": hop.verified_by,
        "max_err_over_f": hop.max_err_over_f, "worst_rel_rms": hop.worst_rel_rms,
    })
}

pub(super) fn event_json(event: &WatchChainResponse) -> Value {
    json!({
        "event": event.kind, "sequence": event.sequence, "age_seconds": event.age_seconds,
        "chain": event.chain.as_ref().map(chain_json), "hop": event.hop.as_ref().map(hop_json),
    })
}
