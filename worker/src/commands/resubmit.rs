//! `resubmit`: finished work is sent again from the spool, never computed again; and a failed hop is asked to be
//! opened again.

use std::sync::Arc;

use cipherhop_proto::client::{Backoff, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::ReopenRequest;
use cipherhop_proto::{AttemptId, ChainId};
use serde_json::json;

use super::{Context, chain_id, find_chain};
use crate::agent::{Agent, Delivery, Options, Request, deliver, leave_request};
use crate::child::Runner;
use crate::cli::Resubmit;
use crate::error::WorkerError;
use crate::hours::{Hours, Minute};
use crate::journal::{Journal, State, WorkState};
use crate::machine;
use crate::report::Reporter;

pub(super) async fn resubmit(context: &Context, options: Resubmit) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    if let (Some(hop), Some(reason)) = (&options.reopen, options.reason) {
        let [chain, hop] = hop.as_slice() else {
            return Err(WorkerError::Request(
                "--reopen takes a chain and a hop".into(),
            ));
        };
        let hop = hop
            .parse()
            .map_err(|_| WorkerError::Request(format!("{hop:?} is not a hop's number")))?;
        let chain = reopen(context, chain, hop, reason).await?;
        let state = Journal::read_only(&folder.journal())?;
        let kept = results(&state, |w| w.lease.chain == chain && w.lease.hop == hop);
        return send(context, kept).await;
    }
    let state = Journal::read_only(&folder.journal())?;
    let attempts = match options.attempt {
        Some(attempt)
            if state
                .works
                .get(&attempt)
                .is_some_and(|w| w.state.result().is_some()) =>
        {
            vec![attempt]
        }
        Some(attempt) => {
            return Err(WorkerError::Request(format!(
                "the spool has no finished result of attempt {attempt}; see `status`"
            )));
        }
        None => results(&state, |w| !matches!(w.state, WorkState::Closed { .. })),
    };
    if attempts.is_empty() {
        context.print(
            &json!({ "results": 0 }),
            "the spool has no finished result that waits for a verdict",
        );
    }
    send(context, attempts).await
}

fn results(state: &State, wanted: impl Fn(&crate::journal::Work) -> bool) -> Vec<AttemptId> {
    let works = state
        .works
        .values()
        .filter(|w| w.state.result().is_some() && wanted(w));
    works.map(|w| w.lease.attempt).collect()
}

async fn reopen(
    context: &Context,
    chain: &str,
    hop: u32,
    reason: String,
) -> Result<ChainId, WorkerError> {
    let connection = context.connect()?;
    let chain = chain_id(&find_chain(&connection, chain).await?)?;
    let request = ReopenRequest {
        chain_id: chain.to_vec(),
        hop,
        reason,
    };
    let answer = unary(UNARY_DEADLINE, connection.volunteer().reopen(request)).await?;
    let state = answer
        .hop_state()
        .as_str_name()
        .trim_start_matches("HOP_STATE_")
        .to_owned();
    let advice = answer
        .was_stuck_reason
        .parse::<cipherhop_proto::Reason>()
        .map(|r| r.meaning())
        .unwrap_or_default();
    context.print(
        &json!({ "chain": chain, "hop": hop, "hop_state": state, "was_stuck_reason": answer.was_stuck_reason }),
        &format!("hop {hop} is {state} again; it had failed for {}: {advice}", answer.was_stuck_reason),
    );
    Ok(chain)
}

async fn send(context: &Context, attempts: Vec<AttemptId>) -> Result<(), WorkerError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let options = Options {
        threads: machine::threads(),
        cache_quota: u64::MAX,
        memory: None,
        memory_elsewhere: None,
        allow_insecure: true,
        hours: Hours::default(),
        clock: Arc::new(Minute::now),
        chain: None,
        only_claims: true,
        backoff: Backoff::default(),
    };
    let reporter = Arc::new(Reporter::new(context.json));
    let folder = context.folder()?;
    let opened = Agent::open(
        folder.clone(),
        Runner::of_this_program(None, 0)?,
        options,
        reporter,
        context.stop.clone(),
    );
    let agent = match opened {
        Ok(agent) => agent,
        Err(WorkerError::FolderBusy(_)) => {
            for attempt in &attempts {
                leave_request(&folder, &Request::Resubmit(*attempt))?;
            }
            let text = "the running worker sends it again after its hop";
            context.print(
                &json!({ "results": attempts.len(), "left_to_running_worker": true }),
                text,
            );
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut refused = Vec::new();
    for attempt in attempts {
        agent.accept(Request::Resubmit(attempt))?;
        match deliver(&agent, attempt).await? {
            Delivery::Closed(_) => {}
            Delivery::Parked(reason) => refused.push(format!("{attempt}: {reason}")),
            Delivery::Stopped => {
                return Err(WorkerError::NotDone(
                    "stopped; the result stays in the spool".into(),
                ));
            }
        }
    }
    if refused.is_empty() {
        Ok(())
    } else {
        Err(WorkerError::NotDone(format!(
            "still refused: {}",
            refused.join(", ")
        )))
    }
}
