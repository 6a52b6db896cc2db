//! What must hold after every step.

use std::collections::{BTreeMap, BTreeSet};

use cipherhop_coordinator::domain::attempt::{AttemptState, Purpose};
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::command::Command;
use cipherhop_coordinator::domain::decide;
use cipherhop_coordinator::domain::hop::{HopState, Method};
use cipherhop_coordinator::domain::schedule::others_first;
use cipherhop_coordinator::domain::view::HopView;
use cipherhop_proto::Reason;

use crate::bench::{self, Bench, digest};
use crate::steps::Step;

/// The world before and after a step.
pub type Check = fn(&Bench, &Bench, &Step);

pub const ALL: &[(&str, Check)] = &[
    ("i1", i1),
    ("i2", i2),
    ("i4", i4),
    ("i6", i6),
    ("i7", i7),
    ("i8", i8),
    ("i9", i9),
    ("i10", i10),
    ("twice", no_account_twice),
    ("states", states_agree),
];

pub fn i1(before: &Bench, after: &Bench, _: &Step) {
    for (old, new) in before.hops.iter().zip(&after.hops) {
        let same = old.generation == new.generation;
        assert!(!same || old.accepted.is_none() || old.accepted == new.accepted);
        assert_eq!(new.accepted.is_some(), new.state == HopState::Verified);
    }
    let mut seen = BTreeSet::new();
    for row in &after.archive {
        assert!(seen.insert((row.generation, row.hop)), "two rows: {row:?}");
    }
}

pub fn i2(before: &Bench, after: &Bench, _: &Step) {
    let (old, new) = (&before.chain, &after.chain);
    assert!((new.generation, new.head) >= (old.generation, old.head));
    for index in 0..after.hops.len() {
        let verified = after.hops[index].accepted;
        assert_eq!(verified.is_some(), (index as u32) < after.chain.head);
        assert_eq!(after.hops[index].generation, after.chain.generation);
        if let (Some(accepted), Some(next)) = (verified, after.hops.get(index + 1)) {
            assert_eq!(next.input, Some(accepted.digest));
        }
    }
    let completed = after.chain.state == ChainState::Completed;
    assert!(!completed || after.chain.head == after.chain.hops);
    let cancelled = matches!(after.chain.state, ChainState::Cancelled(_));
    assert!(completed || cancelled || after.chain.head < after.chain.hops);
}

pub fn i4(before: &Bench, after: &Bench, step: &Step) {
    if step.is_stale() && after.last_error == Some(Reason::StaleEpoch) {
        assert_eq!(before.rows(), after.rows());
    }
    assert!(
        !step.is_stale() || after.last_error.is_some(),
        "a stale call was taken"
    );
}

pub fn i6(_: &Bench, after: &Bench, _: &Step) {
    let once: BTreeSet<_> = after.credits.iter().collect();
    assert_eq!(once.len(), after.credits.len());
    for id in &after.credits {
        let attempt = after.attempts.iter().find(|a| a.id == *id).unwrap();
        let output = attempt.claim.as_ref().unwrap().output;
        let accepted = |row: &&bench::Row| row.hop == attempt.hop && row.accepted.digest == output;
        assert!(after.archive.iter().find(accepted).is_some());
    }
}

pub fn i7(_: &Bench, after: &Bench, _: &Step) {
    let rows = after.archive.iter();
    let public: BTreeSet<String> = rows.map(|row| row.accepted.digest.to_string()).collect();
    let mut told = format!("{:?}", after.events);
    for hop in &after.hops {
        let attempts = after.attempts_of(hop.index);
        let view = HopView::of(hop, &attempts, |_| String::new(), None);
        if hop.state == HopState::Verified {
            assert!(view.running.is_empty(), "an examination is visible");
        }
        told.push_str(&format!("{view:?}"));
    }
    for output in 0..bench::OUTPUTS {
        for hop in 0..after.chain.hops {
            let secret = digest(hop, output).to_string();
            assert!(public.contains(&secret) || !told.contains(&secret));
        }
    }
}

pub fn i8(_: &Bench, after: &Bench, _: &Step) {
    let grace = after.chain.policy.grace;
    for attempt in &after.attempts {
        assert_eq!(attempt.wake_at(grace).is_some(), attempt.state.is_live());
        let Some(wake) = attempt.wake_at(grace) else {
            continue;
        };
        assert_eq!(
            attempt.generation, after.chain.generation,
            "a lease outlived its generation"
        );
        let effects = decide(&after.state(attempt.hop), Command::Tick, wake).unwrap();
        let woken = effects
            .attempts
            .iter()
            .find(|other| other.id == attempt.id)
            .unwrap();
        assert!(woken.wake_at(grace).is_none_or(|next| next > wake));
    }
}

pub fn i9(_: &Bench, after: &Bench, _: &Step) {
    let quorum = after.chain.policy.quorum.max(2) as usize;
    for row in &after.archive {
        let accepted = &row.accepted;
        let backing = |a: &&cipherhop_coordinator::domain::attempt::Attempt| {
            accepted.attempts.contains(&a.id)
        };
        let backing: Vec<_> = after.attempts.iter().filter(backing).collect();
        for attempt in &backing {
            assert_eq!(attempt.claim.as_ref().unwrap().output, accepted.digest);
        }
        let accounts: BTreeSet<_> = backing.iter().map(|attempt| attempt.account).collect();
        match accepted.method {
            Method::Quorum => assert!(accounts.len() >= quorum, "{row:?}"),
            Method::Archive => {
                assert!(!accounts.is_empty());
                assert_eq!(row.expected, Some(accepted.digest));
            }
            Method::Trusted => {
                let alone = backing.iter().all(|attempt| attempt.solo);
                assert!(alone && accounts.len() == 1 && row.expected.is_none());
                // The numbered devices are trusted from the start, every fourth of them.
                assert!(backing.iter().all(|a| {
                    after.devices[&a.device].id.as_bytes()[2].is_multiple_of(4)
                        || after.valid_before(a) >= 10
                }));
            }
            Method::Referee => assert!(!accounts.is_empty() && row.expected.is_none()),
        }
    }
}

pub fn i10(_: &Bench, after: &Bench, _: &Step) {
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
}

pub fn no_account_twice(before: &Bench, after: &Bench, _: &Step) {
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
        if new.purpose == Purpose::Work {
            assert_eq!(
                others_first(&before.state(new.hop), new.device, before.now),
                None
            );
            assert!(row.not_before.is_none_or(|at| at <= before.now));
        }
    }
}

pub fn states_agree(_: &Bench, after: &Bench, _: &Step) {
    for hop in &after.hops {
        let attempts = after.attempts_of(hop.index);
        let work = || attempts.iter().filter(|a| a.purpose == Purpose::Work);
        let live = work().any(|attempt| attempt.state.is_live());
        let waiting = work().any(|attempt| attempt.state == AttemptState::Submitted);
        match hop.state {
            HopState::Ready => assert!(!live && !waiting),
            HopState::Running => assert!(live),
            HopState::Verifying => assert!(!live && waiting),
            HopState::Verified | HopState::Cancelled => assert!(!live && !waiting),
            HopState::Blocked => assert!(attempts.is_empty()),
            HopState::Stuck(_) => {}
        }
        if hop.state != HopState::Verified {
            assert!(!hop.recheck && attempts.iter().all(|a| a.purpose == Purpose::Work));
        }
    }
}
