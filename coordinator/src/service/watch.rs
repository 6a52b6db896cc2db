//! Following a chain: replay of its events from a sequence number, then live ones and progress.

use std::collections::HashMap;
use std::time::Duration;

use cipherhop_proto::{ChainId, v1};
use tokio::sync::mpsc;
use tonic::Status;

use super::error::of_store;
use super::{Core, convert};
use crate::domain::view::ChainStatus;

/// Running attempts report no event for each step, so a watch looks at them this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Events read from the store at once.
const BATCH: u32 = 256;

/// One observer of one chain: replays from a sequence number, then follows.
pub(super) struct Watch {
    core: Core,
    id: ChainId,
    after: u64,
    sender: mpsc::Sender<Result<v1::WatchChainResponse, Status>>,
    /// What was last told about running attempts, per hop.
    progress: HashMap<u32, Vec<v1::RunningAttempt>>,
}

impl Watch {
    /// Events go to `sender`, those after the sequence number first.
    pub fn new(
        core: Core,
        id: ChainId,
        after: u64,
        sender: mpsc::Sender<Result<v1::WatchChainResponse, Status>>,
    ) -> Watch {
        Watch {
            core,
            id,
            after,
            sender,
            progress: HashMap::new(),
        }
    }

    /// Ends when the observer is gone or the store fails.
    pub async fn run(mut self) {
        let mut changes = self.core.store.changes();
        loop {
            changes.mark_unchanged();
            match self.tell().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(status) => {
                    let _ = self.sender.send(Err(status)).await;
                    return;
                }
            }
            tokio::select! {
                // An error means that the store is gone; the next read says so.
                _ = tokio::time::timeout(PROGRESS_EVERY, changes.changed()) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    /// Sends all new events, then changed progress. False when the observer is gone.
    async fn tell(&mut self) -> Result<bool, Status> {
        let store = self.core.store.clone();
        loop {
            let events = store
                .events(self.id, self.after, BATCH)
                .await
                .map_err(of_store("watch_chain"))?;
            let state = store
                .status(self.id)
                .await
                .map_err(of_store("watch_chain"))?;
            let now = self.core.clock.now();
            for event in &events {
                let message = v1::WatchChainResponse {
                    sequence: event.sequence,
                    kind: event.event.kind.as_str().to_owned(),
                    chain: Some(convert::chain(&state.chain, now)),
                    hop: event
                        .event
                        .hop
                        .and_then(|h| state.hops.get(h as usize))
                        .map(|h| convert::hop(h, now)),
                    age_seconds: now.since(event.at).as_secs_f64(),
                };
                if self.sender.send(Ok(message)).await.is_err() {
                    return Ok(false);
                }
                self.after = event.sequence;
            }
            if events.len() < BATCH as usize {
                return self.tell_progress(&state).await;
            }
        }
    }

    async fn tell_progress(&mut self, state: &ChainStatus) -> Result<bool, Status> {
        let now = self.core.clock.now();
        for hop in &state.hops {
            let status = convert::hop(hop, now);
            let mut running = status.running.clone();
            // Ages change all the time; they are no news.
            running.iter_mut().for_each(|r| r.seconds_since_sync = 0.0);
            if self.progress.get(&hop.index).map_or(&[][..], Vec::as_slice) == running {
                continue;
            }
            let news = !running.is_empty();
            self.progress.insert(hop.index, running);
            let message = v1::WatchChainResponse {
                sequence: self.after,
                kind: "hop.progress".to_owned(),
                chain: Some(convert::chain(&state.chain, now)),
                hop: Some(status),
                age_seconds: 0.0,
            };
            if news && self.sender.send(Ok(message)).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
