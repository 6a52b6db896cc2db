//! `status`: what lies in the data folder, and the coordinator's chains. Works beside a running worker and without a
//! connection.

use cipherhop_proto::client::{UNARY_DEADLINE, unary};
use cipherhop_proto::v1::{Chain, ListChainsRequest};
use serde_json::{Value, json};

use super::Context;
use crate::cache::Cache;
use crate::error::WorkerError;
use crate::journal::{Journal, Work, WorkState};
use crate::units;

pub(super) async fn status(context: &Context) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    let identity = folder.identity()?;
    let state = Journal::read_only(&folder.journal())?;
    let running = matches!(folder.lock(), Err(WorkerError::FolderBusy(_)));
    let paused = folder.paused().exists();
    let usage = Cache::open(&folder.cache(), u64::MAX)?.usage();
    let chains = match context.connect() {
        Ok(connection) => unary(
            UNARY_DEADLINE,
            connection.chain().list_chains(ListChainsRequest {}),
        )
        .await
        .map_err(WorkerError::from),
        Err(error) => Err(error),
    };
    if context.json {
        let works: Vec<Value> = state.works.values().map(work_json).collect();
        let (list, problem) = match &chains {
            Ok(answer) => (
                answer.chains.iter().map(chain_json).collect::<Vec<_>>(),
                Value::Null,
            ),
            Err(error) => (Vec::new(), json!(error.to_string())),
        };
        context.print(
            &json!({
                "device": identity.device, "name": identity.name, "coordinator": identity.coordinator,
                "running": running, "paused": paused, "claims": state.claims, "attempts": works,
                "cache_bytes": usage.bytes, "cache_blobs": usage.blobs,
                "chains": list, "connection_problem": problem,
            }),
            "",
        );
        return Ok(());
    }
    let mut lines = vec![
        format!(
            "{} (device {}) at {}",
            identity.name, identity.device, identity.coordinator
        ),
        format!(
            "worker: {}",
            match (running, paused) {
                (true, false) => "running",
                (true, true) => "paused; `cipherhop-worker resume` goes on",
                (false, false) => "not running",
                (false, true) =>
                    "not running, and paused: `run` rests until `cipherhop-worker resume`",
            }
        ),
        format!(
            "cache: {} in {} blobs",
            units::bytes(usage.bytes),
            usage.blobs
        ),
    ];
    for claim in &state.claims {
        let hops = claim
            .hops
            .map(|hops| hops.to_string())
            .unwrap_or_else(|| "all".into());
        lines.push(format!("claim: chain {} hops {hops}", claim.chain));
    }
    lines.extend(state.works.values().rev().take(20).map(work_line));
    match chains {
        Ok(answer) => lines.extend(answer.chains.iter().map(chain_line)),
        Err(error) => lines.push(format!("chains: unknown, {error}")),
    }
    context.print(&Value::Null, &lines.join("\n"));
    Ok(())
}

fn ending(work: &Work) -> String {
    match &work.state {
        WorkState::Closed { outcome, .. } => outcome.clone(),
        WorkState::Parked { reason, .. } => reason.clone(),
        _ => String::new(),
    }
}

fn work_json(work: &Work) -> Value {
    json!({
        "attempt": work.lease.attempt, "chain": work.lease.chain, "chain_name": work.lease.chain_name,
        "hop": work.lease.hop, "state": work.state.name(), "ending": ending(work),
        "result_in_spool": work.state.result().is_some(), "compute_seconds": work.compute_seconds,
    })
}

fn work_line(work: &Work) -> String {
    let kept = match &work.state {
        WorkState::Finished(_) => ", to be handed in",
        WorkState::Away => ", packed for another machine: `unpack` takes its result",
        WorkState::Parked { .. }
        | WorkState::Closed {
            result: Some(_), ..
        } => ", result in the spool",
        _ => "",
    };
    let (lease, ending) = (&work.lease, ending(work));
    format!(
        "attempt {}: {} hop {} {} {ending}{kept}",
        lease.attempt,
        lease.chain_name,
        lease.hop,
        work.state.name()
    )
}

fn chain_json(chain: &Chain) -> Value {
    json!({
        "chain": hex::encode(&chain.chain_id), "name": chain.name,
        "state": chain.state().as_str_name().trim_start_matches("CHAIN_STATE_"), "reason": chain.state_reason,
        "hops": chain.hops, "head": chain.head, "parameter_set": chain.parameter_set, "insecure": chain.insecure,
    })
}

fn chain_line(chain: &Chain) -> String {
    let state = chain
        .state()
        .as_str_name()
        .trim_start_matches("CHAIN_STATE_")
        .to_lowercase();
    let reason = if chain.state_reason.is_empty() {
        String::new()
    } else {
        format!(" ({})", chain.state_reason)
    };
    format!(
        "chain {}: {state}{reason}, {} of {} hops verified, {}",
        chain.name, chain.head, chain.hops, chain.parameter_set
    )
}
