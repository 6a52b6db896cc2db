//! What people ask for: opening hops again, pausing, resuming and cancelling chains.

use std::collections::BTreeSet;

use cipherhop_proto::{Digest, Reason};

use super::attempt::AttemptState;
use super::chain::ChainState;
use super::command::{Refusal, Reply};
use super::event::EventKind;
use super::hop::{Failures, HopState};
use super::schedule;
use super::turn::{Turn, clip};
use super::verify;

/// Times volunteers may have one hop opened again; then it takes an operator.
const MAX_REOPENS: u32 = 3;

/// Opens a stuck or failing hop again; the reason stays on record.
pub(super) fn requeue(turn: &mut Turn, note: String) -> Result<Reply, Refusal> {
    let was = must_have_failed(turn)?;
    open_again(turn, EventKind::HopRequeued, note);
    Ok(Reply::Reopened(was))
}

/// The same for a volunteer, who may not overrule a disagreement nor ask for ever.
pub(super) fn reopen(turn: &mut Turn, note: String) -> Result<Reply, Refusal> {
    let was = must_have_failed(turn)?;
    let disputed = matches!(
        turn.hop.state,
        HopState::Stuck(Reason::ArchiveSuspect | Reason::QuorumDisagrees)
    );
    if disputed || turn.hop.reopened >= MAX_REOPENS {
        return Err(Reason::OperatorOnly.into());
    }
    turn.hop.reopened += 1;
    open_again(turn, EventKind::HopReopened, note);
    Ok(Reply::Reopened(was))
}

fn must_have_failed(turn: &Turn) -> Result<Option<Reason>, Refusal> {
    if let Some(reason) = turn.closed() {
        return Err(reason.into());
    }
    match turn.hop.state {
        HopState::Stuck(reason) => Ok(Some(reason)),
        HopState::Ready | HopState::Running | HopState::Verifying
            if turn.hop.failures != Failures::default() =>
        {
            Ok(turn.hop.last_failure.as_ref().map(|failure| failure.reason))
        }
        _ => Err(Reason::HopNotStuck.into()),
    }
}

fn open_again(turn: &mut Turn, kind: EventKind, note: String) {
    turn.hop.failures = Failures::default();
    turn.hop.not_before = None;
    turn.hop.last_failed_device = None;
    let dropped = kind == EventKind::ArchiveDropped;
    if schedule::classes(&turn.attempts).len() > 1 && !turn.hop.state.is_open() && !dropped {
        for index in turn.submitted() {
            turn.end(index, AttemptState::Inconclusive, None);
        }
    }
    turn.hop_event(kind, note);
    turn.reopen();
    verify::evaluate(turn, false);
}

/// The archived digest of an open hop is wrong: results it refuted wait for a verdict again, where their bytes
/// are `stored`, and the hop goes by quorum.
pub(super) fn drop_archived(
    turn: &mut Turn,
    stored: &BTreeSet<Digest>,
    note: String,
) -> Result<Reply, Refusal> {
    if let Some(reason) = turn.closed() {
        return Err(reason.into());
    }
    if turn.hop.accepted.is_some() {
        let detail = "the hop is verified: invalidate it instead";
        return Err(Refusal::new(Reason::ChainStateConflict, detail));
    }
    if turn.hop.expected.take().is_none() {
        let detail = "the hop has no archived digest";
        return Err(Refusal::new(Reason::ChainStateConflict, detail));
    }
    for index in 0..turn.attempts.len() {
        let attempt = &turn.attempts[index];
        let refuted = matches!(
            attempt.state,
            AttemptState::Mismatched | AttemptState::LateMismatched
        );
        let output = verify::output_of(turn, index);
        if refuted && attempt.reason.is_none() && output.is_some_and(|o| stored.contains(&o)) {
            turn.attempts[index].state = AttemptState::Submitted;
            turn.attempt_event(EventKind::AttemptSubmitted, index, "");
        }
    }
    open_again(turn, EventKind::ArchiveDropped, note);
    Ok(Reply::Done)
}

pub(super) fn pause(turn: &mut Turn, note: String) -> Result<Reply, Refusal> {
    match turn.chain.state {
        ChainState::Paused(_) => {}
        ChainState::Active | ChainState::Stuck(_) => {
            turn.chain.state = ChainState::Paused(clip(note.clone()));
            turn.chain_event(EventKind::ChainPaused, note);
        }
        ChainState::Completed | ChainState::Cancelled(_) => return Err(conflict(turn)),
    }
    Ok(Reply::Done)
}

pub(super) fn resume(turn: &mut Turn) -> Result<Reply, Refusal> {
    match turn.chain.state {
        ChainState::Active => return Ok(Reply::Done),
        ChainState::Paused(_) => {}
        _ => return Err(conflict(turn)),
    }
    if let HopState::Stuck(reason) = turn.hop.state {
        turn.chain.state = ChainState::Stuck(reason);
        turn.chain_event(EventKind::ChainStuck, reason.as_str());
    } else {
        turn.chain.state = ChainState::Active;
        turn.chain_event(EventKind::ChainResumed, "");
    }
    Ok(Reply::Done)
}

pub(super) fn cancel(turn: &mut Turn, note: String) -> Result<Reply, Refusal> {
    match turn.chain.state {
        ChainState::Cancelled(_) => return Ok(Reply::Done),
        ChainState::Completed => return Err(conflict(turn)),
        _ => {}
    }
    for index in 0..turn.attempts.len() {
        let state = match turn.attempts[index].state {
            AttemptState::Live(_) => AttemptState::Cancelled,
            AttemptState::Submitted => AttemptState::Inconclusive,
            _ => continue,
        };
        turn.end(index, state, Some(Reason::ChainCancelled));
        let reason = Reason::ChainCancelled.as_str();
        turn.attempt_event(EventKind::AttemptCancelled, index, reason);
    }
    if turn.hop.state != HopState::Verified {
        turn.set_hop_state(HopState::Cancelled);
    }
    turn.cancel_hops = true;
    turn.chain.state = ChainState::Cancelled(clip(note.clone()));
    turn.chain_event(EventKind::ChainCancelled, note);
    Ok(Reply::Done)
}

fn conflict(turn: &Turn) -> Refusal {
    let detail = format!("the chain is {}", turn.chain.state.name());
    Refusal::new(Reason::ChainStateConflict, detail)
}
