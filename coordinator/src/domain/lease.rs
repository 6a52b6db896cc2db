//! Leases: handed out, renewed, given up, run out.

use cipherhop_proto::{DeviceId, Reason};

use super::attempt::{Attempt, AttemptState, FailKind, Phase, Progress, Purpose};
use super::command::{Asker, Directive, Holder, Refusal, Reply};
use super::event::EventKind;
use super::failure::{self, Budget};
use super::schedule;
use super::turn::{Turn, clip};

/// Longest step name kept, bytes.
const STEP_NAME_BYTES: usize = 64;

pub(super) fn lease(turn: &mut Turn, asker: Asker) -> Result<Reply, Refusal> {
    let state = turn.state();
    schedule::eligible(&state, asker.device, asker.account, turn.now)?;
    let solo = asker.standing.may_pass_alone() && schedule::starts_afresh(&state, turn.now);
    turn.hop.last_failed_device = None;
    hand_out(turn, asker, Purpose::Work, solo);
    Ok(Reply::Done)
}

/// Makes a new attempt under the hop's next epoch.
pub(super) fn hand_out(turn: &mut Turn, asker: Asker, purpose: Purpose, solo: bool) {
    let policy = &turn.chain.policy;
    let hard_deadline = turn.now.plus(policy.hard_deadline(turn.p95));
    turn.hop.epoch += 1;
    turn.attempts.push(Attempt {
        id: asker.attempt,
        chain: turn.chain.id,
        generation: turn.hop.generation,
        hop: turn.hop.index,
        device: asker.device,
        account: asker.account,
        nonce: asker.nonce,
        epoch: turn.hop.epoch,
        purpose,
        solo,
        state: AttemptState::Live(Phase::Leased),
        reason: None,
        late: false,
        silent: false,
        leased: turn.now,
        soft_expiry: turn.now.plus(policy.soft_lease),
        hard_deadline,
        last_seen: turn.now,
        ended: None,
        progress: Progress::default(),
        claim: None,
    });
    turn.attempt_event(EventKind::AttemptLeased, turn.attempts.len() - 1, "");
}

/// Renews a lease; with a report, also takes phase and progress.
pub(super) fn renew(
    turn: &mut Turn,
    holder: Holder,
    report: Option<(Phase, Progress)>,
) -> Result<Reply, Refusal> {
    let index = turn.hold(holder)?;
    if let Some(reason) = turn.closed() {
        return Ok(Reply::Directive(Directive::Cancel(reason)));
    }
    let attempt = &turn.attempts[index];
    let directive = match attempt.state {
        AttemptState::Live(_) if attempt.hard_deadline <= turn.now => {
            expire(turn, index);
            Directive::Cancel(Reason::DeadlinePassed)
        }
        AttemptState::Live(before) => {
            extend(turn, index);
            if let Some((phase, mut progress)) = report {
                progress
                    .step
                    .truncate(progress.step.floor_char_boundary(STEP_NAME_BYTES));
                turn.attempts[index].state = AttemptState::Live(phase);
                turn.attempts[index].progress = progress;
                if phase != before {
                    let name = AttemptState::Live(phase).name();
                    turn.attempt_event(EventKind::AttemptPhase, index, name);
                }
            }
            Directive::Continue
        }
        AttemptState::Submitted => Directive::Continue,
        AttemptState::Expired => Directive::Cancel(Reason::DeadlinePassed),
        AttemptState::Matched | AttemptState::LateValid | AttemptState::LateUnneeded => {
            Directive::Cancel(Reason::HopVerified)
        }
        _ => Directive::Cancel(attempt.reason.unwrap_or(Reason::AttemptClosed)),
    };
    Ok(Reply::Directive(directive))
}

/// A sign of life: the soft lease starts again and the attempt is not silent any more.
pub(super) fn extend(turn: &mut Turn, index: usize) {
    let until = turn.now.plus(turn.chain.policy.soft_lease);
    let attempt = &mut turn.attempts[index];
    attempt.soft_expiry = attempt.soft_expiry.max(until);
    attempt.last_seen = attempt.last_seen.max(turn.now);
    attempt.silent = false;
}

pub(super) fn fail(
    turn: &mut Turn,
    holder: Holder,
    kind: FailKind,
    detail: String,
) -> Result<Reply, Refusal> {
    let index = turn.hold(holder)?;
    match turn.attempts[index].state {
        AttemptState::Live(_) => {}
        AttemptState::Failed(_) => return Ok(Reply::Done),
        _ => {
            return Err(turn.attempts[index]
                .reason
                .unwrap_or(Reason::AttemptClosed)
                .into());
        }
    }
    let detail = clip(detail);
    turn.end(index, AttemptState::Failed(kind), None);
    let name = AttemptState::Failed(kind).name();
    turn.attempt_event(EventKind::AttemptFailed, index, format!("{name}: {detail}"));
    let budget = Budget::from(kind);
    let why = match kind {
        FailKind::Compute => Reason::AttemptFailedCompute,
        FailKind::Disconnect => Reason::AttemptFailedDisconnect,
        FailKind::Input => Reason::AttemptFailedInput,
        FailKind::OutOfMemory => Reason::NotEnoughMemory,
        FailKind::Disk => Reason::NotEnoughDisk,
    };
    failure::count(turn, index, budget, why, detail);
    failure::check(turn, budget);
    Ok(Reply::Done)
}

pub(super) fn release(turn: &mut Turn, holder: Holder) -> Result<Reply, Refusal> {
    let index = turn.hold(holder)?;
    match turn.attempts[index].state {
        AttemptState::Live(_) => {
            turn.end(index, AttemptState::Abandoned, None);
            turn.attempt_event(EventKind::AttemptReleased, index, "");
            Ok(Reply::Done)
        }
        AttemptState::Abandoned => Ok(Reply::Done),
        _ => Err(turn.attempts[index]
            .reason
            .unwrap_or(Reason::AttemptClosed)
            .into()),
    }
}

/// Looks at every lease: past the hard deadline it ends, past soft expiry and grace it is silent.
pub(super) fn tick(turn: &mut Turn) -> Reply {
    let grace = turn.chain.policy.grace;
    for index in 0..turn.attempts.len() {
        let attempt = &turn.attempts[index];
        if !attempt.state.is_live() {
            continue;
        }
        if attempt.hard_deadline <= turn.now {
            expire(turn, index);
        } else if !attempt.silent && attempt.soft_expiry.plus(grace) <= turn.now {
            turn.attempts[index].silent = true;
            turn.attempt_event(EventKind::AttemptSilent, index, "");
        }
    }
    Reply::Done
}

fn expire(turn: &mut Turn, index: usize) {
    turn.end(index, AttemptState::Expired, Some(Reason::DeadlinePassed));
    turn.attempt_event(EventKind::AttemptExpired, index, "");
    failure::count(
        turn,
        index,
        Budget::Disconnect,
        Reason::DeadlinePassed,
        String::new(),
    );
    failure::check(turn, Budget::Disconnect);
}

/// Ends a quarantined device's leases and sets its waiting results aside.
pub(super) fn evict(turn: &mut Turn, device: DeviceId) -> Reply {
    for index in 0..turn.attempts.len() {
        if turn.attempts[index].device != device {
            continue;
        }
        let state = match turn.attempts[index].state {
            AttemptState::Live(_) => AttemptState::Cancelled,
            AttemptState::Submitted => AttemptState::Inconclusive,
            _ => continue,
        };
        turn.end(index, state, Some(Reason::DeviceQuarantined));
        let reason = Reason::DeviceQuarantined.as_str();
        turn.attempt_event(EventKind::AttemptCancelled, index, reason);
    }
    Reply::Done
}
