//! A chain in memory that applies effects as a store would, and random steps for it.

use std::time::Duration;

use cipherhop_coordinator::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use cipherhop_coordinator::domain::chain::{Chain, ChainSpec, ChainState, Policy};
use cipherhop_coordinator::domain::command::{
    Acceptance, Command, Effects, Holder, OutputCheck, State,
};
use cipherhop_coordinator::domain::decide;
use cipherhop_coordinator::domain::event::NewEvent;
use cipherhop_coordinator::domain::hop::{Hop, HopState};
use cipherhop_coordinator::domain::time::Timestamp;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, Reason};
use proptest::prelude::*;

const HOPS: u32 = 3;
/// Accounts, with two devices each.
const ACCOUNTS: u8 = 5;
/// Different results anybody may hand in; 0 is the right one.
pub const OUTPUTS: u8 = 3;

#[derive(Debug, Clone)]
pub struct Bench {
    pub chain: Chain,
    pub hops: Vec<Hop>,
    pub attempts: Vec<Attempt>,
    pub archive: Vec<(u32, Acceptance)>,
    pub credits: Vec<AttemptId>,
    pub events: Vec<NewEvent>,
    pub now: Timestamp,
    pub last_error: Option<Reason>,
    /// What was expected of each hop, kept apart because rows do not show it.
    expected: Vec<Option<Digest>>,
    made: u8,
}

#[derive(Debug, Clone)]
pub enum Step {
    Lease(u8),
    /// A call about an attempt (by number, newest first), with an error in the epoch.
    Call(u8, i8, Call),
    Expect(u8, u8),
    Chain(u8),
    Hop(bool),
    Evict(u8),
    Tick,
    /// Seconds; the clock may jump back.
    Pass(i32),
}

#[derive(Debug, Clone)]
pub enum Call {
    Sync(u8),
    Touch,
    Submit(u8, u8),
    Fail(u8),
    Release,
}

impl Step {
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Call(_, off, _) if *off != 0)
    }
}

pub fn digest(hop: u32, output: u8) -> Digest {
    Digest::of(format!("hop {hop} output {output}").as_bytes())
}

fn device(number: u8) -> DeviceId {
    DeviceId::from_bytes([number; 16])
}

fn account(number: u8) -> AccountId {
    AccountId::from_bytes([100 + number % ACCOUNTS; 16])
}

pub fn start() -> impl Strategy<Value = Bench> {
    let budgets = (1u32..4, 1u32..8, 1u32..6);
    (2u32..4, proptest::option::of(0u8..2), budgets).prop_map(|(quorum, archived, budgets)| {
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
            chain,
            hops,
            attempts: Vec::new(),
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
    })
}

pub fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let call = prop_oneof![
        3 => (0u8..4).prop_map(Call::Sync),
        1 => Just(Call::Touch),
        8 => (prop_oneof![4 => Just(0u8), 1 => 0..OUTPUTS], 0u8..10)
            .prop_map(|(output, check)| Call::Submit(output, check)),
        2 => (0u8..5).prop_map(Call::Fail),
        1 => Just(Call::Release),
    ];
    let off = prop_oneof![8 => Just(0i8), 1 => -2i8..3];
    let step = prop_oneof![
        12 => (0..2 * ACCOUNTS).prop_map(Step::Lease),
        20 => (0u8..8, off, call).prop_map(|(which, off, call)| Step::Call(which, off, call)),
        1 => (0..HOPS as u8, 0..OUTPUTS).prop_map(|(hop, output)| Step::Expect(hop, output)),
        1 => (0u8..24).prop_map(Step::Chain),
        2 => any::<bool>().prop_map(Step::Hop),
        1 => (0..2 * ACCOUNTS).prop_map(Step::Evict),
        3 => Just(Step::Tick),
        6 => prop_oneof![0i32..20, 0i32..600, Just(8000), -900i32..0].prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..most)
}

impl Bench {
    pub fn attempts_of(&self, hop: u32) -> Vec<Attempt> {
        self.attempts
            .iter()
            .filter(|attempt| attempt.hop == hop)
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

    pub fn expected(&self, hop: &Hop) -> Option<Digest> {
        self.expected[hop.index as usize]
    }

    /// Everything a store would hold.
    pub fn rows(&self) -> String {
        format!("{:?} {:?} {:?}", self.chain, self.hops, self.attempts)
    }

    fn head(&self) -> u32 {
        self.chain.head.min(HOPS - 1)
    }

    fn run(&mut self, hop: u32, command: Command) -> Option<Effects> {
        let before = self.state(hop);
        match decide(&before, command, self.now) {
            Ok(effects) => {
                self.last_error = None;
                self.apply(&before, &effects);
                Some(effects)
            }
            Err(refusal) => {
                self.last_error = Some(refusal.reason);
                None
            }
        }
    }

    fn apply(&mut self, before: &State, effects: &Effects) {
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
            self.archive.push((before.hop.index, accept.clone()));
            if let Some(next) = self.hops.get_mut(before.hop.index as usize + 1) {
                assert_eq!(next.state, HopState::Blocked);
                next.state = HopState::Ready;
                next.input = Some(accept.digest);
                next.since = self.now;
            }
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

    pub fn step(&mut self, step: &Step) {
        self.last_error = None;
        match step {
            Step::Lease(number) => {
                self.lease(*number);
            }
            Step::Call(which, off, call) => {
                let Some(newest) = self.attempts.len().checked_sub(1 + *which as usize) else {
                    self.last_error = Some(Reason::AttemptNotFound);
                    return;
                };
                let attempt = self.attempts[newest].clone();
                self.call(&attempt, *off, call);
            }
            Step::Expect(hop, output) => {
                let (hop, digest) = (u32::from(*hop), digest(u32::from(*hop), *output));
                if self.run(hop, Command::Expect(digest)).is_some() {
                    self.expected[hop as usize] = Some(digest);
                }
            }
            Step::Chain(choice) => {
                let command = match choice {
                    0 => Command::Cancel("enough".into()),
                    1..8 => Command::Pause("dinner".into()),
                    _ => Command::Resume,
                };
                self.run(self.head(), command);
            }
            Step::Hop(operator) => {
                let note = "again".to_owned();
                let command = match operator {
                    true => Command::Requeue(note),
                    false => Command::Reopen(note),
                };
                self.run(self.head(), command);
            }
            Step::Evict(number) => {
                self.run(self.head(), Command::Evict(device(*number)));
            }
            Step::Tick => {
                self.run(self.head(), Command::Tick);
            }
            Step::Pass(seconds) => {
                let micros = self.now.micros() + i64::from(*seconds) * 1_000_000;
                self.now = Timestamp::from_micros(micros);
            }
        }
    }

    fn lease(&mut self, number: u8) -> Option<Attempt> {
        self.made = self.made.wrapping_add(1);
        let mut id = [number; 16];
        id[0] = self.made;
        let command = Command::Lease {
            attempt: AttemptId::from_bytes(id),
            device: device(number),
            account: account(number),
            nonce: Nonce::from_bytes(id),
        };
        self.run(self.head(), command)?;
        self.attempts.last().cloned()
    }

    fn call(&mut self, attempt: &Attempt, off: i8, call: &Call) {
        let epoch = attempt.epoch.wrapping_add_signed(i64::from(off));
        let holder = Holder {
            attempt: attempt.id,
            device: attempt.device,
            epoch,
        };
        let command = match call {
            Call::Sync(phase) => {
                let phases = [
                    Phase::Leased,
                    Phase::Fetching,
                    Phase::Computing,
                    Phase::Uploading,
                ];
                let progress = Progress {
                    steps_done: 1,
                    ..Progress::default()
                };
                Command::Sync(holder, phases[*phase as usize], progress)
            }
            Call::Touch => Command::Touch(holder),
            Call::Submit(output, check) => {
                let check = match check {
                    0..2 => OutputCheck::Missing,
                    2 => OutputCheck::Malformed(Reason::OutputResidueRange),
                    _ => OutputCheck::Sound,
                };
                Command::Submit(holder, claim(attempt.hop, *output), check)
            }
            Call::Fail(kind) => {
                let kinds = [
                    FailKind::Compute,
                    FailKind::Disconnect,
                    FailKind::Input,
                    FailKind::OutOfMemory,
                    FailKind::Disk,
                ];
                Command::Fail(holder, kinds[*kind as usize], "words".into())
            }
            Call::Release => Command::Release(holder),
        };
        self.run(attempt.hop, command);
    }

    /// Operators set the chain going and fresh honest accounts do the rest, whatever happened.
    pub fn finish_honestly(&mut self) {
        if matches!(self.chain.state, ChainState::Paused(_)) {
            self.run(self.head(), Command::Resume);
        }
        for round in 0..200u8 {
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
            self.made = round;
            if let Some(attempt) = self.honest_lease(round) {
                self.call(&attempt, 0, &Call::Submit(output, 9));
            }
        }
    }

    fn honest_lease(&mut self, round: u8) -> Option<Attempt> {
        let mut id = [200; 16];
        id[0] = round;
        let command = Command::Lease {
            attempt: AttemptId::from_bytes(id),
            device: DeviceId::from_bytes(id),
            account: AccountId::from_bytes(id),
            nonce: Nonce::from_bytes(id),
        };
        self.run(self.head(), command)?;
        self.attempts.last().cloned()
    }
}

fn claim(hop: u32, output: u8) -> Claim {
    Claim {
        output: digest(hop, output),
        output_size: 1000,
        trace_root: Digest::of(b"r"),
        trace: Digest::of(b"t"),
        trace_size: 10,
        compute: Duration::from_secs(1),
    }
}
