//! An attempt: one volunteer's try at one hop, under a lease.

use std::time::Duration;

use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, Reason};

use super::time::Timestamp;

/// Why a worker gave an attempt up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailKind {
    /// The computation failed.
    Compute,
    /// The connection was lost for too long.
    Disconnect,
    /// An input blob could not be fetched or read.
    Input,
    /// The machine ran out of memory.
    OutOfMemory,
    /// The machine ran out of disk.
    Disk,
}

/// The part of an attempt the worker is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Handed out.
    Leased,
    /// Getting its blobs.
    Fetching,
    /// Computing.
    Computing,
    /// Sending its result.
    Uploading,
}

/// What an attempt is for. Its worker is not told: on the wire all are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Purpose {
    /// To get the hop verified.
    #[default]
    Work,
    /// A known-answer hop: the hop is verified, the device is examined.
    Probe,
    /// To confirm or refute a result that was accepted without a second account.
    Recheck,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Self; 3] = [Self::Work, Self::Probe, Self::Recheck];

    /// The name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Work => "Work",
            Self::Probe => "Probe",
            Self::Recheck => "Recheck",
        }
    }
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptState {
    /// The lease is alive.
    Live(Phase),
    /// Its sound result waits for a verdict.
    Submitted,
    /// Its result was accepted.
    Matched,
    /// Its result was refuted or malformed.
    Mismatched,
    /// Its result was set aside when the hop was opened again.
    Inconclusive,
    /// The hard deadline passed without a result.
    Expired,
    /// The worker gave up.
    Failed(FailKind),
    /// The worker gave the hop back unharmed.
    Abandoned,
    /// Not needed any more.
    Cancelled,
    /// Arrived after the lease ended, and was accepted.
    LateValid,
    /// Arrived after the hop was verified, with the same result.
    LateUnneeded,
    /// Arrived after the lease ended, with another result.
    LateMismatched,
}

impl AttemptState {
    /// The lease is alive.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// The lease is alive or the result waits for a verdict.
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::Live(_) | Self::Submitted)
    }

    /// Ended without a verdict on a result: one may still arrive.
    pub const fn awaits_late_result(self) -> bool {
        matches!(
            self,
            Self::Expired | Self::Failed(_) | Self::Abandoned | Self::Cancelled
        )
    }

    /// The state's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live(Phase::Leased) => "Leased",
            Self::Live(Phase::Fetching) => "Fetching",
            Self::Live(Phase::Computing) => "Computing",
            Self::Live(Phase::Uploading) => "Uploading",
            Self::Submitted => "Submitted",
            Self::Matched => "Matched",
            Self::Mismatched => "Mismatched",
            Self::Inconclusive => "Inconclusive",
            Self::Expired => "Expired",
            Self::Failed(FailKind::Compute) => "FailedCompute",
            Self::Failed(FailKind::Disconnect) => "FailedDisconnect",
            Self::Failed(FailKind::Input) => "FailedInput",
            Self::Failed(FailKind::OutOfMemory) => "FailedOutOfMemory",
            Self::Failed(FailKind::Disk) => "FailedDisk",
            Self::Abandoned => "Abandoned",
            Self::Cancelled => "Cancelled",
            Self::LateValid => "LateValid",
            Self::LateUnneeded => "LateUnneeded",
            Self::LateMismatched => "LateMismatched",
        }
    }

    /// Every state, for the round trip through rows.
    pub const ALL: [Self; 19] = [
        Self::Live(Phase::Leased),
        Self::Live(Phase::Fetching),
        Self::Live(Phase::Computing),
        Self::Live(Phase::Uploading),
        Self::Submitted,
        Self::Matched,
        Self::Mismatched,
        Self::Inconclusive,
        Self::Expired,
        Self::Failed(FailKind::Compute),
        Self::Failed(FailKind::Disconnect),
        Self::Failed(FailKind::Input),
        Self::Failed(FailKind::OutOfMemory),
        Self::Failed(FailKind::Disk),
        Self::Abandoned,
        Self::Cancelled,
        Self::LateValid,
        Self::LateUnneeded,
        Self::LateMismatched,
    ];
}

/// Progress a worker reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Steps finished.
    pub steps_done: u32,
    /// Steps in all; 0 while unknown.
    pub steps_total: u32,
    /// Name of the running step.
    pub step: String,
    /// Computing so far, summed over restarts.
    pub compute: Duration,
    /// Remaining time, lowest and highest estimate; `None` while unknown.
    pub eta: Option<(Duration, Duration)>,
}

/// The digests a worker hands in. The first one counts: it cannot be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Digest of the output.
    pub output: Digest,
    /// Size of the output, bytes.
    pub output_size: u64,
    /// Root of the trace.
    pub trace_root: Digest,
    /// Digest of the trace blob.
    pub trace: Digest,
    /// Size of the trace blob, bytes.
    pub trace_size: u64,
    /// Time spent computing.
    pub compute: Duration,
}

/// An attempt's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// The chain.
    pub chain: ChainId,
    /// The chain's generation.
    pub generation: u32,
    /// The hop.
    pub hop: u32,
    /// The device that holds the lease.
    pub device: DeviceId,
    /// The device's account.
    pub account: AccountId,
    /// The nonce of the Acquire call.
    pub nonce: Nonce,
    /// Fence: calls with another epoch change nothing (I4).
    pub epoch: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// Handed to a trusted device alone: a second account is asked only if the draw at its submit says so.
    pub solo: bool,
    /// Where it stands.
    pub state: AttemptState,
    /// Why it ended, where there is a reason to tell.
    pub reason: Option<Reason>,
    /// Its result came after the lease had ended.
    pub late: bool,
    /// The lease went silent; another attempt may run beside it.
    pub silent: bool,
    /// When it was handed out.
    pub leased: Timestamp,
    /// Renewed by every call.
    pub soft_expiry: Timestamp,
    /// Never renewed.
    pub hard_deadline: Timestamp,
    /// Last sign of life.
    pub last_seen: Timestamp,
    /// When it left the live states.
    pub ended: Option<Timestamp>,
    /// What the worker reported.
    pub progress: Progress,
    /// What the worker handed in.
    pub claim: Option<Claim>,
}

impl Attempt {
    /// When the reaper must look at this lease again (I8); `None` once it is not live.
    pub fn wake_at(&self, grace: Duration) -> Option<Timestamp> {
        if !self.state.is_live() {
            return None;
        }
        let quiet = self.soft_expiry.plus(grace);
        Some(if self.silent {
            self.hard_deadline
        } else {
            quiet.min(self.hard_deadline)
        })
    }

    /// Its device may still send the bytes of its result.
    pub const fn may_upload(&self) -> bool {
        self.state.is_live() || self.state.awaits_late_result()
    }
}
