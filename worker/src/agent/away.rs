//! Hops that are computed on a machine without a connection: leased and fetched here, carried there and back as packs.

use std::time::Duration;

use cipherhop_proto::AttemptId;
use cipherhop_proto::v1::AttemptPhase;

use super::acquire::{CARRIED_AWAY, Next};
use super::attempt::End;
use super::lease::Keeper;
use super::{Agent, run};
use crate::cache::Pin;
use crate::error::WorkerError;
use crate::journal::{Asking, Claim, Entry, Lease, WorkState};
use cipherhop_proto::Nonce;

/// How often a running worker looks for attempts that were carried away since.
const LOOK: Duration = Duration::from_secs(5);

/// What to put into a pack.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// An open hop of these.
    Hop(Claim),
    /// A begun attempt.
    Attempt(AttemptId),
}

impl Agent {
    /// Leases a hop, or takes one that was leased, and has all its blobs in the cache for as long as the pins live. `None`
    /// when the worker is to stop.
    pub async fn lease_for_pack(
        &self,
        wanted: Wanted,
    ) -> Result<Option<(Lease, Vec<Pin>)>, WorkerError> {
        if !run::hello(self).await? {
            return Ok(None);
        }
        let attempt = match wanted {
            Wanted::Attempt(attempt) => attempt,
            Wanted::Hop(claim) => match self.ask_for_pack(claim).await? {
                Some(attempt) => attempt,
                None => return Ok(None),
            },
        };
        let Some(work) = self.state().works.remove(&attempt) else {
            return Err(WorkerError::Request(format!(
                "attempt {attempt} is not known here; see `status`"
            )));
        };
        if work.state.result().is_some() || matches!(work.state, WorkState::Closed { .. }) {
            return Err(WorkerError::Request(format!(
                "attempt {attempt} is {}: there is nothing to compute",
                work.state.name()
            )));
        }
        let lease = work.lease;
        if lease.insecure && !self.options.allow_insecure {
            self.release(&lease, "INSECURE_NOT_ALLOWED").await?;
            return Err(WorkerError::Insecure(lease.chain_name, lease.parameter_set));
        }
        let keeper = Keeper::start(
            &self.connection,
            &lease,
            AttemptPhase::Fetching,
            work.compute_seconds,
        );
        match self.fetch_all(&lease, &keeper).await? {
            Ok(pins) => Ok(Some((lease, pins))),
            Err(End::Stopped | End::Paused) => Ok(None),
            Err(end) => Err(WorkerError::NotDone(format!(
                "the hop could not be packed: {end:?}"
            ))),
        }
    }

    async fn ask_for_pack(&self, claim: Claim) -> Result<Option<AttemptId>, WorkerError> {
        if let Some(asking) = self.state().asking {
            // A lost answer may have been a lease; it then is in the journal for `run`.
            self.ask(asking, Duration::ZERO).await?;
        }
        let asking = Asking {
            nonce: Nonce::from_bytes(rand::random()),
            claim: Some(claim),
        };
        match self.ask(asking, Duration::ZERO).await? {
            Next::Work(attempt) => Ok(Some(attempt)),
            Next::Stopped => Ok(None),
            Next::Nothing { reason, .. } if reason == CARRIED_AWAY => {
                let out = self
                    .state()
                    .works
                    .into_values()
                    .find(|w| w.state == WorkState::Away);
                let attempt = out
                    .map(|work| work.lease.attempt.to_string())
                    .unwrap_or_default();
                Err(WorkerError::NotDone(format!(
                    "a device carries one hop at a time, and attempt {attempt} is out: `unpack` its result, pack it again with \
                     --attempt {attempt}, or give it back with `unpack --give-back {attempt}`"
                )))
            }
            Next::Nothing { reason, .. } => Err(WorkerError::NotDone(format!(
                "no such hop is open for this worker now ({reason}); `watch` shows when one is"
            ))),
        }
    }

    /// The pack is on disk: this worker does not compute the hop itself any more.
    pub fn carried_away(&self, lease: &Lease) -> Result<(), WorkerError> {
        let attempt = lease.attempt;
        self.record(Entry::Moved {
            attempt,
            to: WorkState::Away,
        })?;
        crate::durable::remove_folder(&self.folder.work(attempt))
    }

    /// A carried hop will not come back: others may have it at once.
    pub async fn give_back(&self, attempt: AttemptId) -> Result<(), WorkerError> {
        match self.state().works.get(&attempt) {
            Some(work) if work.state == WorkState::Away => {
                self.release(&work.lease, "GIVEN_BACK").await
            }
            _ => Err(WorkerError::Request(format!(
                "attempt {attempt} is not out; see `status`"
            ))),
        }
    }

    /// Keeps the leases of carried hops while the worker runs, and hears when one is not wanted any more.
    pub(super) async fn keep_away(&self) -> std::convert::Infallible {
        let mut kept: Vec<(Lease, Keeper)> = Vec::new();
        loop {
            let state = self.state();
            let is_away = |attempt: &AttemptId| {
                state
                    .works
                    .get(attempt)
                    .is_some_and(|w| w.state == WorkState::Away)
            };
            kept.retain(|(lease, keeper)| {
                if !is_away(&lease.attempt) {
                    return false;
                }
                if !keeper.unwanted().is_cancelled() {
                    return true;
                }
                if let Err(error) = self.end(lease, &keeper.reason()) {
                    tracing::warn!(attempt = %lease.attempt, %error, "the end of a carried hop was not recorded");
                }
                false
            });
            for work in state.works.values().filter(|w| w.state == WorkState::Away) {
                if !kept
                    .iter()
                    .any(|(lease, _)| lease.attempt == work.lease.attempt)
                {
                    let phase = AttemptPhase::Computing;
                    let keeper =
                        Keeper::start(&self.connection, &work.lease, phase, work.compute_seconds);
                    kept.push((work.lease.clone(), keeper));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
