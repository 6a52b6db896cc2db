//! The rules in a small world, every order of events: three devices of three accounts, one of which may lie, messages
//! that come late, twice or with a stale epoch, leases that run out, a clock that goes back. Where the property tests
//! try many long histories, this tries all short ones.

use std::fmt;
use std::hash::{Hash, Hasher};

use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_proto::{Digest, Reason};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::bench::{self, Bench, Mutant, digest};
use crate::steps::{Call, Step};

/// New devices: nothing rests on one of them alone.
const DEVICES: [u8; 3] = [1, 2, 3];
const LIAR: u8 = 3;

struct Rules {
    mutant: Mutant,
    /// Hops, attempts and leaps of time that are looked at.
    hops: u32,
    attempts: usize,
    leaps: u8,
}

#[derive(Clone)]
struct World {
    bench: Bench,
    leaps: u8,
    /// A call with a stale epoch was taken or changed something.
    stale_taken: bool,
    key: Digest,
}

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Lease(u8),
    /// Of the attempt with this number; the output, and an error in the epoch.
    Submit(usize, u8, i8),
    Fail(usize),
    /// Seconds; then the reaper looks.
    Leap(i32),
}

impl World {
    fn new(bench: Bench, leaps: u8, stale_taken: bool) -> World {
        let now = bench.now;
        let from_now =
            |time: cipherhop_coordinator::domain::time::Timestamp| time.micros() - now.micros();
        // Ids and absolute times do not matter.
        let attempts: Vec<_> = bench
            .attempts
            .iter()
            .map(|a| {
                let claim = a.claim.as_ref().map(|claim| claim.output);
                let times = (from_now(a.soft_expiry), from_now(a.hard_deadline));
                let who = (a.device, a.generation, a.hop, a.epoch, a.purpose, a.solo);
                (
                    who,
                    a.state,
                    a.late,
                    a.silent,
                    times,
                    a.ended.is_some(),
                    claim,
                )
            })
            .collect();
        let hops: Vec<_> = bench
            .hops
            .iter()
            .map(|hop| {
                let wait = hop.not_before.map(from_now);
                (
                    hop.state,
                    hop.epoch,
                    hop.accepted,
                    hop.failures,
                    hop.last_failed_device,
                    wait,
                )
            })
            .collect();
        let devices: Vec<_> = bench
            .devices
            .values()
            .map(|d| (d.id, d.state, d.consecutive_valid, d.consecutive_invalid))
            .collect();
        let archive: Vec<_> = bench
            .archive
            .iter()
            .map(|row| (row.generation, row.hop, row.accepted.digest))
            .collect();
        let chain = (&bench.chain.state, bench.chain.head, bench.chain.generation);
        let text =
            format!("{chain:?}{attempts:?}{hops:?}{devices:?}{archive:?}{leaps}{stale_taken}");
        World {
            key: Digest::of(text.as_bytes()),
            bench,
            leaps,
            stale_taken,
        }
    }

    fn disputed(&self) -> bool {
        let waiting = |a: &&cipherhop_coordinator::domain::attempt::Attempt| {
            a.state == AttemptState::Submitted
        };
        let waits = self.bench.attempts.iter().filter(waiting);
        let mut digests = waits.filter_map(|a| a.claim.as_ref().map(|claim| claim.output));
        let first = digests.next();
        digests.any(|digest| Some(digest) != first)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.bench.rows())
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        self.key == other.key
    }
}

impl Model for Rules {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let mut bench = bench::fresh(2, None, (3, 8, 6));
        bench.mutant = self.mutant;
        vec![World::new(bench, 0, false)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        if world.bench.attempts.len() < self.attempts {
            actions.extend(DEVICES.map(Act::Lease));
        }
        for (number, attempt) in world.bench.attempts.iter().enumerate() {
            // A message may come at any later time, and again.
            actions.push(Act::Submit(number, 0, 0));
            actions.push(Act::Submit(number, 0, -1));
            if attempt.device == bench::device(LIAR) {
                actions.push(Act::Submit(number, 1, 0));
            }
            if attempt.state.is_live() {
                actions.push(Act::Fail(number));
            }
        }
        if world.leaps < self.leaps {
            actions.extend([Act::Leap(400), Act::Leap(20_000), Act::Leap(-600)]);
        }
    }

    fn next_state(&self, last: &World, act: Act) -> Option<World> {
        let (mut bench, mut leaps, mut taken) = (last.bench.clone(), last.leaps, last.stale_taken);
        match act {
            Act::Lease(number) => bench.step(&Step::Lease(number)),
            Act::Submit(number, output, off) => {
                let attempt = bench.attempts[number].clone();
                bench.call(&attempt, off, &Call::Submit(output, 9));
                let refused = bench.last_error.is_some();
                taken |= off != 0 && (!refused || bench.rows() != last.bench.rows());
            }
            Act::Fail(number) => {
                let attempt = bench.attempts[number].clone();
                bench.call(&attempt, 0, &Call::Fail(0));
            }
            Act::Leap(seconds) => {
                leaps += 1;
                bench.step(&Step::Pass(seconds));
                bench.step(&Step::Tick);
            }
        }
        // What happened is no part of the world.
        bench.events.clear();
        let next = World::new(bench, leaps, taken);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1: one digest of a hop", |_, world: &World| {
                let archive = &world.bench.archive;
                archive.iter().enumerate().all(|(number, row)| {
                    let same = |other: &bench::Row| {
                        (other.generation, other.hop) == (row.generation, row.hop)
                    };
                    !archive[..number].iter().any(same)
                })
            }),
            Property::always("I9: it is the right one", |_, world: &World| {
                let right = |row: &bench::Row| row.accepted.digest == digest(row.hop, 0);
                world.bench.archive.iter().all(right)
            }),
            Property::always("I4: a stale epoch changes nothing", |_, world: &World| {
                !world.stale_taken
            }),
            Property::always("I8: a live lease has a wake-up", |_, world: &World| {
                let grace = world.bench.chain.policy.grace;
                let live = |a: &&cipherhop_coordinator::domain::attempt::Attempt| a.state.is_live();
                world
                    .bench
                    .attempts
                    .iter()
                    .filter(live)
                    .all(|a| a.wake_at(grace).is_some())
            }),
            Property::sometimes("the hops are verified", |model: &Rules, world: &World| {
                world.bench.chain.head == model.hops
            }),
            Property::sometimes("two results disagree", |_, world: &World| world.disputed()),
            Property::sometimes("a late result counts", |_, world: &World| {
                let late = |a: &cipherhop_coordinator::domain::attempt::Attempt| {
                    a.state == AttemptState::LateValid
                };
                world.bench.attempts.iter().any(late)
            }),
        ]
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.bench.chain.head <= self.hops && world.bench.chain.state == ChainState::Active
            || matches!(world.bench.chain.state, ChainState::Stuck(reason) if reason != Reason::QuorumDisagrees)
    }
}

fn rules(mutant: Mutant) -> Rules {
    Rules {
        mutant,
        hops: 1,
        attempts: 3,
        leaps: 1,
    }
}

#[test]
fn i1_in_every_order_of_events_a_hop_gets_one_digest_and_the_right_one() {
    let checked = rules(Mutant::None).checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    println!("{} states", checked.unique_state_count());
    assert!(checked.unique_state_count() > 1_000);
}

#[test]
fn rules_without_the_fence_or_with_a_tie_vote_are_refuted_by_the_model() {
    for (mutant, broken) in [
        (Mutant::NoFence, "I4: a stale epoch changes nothing"),
        (Mutant::TieVote, "I9: it is the right one"),
    ] {
        let found = HasDiscoveries::AnyFailures;
        let checked = rules(mutant)
            .checker()
            .finish_when(found)
            .spawn_bfs()
            .join();
        assert!(checked.discovery(broken).is_some(), "{mutant:?}");
    }
}
