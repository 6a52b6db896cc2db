//! The short way to a hop: straight to a chain that had work a moment ago.

use std::time::Instant;

use cipherhop_proto::{AccountId, ChainId};

use super::acquire::{MAX_COMPARED, cached_permille, fits};
use super::heads::{Candidate, Pick};
use super::{Engine, Work};
use crate::domain::attempt::Attempt;
use crate::domain::command::State;
use crate::domain::hop::HopState;
use crate::domain::schedule;
use crate::domain::time::Timestamp;
use crate::store::tx::Backend;
use crate::store::types::{AcquireRequest, Result};

impl<B: Backend> Engine<B> {
    /// The chains that had work for the request a moment ago, the best first; none: look properly.
    pub(super) async fn likely(
        &self,
        request: &AcquireRequest,
        now: Timestamp,
    ) -> Result<Option<(Vec<ChainId>, Pick)>> {
        let odds = request.probes;
        let odds = odds.fresh_permille.max(odds.trusted_permille);
        if request.draw % 1000 < u64::from(odds) {
            return Ok(None);
        }
        self.renew_heads().await?;
        Ok(self.best_of_heads(request, now))
    }

    /// Whether there was something for the request at `since` or later.
    pub(super) async fn worth_asking(
        &self,
        request: &AcquireRequest,
        since: Instant,
        now: Timestamp,
    ) -> Result<bool> {
        let heads = &self.known.heads;
        let Some(account) = self.known.account(request.device) else {
            return Ok(true);
        };
        if !heads.is_since(since) {
            // Whoever comes first makes the picture anew for all who wait here.
            let _turn = heads.turn.lock().await;
            if !heads.is_since(since) {
                self.take_picture().await?;
            }
        }
        Ok(heads.has_rechecks() || !self.open_for(request, account, now).is_empty())
    }

    /// One request at a time makes the picture anew, the others go by the old one meanwhile.
    async fn renew_heads(&self) -> Result<()> {
        let heads = &self.known.heads;
        match heads.is_old().then(|| heads.turn.try_lock().ok()).flatten() {
            Some(_turn) => self.take_picture().await,
            None => Ok(()),
        }
    }

    async fn take_picture(&self) -> Result<()> {
        let heads = &self.known.heads;
        let (before, begun) = (heads.version(), Instant::now());
        let mut look = self.look().await?;
        let rechecks = !look.tx.rechecks().await?.is_empty();
        let states = look.head_states().await?;
        heads.fill(before, begun, rechecks, states);
        Ok(())
    }

    /// Chains with work for the request, and how good each is.
    fn open_for(
        &self,
        request: &AcquireRequest,
        account: AccountId,
        now: Timestamp,
    ) -> Vec<((bool, u64), Candidate)> {
        let good = |state: &State, picked: usize| {
            let free = schedule::open_slots(state, now) > picked;
            let wanted = request.chain.is_none_or(|chain| chain == state.chain.id);
            let fits = free && wanted && fits(request, &state.chain).is_ok();
            (fits && schedule::eligible(state, request.device, account, now).is_ok())
                .then(|| (picked == 0, schedule::score(state, 0, now)))
        };
        self.known.heads.fitting(good)
    }

    /// Requests at the same moment go for different chains first.
    fn best_of_heads(
        &self,
        request: &AcquireRequest,
        now: Timestamp,
    ) -> Option<(Vec<ChainId>, Pick)> {
        let account = self.known.account(request.device)?;
        let mut open = self.open_for(request, account, now);
        open.sort_by_key(|(good, _)| std::cmp::Reverse(*good));
        let mut best: Vec<((bool, u64), Candidate)> = Vec::new();
        for ((alone, _), candidate) in open.into_iter().take(MAX_COMPARED) {
            let state = candidate.state();
            let needed = self.known.needed(&state.chain, &state.hop)?;
            if let Ok(permille) = cached_permille(request, &state.chain, &needed) {
                let score = schedule::score(state, permille, now);
                best.push(((alone, score), candidate));
            }
        }
        best.sort_by_key(|(good, _)| std::cmp::Reverse(*good));
        let (_, first) = best.first()?;
        let pick = first.pick();
        let chains = best.iter().map(|(_, one)| one.state().chain.id).collect();
        Some((chains, pick))
    }
}

impl Work {
    /// Every active chain with its head hop and the attempts that matter there, by time of creation.
    pub(super) async fn head_states(&mut self) -> Result<Vec<State>> {
        let heads = self.tx.active_heads().await?;
        let busy = heads.iter().any(|(_, hop)| hop.state != HopState::Ready);
        let mut pending: std::collections::HashMap<_, Vec<Attempt>> = Default::default();
        if busy {
            for attempt in self.tx.pending_of_heads().await? {
                let hop = (attempt.chain, attempt.generation, attempt.hop);
                pending.entry(hop).or_default().push(attempt);
            }
        }
        let states = heads.into_iter().map(|(chain, hop)| {
            let attempts = match hop.state {
                // A Ready hop has no attempt that matters.
                HopState::Ready => None,
                _ => pending.remove(&(chain.id, hop.generation, hop.index)),
            };
            State {
                attempts: attempts.unwrap_or_default(),
                chain,
                hop,
                p95: None,
            }
        });
        Ok(states.collect())
    }
}
