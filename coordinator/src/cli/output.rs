//! What admin commands print: aligned text for people, one JSON value for programs.

use std::fmt::Write as _;
use std::io::Write as _;

use cipherhop_proto::{DeviceId, TokenId, v1};
use serde_json::{Value, json};

use super::Failure;
use crate::config::Config;
use crate::present::{chain_id, chain_json, chain_state, duration, hop_json, hop_state, method};

/// A closed pipe (`| head`) is no error worth a message.
fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::other(e)),
        _ => Ok(()),
    }
}

pub(super) fn print_either(
    json: bool,
    value: Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    print(&if json { value.to_string() } else { text() })
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
        "public_key": (!d.public_key.is_empty()).then(|| hex::encode(&d.public_key)),
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

pub(super) fn audit(entries: &[v1::AuditEntry], json: bool) -> Result<(), Failure> {
    let token = |e: &v1::AuditEntry| {
        TokenId::from_slice(&e.token_id)
            .map(|id| id.to_string())
            .unwrap_or_default()
    };
    let outcome = |e: &v1::AuditEntry| match e.outcome.as_str() {
        "" => "unknown".to_owned(),
        outcome => outcome.to_owned(),
    };
    let values: Vec<Value> = entries
        .iter()
        .map(|e| {
            json!({
                "number": e.number, "age_seconds": e.age_seconds, "account": e.account, "token_id": token(e),
                "action": e.action, "target": e.target, "detail": e.detail, "outcome": outcome(e),
            })
        })
        .collect();
    print_either(json, json!({ "entries": values }), || {
        if entries.is_empty() {
            return "nothing on record".to_owned();
        }
        entries
            .iter()
            .map(|e| {
                format!(
                    "{:>6}  {:>7} ago  {:<16} {:<18} {}  {}  {}\n",
                    e.number,
                    duration(e.age_seconds),
                    e.account,
                    e.action,
                    e.target,
                    outcome(e),
                    e.detail
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

pub(super) fn dev_cert(
    out: &std::path::Path,
    hosts: &[String],
    days: u16,
    json: bool,
) -> Result<(), Failure> {
    let (ca, cert, key) = (
        out.join("ca.pem"),
        out.join("server.pem"),
        out.join("server.key"),
    );
    let value = json!({ "ca": ca, "certificate": cert, "key": key, "hosts": hosts, "days": days });
    print_either(json, value, || {
        format!(
            "a certificate for {}, valid {days} days\n\
             serve with   --tls-cert {} --tls-key {}\n\
             clients need --ca {} (the authority's own key was not kept)",
            hosts.join(", "),
            cert.display(),
            key.display(),
            ca.display()
        )
    })
}

pub(super) fn scrub(
    last: &v1::ScrubResponse,
    damaged: &[v1::ScrubResponse],
    json: bool,
) -> Result<(), Failure> {
    let found = damaged.iter().map(
        |blob| json!({ "digest": hex::encode(&blob.damaged_digest), "problem": blob.problem }),
    );
    let value = json!({
        "blobs": last.blobs, "bytes": last.bytes, "damaged": found.collect::<Vec<_>>(),
    });
    print_either(json, value, || {
        let mut text = String::new();
        for blob in damaged {
            let digest = hex::encode(&blob.damaged_digest);
            let _ = writeln!(text, "{digest}  {}", blob.problem);
        }
        let _ = write!(text, "{} blobs, {} bytes read", last.blobs, last.bytes);
        text
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
