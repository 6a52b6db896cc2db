//! `watch`: follows a chain live; after a broken connection it goes on from the last event seen. On a terminal it fills
//! the screen, otherwise it prints lines.

mod lines;
mod screen;
mod terminal;

use std::io::IsTerminal as _;

use cipherhop_proto::Retry;
use cipherhop_proto::client::{Backoff, ClientError, Connection, UNARY_DEADLINE};
use cipherhop_proto::v1::{Chain, ChainState, HopStatus, WatchChainRequest, WatchChainResponse};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::lines::{Lines, chain_json, event_json, hop_json};
use self::terminal::Terminal;
use super::{Context, chain_id, find_chain};
use crate::cli::Watch;
use crate::error::WorkerError;
use crate::report::say;

pub(super) async fn watch(context: &Context, options: Watch) -> Result<(), WorkerError> {
    let connection = context.connect()?;
    let answer = find_chain(&connection, &options.chain).await?;
    let id = chain_id(&answer)?;
    let chain = answer
        .chain
        .ok_or(ClientError::Protocol("no chain in the answer"))?;
    // A person at the full screen leaves by a key.
    let left = CancellationToken::new();
    let mut view = View::new(context.json, &chain, &left);
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
            () = left.cancelled() => return Ok(()),
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
            () = left.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
    }
    let filled = matches!(view, View::Screen(_));
    drop(view);
    if filled {
        say(&lines::chain_line(&last.0));
    }
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

/// Gives the terminal back as it was, before the process is ended without unwinding.
pub fn leave_screen() {
    terminal::leave();
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
    Lines(Lines),
    Screen(Terminal),
}

impl View {
    fn new(json: bool, chain: &Chain, left: &CancellationToken) -> View {
        if json {
            return View::Json;
        }
        let plain = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if plain || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return View::Lines(Lines::default());
        }
        match Terminal::open(chain.clone(), left.clone()) {
            Ok(terminal) => View::Screen(terminal),
            Err(error) => {
                tracing::warn!(%error, "the terminal does not do a full screen");
                View::Lines(Lines::default())
            }
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
        match self {
            View::Json => say(&json!({ "event": "chain", "chain": chain_json(chain) }).to_string()),
            View::Lines(lines) => lines.chain(chain),
            View::Screen(terminal) => terminal.change(|screen| screen.chain(chain.clone())),
        }
    }

    fn hop(&mut self, hop: &HopStatus) {
        match self {
            View::Json => say(&json!({ "event": "hop", "hop": hop_json(hop) }).to_string()),
            View::Lines(lines) => lines.hop(hop),
            View::Screen(terminal) => terminal.change(|screen| screen.hop(hop.clone())),
        }
    }

    fn note(&mut self, object: &Value, text: &str) {
        match self {
            View::Json => say(&object.to_string()),
            View::Lines(_) => say(text),
            View::Screen(terminal) => terminal.change(|screen| screen.note(text)),
        }
    }
}
