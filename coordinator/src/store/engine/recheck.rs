//! Known-answer hops, doubted results, new generations.

use std::collections::BTreeSet;

use cipherhop_proto::{AccountId, Digest};

use super::Work;
use crate::domain::chain::{Chain, ChainState};
use crate::domain::command::{Acceptance, Asker, Command, Fork, State};
use crate::domain::hop::{Accepted, Failures, Hop, HopState};
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::{close_attempt, decide};
use crate::store::types::{AcquireRequest, Result};

/// Whether the request's chain and hops include this one.
fn wanted(request: &AcquireRequest, hop: &Hop) -> bool {
    request.chain.is_none_or(|chain| chain == hop.chain)
        && request
            .hops
            .as_ref()
            .is_none_or(|hops| hops.contains(&hop.index))
}

/// A hop to hand out, and the command that does it.
pub(super) struct Handout {
    pub state: State,
    pub command: Command,
}

pub(super) fn asker(request: &AcquireRequest, device: &Device) -> Asker {
    Asker {
        attempt: request.attempt,
        device: device.id,
        account: device.account,
        nonce: request.nonce,
        standing: device.standing(),
    }
}

impl Work {
    /// A doubted hop the device may run.
    pub(super) async fn find_recheck(
        &mut self,
        request: &AcquireRequest,
        device: &Device,
        now: Timestamp,
    ) -> Result<Option<Handout>> {
        for hop in self.tx.rechecks().await? {
            if !wanted(request, &hop) {
                continue;
            }
            let chain = self.chain(hop.chain).await?;
            let closed = matches!(
                chain.state,
                ChainState::Paused(_) | ChainState::Cancelled(_)
            );
            if closed || request.memory_bytes < chain.spec.worker_memory_bytes {
                continue;
            }
            let backers = self.backers(&hop).await?;
            let command = Command::Recheck(asker(request, device), backers);
            let state = self.load(hop.chain, hop.generation, hop.index).await?;
            if decide(&state, command.clone(), now).is_ok() {
                return Ok(Some(Handout { state, command }));
            }
        }
        Ok(None)
    }

    /// Accounts the accepted result rests on, in this generation or the one it was taken over from.
    async fn backers(&mut self, hop: &Hop) -> Result<BTreeSet<AccountId>> {
        let mut backers = BTreeSet::new();
        for id in self.backing_attempts(hop).await? {
            if let Some(attempt) = self.tx.attempt(id).await? {
                backers.insert(attempt.account);
            }
        }
        Ok(backers)
    }

    async fn backing_attempts(&mut self, hop: &Hop) -> Result<Vec<cipherhop_proto::AttemptId>> {
        let rows = self.tx.archive(hop.chain).await?;
        let of_hop = |row: &ArchiveRow| row.generation == hop.generation && row.hop == hop.index;
        let row = rows.into_iter().find(of_hop);
        Ok(row.map(|row| row.attempts).unwrap_or_default())
    }

    /// A verified hop of the chain that the account has not seen, for an examination.
    pub(super) async fn find_probe(
        &mut self,
        request: &AcquireRequest,
        device: &Device,
        chain: &Chain,
        now: Timestamp,
    ) -> Result<Option<Handout>> {
        let mut hops = self.tx.hops(chain.id, chain.generation).await?;
        hops.retain(|hop| hop.accepted.is_some() && !hop.recheck && wanted(request, hop));
        let count = hops.len();
        if count > 0 {
            let start = usize::try_from(request.draw >> 32).unwrap_or(0) % count;
            hops.rotate_left(start);
        }
        for hop in hops {
            if self.backers(&hop).await?.contains(&device.account) {
                continue;
            }
            let command = Command::Probe(asker(request, device));
            let state = self.load(chain.id, chain.generation, hop.index).await?;
            if decide(&state, command.clone(), now).is_ok() {
                return Ok(Some(Handout { state, command }));
            }
        }
        Ok(None)
    }

    /// What the device passed alone since its last known-answer hop is in doubt.
    pub(super) async fn doubt(&mut self, device: &Device, now: Timestamp) -> Result<()> {
        let since = device.proven.unwrap_or_default();
        for attempt in self.tx.accepted_of_device(device.id, since).await? {
            let chain = self.chain(attempt.chain).await?;
            let Some(hop) = self
                .tx
                .hop(attempt.chain, chain.generation, attempt.hop)
                .await?
            else {
                continue;
            };
            let claimed = attempt.claim.as_ref().map(|claim| claim.output);
            let alone = hop.accepted.is_some_and(|accepted| {
                accepted.method.rests_on_one() && Some(accepted.digest) == claimed
            });
            if alone && !hop.recheck {
                let state = self.load(chain.id, chain.generation, hop.index).await?;
                let effects = decide(&state, Command::Doubt, now)?;
                self.apply(&state, &effects, now).await?;
            }
        }
        Ok(())
    }

    /// Writes the rows of a new generation: what came before the decided hop is taken over, what comes after
    /// waits again.
    pub(super) async fn fork(&mut self, state: &State, fork: &Fork, now: Timestamp) -> Result<()> {
        let (id, old) = (state.chain.id, state.hop.generation);
        let generation = old + 1;
        for mut attempt in self.tx.attempts_of_chain(id, old).await? {
            let before = attempt.state;
            close_attempt(&mut attempt, now);
            if attempt.state != before {
                self.tx.update_attempt(&attempt).await?;
            }
        }
        cipherhop_failpoint::at("fork.attempts_closed");
        let rows = self.tx.archive(id).await?;
        let mut output: Option<Digest> = None;
        for hop in self.tx.hops(id, old).await? {
            let mut new = Hop {
                generation,
                state: HopState::Blocked,
                epoch: 0,
                input: None,
                accepted: None,
                failures: Failures::default(),
                last_failure: None,
                last_failed_device: None,
                not_before: None,
                reopened: 0,
                recheck: false,
                since: now,
                ..hop.clone()
            };
            let taken_over = if hop.index < state.hop.index {
                let row = rows
                    .iter()
                    .find(|row| row.generation == old && row.hop == hop.index);
                row.map(|row| Acceptance {
                    digest: row.digest,
                    method: row.method,
                    attempts: row.attempts.clone(),
                })
            } else if hop.index == state.hop.index {
                fork.instead.clone()
            } else {
                None
            };
            if hop.index <= state.hop.index {
                new.input = hop.input;
            } else {
                new.input = output;
            }
            if let Some(accept) = &taken_over {
                new.state = HopState::Verified;
                new.accepted = Some(Accepted {
                    digest: accept.digest,
                    method: accept.method,
                });
                new.recheck = hop.recheck && hop.index < state.hop.index;
            } else if new.input.is_some() {
                new.state = HopState::Ready;
            }
            output = taken_over.as_ref().map(|accept| accept.digest);
            self.tx.insert_hop(&new).await?;
            if let Some(accept) = &taken_over {
                self.archive_row(id, generation, hop.index, accept, now)
                    .await?;
            } else if !matches!(hop.state, HopState::Verified | HopState::Cancelled) {
                let over = Hop {
                    state: HopState::Cancelled,
                    since: now,
                    ..hop
                };
                self.tx.update_hop(&over).await?;
            }
        }
        Ok(())
    }
}
