//! What can be asked of a hop, and what follows from it.

use std::time::Duration;

use std::collections::BTreeSet;

use cipherhop_proto::{AccountId, AttemptId, DeviceId, Digest, Nonce, Reason};

use super::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use super::chain::Chain;
use super::event::{EventKind, NewEvent};
use super::hop::{Hop, HopState, Method};
use super::trust::{Standing, Verdict};

/// What a decision is made on: one hop, its chain and its attempts.
#[derive(Debug, Clone)]
pub struct State {
    /// The chain.
    pub chain: Chain,
    /// The hop, of any generation.
    pub hop: Hop,
    /// Every attempt at the hop in its generation, in order of epoch.
    pub attempts: Vec<Attempt>,
    /// 95th percentile of the chain's accepted attempts, from lease to submit; only a lease uses it.
    pub p95: Option<Duration>,
}

/// The attempt a call is about, as the caller names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The attempt.
    pub attempt: AttemptId,
    /// The device that calls (from its token).
    pub device: DeviceId,
    /// The epoch it was given.
    pub epoch: u64,
}

/// What the server found out about a claimed output by reading the stored bytes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputCheck {
    /// Output or trace is not stored completely yet.
    Missing,
    /// Both are stored; the output parses and has the chain's shape.
    Sound,
    /// Stored, and not a valid output; the reason is one of the `OUTPUT_*`.
    Malformed(Reason),
}

/// Who asks for a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// Id of the new attempt.
    pub attempt: AttemptId,
    /// The device.
    pub device: DeviceId,
    /// Its account.
    pub account: AccountId,
    /// Nonce of the Acquire call.
    pub nonce: Nonce,
    /// How far the device is trusted.
    pub standing: Standing,
}

/// What decides whether a trusted device's result counts alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance {
    /// The device's standing when it submits.
    pub standing: Standing,
    /// Uniform, made for this submit, told to nobody.
    pub draw: u32,
}

impl Chance {
    /// No result counts alone.
    pub const NONE: Self = Self {
        standing: Standing::NEW,
        draw: 0,
    };
}

/// A command on one hop.
#[derive(Debug, Clone)]
pub enum Command {
    /// Hand the hop to a device.
    Lease(Asker),
    /// Hand a verified hop to a device to examine the device.
    Probe(Asker),
    /// Hand a hop whose result is in doubt to an account that had no part in it: not one of these.
    Recheck(Asker, BTreeSet<AccountId>),
    /// Renew a lease and take the progress report.
    Sync(Holder, Phase, Progress),
    /// Renew a lease because a byte or another call arrived.
    Touch(Holder),
    /// Take a result.
    Submit(Holder, Claim, OutputCheck, Chance),
    /// The worker gave up, with words for people.
    Fail(Holder, FailKind, String),
    /// The worker gives the hop back unharmed.
    Release(Holder),
    /// Time passed.
    Tick,
    /// A device was quarantined: its leases end, its waiting results are set aside.
    Evict(DeviceId),
    /// An operator opens the hop again.
    Requeue(String),
    /// A volunteer asks to open the hop again.
    Reopen(String),
    /// The archive knows the hop's digest.
    Expect(Digest),
    /// The archived digest is wrong. Of the results refuted by it, those whose output is among these stored
    /// blobs wait for a verdict again.
    DropArchived(BTreeSet<Digest>, String),
    /// The verified result is wrong: a new generation begins at this hop.
    Invalidate(String),
    /// The device the result rests on lost its trust.
    Doubt,
    /// A referee ran the step in which results first differed: these are wrong, that one stands.
    Convict(BTreeSet<AttemptId>, Option<AttemptId>),
    /// Stop new leases.
    Pause(String),
    /// Hand out again.
    Resume,
    /// End the chain. Must be given the head hop.
    Cancel(String),
}

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directive {
    /// Go on; the lease is renewed for the policy's soft lease.
    Continue,
    /// Stop, for this reason.
    Cancel(Reason),
}

/// What became of a submitted result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Upload the claimed blobs, then submit again.
    NeedUpload,
    /// Counted; waits for other attempts.
    Verifying,
    /// Counted, and the hop is verified with it.
    Matched,
    /// Counted, and refuted.
    Mismatched,
    /// Not a valid output; the reason is one of the `OUTPUT_*`.
    Malformed(Reason),
    /// The same submit was counted before.
    Duplicate,
    /// Late, equal to the verified result, not needed.
    LateUnneeded,
    /// The hop is closed.
    HopClosed,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To Sync and Touch.
    Directive(Directive),
    /// To Submit.
    Outcome(Outcome),
    /// To Convict: false when the hop was settled without it.
    Convicted(bool),
    /// To Requeue and Reopen: why the hop had failed.
    Reopened(Option<Reason>),
    /// To Expect: false when the digest was known already.
    Expected(bool),
    /// To everything else.
    Done,
}

/// A row for the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// Digest of the accepted output.
    pub digest: Digest,
    /// How it was accepted.
    pub method: Method,
    /// The attempts it rests on.
    pub attempts: Vec<AttemptId>,
}

/// A new generation of the chain, from the decided hop on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// What the hop's result is instead, where that is known already.
    pub instead: Option<Acceptance>,
}

/// What follows from a command; written in one transaction.
#[derive(Debug, Clone)]
pub struct Effects {
    /// The answer.
    pub reply: Reply,
    /// The chain's row, where it changed.
    pub chain: Option<Chain>,
    /// The hop's row, where it changed.
    pub hop: Option<Hop>,
    /// Changed and new attempts.
    pub attempts: Vec<Attempt>,
    /// The hop is accepted: append to the archive and, where there is a next hop, make it Ready
    /// with this output as input.
    pub accept: Option<Acceptance>,
    /// A new generation begins at the hop; `chain` holds its number and head.
    pub fork: Option<Fork>,
    /// Every hop that is not Verified becomes Cancelled.
    pub cancel_hops: bool,
    /// Attempts that earn credit (I6).
    pub credits: Vec<AttemptId>,
    /// Verdicts on devices.
    pub verdicts: Vec<(DeviceId, Verdict)>,
    /// Events for the outbox, in order.
    pub events: Vec<NewEvent>,
}

impl Effects {
    /// Nothing but an answer.
    pub fn none(reply: Reply) -> Self {
        Self {
            reply,
            chain: None,
            hop: None,
            attempts: Vec::new(),
            accept: None,
            fork: None,
            cancel_hops: false,
            credits: Vec::new(),
            verdicts: Vec::new(),
            events: Vec::new(),
        }
    }

    /// State of the hop after the command.
    pub fn hop_state(&self, before: &State) -> HopState {
        self.hop.as_ref().map_or(before.hop.state, |hop| hop.state)
    }

    /// Whether an event of that kind follows.
    pub fn has_event(&self, kind: EventKind) -> bool {
        self.events.iter().any(|event| event.kind == kind)
    }
}

/// A command that is refused; it changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Words for people; may be empty.
    pub detail: String,
    /// When asking again makes sense.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal without a wait.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            retry_after: None,
        }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::new(reason, reason.meaning())
    }
}
