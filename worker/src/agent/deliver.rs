//! Hands a finished result in: digest first, then the bytes that are asked for, then the digest again. The result stays
//! in the spool until the coordinator gave a terminal answer; a broken connection or a status code is none.

use std::time::Duration;

use cipherhop_proto::client::{AttemptRef, Source, unary, upload};
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{BlobRef, BlobRole, NeedUpload, SubmitRequest, SubmitResponse};
use cipherhop_proto::{AttemptId, Digest, Reason, Retry};

use super::fetch::hash_file;
use super::{Agent, inputs};
use crate::durable::remove_folder;
use crate::error::WorkerError;
use crate::journal::{Entry, Finished, Work, WorkState};
use crate::report::Event;

/// The server hashes and parses the output before it answers.
const SUBMIT_DEADLINE: Duration = Duration::from_secs(60);
/// Closed results kept in the spool for `resubmit`, the newest.
const KEEP_CLOSED: usize = 8;
/// Closed attempts remembered.
const REMEMBER: usize = 200;

/// What became of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Judged; the outcome's name.
    Closed(String),
    /// Refused for this reason; kept in the spool.
    Parked(String),
    /// The worker is to stop; the result waits in the spool.
    Stopped,
}

impl Delivery {
    /// Whether the result was of use.
    pub fn accepted(&self) -> bool {
        matches!(self, Delivery::Closed(outcome) if outcome.starts_with("ACCEPTED_") && outcome != "ACCEPTED_MISMATCHED" || outcome == "DUPLICATE")
    }
}

/// Hands the result of one attempt in and records what became of it.
pub async fn deliver(agent: &Agent, attempt: AttemptId) -> Result<Delivery, WorkerError> {
    let Some(work) = agent.state().works.remove(&attempt) else {
        return Err(WorkerError::Request(format!(
            "the journal has no attempt {attempt}"
        )));
    };
    let Some(result) = work.state.result().cloned() else {
        return Err(WorkerError::Request(format!(
            "attempt {attempt} has no finished result ({})",
            work.state.name()
        )));
    };
    let delivery = match verify_spool(agent, attempt, &result).await {
        Ok(()) => submit(agent, &work, &result).await?,
        Err(problem) => Delivery::Parked(problem.into()),
    };
    let hop = work.lease.hop;
    cipherhop_failpoint::at("submit.answered");
    match &delivery {
        Delivery::Closed(outcome) => {
            let done = delivery.accepted() && outcome != "ACCEPTED_VERIFYING";
            let kept = if done { None } else { Some(result) };
            agent.record(Entry::Moved {
                attempt,
                to: WorkState::Closed {
                    result: kept,
                    outcome: outcome.clone(),
                },
            })?;
            cipherhop_failpoint::at("closed.recorded");
            if done {
                remove_folder(&agent.folder.spool(attempt))?;
            } else if outcome != "ACCEPTED_VERIFYING" {
                remove_folder(&inputs::kept(&agent.folder, attempt))?;
            }
            agent.tell(Event::Submitted {
                hop,
                attempt,
                outcome: outcome.clone(),
            });
            prune(agent)?;
        }
        Delivery::Parked(reason) => {
            agent.record(Entry::Moved {
                attempt,
                to: WorkState::Parked {
                    result,
                    reason: reason.clone(),
                },
            })?;
            agent.tell(Event::Parked {
                hop,
                attempt,
                reason: reason.clone(),
            });
        }
        Delivery::Stopped => {}
    }
    Ok(delivery)
}

async fn submit(agent: &Agent, work: &Work, result: &Finished) -> Result<Delivery, WorkerError> {
    let lease = &work.lease;
    let request = SubmitRequest {
        attempt_id: lease.attempt.to_vec(),
        epoch: lease.epoch,
        output_digest: result.output.to_vec(),
        output_size: result.output_size,
        trace_root: result.trace_root.to_vec(),
        trace_digest: result.trace.to_vec(),
        trace_size: result.trace_size,
        compute_seconds: result.compute_seconds,
        signature: agent.sign(lease, result),
    };
    let mut uploads = 0u32;
    loop {
        let call = async || {
            unary(
                SUBMIT_DEADLINE,
                agent.connection.volunteer().submit(request.clone()),
            )
            .await
        };
        cipherhop_failpoint::at("submit.before");
        let answer = match agent.persist("submit", call).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Delivery::Stopped),
            Err(error) => return refused(error.into()),
        };
        match answer.outcome() {
            Outcome::NeedUpload => {
                uploads += 1;
                if uploads > 3 && !agent.pause(agent.options.backoff.clone().next(None)).await {
                    return Ok(Delivery::Stopped);
                }
                match send(agent, work, result, &answer).await {
                    Ok(true) => {}
                    Ok(false) => return Ok(Delivery::Stopped),
                    Err(error) => return refused(error),
                }
            }
            Outcome::Unspecified => return Ok(Delivery::Parked("UNKNOWN_OUTCOME".into())),
            outcome => {
                return Ok(Delivery::Closed(
                    outcome.as_str_name().trim_start_matches("OUTCOME_").into(),
                ));
            }
        }
    }
}

/// A refusal that only concerns this result parks it; one that concerns the worker (its token, say) goes up.
fn refused(error: WorkerError) -> Result<Delivery, WorkerError> {
    let WorkerError::Client(client) = &error else {
        return Err(error);
    };
    match (client.retry(), client.reason()) {
        (Retry::NextHop | Retry::Never, Some(reason)) => Ok(match reason {
            Reason::HopVerified
            | Reason::HopClosed
            | Reason::ChainCancelled
            | Reason::ChainCompleted => Delivery::Closed(reason.as_str().into()),
            _ => Delivery::Parked(reason.as_str().into()),
        }),
        _ => Err(error),
    }
}

/// Uploads what was asked for. False when the worker is to stop.
async fn send(
    agent: &Agent,
    work: &Work,
    result: &Finished,
    answer: &SubmitResponse,
) -> Result<bool, WorkerError> {
    let lease = &work.lease;
    let from = AttemptRef {
        attempt_id: lease.attempt.to_vec(),
        epoch: lease.epoch,
    };
    let spool = agent.folder.spool(lease.attempt);
    for NeedUpload { digest, .. } in &answer.need_upload {
        let digest = Digest::from_slice(digest).map_err(|e| WorkerError::Answer(e.to_string()))?;
        let (name, size, role) = if digest == result.output {
            ("output", result.output_size, BlobRole::Output)
        } else if digest == result.trace {
            ("trace", result.trace_size, BlobRole::Trace)
        } else {
            return Err(WorkerError::Answer(
                "asked for a blob that was not submitted".into(),
            ));
        };
        let blob = BlobRef {
            digest: digest.to_vec(),
            size,
            role: role as i32,
            name: String::new(),
        };
        agent.tell(Event::Uploading {
            hop: lease.hop,
            digest,
            bytes: size,
        });
        let path = spool.join(name);
        let policy = agent.policy();
        let call = async || {
            upload(
                &agent.connection,
                &blob,
                Source::File(&path),
                Some(&from),
                &policy,
                &|_| (),
            )
            .await
        };
        if agent.persist("upload", call).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The bytes on disk are hashed before they are offered: a rotten disk is noticed here, not by the verdict.
async fn verify_spool(
    agent: &Agent,
    attempt: AttemptId,
    result: &Finished,
) -> Result<(), &'static str> {
    let spool = agent.folder.spool(attempt);
    let wanted = [("output", result.output), ("trace", result.trace)];
    let check = tokio::task::spawn_blocking(move || {
        for (name, digest) in wanted {
            match hash_file(&spool.join(name)) {
                Ok(found) if found == digest => {}
                Ok(_) => return Err("SPOOL_DAMAGED"),
                Err(_) => return Err("SPOOL_MISSING"),
            }
        }
        Ok(())
    });
    check.await.unwrap_or(Err("SPOOL_UNREADABLE"))
}

/// Keeps the newest closed results and forgets old attempts.
fn prune(agent: &Agent) -> Result<(), WorkerError> {
    let state = agent.state();
    inputs::prune(&agent.folder, &state)?;
    let closed: Vec<&Work> = state
        .works
        .values()
        .filter(|w| matches!(w.state, WorkState::Closed { .. }))
        .collect();
    let with_result: Vec<&&Work> = closed
        .iter()
        .filter(|w| w.state.result().is_some())
        .collect();
    for work in with_result.iter().rev().skip(KEEP_CLOSED) {
        if let WorkState::Closed { outcome, .. } = &work.state {
            let attempt = work.lease.attempt;
            agent.record(Entry::Moved {
                attempt,
                to: WorkState::Closed {
                    result: None,
                    outcome: outcome.clone(),
                },
            })?;
            remove_folder(&agent.folder.spool(attempt))?;
        }
    }
    for work in closed.iter().rev().skip(REMEMBER) {
        agent.record(Entry::Forgotten {
            attempt: work.lease.attempt,
        })?;
    }
    Ok(())
}
