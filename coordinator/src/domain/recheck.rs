//! Verified hops handed out once more: to examine a device (known-answer hops), or to confirm or refute a result
//! that rests on a device which lost its trust.

use std::collections::{BTreeMap, BTreeSet};

use cipherhop_proto::{AccountId, Digest, Reason};

use super::attempt::{AttemptState, Claim, Phase, Purpose};
use super::chain::ChainState;
use super::command::{Acceptance, Asker, Fork, Outcome, OutputCheck, Refusal, Reply};
use super::event::EventKind;
use super::hop::{HopState, Method};
use super::lease;
use super::schedule;
use super::trust::Verdict;
use super::turn::{Turn, clip};
use super::verify::{output_of, refute};

/// Hands a verified hop to a device that has not seen it.
pub(super) fn probe(turn: &mut Turn, asker: Asker) -> Result<Reply, Refusal> {
    must_be_verified(turn)?;
    if turn.attempts.iter().any(|a| a.account == asker.account) {
        return Err(Reason::AccountAlreadyOnHop.into());
    }
    lease::hand_out(turn, asker, Purpose::Probe, false);
    Ok(Reply::Done)
}

/// Hands a doubted hop to an account that had no part in its result.
pub(super) fn lease(
    turn: &mut Turn,
    asker: Asker,
    excluded: &BTreeSet<AccountId>,
) -> Result<Reply, Refusal> {
    must_be_verified(turn)?;
    if !turn.hop.recheck {
        return Err(Reason::NoOpenHop.into());
    }
    let part = turn.attempts.iter().any(|attempt| {
        let counts = attempt.state.is_live()
            || matches!(
                attempt.state,
                AttemptState::Submitted | AttemptState::Matched | AttemptState::LateValid
            );
        attempt.account == asker.account && counts
    });
    if part || excluded.contains(&asker.account) {
        return Err(Reason::AccountAlreadyOnHop.into());
    }
    let fresh = |a: &&super::attempt::Attempt| {
        a.purpose == Purpose::Recheck && a.state.is_live() && !a.silent
    };
    let running = turn.attempts.iter().filter(fresh).count();
    if running >= needed(turn) {
        return Err(Reason::NoOpenHop.into());
    }
    lease::hand_out(turn, asker, Purpose::Recheck, false);
    Ok(Reply::Done)
}

fn must_be_verified(turn: &Turn) -> Result<(), Refusal> {
    if let Some(reason) = turn.closed() {
        return Err(reason.into());
    }
    match turn.hop.accepted {
        Some(_) => Ok(()),
        None => Err(Reason::NoOpenHop.into()),
    }
}

/// Distinct accounts behind each result of a recheck.
fn votes(turn: &Turn) -> BTreeMap<Digest, BTreeSet<AccountId>> {
    let mut votes = schedule::classes(&turn.attempts);
    votes.retain(|_, accounts| !accounts.is_empty());
    votes
}

/// Further results until the doubt is settled one way or the other, whichever is nearer.
fn needed(turn: &Turn) -> usize {
    let quorum = turn.chain.policy.quorum.max(2) as usize;
    let Some(accepted) = turn.hop.accepted else {
        return 0;
    };
    let votes = votes(turn);
    let behind = |digest: &Digest| votes.get(digest).map_or(0, BTreeSet::len);
    let confirm = (quorum - 1).saturating_sub(behind(&accepted.digest));
    let against = votes
        .iter()
        .filter(|(digest, _)| **digest != accepted.digest);
    let refute = against.map(|(_, accounts)| quorum.saturating_sub(accounts.len()));
    refute.fold(confirm, usize::min).max(1)
}

/// Judges the result of an examination or a recheck, and answers as for any other hop.
pub(super) fn judge(turn: &mut Turn, index: usize, claim: Claim, check: OutputCheck) -> Outcome {
    let live = turn.attempts[index].state.is_live();
    let (output, root) = (claim.output, claim.trace_root);
    turn.attempts[index].claim = Some(claim);
    match check {
        OutputCheck::Missing => {
            if live {
                turn.attempts[index].state = AttemptState::Live(Phase::Uploading);
                lease::extend(turn, index);
            }
            return Outcome::NeedUpload;
        }
        OutputCheck::Malformed(reason) => {
            turn.attempts[index].late = !live;
            refute(turn, index, Some(reason));
            return Outcome::Malformed(reason);
        }
        OutputCheck::Sound => {}
    }
    turn.attempts[index].late = !live;
    let Some(accepted) = turn.hop.accepted else {
        turn.end(index, AttemptState::Inconclusive, None);
        return Outcome::HopClosed;
    };
    if turn.attempts[index].purpose == Purpose::Recheck && turn.hop.recheck {
        turn.end(index, AttemptState::Submitted, None);
        settle(turn);
        return match turn.attempts[index].state {
            AttemptState::Submitted => Outcome::Verifying,
            AttemptState::Mismatched | AttemptState::LateMismatched => Outcome::Mismatched,
            _ => Outcome::Matched,
        };
    }
    // The output's digest is public by now; the trace is not, and proves that the hop was computed.
    let roots: BTreeSet<Digest> = turn.attempts.iter().filter_map(accepted_root).collect();
    if output == accepted.digest && (roots.is_empty() || roots.contains(&root)) {
        win(turn, index, Verdict::Proven);
        return Outcome::Matched;
    }
    refute(turn, index, None);
    Outcome::Mismatched
}

fn accepted_root(attempt: &super::attempt::Attempt) -> Option<Digest> {
    let accepted = matches!(
        attempt.state,
        AttemptState::Matched | AttemptState::LateValid
    );
    let claim = attempt.claim.as_ref()?;
    (accepted && attempt.purpose == Purpose::Work).then_some(claim.trace_root)
}

fn win(turn: &mut Turn, index: usize, verdict: Verdict) {
    let state = match turn.attempts[index].late {
        true => AttemptState::LateValid,
        false => AttemptState::Matched,
    };
    turn.end(index, state, None);
    let attempt = &turn.attempts[index];
    turn.credits.push(attempt.id);
    turn.verdicts.push((attempt.device, verdict));
}

/// Looks whether the rechecks settle the doubt: with the quorum the result was confirmed (the doubted account
/// counts as one), or another result has a quorum without it and the chain forks.
fn settle(turn: &mut Turn) {
    let Some(accepted) = turn.hop.accepted else {
        return;
    };
    let quorum = turn.chain.policy.quorum.max(2) as usize;
    let votes = votes(turn);
    let count = |digest: &Digest| votes.get(digest).map_or(0, BTreeSet::len);
    if count(&accepted.digest) + 1 >= quorum {
        close(turn, accepted.digest);
        turn.hop.recheck = false;
        turn.hop_event(EventKind::HopConfirmed, "");
        return;
    }
    let refuting = votes
        .iter()
        .find(|(digest, accounts)| **digest != accepted.digest && accounts.len() >= quorum);
    if let Some((digest, _)) = refuting {
        let digest = *digest;
        let winners = close(turn, digest);
        for index in 0..turn.attempts.len() {
            let attempt = &turn.attempts[index];
            if accepted_root(attempt).is_some() {
                turn.verdicts.push((attempt.device, Verdict::Invalid));
            }
        }
        turn.hop.recheck = false;
        turn.hop_event(EventKind::HopRefuted, "");
        let instead = Acceptance {
            digest,
            method: Method::Quorum,
            attempts: winners,
        };
        fork(turn, Some(instead), "a recheck refuted the result");
    }
}

/// Ends every recheck: equal ones win, others are refuted, leases are not needed any more.
fn close(turn: &mut Turn, digest: Digest) -> Vec<cipherhop_proto::AttemptId> {
    let mut winners = Vec::new();
    for index in 0..turn.attempts.len() {
        if turn.attempts[index].purpose != Purpose::Recheck {
            continue;
        }
        match turn.attempts[index].state {
            AttemptState::Submitted if output_of(turn, index) == Some(digest) => {
                winners.push(turn.attempts[index].id);
                win(turn, index, Verdict::Valid);
            }
            AttemptState::Submitted => refute(turn, index, None),
            AttemptState::Live(_) => {
                turn.end(index, AttemptState::Cancelled, Some(Reason::HopVerified));
            }
            _ => {}
        }
    }
    winners
}

/// The device behind the result lost its trust.
pub(super) fn doubt(turn: &mut Turn) -> Reply {
    let alone = turn.hop.accepted.is_some_and(|a| a.method.rests_on_one());
    if alone && turn.closed().is_none() && !turn.hop.recheck {
        turn.hop.recheck = true;
        turn.hop_event(EventKind::HopDoubted, "");
    }
    Reply::Done
}

/// An operator found the verified result wrong.
pub(super) fn invalidate(turn: &mut Turn, note: String) -> Result<Reply, Refusal> {
    if let Some(reason) = turn.closed() {
        return Err(reason.into());
    }
    if turn.hop.state != HopState::Verified {
        let detail = "only a verified hop can be invalidated";
        return Err(Refusal::new(Reason::ChainStateConflict, detail));
    }
    turn.hop.recheck = false;
    fork(turn, None, &note);
    Ok(Reply::Done)
}

/// A new generation begins at the hop. Nothing of the old one changes except that its leases end.
fn fork(turn: &mut Turn, instead: Option<Acceptance>, why: &str) {
    for index in 0..turn.attempts.len() {
        close_attempt(&mut turn.attempts[index], turn.now);
    }
    turn.chain.generation += 1;
    turn.chain.head = turn.hop.index + u32::from(instead.is_some());
    if turn.chain.head == turn.chain.hops {
        turn.chain.state = ChainState::Completed;
    } else if !matches!(turn.chain.state, ChainState::Paused(_)) {
        turn.chain.state = ChainState::Active;
    }
    let generation = turn.chain.generation;
    turn.chain_event(
        EventKind::ChainForked,
        clip(format!(
            "generation {generation} from hop {}: {why}",
            turn.hop.index
        )),
    );
    turn.fork = Some(Fork { instead });
}

/// Ends an attempt of a generation that is over.
pub fn close_attempt(attempt: &mut super::attempt::Attempt, now: super::time::Timestamp) {
    attempt.state = match attempt.state {
        AttemptState::Live(_) => AttemptState::Cancelled,
        AttemptState::Submitted => AttemptState::Inconclusive,
        _ => return,
    };
    attempt.reason = Some(Reason::HopClosed);
    attempt.silent = false;
    attempt.ended.get_or_insert(now);
}
