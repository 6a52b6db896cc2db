//! `watch`: follows a chain live; after a broken connection it goes on from the last event seen.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use cipherhop_proto::Retry;
use cipherhop_proto::client::{Backoff, ClientError, Connection, UNARY_DEADLINE};
use cipherhop_proto::v1::{
    AttemptPhase, Chain, ChainState, HopState, HopStatus, RunningAttempt, WatchChainRequest,
    WatchChainResponse,
};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{Context, chain_id, find_chain};
use crate::cli::Watch;
use crate::error::WorkerError;
use crate::report::say;
use crate::units;

pub(super) async fn watch(context: &Context, options: Watch) -> Result<(), WorkerError> {
    let connection = context.connect()?;
    let answer = find_chain(&connection, &options.chain).await?;
    let id = chain_id(&answer)?;
    let mut view = View::new(context.json);
    let chain = answer
        .chain
        .ok_or(ClientError::Protocol("no chain in the answer"))?;
    view.chain(&chain);
    for hop in &answer.hops {
        view.hop(hop);
    }
    let mut last = (chain, answer.sequence);
    let mut backoff = Backoff::default();
    while !is_over(&last.0) {
        let request = WatchChainRequest {
            chain_id: id.to_vec(),
            after_sequence: last.1,
        };
        let before = last.1;
        let error = tokio::select! {
            () = context.stop.cancelled() => return Err(WorkerError::NotDone("stopped".into())),
            outcome = follow(&connection, request, &mut last, &mut view) => match outcome {
                Ok(()) => continue,
                Err(error) => error,
            },
        };
        if !matches!(error.retry(), Retry::Same | Retry::BackOff) {
            return Err(error.into());
        }
        if last.1 > before {
            backoff.reset();
        }
        let wait = backoff.next(error.retry_after());
        view.note(&json!({ "event": "retrying", "error": error.to_string(), "seconds": wait.as_secs_f64() }), &error.to_string());
        tokio::select! {
            () = context.stop.cancelled() => return Err(WorkerError::NotDone("stopped".into())),
            () = tokio::time::sleep(wait) => {}
        }
    }
    view.finish();
    match last.0.state() {
        ChainState::Completed => Ok(()),
        _ => Err(WorkerError::NotDone(format!(
            "the chain was cancelled ({})",
            last.0.state_reason
        ))),
    }
}

fn is_over(chain: &Chain) -> bool {
    matches!(chain.state(), ChainState::Completed | ChainState::Cancelled)
}

/// Follows until the stream ends (an error, as chains end their own) or the chain is over.
async fn follow(
    connection: &Connection,
    request: WatchChainRequest,
    last: &mut (Chain, u64),
    view: &mut View,
) -> Result<(), ClientError> {
    let mut client = connection.chain();
    let opened = tokio::time::timeout(UNARY_DEADLINE, client.watch_chain(request)).await;
    let mut stream = opened
        .map_err(|_| ClientError::Timeout(UNARY_DEADLINE))??
        .into_inner();
    while let Some(event) = stream.message().await? {
        last.1 = last.1.max(event.sequence);
        view.event(&event);
        if let Some(chain) = event.chain {
            last.0 = chain;
            if is_over(&last.0) {
                return Ok(());
            }
        }
    }
    Err(ClientError::Unreachable("the stream ended".into()))
}

/// How the chain is shown.
enum View {
    Json,
    Lines(BTreeMap<u32, String>, String),
    Bars {
        all: MultiProgress,
        chain: ProgressBar,
        hops: BTreeMap<u32, ProgressBar>,
    },
}

impl View {
    fn new(json: bool) -> View {
        if json {
            return View::Json;
        }
        if !std::io::stdout().is_terminal() {
            return View::Lines(BTreeMap::new(), String::new());
        }
        let all = MultiProgress::new();
        let chain = all.add(ProgressBar::new(0));
        set_style(&chain, "{prefix} [{bar:40}] {pos}/{len} {wide_msg}");
        View::Bars {
            all,
            chain,
            hops: BTreeMap::new(),
        }
    }

    fn event(&mut self, event: &WatchChainResponse) {
        if let View::Json = self {
            say(&event_json(event).to_string());
            return;
        }
        if let Some(hop) = &event.hop {
            self.hop(hop);
        }
        if let Some(chain) = &event.chain {
            self.chain(chain);
        }
    }

    fn chain(&mut self, chain: &Chain) {
        let line = chain_line(chain);
        match self {
            View::Json => say(&json!({ "event": "chain", "chain": chain_json(chain) }).to_string()),
            View::Lines(_, last) => {
                if *last != line {
                    say(&line);
                    *last = line;
                }
            }
            View::Bars { chain: bar, .. } => {
                bar.set_prefix(chain.name.clone());
                bar.set_length(u64::from(chain.hops));
                bar.set_position(u64::from(chain.head));
                bar.set_message(state_name(chain.state().as_str_name(), "CHAIN_STATE_"));
            }
        }
    }

    fn hop(&mut self, hop: &HopStatus) {
        let line = hop_line(hop);
        match self {
            View::Json => say(&json!({ "event": "hop", "hop": hop_json(hop) }).to_string()),
            View::Lines(last, _) => {
                // Hops nobody has touched yet are in the chain's line.
                let fresh = hop.state() == HopState::Blocked && !last.contains_key(&hop.hop);
                if !fresh && last.get(&hop.hop) != Some(&line) {
                    say(&line);
                    last.insert(hop.hop, line);
                }
            }
            View::Bars { all, hops, .. } => match hop.state() {
                HopState::Running | HopState::Verifying | HopState::Stuck => {
                    let bar = hops.entry(hop.hop).or_insert_with(|| {
                        let bar = all.add(ProgressBar::new(0));
                        set_style(&bar, "  {prefix} [{bar:30}] {pos}/{len} {wide_msg}");
                        bar
                    });
                    let ahead = hop
                        .running
                        .iter()
                        .filter_map(|r| r.progress.as_ref())
                        .max_by_key(|p| p.steps_done);
                    bar.set_prefix(format!("hop {}", hop.hop));
                    bar.set_length(ahead.map_or(0, |p| u64::from(p.steps_total)));
                    bar.set_position(ahead.map_or(0, |p| u64::from(p.steps_done)));
                    bar.set_message(line);
                }
                _ => {
                    if let Some(bar) = hops.remove(&hop.hop) {
                        bar.finish_and_clear();
                        if all.println(&line).is_err() {
                            say(&line);
                        }
                    }
                }
            },
        }
    }

    fn note(&self, object: &Value, text: &str) {
        match self {
            View::Json => say(&object.to_string()),
            View::Lines(..) => say(text),
            View::Bars { chain, .. } => chain.suspend(|| say(text)),
        }
    }

    fn finish(&self) {
        if let View::Bars { chain, .. } = self {
            chain.abandon();
        }
    }
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

fn state_name(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

fn with_reason(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    }
}

fn chain_line(chain: &Chain) -> String {
    let state = state_name(chain.state().as_str_name(), "CHAIN_STATE_");
    format!(
        "chain {}: {state}{}, {} of {} hops verified",
        chain.name,
        with_reason(&chain.state_reason),
        chain.head,
        chain.hops
    )
}

fn hop_line(hop: &HopStatus) -> String {
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

fn chain_json(chain: &Chain) -> Value {
    json!({
        "id": hex::encode(&chain.chain_id), "name": chain.name,
        "state": state_name(chain.state().as_str_name(), "CHAIN_STATE_"), "reason": chain.state_reason,
        "hops": chain.hops, "head": chain.head, "generation": chain.generation, "insecure": chain.insecure,
    })
}

fn hop_json(hop: &HopStatus) -> Value {
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

fn event_json(event: &WatchChainResponse) -> Value {
    json!({
        "event": event.kind, "sequence": event.sequence, "age_seconds": event.age_seconds,
        "chain": event.chain.as_ref().map(chain_json), "hop": event.hop.as_ref().map(hop_json),
    })
}
