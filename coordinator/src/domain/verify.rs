//! Results: taken, compared, accepted or refuted. SYSTEM.md section 5.

use std::collections::BTreeSet;

use cipherhop_proto::{Digest, Reason};

use super::attempt::{AttemptState, Claim, Phase, Purpose};
use super::chain::ChainState;
use super::command::{Acceptance, Chance, Holder, Outcome, OutputCheck, Refusal, Reply};
use super::event::EventKind;
use super::failure::{self, Budget};
use super::hop::{Accepted, HopState, Method};
use super::trust::Verdict;
use super::turn::Turn;
use super::{lease, recheck, schedule};

/// Accounts that must agree with each other against an archived digest to make it suspect.
const SUSPECT_ACCOUNTS: usize = 3;
/// Largest trace taken, bytes.
const MAX_TRACE_BYTES: u64 = 64 << 20;

pub(super) fn submit(
    turn: &mut Turn,
    holder: Holder,
    claim: Claim,
    check: OutputCheck,
    chance: Chance,
) -> Result<Reply, Refusal> {
    let index = turn.hold(holder)?;
    if turn.closed().is_some() {
        return Ok(Reply::Outcome(Outcome::HopClosed));
    }
    let attempt = &turn.attempts[index];
    if let Some(known) = &attempt.claim
        && known.output != claim.output
    {
        return Err(Reason::SubmitConflict.into());
    }
    if attempt.reason == Some(Reason::DeviceQuarantined) {
        return Err(Reason::DeviceQuarantined.into());
    }
    let told = match attempt.state {
        AttemptState::Live(_)
        | AttemptState::Expired
        | AttemptState::Failed(_)
        | AttemptState::Abandoned
        | AttemptState::Cancelled => None,
        AttemptState::Mismatched | AttemptState::LateMismatched => Some(
            attempt
                .reason
                .map_or(Outcome::Mismatched, Outcome::Malformed),
        ),
        AttemptState::LateUnneeded => Some(Outcome::LateUnneeded),
        AttemptState::Submitted
        | AttemptState::Matched
        | AttemptState::Inconclusive
        | AttemptState::LateValid => Some(Outcome::Duplicate),
    };
    if let Some(outcome) = told {
        return Ok(Reply::Outcome(outcome));
    }
    check_sizes(turn, &claim)?;
    Ok(Reply::Outcome(match turn.attempts[index].purpose {
        Purpose::Work => judge(turn, index, claim, check, chance),
        _ => recheck::judge(turn, index, claim, check),
    }))
}

fn check_sizes(turn: &Turn, claim: &Claim) -> Result<(), Refusal> {
    let expected = turn.chain.spec.boundary_bytes;
    if claim.output_size != expected {
        let detail = format!(
            "{} bytes, the chain's outputs have {expected}",
            claim.output_size
        );
        return Err(Refusal::new(Reason::OutputWrongSize, detail));
    }
    if claim.trace_size > MAX_TRACE_BYTES {
        let detail = format!("a trace may have {MAX_TRACE_BYTES} bytes");
        return Err(Refusal::new(Reason::BlobTooLarge, detail));
    }
    Ok(())
}

fn judge(
    turn: &mut Turn,
    index: usize,
    claim: Claim,
    check: OutputCheck,
    chance: Chance,
) -> Outcome {
    let live = turn.attempts[index].state.is_live();
    if let Some(accepted) = turn.hop.accepted {
        return late_for_verified(turn, index, claim, accepted);
    }
    let output = claim.output;
    turn.attempts[index].claim = Some(claim);
    match check {
        OutputCheck::Missing => {
            if live {
                turn.attempts[index].state = AttemptState::Live(Phase::Uploading);
                lease::extend(turn, index);
            }
            Outcome::NeedUpload
        }
        OutputCheck::Malformed(reason) => {
            turn.attempts[index].late = !live;
            refute(turn, index, Some(reason));
            failure::count(turn, index, Budget::Mismatch, reason, String::new());
            failure::check(turn, Budget::Mismatch);
            Outcome::Malformed(reason)
        }
        OutputCheck::Sound => {
            turn.attempts[index].late = !live;
            turn.end(index, AttemptState::Submitted, None);
            turn.attempts[index].last_seen = turn.now;
            turn.attempt_event(EventKind::AttemptSubmitted, index, "");
            let groups = schedule::classes(&turn.attempts);
            let alone = groups
                .get(&output)
                .is_none_or(|accounts| accounts.len() < 2);
            let attempt = &turn.attempts[index];
            let first = attempt.solo && live && turn.hop.expected.is_none();
            let alone_here = turn.submitted() == [index];
            if first
                && alone_here
                && turn.hop.state.is_open()
                && chance.standing.passes_alone(chance.draw)
            {
                accept(turn, output, Method::Trusted);
            } else {
                evaluate(turn, alone && groups.len() > 1);
            }
            match turn.attempts[index].state {
                AttemptState::Matched | AttemptState::LateValid => Outcome::Matched,
                AttemptState::Mismatched | AttemptState::LateMismatched => Outcome::Mismatched,
                _ => Outcome::Verifying,
            }
        }
    }
}

/// The hop was verified without this attempt. A claim made before that proves the work and earns credit;
/// one made afterwards does not, because the digest is public by then.
fn late_for_verified(turn: &mut Turn, index: usize, claim: Claim, accepted: Accepted) -> Outcome {
    let claimed_before = turn.attempts[index].claim.is_some();
    let equal = claim.output == accepted.digest;
    let attempt = &mut turn.attempts[index];
    attempt.late = true;
    attempt.claim = Some(claim);
    if !equal {
        refute(turn, index, None);
        return Outcome::Mismatched;
    }
    turn.end(index, AttemptState::LateUnneeded, None);
    turn.attempt_event(EventKind::AttemptLate, index, "");
    if claimed_before {
        turn.credits.push(turn.attempts[index].id);
    }
    Outcome::LateUnneeded
}

/// Looks whether the waiting results settle the hop. `disagreement`: the newest result stands alone
/// against others.
pub(super) fn evaluate(turn: &mut Turn, disagreement: bool) {
    if turn.hop.accepted.is_some() || turn.hop.state == HopState::Stuck(Reason::ArchiveSuspect) {
        return;
    }
    match turn.hop.expected {
        Some(expected) => against_archive(turn, expected),
        None => by_quorum(turn, disagreement),
    }
}

fn against_archive(turn: &mut Turn, expected: Digest) {
    let mut refuted = None;
    let mut confirmed = false;
    for index in turn.submitted() {
        if output_of(turn, index) == Some(expected) {
            confirmed = true;
        } else {
            refute(turn, index, None);
            failure::count(
                turn,
                index,
                Budget::Mismatch,
                Reason::ResultMismatch,
                String::new(),
            );
            refuted = Some(index);
        }
    }
    if confirmed {
        accept(turn, expected, Method::Archive);
    } else if let Some(index) = refuted {
        if rivals_of_archive(turn, output_of(turn, index)) >= SUSPECT_ACCOUNTS {
            failure::stick(turn, Reason::ArchiveSuspect);
        }
        failure::check(turn, Budget::Mismatch);
    }
}

/// Distinct accounts whose well-formed result is `output`, against the archive.
fn rivals_of_archive(turn: &Turn, output: Option<Digest>) -> usize {
    let refuted = turn.attempts.iter().enumerate().filter(|(index, attempt)| {
        matches!(
            attempt.state,
            AttemptState::Mismatched | AttemptState::LateMismatched
        ) && attempt.reason.is_none()
            && output_of(turn, *index) == output
    });
    refuted
        .map(|(_, attempt)| attempt.account)
        .collect::<BTreeSet<_>>()
        .len()
}

fn by_quorum(turn: &mut Turn, disagreement: bool) {
    let quorum = turn.chain.policy.quorum.max(2) as usize;
    let groups = schedule::classes(&turn.attempts);
    if let Some((digest, _)) = groups.iter().find(|(_, accounts)| accounts.len() >= quorum) {
        accept(turn, *digest, Method::Quorum);
    } else if disagreement {
        let detail = format!("{} different results", groups.len());
        failure::note(turn, Budget::Mismatch, Reason::QuorumDisagrees, detail);
        if turn.hop.failures.mismatch >= turn.chain.policy.mismatch_budget {
            failure::stick(turn, Reason::QuorumDisagrees);
        }
    }
}

/// The hop is Verified with `digest`: winners are credited, other waiting results refuted, leases
/// ended, and the head moves on.
pub(super) fn accept(turn: &mut Turn, digest: Digest, method: Method) {
    let mut winners = Vec::new();
    for index in 0..turn.attempts.len() {
        let attempt = &turn.attempts[index];
        let (id, device, late) = (attempt.id, attempt.device, attempt.late);
        let equal = output_of(turn, index) == Some(digest);
        match attempt.state {
            AttemptState::Submitted if equal => {
                let state = if late {
                    AttemptState::LateValid
                } else {
                    AttemptState::Matched
                };
                turn.end(index, state, None);
                turn.credits.push(id);
                let verdict = match method {
                    Method::Archive => Verdict::Proven,
                    _ => Verdict::Valid,
                };
                turn.verdicts.push((device, verdict));
                winners.push(id);
            }
            AttemptState::Submitted => refute(turn, index, None),
            AttemptState::Live(_) if equal => {
                turn.end(index, AttemptState::LateUnneeded, None);
                turn.attempt_event(EventKind::AttemptLate, index, "");
                turn.credits.push(id);
            }
            AttemptState::Live(_) => {
                turn.end(index, AttemptState::Cancelled, Some(Reason::HopVerified));
                let reason = Reason::HopVerified.as_str();
                turn.attempt_event(EventKind::AttemptCancelled, index, reason);
            }
            _ => {}
        }
    }
    turn.set_hop_state(HopState::Verified);
    turn.hop.accepted = Some(Accepted { digest, method });
    turn.hop.not_before = None;
    turn.hop.last_failed_device = None;
    turn.accept = Some(Acceptance {
        digest,
        method,
        attempts: winners,
    });
    turn.hop_event(EventKind::HopVerified, method.name());
    turn.chain.head = turn.hop.index + 1;
    if turn.chain.head == turn.chain.hops {
        turn.chain.state = ChainState::Completed;
        turn.chain_event(EventKind::ChainCompleted, "");
        return;
    }
    if matches!(turn.chain.state, ChainState::Stuck(_)) {
        turn.chain.state = ChainState::Active;
    }
    turn.next_hop_event(EventKind::HopReady);
}

/// The result is wrong (`malformed`: not even an output); the device's trust falls.
pub(super) fn refute(turn: &mut Turn, index: usize, malformed: Option<Reason>) {
    let late = turn.attempts[index].late;
    let state = if late {
        AttemptState::LateMismatched
    } else {
        AttemptState::Mismatched
    };
    turn.end(index, state, malformed);
    let device = turn.attempts[index].device;
    turn.verdicts.push((device, Verdict::Invalid));
    let detail = malformed.map_or("", Reason::as_str);
    turn.attempt_event(EventKind::AttemptMismatched, index, detail);
}

pub(super) fn output_of(turn: &Turn, index: usize) -> Option<Digest> {
    turn.attempts[index]
        .claim
        .as_ref()
        .map(|claim| claim.output)
}

/// The archive knows the hop's digest: waiting results are judged by it at once.
pub(super) fn expect(turn: &mut Turn, digest: Digest) -> Result<Reply, Refusal> {
    let known = turn
        .hop
        .accepted
        .map(|accepted| accepted.digest)
        .or(turn.hop.expected);
    match known {
        Some(known) if known == digest => return Ok(Reply::Expected(false)),
        Some(_) => {
            let detail = format!("hop {} has another digest already", turn.hop.index);
            return Err(Refusal::new(Reason::ArchiveConflict, detail));
        }
        None => {}
    }
    turn.hop.expected = Some(digest);
    turn.hop_event(EventKind::ArchiveImported, "");
    evaluate(turn, false);
    Ok(Reply::Expected(true))
}
