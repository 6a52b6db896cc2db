//! Property tests of the rules: random commands, duplicates, lies and clock jumps, and after every
//! one of them an invariant of SYSTEM.md section 8.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "rules/bench.rs"]
mod bench;
#[path = "rules/invariants.rs"]
mod invariants;
#[path = "rules/model.rs"]
mod model;
#[path = "rules/steps.rs"]
mod steps;
#[path = "rules/tally.rs"]
mod tally;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bench::{Bench, Mutant};
use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::hop::{HopState, Method};
use cipherhop_proto::Reason;
use invariants::{ALL, Check};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use steps::{Step, steps};
use tally::Tally;

/// Plays the steps and calls `check` with the world before and after each one.
fn play(start: Bench, steps: Vec<Step>, mut check: impl FnMut(&Bench, &Bench, &Step)) {
    let mut bench = start;
    for step in steps {
        let before = bench.clone();
        bench.step(&step);
        check(&before, &bench, &step);
    }
}

macro_rules! properties {
    ($($name:ident: $check:path;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, failure_persistence: None, ..Default::default() })]
            $(
                #[test]
                fn $name(bench in bench::start(), steps in steps(80)) {
                    play(bench, steps, $check);
                }
            )+
        }
    };
}

properties! {
    i1_a_hop_gets_one_digest_in_a_generation_and_keeps_it: invariants::i1;
    i2_the_head_never_decreases_in_a_generation_and_each_output_is_the_next_input: invariants::i2;
    i4_a_stale_epoch_never_changes_state: invariants::i4;
    i6_credit_comes_at_most_once_per_attempt_and_only_for_an_accepted_result: invariants::i6;
    i7_views_and_events_hold_no_archived_or_waiting_digest: invariants::i7;
    i8_every_live_lease_has_a_wake_up_that_changes_it: invariants::i8;
    i9_a_result_rests_on_the_archive_a_quorum_a_trusted_device_or_a_referee: invariants::i9;
    i10_stuck_has_a_reason_with_a_failure_on_record_and_the_chain_says_so: invariants::i10;
    no_account_holds_a_hop_twice_and_no_failed_device_is_next: invariants::no_account_twice;
    open_hops_are_ready_running_or_verifying_as_their_attempts_say: invariants::states_agree;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn an_honest_crowd_always_finishes_the_chain_after_any_history(
        bench in bench::start(), steps in steps(60),
    ) {
        let mut bench = bench;
        for step in steps {
            bench.step(&step);
        }
        if matches!(bench.chain.state, ChainState::Cancelled(_)) {
            return Ok(());
        }
        bench.finish_honestly();
        prop_assert_eq!(bench.chain.state, ChainState::Completed);
    }
}

/// Plays at least `least` random steps over many chains and checks everything after each.
fn long_play(mutant: Mutant, seed: u64, least: u64, checks: &[(&str, Check)]) -> Tally {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let mut tally = Tally::default();
    while tally.steps < least {
        let mut start = bench::start().new_tree(&mut runner).unwrap().current();
        start.mutant = mutant;
        let steps = steps(160).new_tree(&mut runner).unwrap().current();
        tally.chains += 1;
        play(start, steps, |before, after, step| {
            tally.count(before, after, step);
            for (_, check) in checks {
                check(before, after, step);
            }
        });
    }
    tally
}

#[test]
fn i1_a_hundred_thousand_steps_break_no_invariant() {
    let tally = long_play(Mutant::None, 0, 100_000, ALL);
    let tried = [
        tally.clock_back,
        tally.clock_hours_on,
        tally.stale,
        tally.duplicates,
        tally.late,
        tally.lying,
        tally.disputed_hops,
    ];
    assert!(tried.iter().all(|count| *count > 100), "{tally:?}");
    assert!(tally.verified_hops > 500 && tally.forks > 10, "{tally:?}");
}

/// Prints one JSON object. STEPS: how many (a million), SEED: of the random choices.
/// `cargo test -p cipherhop-coordinator --test rules -- --ignored --nocapture`
#[test]
#[ignore = "takes a minute"]
fn i1_a_million_steps_break_no_invariant() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let begin = std::time::Instant::now();
    let (steps, seed) = (number("STEPS", 1_000_000), number("SEED", 1));
    let mut report = long_play(Mutant::None, seed, steps, ALL).json();
    report["seed"] = seed.into();
    report["broken_invariants"] = 0.into();
    report["seconds"] = begin.elapsed().as_secs().into();
    println!("{report}");
}

#[test]
fn rules_without_the_fence_with_a_tie_vote_or_blind_trust_break_an_invariant() {
    for (mutant, broken) in [
        (Mutant::NoFence, "i4"),
        (Mutant::TieVote, "i9"),
        (Mutant::TrustAll, "i9"),
        (Mutant::CreditTwice, "i6"),
    ] {
        let check: Vec<_> = ALL
            .iter()
            .filter(|(name, _)| *name == broken)
            .copied()
            .collect();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let played = catch_unwind(AssertUnwindSafe(|| long_play(mutant, 0, 100_000, &check)));
        std::panic::set_hook(hook);
        assert!(played.is_err(), "{mutant:?} is not noticed by {broken}");
    }
}

#[test]
fn the_random_steps_reach_every_attempt_state_and_every_end_of_a_hop() {
    let mut runner = TestRunner::deterministic();
    let (mut attempts, mut hops) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..1500 {
        let start = bench::start().new_tree(&mut runner).unwrap().current();
        let steps = steps(120).new_tree(&mut runner).unwrap().current();
        play(start, steps, |_, after, _| {
            attempts.extend(after.attempts.iter().map(|attempt| attempt.state.name()));
            attempts.extend(after.attempts.iter().map(|attempt| attempt.purpose.name()));
            hops.extend(after.hops.iter().map(|hop| match hop.state {
                HopState::Stuck(reason) => reason.as_str(),
                state => state.name(),
            }));
            hops.extend(after.archive.iter().map(|row| row.accepted.method.name()));
            hops.extend(after.events.iter().map(|event| event.kind.as_str()));
        });
    }
    let purposes = ["Work", "Probe", "Recheck"];
    for name in AttemptState::ALL
        .map(AttemptState::name)
        .into_iter()
        .chain(purposes)
    {
        assert!(attempts.contains(name), "{name} is never reached");
    }
    let ends = [
        "Verified",
        "Cancelled",
        "chain.forked",
        "hop.confirmed",
        "hop.refuted",
    ];
    let stuck = [
        Reason::ComputeBudget,
        Reason::DisconnectBudget,
        Reason::MismatchBudget,
        Reason::QuorumDisagrees,
        Reason::ArchiveSuspect,
    ];
    let methods = Method::ALL.map(Method::name);
    let all = ends
        .into_iter()
        .chain(methods)
        .chain(stuck.map(Reason::as_str));
    for end in all {
        assert!(hops.contains(end), "{end} is never reached, only {hops:?}");
    }
}
