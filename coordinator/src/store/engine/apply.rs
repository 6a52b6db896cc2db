//! Loads what a decision is made on and writes what follows from it.

use std::time::{Duration, Instant};

use cipherhop_proto::ledger::GENESIS;
use cipherhop_proto::{ChainId, Reason};

use super::{Work, heads};
use crate::domain::attempt::{Attempt, AttemptState};
use crate::domain::chain::Chain;
use crate::domain::command::{Acceptance, Command, Effects, State};
use crate::domain::decide;
use crate::domain::event::NewEvent;
use crate::domain::hop::{Hop, HopState};
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::{DeviceState, Pace, Verdict};
use crate::store::types::{Result, StoreError};

/// Accepted attempts that tell how long a hop usually takes.
const DURATION_SAMPLES: u32 = 64;

fn state(chain: Chain, hop: Option<Hop>, attempts: Vec<Attempt>) -> Result<State> {
    Ok(State {
        chain,
        hop: hop.ok_or(Reason::HopNotFound)?,
        attempts,
        p95: None,
    })
}

fn is_new(state: &State, attempt: &Attempt) -> bool {
    !state
        .attempts
        .iter()
        .any(|known| known.epoch == attempt.epoch)
}

/// The attempt, hop and event where nothing else changes and nothing is accepted.
fn simple(effects: &Effects) -> Option<(&Attempt, &Hop, &NewEvent)> {
    let Effects {
        reply: _,
        chain: None,
        hop: Some(hop),
        attempts,
        accept: None,
        fork: None,
        cancel_hops: false,
        credits,
        verdicts: _,
        events,
    } = effects
    else {
        return None;
    };
    match (&attempts[..], &events[..]) {
        ([attempt], [event]) if credits.is_empty() && attempt.state != AttemptState::Matched => {
            Some((attempt, hop, event))
        }
        _ => None,
    }
}

impl Work {
    /// The hop with its chain and attempts, without `p95`; HOP_NOT_FOUND.
    pub(super) async fn load(&mut self, id: ChainId, generation: u32, hop: u32) -> Result<State> {
        let both = self.tx.chain_and_hop(id, generation, hop).await?;
        let (chain, found) = both.ok_or(Reason::ChainNotFound)?;
        let attempts = self.tx.attempts_of_hop(id, generation, hop).await?;
        state(chain, found, attempts)
    }

    /// [`Work::load`] with the live and waiting attempts only.
    pub(super) async fn load_pending(
        &mut self,
        id: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<State> {
        let both = self.tx.chain_and_hop(id, generation, hop).await?;
        let (chain, found) = both.ok_or(Reason::ChainNotFound)?;
        let attempts = self.tx.pending_of_hop(id, generation, hop).await?;
        state(chain, found, attempts)
    }

    /// 95th percentile of the chain's newest accepted attempts, from lease to submit.
    pub(super) async fn p95(&mut self, id: ChainId) -> Result<Option<Duration>> {
        Ok(self.usual_durations(id).await?.1)
    }

    /// Middle and 95th percentile of the same.
    pub(super) async fn usual_durations(
        &mut self,
        id: ChainId,
    ) -> Result<(Option<Duration>, Option<Duration>)> {
        let own = self.settled.contains(&id);
        if let Some(usual) = self.known.durations(id).filter(|_| !own) {
            return Ok(usual);
        }
        let begun = Instant::now();
        let mut durations = self.tx.accepted_durations(id, DURATION_SAMPLES).await?;
        durations.sort_unstable();
        let at = |percent: usize| {
            let rank = (durations.len() * percent).div_ceil(100).saturating_sub(1);
            let micros = durations.get(rank);
            micros.map(|micros| Duration::from_micros(*micros))
        };
        let usual = (at(50), at(95));
        if !own {
            self.known.keep_durations(id, usual, begun);
        }
        Ok(usual)
    }

    /// Measures devices by attempts that ended with a result or at the deadline.
    async fn measure(&mut self, state: &State, effects: &Effects, now: Timestamp) -> Result<()> {
        for attempt in &effects.attempts {
            let before = state.attempts.iter().find(|known| known.id == attempt.id);
            let was_live = before.is_some_and(|before| before.state.is_live());
            let tells = matches!(
                attempt.state,
                AttemptState::Submitted | AttemptState::Matched | AttemptState::Expired
            );
            let Some(ended) = attempt.ended.filter(|_| was_live && tells) else {
                continue;
            };
            let (middle, _) = self.usual_durations(state.chain.id).await?;
            let (Some(middle), Some(mut device)) = (middle, self.tx.device(attempt.device).await?)
            else {
                continue;
            };
            let took = ended.since(attempt.leased);
            device.pace = Some(Pace::with(device.pace, took, middle, now));
            self.tx.update_device(&device).await?;
        }
        Ok(())
    }

    /// Decides and writes; the effects and the hop's state afterwards.
    pub(super) async fn run(
        &mut self,
        state: &State,
        command: Command,
        now: Timestamp,
    ) -> Result<(Effects, HopState)> {
        let effects = decide(state, command, now)?;
        let hop_state = effects.hop_state(state);
        self.measure(state, &effects, now).await?;
        self.apply(state, &effects, now).await?;
        let after = heads::after(state, &effects);
        if after.is_some() {
            let version = self.known.heads.version();
            self.heads.push((state.chain.id, version, after));
        }
        self.count_verdicts(&effects, now).await?;
        Ok((effects, hop_state))
    }

    pub(super) async fn apply(
        &mut self,
        state: &State,
        effects: &Effects,
        now: Timestamp,
    ) -> Result<()> {
        let id = state.chain.id;
        self.heads.push((id, self.known.heads.version(), None));
        self.opens |= effects.events.iter().any(|event| event.kind.may_open());
        self.rechecks |= effects.hop.as_ref().is_some_and(|hop| hop.recheck);
        if let Some((attempt, hop, event)) = simple(effects) {
            let made = is_new(state, attempt);
            let recorded = self.tx.record(attempt, made, hop, event, now).await?;
            self.last_event = recorded;
            return Ok(());
        }
        for attempt in &effects.attempts {
            if attempt.state == AttemptState::Matched {
                self.settled.push(id);
            }
            match is_new(state, attempt) {
                true => self.tx.insert_attempt(attempt).await?,
                false => self.tx.update_attempt(attempt).await?,
            }
        }
        if let Some(hop) = &effects.hop {
            self.tx.update_hop(hop).await?;
        }
        if let Some(accept) = &effects.accept {
            self.accept(state, accept, now).await?;
        }
        if let Some(fork) = &effects.fork {
            self.fork(state, fork, now).await?;
        }
        if effects.cancel_hops {
            self.cancel_hops(state, now).await?;
        }
        if let Some(chain) = &effects.chain {
            cipherhop_failpoint::at("advance.head.before");
            let (head, generation) = (state.chain.head, state.chain.generation);
            if !self.tx.update_chain(chain, head, generation).await? {
                return Err(StoreError::Damaged(format!(
                    "head of chain {} moved",
                    chain.id
                )));
            }
        }
        for id in &effects.credits {
            let earner = effects.attempts.iter().find(|attempt| attempt.id == *id);
            if let Some(attempt) = earner {
                self.tx.insert_credit(*id, attempt.account, now).await?;
            }
        }
        for event in &effects.events {
            self.last_event = self.tx.append_event(state.chain.id, event, now).await?;
        }
        Ok(())
    }

    /// Appends to the archive and opens the next hop.
    async fn accept(&mut self, state: &State, accept: &Acceptance, now: Timestamp) -> Result<()> {
        let (chain, generation, hop) = (state.chain.id, state.hop.generation, state.hop.index);
        self.archive_row(chain, generation, hop, accept, now)
            .await?;
        cipherhop_failpoint::at("advance.archived");
        let Some(mut next) = self.tx.hop(chain, generation, hop + 1).await? else {
            return Ok(());
        };
        if next.state != HopState::Blocked {
            return Err(StoreError::Damaged(format!(
                "hop {} of {chain} is not Blocked",
                hop + 1
            )));
        }
        next.state = HopState::Ready;
        next.input = Some(accept.digest);
        next.since = now;
        self.tx.update_hop(&next).await
    }

    /// Appends to the chain's archive.
    pub(super) async fn archive_row(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
        accept: &Acceptance,
        now: Timestamp,
    ) -> Result<()> {
        let tip = self.tx.archive_tip(chain).await?;
        let mut attempts = accept.attempts.clone();
        attempts.sort_unstable();
        let mut row = ArchiveRow {
            chain,
            position: tip.map_or(0, |(position, _)| position + 1),
            generation,
            hop,
            digest: accept.digest,
            method: accept.method,
            attempts,
            at: now,
            previous: tip.map_or(GENESIS, |(_, hash)| hash),
            hash: GENESIS,
            seal: None,
        };
        row.hash = row.computed_hash();
        row.seal = self.ledger.get().map(|key| key.seal(row.hash));
        self.tx.insert_archive(&row).await
    }

    async fn cancel_hops(&mut self, state: &State, now: Timestamp) -> Result<()> {
        for mut hop in self.tx.hops(state.chain.id, state.chain.generation).await? {
            if !matches!(hop.state, HopState::Verified | HopState::Cancelled) {
                hop.state = HopState::Cancelled;
                hop.since = now;
                self.tx.update_hop(&hop).await?;
            }
        }
        Ok(())
    }

    /// Counts verdicts on devices. One that falls into quarantine loses its leases; after a refuted result,
    /// what the device passed alone since its last known-answer hop is run again by others.
    async fn count_verdicts(&mut self, effects: &Effects, now: Timestamp) -> Result<()> {
        for (id, verdict) in &effects.verdicts {
            let Some(mut device) = self.tx.device(*id).await? else {
                continue;
            };
            let before = device.state;
            device.judge(*verdict, now);
            self.tx.update_device(&device).await?;
            if device.state == DeviceState::Quarantined && before != device.state {
                self.evict(*id, now).await?;
            }
            if *verdict == Verdict::Invalid {
                self.doubt(&device, now).await?;
            }
        }
        Ok(())
    }

    /// Ends every lease and sets aside every waiting result of a device.
    pub(super) async fn evict(
        &mut self,
        device: cipherhop_proto::DeviceId,
        now: Timestamp,
    ) -> Result<()> {
        for attempt in self.tx.pending_of_device(device).await? {
            let state = self
                .load(attempt.chain, attempt.generation, attempt.hop)
                .await?;
            let effects = decide(&state, Command::Evict(device), now)?;
            self.apply(&state, &effects, now).await?;
        }
        Ok(())
    }
}
