//! Who may take a hop, and which of several hops goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cipherhop_proto::{AccountId, DeviceId, Digest, Reason};

use super::attempt::{Attempt, AttemptState};
use super::chain::Policy;
use super::command::{Refusal, State};
use super::time::Timestamp;
use super::trust::Pace;

/// Silent leases that may pile up on one hop before it waits for their hard deadlines.
const MAX_SILENT: usize = 4;
/// A measured pace is believed for so many hard deadlines of the chain; then the device may show another. Else a chain
/// starves whose last volunteers were slow once, for example because their link was cut.
const PACE_DEADLINES: u32 = 4;
/// And never for longer than this.
const PACE_COUNTS: Duration = Duration::from_secs(24 * 3600);

/// Distinct accounts behind each waiting result.
pub(super) fn classes(attempts: &[Attempt]) -> BTreeMap<Digest, BTreeSet<AccountId>> {
    let mut classes: BTreeMap<Digest, BTreeSet<AccountId>> = BTreeMap::new();
    for attempt in attempts {
        if let (AttemptState::Submitted, Some(claim)) = (attempt.state, &attempt.claim) {
            classes
                .entry(claim.output)
                .or_default()
                .insert(attempt.account);
        }
    }
    classes
}

/// More agreeing results the hop needs: one where an archived digest is known, otherwise what the
/// largest agreeing group lacks to the quorum. A tie of 1 and 1 therefore needs a third account (I9).
pub fn results_needed(state: &State) -> usize {
    if state.hop.expected.is_some() {
        return 1;
    }
    let largest = classes(&state.attempts)
        .values()
        .map(BTreeSet::len)
        .max()
        .unwrap_or(0);
    (state.chain.policy.quorum as usize).saturating_sub(largest)
}

/// Nothing waits, nobody works and no digest is known: the next attempt is the first.
pub(super) fn starts_afresh(state: &State, now: Timestamp) -> bool {
    let grace = state.chain.policy.grace;
    let counts = |attempt: &Attempt| {
        attempt.state == AttemptState::Submitted
            || (attempt.state.is_live() && !is_silent(attempt, grace, now))
    };
    state.hop.expected.is_none() && !state.attempts.iter().any(counts)
}

fn is_silent(attempt: &Attempt, grace: Duration, now: Timestamp) -> bool {
    attempt.silent || attempt.soft_expiry.plus(grace) <= now
}

/// Attempts that may start now: results needed less leases that are not silent. Beside a trusted device that
/// works alone nobody starts.
pub fn open_slots(state: &State, now: Timestamp) -> usize {
    let mut needed = results_needed(state);
    let grace = state.chain.policy.grace;
    let live = state
        .attempts
        .iter()
        .filter(|attempt| attempt.state.is_live());
    let (mut fresh, mut all) = (0, 0);
    for attempt in live {
        all += 1;
        let silent = is_silent(attempt, grace, now);
        fresh += usize::from(!silent);
        if attempt.solo && !silent && classes(&state.attempts).is_empty() {
            // Whether a second account is needed is drawn when this one submits.
            needed = needed.min(1);
        }
    }
    let room = (needed + MAX_SILENT).saturating_sub(all);
    needed.saturating_sub(fresh).min(room)
}

/// How long the device that failed the hop last still leaves it to others. Not for ever: where nobody else comes
/// or may take it, the hop would wait for a person.
pub fn others_first(state: &State, device: DeviceId, now: Timestamp) -> Option<Duration> {
    let failure = state.hop.last_failure.as_ref()?;
    let own = state.hop.last_failed_device == Some(device);
    let until = failure
        .at
        .plus(state.chain.policy.backoff_cap.saturating_mul(3));
    (own && until > now).then(|| until.since(now))
}

/// Whether a device of this pace can finish before its hard deadline: `middle` and `p95` are the chain's accepted
/// attempts'. Without a measure, yes.
pub fn feasible(
    policy: &Policy,
    pace: Option<Pace>,
    middle: Option<Duration>,
    p95: Option<Duration>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let (Some(pace), Some(middle)) = (pace, middle) else {
        return Ok(());
    };
    let expected = middle.saturating_mul(pace.permille) / 1000;
    let deadline = policy.hard_deadline(p95);
    let believed = deadline.saturating_mul(PACE_DEADLINES).min(PACE_COUNTS);
    if expected <= deadline || now.since(pace.at) > believed {
        return Ok(());
    }
    let detail = format!(
        "this device would take about {} s, the deadline is {} s",
        expected.as_secs(),
        deadline.as_secs()
    );
    Err(Refusal {
        retry_after: Some(Duration::from_secs(60)),
        ..Refusal::new(Reason::DeviceTooSlow, detail)
    })
}

/// Whether the device may take the hop now.
pub fn eligible(
    state: &State,
    device: DeviceId,
    account: AccountId,
    now: Timestamp,
) -> Result<(), Refusal> {
    if let Some(reason) = state.chain.state.closed_reason() {
        return Err(reason.into());
    }
    if state.hop.generation != state.chain.generation || !state.hop.state.is_open() {
        return Err(Reason::NoOpenHop.into());
    }
    let busy = |attempt: &Attempt| {
        attempt.account == account
            && (attempt.state.is_live() || attempt.state == AttemptState::Submitted)
    };
    if state.attempts.iter().any(busy) {
        return Err(Reason::AccountAlreadyOnHop.into());
    }
    if let Some(wait) = others_first(state, device, now) {
        let detail = state.hop.last_failure.as_ref().map(|failure| {
            format!(
                "this device failed the hop last ({}); another goes first",
                failure.reason
            )
        });
        return Err(Refusal {
            retry_after: Some(wait),
            ..Refusal::new(Reason::DeviceFailedLast, detail.unwrap_or_default())
        });
    }
    if let Some(at) = state.hop.not_before
        && at > now
    {
        let wait = at.since(now);
        return Err(Refusal {
            retry_after: Some(wait),
            ..Reason::HopBackingOff.into()
        });
    }
    if open_slots(state, now) == 0 {
        return Err(Reason::NoOpenHop.into());
    }
    Ok(())
}

/// Desirability of a hop for a device, the larger the better: bytes it need not fetch, how long
/// the hop waits, how much of the chain waits behind it. `cached_permille` is the cached share of
/// the hop's bytes.
pub fn score(state: &State, cached_permille: u32, now: Timestamp) -> u64 {
    const STARVED: Duration = Duration::from_secs(3600);
    let waiting = now.since(state.hop.since).min(STARVED).as_secs() / 2;
    let behind = state.chain.hops.saturating_sub(state.chain.head).min(100);
    u64::from(cached_permille.min(1000)) + waiting + u64::from(behind)
}
