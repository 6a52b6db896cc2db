//! What becomes of an attempt that a worker still holds after a restart.

use cipherhop_proto::Reason;

use super::attempt::{Attempt, AttemptState};
use super::command::Holder;

/// An attempt as its worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The attempt, its device and epoch.
    pub holder: Holder,
    /// The result is finished.
    pub finished: bool,
}

/// What the worker does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Go on: the lease is alive.
    Continue,
    /// Submit the finished result.
    Submit,
    /// Not needed any more.
    Drop(Reason),
    /// Not known under that epoch: keep what is there.
    Keep(Reason),
}

/// Decides by the attempt's row; `closed`: why nothing of its hop matters any more.
pub fn fate(attempt: Option<&Attempt>, held: Held, closed: Option<Reason>) -> Fate {
    let Some(attempt) = attempt else {
        return Fate::Keep(Reason::AttemptNotFound);
    };
    if attempt.device != held.holder.device {
        return Fate::Keep(Reason::AttemptNotYours);
    }
    if attempt.epoch != held.holder.epoch {
        return Fate::Keep(Reason::StaleEpoch);
    }
    if let Some(reason) = closed {
        return Fate::Drop(reason);
    }
    match attempt.state {
        AttemptState::Live(_) if held.finished => Fate::Submit,
        AttemptState::Live(_) => Fate::Continue,
        state if state.awaits_late_result() && held.finished => Fate::Submit,
        // Waits for a verdict; a referee may still ask for parts of it.
        AttemptState::Submitted => Fate::Keep(Reason::AttemptClosed),
        AttemptState::Expired => Fate::Drop(Reason::DeadlinePassed),
        AttemptState::Mismatched | AttemptState::LateMismatched => {
            Fate::Drop(attempt.reason.unwrap_or(Reason::ResultMismatch))
        }
        AttemptState::Matched | AttemptState::LateValid | AttemptState::LateUnneeded => {
            Fate::Drop(Reason::HopVerified)
        }
        _ => Fate::Drop(attempt.reason.unwrap_or(Reason::AttemptClosed)),
    }
}
