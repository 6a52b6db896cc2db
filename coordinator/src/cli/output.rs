//! What admin commands print: aligned text for people, one JSON value for programs.

use std::fmt::Write as _;
use std::io::Write as _;

use cipherhop_proto::{ChainId, DeviceId, TokenId, v1};
use serde_json::{Value, json};

use super::Failure;
use crate::config::Config;

/// A closed pipe (`| head`) is no error worth a message.
fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::other(e)),
        _ => Ok(()),
    }
}

fn print_either(json: bool, value: Value, text: impl FnOnce() -> String) -> Result<(), Failure> {
    print(&if json { value.to_string() } else { text() })
}

fn chain_id(bytes: &[u8]) -> String {
    ChainId::from_slice(bytes)
        .map(|id| id.to_string())
        .unwrap_or_default()
}

fn chain_state(state: i32) -> &'static str {
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

pub(super) fn hop_state(state: i32) -> &'static str {
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

fn method(method: i32) -> Option<&'static str> {
    use v1::VerificationMethod as M;
    match M::try_from(method).unwrap_or_default() {
        M::Unspecified => None,
        M::Archive => Some("archive"),
        M::Quorum => Some("quorum"),
    }
}

/// 75 -> "1m15s".
fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

fn chain_json(chain: &v1::Chain) -> Value {
    json!({
        "chain_id": chain_id(&chain.chain_id), "name": chain.name, "state": chain_state(chain.state),
        "state_reason": chain.state_reason, "hops": chain.hops, "head": chain.head,
        "generation": chain.generation, "quorum": chain.quorum, "parameter_set": chain.parameter_set,
        "insecure": chain.insecure, "program_digest": hex::encode(&chain.program_digest),
        "age_seconds": chain.age_seconds,
    })
}

fn hop_json(hop: &v1::HopStatus) -> Value {
    let running: Vec<Value> = hop.running.iter().map(|r| {
        let p = r.progress.clone().unwrap_or_default();
        json!({
            "volunteer": r.volunteer, "step": p.step, "steps_done": p.steps_done, "steps_total": p.steps_total,
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

fn chain_line(chain: &v1::Chain) -> String {
    let insecure = if chain.insecure { "  INSECURE" } else { "" };
    let reason = if chain.state_reason.is_empty() {
        String::new()
    } else {
        format!("  ({})", chain.state_reason)
    };
    format!(
        "{}  {:<20} {:<9} {:>3}/{:<3} hops  {}{insecure}  {}{reason}\n",
        chain_id(&chain.chain_id),
        chain.name,
        chain_state(chain.state),
        chain.head,
        chain.hops,
        chain.parameter_set,
        duration(chain.age_seconds),
    )
}

pub(super) fn chains(chains: &[v1::Chain], json: bool) -> Result<(), Failure> {
    print_either(
        json,
        json!({ "chains": chains.iter().map(chain_json).collect::<Vec<_>>() }),
        || {
            if chains.is_empty() {
                "no chains".to_owned()
            } else {
                chains.iter().map(chain_line).collect()
            }
        },
    )
}

pub(super) fn chain(answer: &v1::GetChainResponse, json: bool) -> Result<(), Failure> {
    let chain = answer.chain.clone().unwrap_or_default();
    let hops: Vec<Value> = answer.hops.iter().map(hop_json).collect();
    let value = json!({ "chain": chain_json(&chain), "hops": hops, "sequence": answer.sequence });
    print_either(json, value, || {
        let mut text = chain_line(&chain);
        for hop in &answer.hops {
            text += &hop_line(hop);
        }
        text
    })
}

fn hop_line(hop: &v1::HopStatus) -> String {
    let mut line = format!(
        "  hop {:>3}  {:<9} {:>7}",
        hop.hop,
        hop_state(hop.state),
        duration(hop.seconds_in_state)
    );
    if !hop.digest.is_empty() {
        let by = hop.verified_by.join(", ");
        let _ = write!(
            line,
            "  {} by {by}: {}",
            method(hop.method).unwrap_or("?"),
            hex::encode(&hop.digest)
        );
    }
    for r in &hop.running {
        let p = r.progress.clone().unwrap_or_default();
        let _ = write!(
            line,
            "  [{} {}/{} {}]",
            r.volunteer, p.steps_done, p.steps_total, p.step
        );
    }
    if !hop.reason.is_empty() {
        let _ = write!(line, "  ({})", hop.reason);
    }
    line + "\n"
}

pub(super) fn token(answer: &v1::CreateTokenResponse, json: bool) -> Result<(), Failure> {
    let id = TokenId::from_slice(&answer.token_id)
        .map(|id| id.to_string())
        .unwrap_or_default();
    print_either(
        json,
        json!({ "token": answer.token, "token_id": id }),
        || {
            // The token alone on the first line, so that `| head -1` gives it to a script.
            format!(
                "{}\ntoken id {id} (shown once; revoke with: token revoke {id})",
                answer.token
            )
        },
    )
}

pub(super) fn devices(devices: &[v1::Device], json: bool) -> Result<(), Failure> {
    let id = |d: &v1::Device| {
        DeviceId::from_slice(&d.device_id)
            .map(|id| id.to_string())
            .unwrap_or_default()
    };
    let values: Vec<Value> = devices.iter().map(|d| json!({
        "device_id": id(d), "account": d.account, "display_name": d.display_name, "state": d.state,
        "consecutive_valid": d.consecutive_valid, "seconds_since_seen": d.seconds_since_seen,
    })).collect();
    print_either(json, json!({ "devices": values }), || {
        if devices.is_empty() {
            return "no devices".to_owned();
        }
        devices
            .iter()
            .map(|d| {
                format!(
                    "{}  {:<16} {:<16} {:<11} {:>4} valid in a row  seen {} ago\n",
                    id(d),
                    d.account,
                    d.display_name,
                    d.state,
                    d.consecutive_valid,
                    duration(d.seconds_since_seen),
                )
            })
            .collect()
    })
}

pub(super) fn done(what: &str, detail: &str, json: bool) -> Result<(), Failure> {
    print_either(json, json!({ "done": what, "detail": detail }), || {
        format!("{what} {detail}")
    })
}

pub(super) fn config(config: &Config, json: bool) -> Result<(), Failure> {
    if json {
        return print(&serde_json::to_string(config).map_err(Failure::other)?);
    }
    print(&toml::to_string(config).map_err(Failure::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!(duration(-1.0), "0s");
        assert_eq!(duration(75.9), "1m15s");
        assert_eq!(duration(7260.0), "2h01m");
        assert_eq!(duration(90000.0), "1d01h");
    }
}
