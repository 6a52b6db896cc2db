//! A chain in memory that applies effects as a store would, and random steps for it.

use std::collections::BTreeMap;
use std::time::Duration;

use cipherhop_coordinator::domain::attempt::{Attempt, AttemptState, Claim};
use cipherhop_coordinator::domain::chain::{Chain, ChainSpec, ChainState, Policy};
use cipherhop_coordinator::domain::command::{Acceptance, Command, Effects, State};
use cipherhop_coordinator::domain::event::NewEvent;
use cipherhop_coordinator::domain::hop::{Accepted, Failures, Hop, HopState};
use cipherhop_coordinator::domain::time::Timestamp;
use cipherhop_coordinator::domain::trust::{Device, DeviceState, Verdict};
use cipherhop_coordinator::domain::{close_attempt, decide};
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Reason};
use proptest::prelude::*;

use crate::steps::{Call, Step};

pub const HOPS: u32 = 3;
/// Accounts, with two devices each.
pub const ACCOUNTS: u8 = 5;
/// Different results anybody may hand in; 0 is the right one.
pub const OUTPUTS: u8 = 3;

/// A fault put into the rules on purpose: the properties must notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    None,
    /// Epochs are not compared.
    NoFence,
    /// Of two results that disagree, the first one wins.
    TieVote,
    /// A trusted device's result counts whatever the draw says, and so does everybody's.
    TrustAll,
    /// Credit is given at every accepted submit.
    CreditTwice,
}

/// An accepted result: generation, hop, what it rests on, and what was expected of the hop then.
#[derive(Debug, Clone)]
pub struct Row {
    pub generation: u32,
    pub hop: u32,
    pub accepted: Acceptance,
    pub expected: Option<Digest>,
}

#[derive(Debug, Clone)]
pub struct Bench {
    pub mutant: Mutant,
    pub chain: Chain,
    /// Of the current generation.
    pub hops: Vec<Hop>,
    pub attempts: Vec<Attempt>,
    pub devices: BTreeMap<DeviceId, Device>,
    pub archive: Vec<Row>,
    pub credits: Vec<AttemptId>,
    pub events: Vec<NewEvent>,
    pub now: Timestamp,
    pub last_error: Option<Reason>,
    /// What was expected of each hop, kept apart because rows do not show it.
    pub expected: Vec<Option<Digest>>,
    pub made: u16,
}

pub fn digest(hop: u32, output: u8) -> Digest {
    Digest::of(format!("hop {hop} output {output}").as_bytes())
}

pub fn device(number: u8) -> DeviceId {
    DeviceId::from_bytes([number; 16])
}

pub fn account(number: u8) -> AccountId {
    AccountId::from_bytes([100 + number % ACCOUNTS; 16])
}

/// Quorum, what the archive expects of hop 1, and budgets: any.
pub fn start() -> impl Strategy<Value = Bench> {
    let budgets = (1u32..4, 1u32..8, 1u32..6);
    (2u32..4, proptest::option::of(0u8..2), budgets)
        .prop_map(|(quorum, archived, budgets)| fresh(quorum, archived, budgets))
}

/// A chain nobody has worked on. Budgets: of failures by computing, disconnecting, mismatching.
pub fn fresh(quorum: u32, archived: Option<u8>, budgets: (u32, u32, u32)) -> Bench {
    let now = Timestamp::from_micros(1_790_000_000_000_000);
    let chain = Chain {
        id: ChainId::from_bytes([1; 16]),
        name: "chain".into(),
        owner: account(0),
        state: ChainState::Active,
        hops: HOPS,
        head: 0,
        generation: 0,
        policy: Policy {
            quorum,
            compute_budget: budgets.0,
            disconnect_budget: budgets.1,
            mismatch_budget: budgets.2,
            ..Policy::default()
        },
        spec: ChainSpec {
            program: Digest::of(b"p"),
            parameter_set: "n11-INSECURE".into(),
            parameters: Digest::of(b"q"),
            insecure: true,
            key_manifest: Digest::of(b"k"),
            boundary_level: 18,
            boundary_bytes: 1000,
            worker_memory_bytes: 0,
        },
        created: now,
    };
    let hop = |index| Hop::new(&chain, index, Digest::of(b"w"), Digest::of(b"in"), now);
    let hops: Vec<Hop> = (0..HOPS).map(hop).collect();
    let mut bench = Bench {
        mutant: Mutant::None,
        chain,
        hops,
        attempts: Vec::new(),
        devices: BTreeMap::new(),
        archive: Vec::new(),
        credits: Vec::new(),
        events: Vec::new(),
        now,
        last_error: None,
        expected: vec![None; HOPS as usize],
        made: 0,
    };
    if let Some(output) = archived {
        bench.step(&Step::Expect(1, output));
    }
    bench
}

impl Bench {
    pub fn attempts_of(&self, hop: u32) -> Vec<Attempt> {
        self.attempts
            .iter()
            .filter(|a| a.hop == hop && a.generation == self.chain.generation)
            .cloned()
            .collect()
    }

    pub fn state(&self, hop: u32) -> State {
        State {
            chain: self.chain.clone(),
            hop: self.hops[hop as usize].clone(),
            attempts: self.attempts_of(hop),
            p95: None,
        }
    }

    /// Valid results of the attempt's device, the most it can have had.
    pub fn valid_before(&self, attempt: &Attempt) -> usize {
        let valid = |a: &&Attempt| {
            a.device == attempt.device
                && matches!(a.state, AttemptState::Matched | AttemptState::LateValid)
                && a.id != attempt.id
        };
        self.attempts.iter().filter(valid).count()
    }

    /// Everything a store would hold.
    pub fn rows(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?}",
            self.chain, self.hops, self.attempts, self.devices
        )
    }

    pub fn head(&self) -> u32 {
        self.chain.head.min(HOPS - 1)
    }

    pub fn run(&mut self, hop: u32, command: Command) -> Option<Effects> {
        let before = self.state(hop);
        match decide(&before, self.mutate(&before, command), self.now) {
            Ok(mut effects) => {
                self.last_error = None;
                if self.mutant == Mutant::CreditTwice && !effects.credits.is_empty() {
                    effects
                        .credits
                        .extend(before.attempts.first().map(|a| a.id));
                }
                self.apply(&before, &effects);
                Some(effects)
            }
            Err(refusal) => {
                self.last_error = Some(refusal.reason);
                None
            }
        }
    }

    fn mutate(&self, before: &State, command: Command) -> Command {
        match (self.mutant, command) {
            (Mutant::NoFence, Command::Submit(mut holder, claim, check, chance)) => {
                let known = before.attempts.iter().find(|a| a.id == holder.attempt);
                holder.epoch = known.map_or(holder.epoch, |attempt| attempt.epoch);
                Command::Submit(holder, claim, check, chance)
            }
            (Mutant::TrustAll, Command::Submit(holder, claim, check, mut chance)) => {
                chance.standing.state = DeviceState::Trusted;
                chance.standing.consecutive_valid = u32::MAX;
                chance.draw = u32::MAX;
                Command::Submit(holder, claim, check, chance)
            }
            (Mutant::TrustAll, Command::Lease(mut asker)) => {
                asker.standing.state = DeviceState::Trusted;
                asker.standing.consecutive_valid = u32::MAX;
                Command::Lease(asker)
            }
            (_, command) => command,
        }
    }

    /// Judges devices as the store does, and doubts what they passed alone.
    fn judge(&mut self, effects: &Effects) {
        for (id, verdict) in &effects.verdicts {
            let Some(device) = self.devices.get_mut(id) else {
                continue;
            };
            let before = device.state;
            device.judge(*verdict, self.now);
            let quarantined = device.state == DeviceState::Quarantined && before != device.state;
            if quarantined {
                for hop in 0..HOPS {
                    let state = self.state(hop);
                    if let Ok(effects) = decide(&state, Command::Evict(*id), self.now) {
                        self.apply_rows(&state, &effects);
                    }
                }
            }
            if *verdict == Verdict::Invalid {
                for hop in 0..HOPS {
                    let state = self.state(hop);
                    let backed = |a: &Attempt| a.device == *id && a.ended.is_some();
                    if state.attempts.iter().any(backed)
                        && let Ok(effects) = decide(&state, Command::Doubt, self.now)
                    {
                        self.apply_rows(&state, &effects);
                    }
                }
            }
        }
    }

    fn apply(&mut self, before: &State, effects: &Effects) {
        self.apply_rows(before, effects);
        self.judge(effects);
        if self.mutant == Mutant::TieVote {
            self.vote_on_a_tie();
        }
    }

    fn vote_on_a_tie(&mut self) {
        let state = self.state(self.head());
        let waiting = |a: &&Attempt| a.state == AttemptState::Submitted;
        let waiting: Vec<&Attempt> = state.attempts.iter().filter(waiting).collect();
        if let [first, second] = waiting[..]
            && first.claim != second.claim
            && state.hop.state.is_open()
            && let Some(claim) = &first.claim
        {
            // What a vote would do, written by hand: the rules have no such command.
            let accepted = Acceptance {
                digest: claim.output,
                method: cipherhop_coordinator::domain::hop::Method::Quorum,
                attempts: vec![first.id],
            };
            self.archive.push(Row {
                generation: self.chain.generation,
                hop: state.hop.index,
                accepted,
                expected: None,
            });
        }
    }

    /// A new generation, as the store writes it.
    fn fork(&mut self, before: &State, instead: Option<&Acceptance>) {
        let (at, old) = (before.hop.index, before.hop.generation);
        let now = self.now;
        let over = |attempt: &&mut Attempt| attempt.generation == old;
        self.attempts
            .iter_mut()
            .filter(over)
            .for_each(|attempt| close_attempt(attempt, now));
        let rows: Vec<Row> = self
            .archive
            .iter()
            .filter(|r| r.generation == old)
            .cloned()
            .collect();
        let mut output = None;
        for index in 0..HOPS {
            let hop = &mut self.hops[index as usize];
            let taken_over = match index {
                _ if index < at => rows
                    .iter()
                    .find(|r| r.hop == index)
                    .map(|r| r.accepted.clone()),
                _ if index == at => instead.cloned(),
                _ => None,
            };
            let mut new = hop.clone();
            new.generation = old + 1;
            new.epoch = 0;
            new.failures = Failures::default();
            (new.last_failure, new.last_failed_device) = (None, None);
            (new.not_before, new.reopened, new.since) = (None, 0, now);
            new.input = if index <= at { hop.input } else { output };
            new.state = match (&taken_over, new.input) {
                (Some(_), _) => HopState::Verified,
                (None, Some(_)) => HopState::Ready,
                (None, None) => HopState::Blocked,
            };
            new.accepted = taken_over.as_ref().map(|accepted| Accepted {
                digest: accepted.digest,
                method: accepted.method,
            });
            new.recheck = hop.recheck && index < at;
            *hop = new;
            output = taken_over.as_ref().map(|accepted| accepted.digest);
            if let Some(accepted) = taken_over {
                let known = rows.iter().find(|r| r.hop == index);
                self.archive.push(Row {
                    generation: old + 1,
                    hop: index,
                    accepted,
                    expected: known.and_then(|row| row.expected),
                });
            }
        }
    }

    fn apply_rows(&mut self, before: &State, effects: &Effects) {
        for attempt in &effects.attempts {
            match self
                .attempts
                .iter_mut()
                .find(|known| known.id == attempt.id)
            {
                Some(known) => *known = attempt.clone(),
                None => self.attempts.push(attempt.clone()),
            }
        }
        if let Some(hop) = &effects.hop {
            self.hops[hop.index as usize] = hop.clone();
        }
        if let Some(accept) = &effects.accept {
            self.archive.push(Row {
                generation: before.hop.generation,
                hop: before.hop.index,
                accepted: accept.clone(),
                expected: self.expected[before.hop.index as usize],
            });
            if let Some(next) = self.hops.get_mut(before.hop.index as usize + 1) {
                assert_eq!(next.state, HopState::Blocked);
                next.state = HopState::Ready;
                next.input = Some(accept.digest);
                next.since = self.now;
            }
        }
        if let Some(fork) = &effects.fork {
            self.fork(before, fork.instead.as_ref());
        }
        if effects.cancel_hops {
            for hop in &mut self.hops {
                if hop.state != HopState::Verified {
                    hop.state = HopState::Cancelled;
                }
            }
        }
        if let Some(chain) = &effects.chain {
            self.chain = chain.clone();
        }
        self.credits.extend(&effects.credits);
        self.events.extend(effects.events.iter().cloned());
    }

    /// Operators set the chain going and fresh honest accounts do the rest, whatever happened.
    pub fn finish_honestly(&mut self) {
        if matches!(self.chain.state, ChainState::Paused(_)) {
            self.run(self.head(), Command::Resume);
        }
        for _ in 0..200 {
            if self.chain.state == ChainState::Completed {
                return;
            }
            self.now = self.now.plus(Duration::from_secs(3 * 3600));
            self.run(self.head(), Command::Tick);
            if matches!(self.chain.state, ChainState::Stuck(_)) {
                self.run(self.head(), Command::Requeue("again".into()));
            }
            let hop = self.head();
            // An archive that knows a wrong digest has the crowd against it: hand in what it knows.
            let expected = self.expected[hop as usize];
            let known = |output: &u8| expected == Some(digest(hop, *output));
            let output = (0..OUTPUTS).find(known).unwrap_or(0);
            if let Some(attempt) = self.lease(201) {
                self.call(&attempt, 0, &Call::Submit(output, 9));
            }
        }
    }
}

pub fn claim(hop: u32, output: u8) -> Claim {
    Claim {
        output: digest(hop, output),
        output_size: 1000,
        trace_root: Digest::of(b"r"),
        trace: Digest::of(b"t"),
        trace_size: 10,
        compute: Duration::from_secs(1),
    }
}
