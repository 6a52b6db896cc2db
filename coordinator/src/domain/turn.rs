//! Working copy of a hop's state while one command is decided.

use cipherhop_proto::{AttemptId, DeviceId, Reason};

use super::attempt::{Attempt, AttemptState, Purpose};
use super::chain::{Chain, ChainState, MAX_TEXT_BYTES};
use super::command::{Acceptance, Effects, Fork, Holder, Refusal, Reply, State};
use super::event::{EventKind, NewEvent};
use super::hop::{Hop, HopState};
use super::time::Timestamp;
use super::trust::Verdict;

pub(super) struct Turn {
    pub chain: Chain,
    pub hop: Hop,
    pub attempts: Vec<Attempt>,
    pub p95: Option<std::time::Duration>,
    pub now: Timestamp,
    pub accept: Option<Acceptance>,
    pub fork: Option<Fork>,
    pub cancel_hops: bool,
    pub credits: Vec<AttemptId>,
    pub verdicts: Vec<(DeviceId, Verdict)>,
    events: Vec<NewEvent>,
}

impl Turn {
    pub fn new(state: &State, now: Timestamp) -> Self {
        Self {
            chain: state.chain.clone(),
            hop: state.hop.clone(),
            attempts: state.attempts.clone(),
            p95: state.p95,
            now,
            accept: None,
            fork: None,
            cancel_hops: false,
            credits: Vec::new(),
            verdicts: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The state as it stands now.
    pub fn state(&self) -> State {
        State {
            chain: self.chain.clone(),
            hop: self.hop.clone(),
            attempts: self.attempts.clone(),
            p95: self.p95,
        }
    }

    /// The caller's attempt: it exists, is the device's own, and the epoch is its lease's (I4).
    pub fn hold(&self, holder: Holder) -> Result<usize, Refusal> {
        let found = self
            .attempts
            .iter()
            .position(|attempt| attempt.id == holder.attempt);
        let index = found.ok_or(Reason::AttemptNotFound)?;
        let attempt = &self.attempts[index];
        if attempt.device != holder.device {
            return Err(Reason::AttemptNotYours.into());
        }
        if attempt.epoch != holder.epoch {
            return Err(Refusal::new(
                Reason::StaleEpoch,
                format!("epoch {} is not the lease's", holder.epoch),
            ));
        }
        Ok(index)
    }

    /// Why no result of this hop matters any more.
    pub fn closed(&self) -> Option<Reason> {
        if matches!(self.chain.state, ChainState::Cancelled(_)) {
            return Some(Reason::ChainCancelled);
        }
        (self.hop.generation != self.chain.generation).then_some(Reason::HopClosed)
    }

    pub fn chain_event(&mut self, kind: EventKind, detail: impl Into<String>) {
        self.events.push(NewEvent {
            kind,
            hop: None,
            attempt: None,
            detail: clip(detail.into()),
        });
    }

    pub fn hop_event(&mut self, kind: EventKind, detail: impl Into<String>) {
        let hop = Some(self.hop.index);
        self.events.push(NewEvent {
            kind,
            hop,
            attempt: None,
            detail: clip(detail.into()),
        });
    }

    pub fn next_hop_event(&mut self, kind: EventKind) {
        let hop = Some(self.hop.index + 1);
        self.events.push(NewEvent {
            kind,
            hop,
            attempt: None,
            detail: String::new(),
        });
    }

    /// Examinations and rechecks make no events: anybody could tell them from work.
    pub fn attempt_event(&mut self, kind: EventKind, index: usize, detail: impl Into<String>) {
        if self.attempts[index].purpose != Purpose::Work {
            return;
        }
        let (hop, attempt) = (Some(self.hop.index), Some(self.attempts[index].id));
        self.events.push(NewEvent {
            kind,
            hop,
            attempt,
            detail: clip(detail.into()),
        });
    }

    /// Moves an attempt out of the live states.
    pub fn end(&mut self, index: usize, state: AttemptState, reason: Option<Reason>) {
        let attempt = &mut self.attempts[index];
        attempt.state = state;
        attempt.reason = reason;
        attempt.silent = false;
        attempt.ended.get_or_insert(self.now);
    }

    pub fn set_hop_state(&mut self, state: HopState) {
        if self.hop.state != state {
            self.hop.state = state;
            self.hop.since = self.now;
        }
    }

    /// Indices of attempts whose sound result waits for a verdict.
    pub fn submitted(&self) -> Vec<usize> {
        let waits = |i: &usize| self.attempts[*i].state == AttemptState::Submitted;
        (0..self.attempts.len()).filter(waits).collect()
    }

    /// A stuck hop is handed out again, and its chain with it.
    pub fn reopen(&mut self) {
        if matches!(self.hop.state, HopState::Stuck(_)) {
            self.set_hop_state(HopState::Ready);
        }
        if matches!(self.chain.state, ChainState::Stuck(_)) {
            self.chain.state = ChainState::Active;
            self.chain_event(EventKind::ChainResumed, "");
        }
    }

    /// Derives Ready, Running or Verifying of an open hop from its attempts.
    fn settle(&mut self) {
        if !self.hop.state.is_open() {
            return;
        }
        let any = |wanted: fn(AttemptState) -> bool| self.attempts.iter().any(|a| wanted(a.state));
        let state = if any(AttemptState::is_live) {
            HopState::Running
        } else if any(|state| state == AttemptState::Submitted) {
            HopState::Verifying
        } else {
            HopState::Ready
        };
        self.set_hop_state(state);
    }

    pub fn finish(mut self, before: &State, reply: Reply) -> Effects {
        self.settle();
        let known = before.attempts.len();
        let changed =
            |(i, attempt): &(usize, Attempt)| *i >= known || before.attempts[*i] != *attempt;
        let attempts = self.attempts.into_iter().enumerate().filter(changed);
        Effects {
            reply,
            chain: (self.chain != before.chain).then_some(self.chain),
            hop: (self.hop != before.hop).then_some(self.hop),
            attempts: attempts.map(|(_, attempt)| attempt).collect(),
            accept: self.accept,
            fork: self.fork,
            cancel_hops: self.cancel_hops,
            credits: self.credits,
            verdicts: self.verdicts,
            events: self.events,
        }
    }
}

/// Cuts text to [`MAX_TEXT_BYTES`] at a character boundary.
pub(super) fn clip(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    }
    text
}
