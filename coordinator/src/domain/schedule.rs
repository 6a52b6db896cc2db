//! Who may take a hop, and which of several hops goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cipherhop_proto::{AccountId, DeviceId, Digest, Reason};

use super::attempt::{Attempt, AttemptState};
use super::command::{Refusal, State};
use super::time::Timestamp;

/// Silent leases that may pile up on one hop before it waits for their hard deadlines.
const MAX_SILENT: usize = 4;

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

/// Attempts that may start now: results needed less leases that are not silent.
pub fn open_slots(state: &State, now: Timestamp) -> usize {
    let needed = results_needed(state);
    let grace = state.chain.policy.grace;
    let live = state
        .attempts
        .iter()
        .filter(|attempt| attempt.state.is_live());
    let (mut fresh, mut all) = (0, 0);
    for attempt in live {
        all += 1;
        let silent = attempt.silent || attempt.soft_expiry.plus(grace) <= now;
        fresh += usize::from(!silent);
    }
    let room = (needed + MAX_SILENT).saturating_sub(all);
    needed.saturating_sub(fresh).min(room)
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
    if state.hop.last_failed_device == Some(device) {
        let detail = state.hop.last_failure.as_ref().map(|failure| {
            format!(
                "this device failed the hop last ({}); another goes first",
                failure.reason
            )
        });
        return Err(Refusal::new(
            Reason::DeviceFailedLast,
            detail.unwrap_or_default(),
        ));
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
