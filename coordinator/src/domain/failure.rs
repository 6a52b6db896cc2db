//! Failures, retry budgets and back-off of a hop.

use std::time::Duration;

use cipherhop_proto::{AttemptId, Digest, Reason};

use super::attempt::{FailKind, Purpose};
use super::chain::{ChainState, Policy};
use super::event::EventKind;
use super::hop::{HopState, LastFailure};
use super::turn::{Turn, clip};

/// Which budget a failure draws on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Budget {
    Compute,
    Disconnect,
    Mismatch,
}

impl From<FailKind> for Budget {
    fn from(kind: FailKind) -> Self {
        match kind {
            FailKind::Compute | FailKind::Input => Self::Compute,
            FailKind::Disconnect | FailKind::OutOfMemory | FailKind::Disk => Self::Disconnect,
        }
    }
}

impl Budget {
    const fn exhausted(self) -> Reason {
        match self {
            Self::Compute => Reason::ComputeBudget,
            Self::Disconnect => Reason::DisconnectBudget,
            Self::Mismatch => Reason::MismatchBudget,
        }
    }
}

/// Counts a failure of the attempt at `index`, makes the hop wait, and keeps the device off the next
/// lease if this was the last one. Does not check the budget: see [`check`].
pub(super) fn count(turn: &mut Turn, index: usize, budget: Budget, why: Reason, detail: String) {
    let (id, device, epoch) = {
        let attempt = &turn.attempts[index];
        (attempt.id, attempt.device, attempt.epoch)
    };
    if turn.attempts[index].purpose != Purpose::Work {
        return;
    }
    note(turn, budget, why, detail);
    let wait = backoff(&turn.chain.policy, turn.hop.failures.total(), id);
    turn.hop.not_before = Some(turn.now.plus(wait));
    if epoch == turn.hop.epoch {
        turn.hop.last_failed_device = Some(device);
    }
}

/// Counts a failure that is nobody's in particular.
pub(super) fn note(turn: &mut Turn, budget: Budget, reason: Reason, detail: String) {
    let failures = &mut turn.hop.failures;
    let counter = match budget {
        Budget::Compute => &mut failures.compute,
        Budget::Disconnect => &mut failures.disconnect,
        Budget::Mismatch => &mut failures.mismatch,
    };
    *counter = counter.saturating_add(1);
    turn.hop.last_failure = Some(LastFailure {
        reason,
        detail: clip(detail),
        at: turn.now,
    });
}

/// Makes the hop Stuck when the budget is used up.
pub(super) fn check(turn: &mut Turn, budget: Budget) {
    let (policy, failures) = (&turn.chain.policy, turn.hop.failures);
    let used_up = match budget {
        Budget::Compute => failures.compute >= policy.compute_budget,
        Budget::Disconnect => failures.disconnect >= policy.disconnect_budget,
        Budget::Mismatch => failures.mismatch >= policy.mismatch_budget,
    };
    if used_up {
        stick(turn, budget.exhausted());
    }
}

/// Gives the hop up for `reason` (I10); the chain with it unless an operator paused it.
pub(super) fn stick(turn: &mut Turn, reason: Reason) {
    if !turn.hop.state.is_open() {
        return;
    }
    turn.set_hop_state(HopState::Stuck(reason));
    turn.hop_event(EventKind::HopStuck, reason.as_str());
    if turn.chain.state == ChainState::Active {
        turn.chain.state = ChainState::Stuck(reason);
        turn.chain_event(EventKind::ChainStuck, reason.as_str());
    }
}

/// Wait after the `count`-th failure: doubles each time up to the cap, then a factor in [1/2, 1)
/// drawn from the attempt's id, so that hops that failed together do not return together.
pub(super) fn backoff(policy: &Policy, count: u32, attempt: AttemptId) -> Duration {
    let doublings = count.saturating_sub(1).min(30);
    let full = policy
        .backoff_base
        .saturating_mul(1 << doublings)
        .min(policy.backoff_cap);
    let draw = u32::from(Digest::of(attempt.as_bytes()).as_bytes()[0]);
    full.saturating_mul(256 + draw) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_is_jittered_and_capped() {
        let policy = Policy::default();
        for id in 0..50u8 {
            let id = AttemptId::from_bytes([id; 16]);
            for count in 1..40 {
                let wait = backoff(&policy, count, id);
                let full = policy.backoff_base.saturating_mul(1 << (count - 1).min(30));
                let full = full.min(policy.backoff_cap);
                assert!(wait >= full / 2 && wait < full, "{count}: {wait:?}");
            }
        }
    }
}
