//! Property tests of the rules: random commands, duplicates, lies and clock jumps, and after every
//! one of them an invariant of SYSTEM.md section 8.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "rules/bench.rs"]
mod bench;

use std::collections::{BTreeMap, BTreeSet};

use bench::{Bench, Step, digest, steps};
use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::command::Command;
use cipherhop_coordinator::domain::decide;
use cipherhop_coordinator::domain::hop::{HopState, Method};
use cipherhop_coordinator::domain::view::HopView;
use cipherhop_proto::Reason;
use proptest::prelude::*;

/// Plays the steps and calls `check` with the world before and after each one.
fn play(start: Bench, steps: Vec<Step>, mut check: impl FnMut(&Bench, &Bench, &Step)) {
    let mut bench = start;
    for step in steps {
        let before = bench.clone();
        bench.step(&step);
        check(&before, &bench, &step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn i1_a_hop_gets_one_digest_and_keeps_it(bench in bench::start(), steps in steps(80)) {
        play(bench, steps, |before, after, _| {
            for (old, new) in before.hops.iter().zip(&after.hops) {
                assert!(old.accepted.is_none() || old.accepted == new.accepted);
                assert_eq!(new.accepted.is_some(), new.state == HopState::Verified);
            }
            let mut seen = BTreeSet::new();
            for (hop, _) in &after.archive {
                assert!(seen.insert(*hop), "two archive rows of hop {hop}");
            }
        });
    }

    #[test]
    fn i2_the_head_never_decreases_and_each_output_is_the_next_input(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |before, after, _| {
            assert!(after.chain.head >= before.chain.head);
            for index in 0..after.hops.len() {
                let verified = after.hops[index].accepted;
                assert_eq!(verified.is_some(), (index as u32) < after.chain.head);
                if let (Some(accepted), Some(next)) = (verified, after.hops.get(index + 1)) {
                    assert_eq!(next.input, Some(accepted.digest));
                }
            }
            let completed = after.chain.state == ChainState::Completed;
            assert_eq!(completed, after.chain.head == after.chain.hops);
        });
    }

    #[test]
    fn i4_a_stale_epoch_never_changes_state(bench in bench::start(), steps in steps(80)) {
        play(bench, steps, |before, after, step| {
            if step.is_stale() && after.last_error == Some(Reason::StaleEpoch) {
                assert_eq!(before.rows(), after.rows());
            }
            assert!(!step.is_stale() || after.last_error.is_some(), "a stale call was taken");
        });
    }

    #[test]
    fn i6_credit_comes_at_most_once_per_attempt_and_only_for_the_accepted_result(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |_, after, _| {
            let once: BTreeSet<_> = after.credits.iter().collect();
            assert_eq!(once.len(), after.credits.len());
            for id in &after.credits {
                let attempt = after.attempts.iter().find(|attempt| attempt.id == *id).unwrap();
                let accepted = after.hops[attempt.hop as usize].accepted.unwrap();
                assert_eq!(attempt.claim.as_ref().unwrap().output, accepted.digest);
            }
        });
    }

    #[test]
    fn i7_views_and_events_hold_no_archived_or_waiting_digest(
        bench in bench::start(), steps in steps(60),
    ) {
        play(bench, steps, |_, after, _| {
            let public: BTreeSet<String> =
                after.hops.iter().filter_map(|hop| hop.accepted).map(|a| a.digest.to_string()).collect();
            let mut told = format!("{:?}", after.events);
            for hop in &after.hops {
                let attempts = after.attempts_of(hop.index);
                told.push_str(&format!("{:?}", HopView::of(hop, &attempts, |_| String::new(), None)));
            }
            for output in 0..bench::OUTPUTS {
                for hop in 0..after.chain.hops {
                    let secret = digest(hop, output).to_string();
                    assert!(public.contains(&secret) || !told.contains(&secret));
                }
            }
        });
    }

    #[test]
    fn i8_every_live_lease_has_a_wake_up_that_changes_it(
        bench in bench::start(), steps in steps(60),
    ) {
        play(bench, steps, |_, after, _| {
            let grace = after.chain.policy.grace;
            for attempt in &after.attempts {
                assert_eq!(attempt.wake_at(grace).is_some(), attempt.state.is_live());
                let Some(wake) = attempt.wake_at(grace) else { continue };
                let effects = decide(&after.state(attempt.hop), Command::Tick, wake).unwrap();
                let woken = effects.attempts.iter().find(|other| other.id == attempt.id).unwrap();
                assert!(woken.wake_at(grace).is_none_or(|next| next > wake));
            }
        });
    }

    #[test]
    fn i9_without_an_archived_digest_it_takes_a_quorum_of_accounts(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |_, after, _| {
            for (hop, accepted) in &after.archive {
                let row = &after.hops[*hop as usize];
                let backers: BTreeSet<_> = after
                    .attempts_of(*hop)
                    .iter()
                    .filter(|attempt| accepted.attempts.contains(&attempt.id))
                    .map(|attempt| {
                        assert_eq!(attempt.claim.as_ref().unwrap().output, accepted.digest);
                        attempt.account
                    })
                    .collect();
                match accepted.method {
                    Method::Quorum => {
                        assert!(backers.len() >= after.chain.policy.quorum.max(2) as usize);
                    }
                    Method::Archive => {
                        assert!(!backers.is_empty());
                        assert_eq!(after.expected(row), Some(accepted.digest));
                    }
                }
            }
        });
    }

    #[test]
    fn i10_stuck_has_a_reason_with_a_failure_on_record_and_the_chain_says_so(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |_, after, _| {
            let stuck = after.hops.iter().find_map(|hop| match hop.state {
                HopState::Stuck(reason) => Some((reason, hop)),
                _ => None,
            });
            if let Some((_, hop)) = stuck {
                assert!(hop.last_failure.is_some());
                assert_eq!(hop.index, after.chain.head);
            }
            match &after.chain.state {
                ChainState::Stuck(reason) => assert_eq!(stuck.unwrap().0, *reason),
                ChainState::Paused(_) => {}
                _ => assert!(stuck.is_none()),
            }
        });
    }

    #[test]
    fn no_account_holds_a_hop_twice_and_no_failed_device_is_next(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |before, after, _| {
            let mut holders: BTreeMap<_, u32> = BTreeMap::new();
            for attempt in &after.attempts {
                if attempt.state.is_live() {
                    *holders.entry((attempt.hop, attempt.account)).or_default() += 1;
                }
            }
            assert!(holders.values().all(|count| *count == 1));
            if after.attempts.len() > before.attempts.len() {
                let new = after.attempts.last().unwrap();
                let row = &before.hops[new.hop as usize];
                assert_ne!(row.last_failed_device, Some(new.device));
                assert!(row.not_before.is_none_or(|at| at <= before.now));
            }
        });
    }

    #[test]
    fn open_hops_are_ready_running_or_verifying_as_their_attempts_say(
        bench in bench::start(), steps in steps(80),
    ) {
        play(bench, steps, |_, after, _| {
            for hop in &after.hops {
                let attempts = after.attempts_of(hop.index);
                let live = attempts.iter().any(|attempt| attempt.state.is_live());
                let waiting =
                    attempts.iter().any(|attempt| attempt.state == AttemptState::Submitted);
                match hop.state {
                    HopState::Ready => assert!(!live && !waiting),
                    HopState::Running => assert!(live),
                    HopState::Verifying => assert!(!live && waiting),
                    HopState::Verified | HopState::Cancelled => assert!(!live && !waiting),
                    HopState::Blocked => assert!(attempts.is_empty()),
                    HopState::Stuck(_) => {}
                }
            }
        });
    }

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

#[test]
fn the_random_steps_reach_every_attempt_state_and_every_end_of_a_hop() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut attempts, mut hops) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..600 {
        let start = bench::start().new_tree(&mut runner).unwrap().current();
        let steps = steps(120).new_tree(&mut runner).unwrap().current();
        play(start, steps, |_, after, _| {
            attempts.extend(after.attempts.iter().map(|attempt| attempt.state.name()));
            hops.extend(after.hops.iter().map(|hop| match hop.state {
                HopState::Stuck(reason) => reason.as_str(),
                state => state.name(),
            }));
            hops.extend(
                after
                    .archive
                    .iter()
                    .map(|(_, accepted)| accepted.method.name()),
            );
        });
    }
    for state in AttemptState::ALL {
        assert!(
            attempts.contains(state.name()),
            "{} is never reached",
            state.name()
        );
    }
    let ends = ["Verified", "Cancelled", "Quorum", "Archive"];
    let stuck = [
        Reason::ComputeBudget,
        Reason::DisconnectBudget,
        Reason::MismatchBudget,
        Reason::QuorumDisagrees,
        Reason::ArchiveSuspect,
    ];
    for end in ends.into_iter().chain(stuck.map(Reason::as_str)) {
        assert!(hops.contains(end), "{end} is never reached, only {hops:?}");
    }
}
