//! The loop: finish what was begun, then ask for more.

use std::time::{Duration, Instant};

use cipherhop_proto::client::{Backoff, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::held_answer::Action;
use cipherhop_proto::v1::{ChainState, HeldAnswer, HeldAttempt, HelloRequest};
use cipherhop_proto::{AttemptId, ChainId, PROTOCOL_RANGE};

use super::acquire::Next;
use super::attempt::End;
use super::{Agent, Delivery, PROGRAM_FORMATS};
use crate::error::WorkerError;
use crate::journal::{Entry, Lease, State, Work, WorkState};
use crate::machine;
use crate::permit::Permission;
use crate::report::Event;

/// Longest long poll.
const LONG_POLL: Duration = Duration::from_secs(30);
/// How often the state of a chain that is waited for is looked up.
const LOOK: Duration = Duration::from_secs(2);

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// When told to.
    Forever,
    /// After one attempt.
    Once,
    /// When this chain is Completed.
    UntilDone(ChainId),
}

/// Works until the goal is reached, `idle_exit` passed without work, or the worker is to stop. Returns why it ended;
/// a goal that was not reached is [`WorkerError::NotDone`].
pub async fn run(
    agent: &Agent,
    goal: Goal,
    idle_exit: Option<Duration>,
) -> Result<String, WorkerError> {
    let answering = async {
        super::inputs::answer(agent).await;
        std::future::pending().await
    };
    agent.permit.look();
    tokio::select! {
        biased;
        end = work(agent, goal, idle_exit) => end,
        never = answering => never,
        never = agent.permit.follow() => match never {},
        never = agent.keep_away() => match never {},
    }
}

async fn work(
    agent: &Agent,
    goal: Goal,
    idle_exit: Option<Duration>,
) -> Result<String, WorkerError> {
    let stopped = || match goal {
        Goal::Forever => Ok("stopped; a begun hop is resumed by the next run".to_owned()),
        _ => Err(WorkerError::NotDone(
            "stopped before the goal was reached; a begun hop is resumed by the next run".into(),
        )),
    };
    if !hello(agent).await? {
        return stopped();
    }
    let mut idle_since = Instant::now();
    let mut told = String::new();
    let mut failures = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
    let mut first_round = true;
    let mut resting = None;
    loop {
        if agent.leave.is_cancelled() {
            return stopped();
        }
        agent.read_inbox()?;
        if !rested(agent, &mut resting).await {
            idle_since = Instant::now();
            continue;
        }
        let (attempt, resumed) = match unfinished(agent) {
            Some(attempt) => (attempt, first_round),
            None => {
                first_round = false;
                machine::check_memory()?;
                machine::check_disk(agent.folder.root(), 0)?;
                let left = idle_exit.map(|limit| limit.saturating_sub(idle_since.elapsed()));
                match wait_for_work(agent, goal, left).await? {
                    Found::Work(attempt) => (attempt, false),
                    Found::Nothing(reason) => {
                        if reason != told {
                            told.clone_from(&reason);
                            agent.tell(Event::Waiting { reason });
                        }
                        continue;
                    }
                    Found::Withdrawn => continue,
                    Found::Idle => return idle(goal),
                    Found::Over(ChainState::Completed) => {
                        return Ok("the chain is completed".into());
                    }
                    Found::Over(state) => {
                        let state = state.as_str_name().trim_start_matches("CHAIN_STATE_");
                        return Err(WorkerError::NotDone(format!("the chain is {state}")));
                    }
                    Found::Stopped => return stopped(),
                }
            }
        };
        let (end, drain) = agent.work_on(attempt, resumed).await?;
        idle_since = Instant::now();
        told.clear();
        match &end {
            End::Stopped | End::Delivered(Delivery::Stopped) => return stopped(),
            End::Failed(_) => {
                let wait = failures.next(None);
                if goal != Goal::Once && !agent.pause(wait).await {
                    return stopped();
                }
            }
            End::Paused => continue,
            End::Delivered(_) | End::Unwanted(_) => failures.reset(),
        }
        if goal == Goal::Once {
            return match end {
                End::Delivered(delivery) if delivery.accepted() => Ok("one hop is done".into()),
                other => Err(WorkerError::NotDone(format!(
                    "the hop was not accepted: {other:?}"
                ))),
            };
        }
        if drain {
            return Ok("the coordinator asked for no more work".into());
        }
    }
}

fn idle(goal: Goal) -> Result<String, WorkerError> {
    match goal {
        Goal::Forever => Ok("no work came in the time of --idle-exit".into()),
        _ => Err(WorkerError::NotDone(
            "no work came in the time of --idle-exit".into(),
        )),
    }
}

/// Whether to go on: at once while work is allowed or a finished result waits to be handed in; otherwise it rests a
/// while, tells so once, and is to be asked again.
async fn rested(agent: &Agent, resting: &mut Option<Permission>) -> bool {
    let permission = agent.permit.now();
    if permission == Permission::Work {
        if resting.take().is_some() {
            agent.tell(Event::GoingOn);
        }
        return true;
    }
    let state = agent.state();
    if state
        .works
        .values()
        .any(|work| matches!(work.state, WorkState::Finished(_)))
    {
        return true;
    }
    if *resting != Some(permission) {
        *resting = Some(permission);
        agent.tell(Event::Resting {
            until: match permission {
                Permission::Rest(minute) => Some(minute.to_string()),
                _ => None,
            },
        });
    }
    tokio::select! {
        () = agent.leave.cancelled() => {}
        () = agent.permit.granted() => {}
        () = tokio::time::sleep(LOOK) => {}
    }
    false
}

/// What the journal has to go on with: finished results first.
fn unfinished(agent: &Agent) -> Option<AttemptId> {
    let state = agent.state();
    let live = || state.works.values().filter(|work| work.state.is_live());
    live()
        .find(|work| matches!(work.state, WorkState::Finished(_)))
        .or_else(|| live().next())
        .map(|work| work.lease.attempt)
}

enum Found {
    Work(AttemptId),
    Nothing(String),
    Over(ChainState),
    Idle,
    Withdrawn,
    Stopped,
}

/// One round of asking, cut short when the idle time is up or the chain waited for is over. Being cut short is safe: the
/// question is in the journal and is asked again with its nonce.
async fn wait_for_work(
    agent: &Agent,
    goal: Goal,
    left: Option<Duration>,
) -> Result<Found, WorkerError> {
    let poll = left.unwrap_or(LONG_POLL).min(LONG_POLL);
    let idle = async {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    };
    let asked = async {
        match agent.next_work(poll).await? {
            Next::Work(attempt) => Ok(Found::Work(attempt)),
            Next::Stopped => Ok(Found::Stopped),
            Next::Nothing {
                reason,
                retry_after,
            } => {
                if agent.pause(retry_after).await {
                    Ok(Found::Nothing(reason))
                } else {
                    Ok(Found::Stopped)
                }
            }
        }
    };
    tokio::select! {
        biased;
        found = asked => found,
        over = chain_over(agent, goal) => Ok(Found::Over(over)),
        () = idle => Ok(Found::Idle),
        () = agent.permit.withdrawn() => Ok(Found::Withdrawn),
    }
}

/// Returns once the chain of the goal is over; never without such a goal.
async fn chain_over(agent: &Agent, goal: Goal) -> ChainState {
    let Goal::UntilDone(chain) = goal else {
        return std::future::pending().await;
    };
    loop {
        match agent.chain(chain).await {
            Ok((chain, _))
                if matches!(chain.state(), ChainState::Completed | ChainState::Cancelled) =>
            {
                return chain.state();
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the chain's state could not be read"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Agrees on versions. False when the worker is to stop.
pub(super) async fn hello(agent: &Agent) -> Result<bool, WorkerError> {
    let request = HelloRequest {
        protocol_min: PROTOCOL_RANGE.0,
        protocol_max: PROTOCOL_RANGE.1,
        worker_version: env!("CARGO_PKG_VERSION").into(),
        program_formats: PROGRAM_FORMATS.map(str::to_owned).to_vec(),
        held: held(&agent.state()),
        features: cipherhop_proto::features::WORKER
            .iter()
            .map(|f| f.to_string())
            .collect(),
    };
    let call = async || {
        unary(
            UNARY_DEADLINE,
            agent.connection.volunteer().hello(request.clone()),
        )
        .await
    };
    let Some(answer) = agent.persist("connecting", call).await? else {
        return Ok(false);
    };
    agent.tell(Event::Connected {
        coordinator: agent.coordinator.clone(),
        version: answer.coordinator_version,
    });
    for answer in answer.held {
        settle(agent, answer)?;
    }
    for assignment in answer.lost {
        let lease = Lease::from_wire(assignment).map_err(WorkerError::Answer)?;
        if !agent.state().works.contains_key(&lease.attempt) {
            tracing::info!(attempt = %lease.attempt, hop = lease.hop, "a lost lease is taken up again");
            agent.record(Entry::Leased(Box::new(lease)))?;
        }
    }
    Ok(true)
}

/// Attempts the coordinator is asked about, the newest.
const MOST_HELD: usize = 256;

/// Attempts without an end, with results that were refused among them.
fn held(state: &State) -> Vec<HeldAttempt> {
    let open = |work: &&Work| {
        work.state.is_live() || matches!(work.state, WorkState::Parked { .. } | WorkState::Away)
    };
    let works: Vec<&Work> = state.works.values().filter(open).collect();
    let newest = works.iter().skip(works.len().saturating_sub(MOST_HELD));
    let held = newest.map(|work| HeldAttempt {
        attempt_id: work.lease.attempt.to_vec(),
        epoch: work.lease.epoch,
        finished: work.state.result().is_some(),
    });
    held.collect()
}

/// Does what the coordinator says about one of them. A finished result is only ever given up by the answer to its
/// submit.
fn settle(agent: &Agent, answer: HeldAnswer) -> Result<(), WorkerError> {
    let attempt = AttemptId::from_slice(&answer.attempt_id)
        .map_err(|e| WorkerError::Answer(e.to_string()))?;
    let Some(work) = agent.state().works.remove(&attempt) else {
        return Ok(());
    };
    match (answer.action(), &work.state) {
        (Action::Submit, WorkState::Parked { result, .. }) => agent.record(Entry::Moved {
            attempt,
            to: WorkState::Finished(result.clone()),
        }),
        (Action::Drop, state) if state.result().is_none() => agent.end(&work.lease, &answer.reason),
        _ => Ok(()),
    }
}
