//! Random steps, and how the bench takes them.

use std::collections::BTreeSet;

use cipherhop_coordinator::domain::attempt::{Attempt, AttemptState, FailKind, Phase, Progress};
use cipherhop_coordinator::domain::command::{Asker, Chance, Command, Holder, OutputCheck, Reply};
use cipherhop_coordinator::domain::time::Timestamp;
use cipherhop_coordinator::domain::trust::{Device, DeviceState};
use cipherhop_proto::{AccountId, AttemptId, DeviceId, Digest, Nonce, Reason};
use proptest::prelude::*;

use crate::bench::{ACCOUNTS, Bench, HOPS, OUTPUTS, Row, account, claim, device, digest};

#[derive(Debug, Clone)]
pub enum Step {
    Lease(u8),
    /// Hand a verified hop out again, as an examination or recheck, and perhaps submit at once.
    Again(u8, u8, bool, Option<u8>),
    /// The device a verified hop rests on lost its trust.
    Doubt(u8),
    /// A referee speaks on the head hop: which waiting results are wrong, as a mask.
    Convict(u8),
    Invalidate(u8),
    DropArchived,
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
        8 => (0..HOPS as u8, 0..2 * ACCOUNTS, any::<bool>(), proptest::option::of(0u8..2))
            .prop_map(|(hop, number, probe, output)| Step::Again(hop, number, probe, output)),
        3 => (0..HOPS as u8).prop_map(Step::Doubt),
        2 => any::<u8>().prop_map(Step::Convict),
        1 => (0..6 * HOPS as u8).prop_map(Step::Invalidate),
        1 => Just(Step::DropArchived),
        1 => (0u8..24).prop_map(Step::Chain),
        2 => any::<bool>().prop_map(Step::Hop),
        1 => (0..2 * ACCOUNTS).prop_map(Step::Evict),
        3 => Just(Step::Tick),
        6 => prop_oneof![0i32..20, 0i32..600, Just(8000), -900i32..0].prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..most)
}

impl Bench {
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
                let was = self.expected[hop as usize].replace(digest);
                let taken = self.run(hop, Command::Expect(digest));
                if taken.is_none_or(|effects| effects.reply != Reply::Expected(true)) {
                    self.expected[hop as usize] = was;
                }
            }
            Step::Again(hop, number, probe, output) => {
                let asker = self.asker(*number);
                let current =
                    |r: &Row| r.generation == self.chain.generation && r.hop == u32::from(*hop);
                let row = self.archive.iter().rfind(|r| current(r));
                let backers = row.map(|r| r.accepted.attempts.clone()).unwrap_or_default();
                let backing = self.attempts.iter().filter(|a| backers.contains(&a.id));
                let excluded = backing.map(|a| a.account).collect();
                let command = match probe {
                    true => Command::Probe(asker),
                    false => Command::Recheck(asker, excluded),
                };
                let made = self.run((*hop).into(), command);
                if let (Some(_), Some(output)) = (made, output)
                    && let Some(attempt) = self.attempts.last().cloned()
                {
                    self.call(&attempt, 0, &Call::Submit(*output, 9));
                }
            }
            Step::Doubt(hop) => {
                self.run((*hop).into(), Command::Doubt);
            }
            Step::Convict(mask) => {
                let waiting = |a: &&Attempt| a.state == AttemptState::Submitted;
                let attempts = self.attempts_of(self.head());
                let waiting: Vec<AttemptId> =
                    attempts.iter().filter(waiting).map(|a| a.id).collect();
                let wrong = |(i, _): &(usize, &AttemptId)| mask >> (i % 8) & 1 == 1;
                let guilty = waiting.iter().enumerate().filter(wrong).map(|(_, id)| *id);
                let guilty: BTreeSet<AttemptId> = guilty.collect();
                let upheld = waiting.iter().find(|id| !guilty.contains(id)).copied();
                self.run(self.head(), Command::Convict(guilty, upheld));
            }
            Step::Invalidate(hop) if u32::from(*hop) < HOPS => {
                self.run((*hop).into(), Command::Invalidate("wrong".into()));
            }
            Step::Invalidate(_) => {}
            Step::DropArchived => {
                let hop = self.head();
                let stored = self.attempts.iter().filter_map(|a| a.claim.as_ref());
                let stored = stored.map(|claim| claim.output).collect();
                let command = Command::DropArchived(stored, "wrong".into());
                let was = self.expected[hop as usize].take();
                if self.run(hop, command).is_none() {
                    self.expected[hop as usize] = was;
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

    pub fn lease(&mut self, number: u8) -> Option<Attempt> {
        let asker = self.asker(number);
        let may_work = |device: &Device| device.state.may_work();
        if !self.devices.get(&asker.device).is_some_and(may_work) {
            return None;
        }
        self.run(self.head(), Command::Lease(asker))?;
        self.attempts.last().cloned()
    }

    /// A fresh attempt of the numbered device.
    fn asker(&mut self, number: u8) -> Asker {
        self.made += 1;
        let mut id = [number; 16];
        id[..2].copy_from_slice(&self.made.to_le_bytes());
        let (device, account) = match number {
            200.. => (DeviceId::from_bytes(id), AccountId::from_bytes(id)),
            _ => (device(number), account(number)),
        };
        let known = self.devices.entry(device).or_insert_with(|| Device {
            id: device,
            account,
            account_name: String::new(),
            display_name: String::new(),
            state: match number % 4 {
                0 => DeviceState::Trusted,
                _ => DeviceState::New,
            },
            consecutive_valid: if number.is_multiple_of(4) { 10 } else { 0 },
            consecutive_invalid: 0,
            proven: None,
            pace: None,
            referee: false,
            note: String::new(),
            created: self.now,
            last_seen: self.now,
        });
        Asker {
            attempt: AttemptId::from_bytes(id),
            device,
            account,
            nonce: Nonce::from_bytes(id),
            standing: known.standing(),
        }
    }

    pub fn call(&mut self, attempt: &Attempt, off: i8, call: &Call) {
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
                let seed = format!("{} {:?} {}", self.made, self.now, self.events.len());
                let draw: [u8; 4] = Digest::of(seed.as_bytes()).as_bytes()[..4]
                    .try_into()
                    .unwrap();
                let device = self.devices.get(&attempt.device);
                let chance = device.map_or(Chance::NONE, |device| Chance {
                    standing: device.standing(),
                    draw: u32::from_le_bytes(draw),
                });
                Command::Submit(holder, claim(attempt.hop, *output), check, chance)
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
}
