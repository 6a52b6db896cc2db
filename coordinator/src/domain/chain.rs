//! A chain: one encrypted inference, hop after hop.

use std::time::Duration;

use cipherhop_proto::{AccountId, ChainId, Digest, Reason};

use super::time::Timestamp;

/// Most hops a chain may have.
pub const MAX_HOPS: u32 = 4096;
/// Largest quorum a policy may ask for.
pub const MAX_QUORUM: u32 = 16;
/// Longest name, note or detail text kept, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// What the chain as a whole is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainState {
    /// Hops are handed out.
    Active,
    /// An operator stopped new leases, with a note; work in flight goes on.
    Paused(String),
    /// The head hop is stuck (I10: always with a reason).
    Stuck(Reason),
    /// Every hop is verified.
    Completed,
    /// Ended by an operator, with a note.
    Cancelled(String),
}

impl ChainState {
    /// The state's name as rows hold it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Active => "Active",
            Self::Paused(_) => "Paused",
            Self::Stuck(_) => "Stuck",
            Self::Completed => "Completed",
            Self::Cancelled(_) => "Cancelled",
        }
    }

    /// The reason or note for people; empty where there is none.
    pub fn note(&self) -> &str {
        match self {
            Self::Paused(note) | Self::Cancelled(note) => note,
            Self::Stuck(reason) => reason.as_str(),
            Self::Active | Self::Completed => "",
        }
    }

    /// Why nothing is handed out; `None` while Active.
    pub const fn closed_reason(&self) -> Option<Reason> {
        match self {
            Self::Active => None,
            Self::Paused(_) => Some(Reason::ChainPaused),
            Self::Stuck(_) => Some(Reason::ChainStuck),
            Self::Completed => Some(Reason::ChainCompleted),
            Self::Cancelled(_) => Some(Reason::ChainCancelled),
        }
    }
}

/// How leases, retries and verification behave on one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Distinct accounts that must agree where no archived digest is known; at least 2.
    pub quorum: u32,
    /// A lease not renewed for this long counts as silent after `grace`.
    pub soft_lease: Duration,
    /// Extra time before a silent lease opens the hop for another attempt.
    pub grace: Duration,
    /// Shortest hard deadline; a hop that usually takes longer gets four times its 95th percentile.
    pub deadline_floor: Duration,
    /// Computation failures at which a hop is stuck.
    pub compute_budget: u32,
    /// Disconnects, expiries and full machines at which a hop is stuck.
    pub disconnect_budget: u32,
    /// Mismatching or malformed results at which a hop is stuck.
    pub mismatch_budget: u32,
    /// Wait after the first failure of a row; doubles per failure, with jitter.
    pub backoff_base: Duration,
    /// Longest wait after a failure.
    pub backoff_cap: Duration,
}

/// The hard deadline is this many times the usual duration.
const DEADLINE_FACTOR: u32 = 4;

impl Policy {
    /// Time from lease to hard deadline where 95 of 100 accepted attempts took `p95` at most.
    pub fn hard_deadline(&self, p95: Option<Duration>) -> Duration {
        let usual = p95.unwrap_or_default().saturating_mul(DEADLINE_FACTOR);
        self.deadline_floor.max(usual)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            quorum: 2,
            soft_lease: Duration::from_secs(5 * 60),
            grace: Duration::from_secs(30),
            deadline_floor: Duration::from_secs(2 * 60 * 60),
            compute_budget: 3,
            disconnect_budget: 20,
            mismatch_budget: 5,
            backoff_base: Duration::from_secs(2),
            backoff_cap: Duration::from_secs(5 * 60),
        }
    }
}

/// What the owner fixed when the chain was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainSpec {
    /// Digest of the program (JSON).
    pub program: Digest,
    /// Name of the CKKS parameter set.
    pub parameter_set: String,
    /// Digest of the parameter set.
    pub parameters: Digest,
    /// The parameter set is below 128 bits.
    pub insecure: bool,
    /// Digest of the key manifest (JSON).
    pub key_manifest: Digest,
    /// Level of every ciphertext at a hop boundary.
    pub boundary_level: u32,
    /// Size of every ciphertext at a hop boundary, bytes.
    pub boundary_bytes: u64,
    /// Least memory a worker needs, bytes.
    pub worker_memory_bytes: u64,
}

/// A chain's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Chosen by the owner.
    pub id: ChainId,
    /// Unique, for people.
    pub name: String,
    /// The key holder's account.
    pub owner: AccountId,
    /// What the chain is doing.
    pub state: ChainState,
    /// Number of hops.
    pub hops: u32,
    /// Hops verified from the start without a gap.
    pub head: u32,
    /// Counts up when an operator invalidates a verified hop.
    pub generation: u32,
    /// Leases, retries, verification.
    pub policy: Policy,
    /// What the owner fixed.
    pub spec: ChainSpec,
    /// When it was created.
    pub created: Timestamp,
}

/// What the owner gives for one hop of a new chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHop {
    /// Digest of the layer's weight pack.
    pub weights: Digest,
    /// Archived digest of the output, where one is known.
    pub archived: Option<Digest>,
}

/// A chain to create; every blob it names must be Complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChain {
    /// Chosen by the owner; creating the same chain again changes nothing.
    pub id: ChainId,
    /// Unique, 1 to 128 bytes.
    pub name: String,
    /// The key holder's account.
    pub owner: AccountId,
    /// Leases, retries, verification.
    pub policy: Policy,
    /// What the owner fixes.
    pub spec: ChainSpec,
    /// Digests of the evaluation keys, in the manifest's order.
    pub keys: Vec<Digest>,
    /// Digest of the ciphertext that enters hop 0.
    pub input: Digest,
    /// One entry per hop, in order.
    pub hops: Vec<NewHop>,
}

/// An operator's change of a chain's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainChange {
    /// Stop new leases; the note is for people.
    Pause(String),
    /// Hand out again after a pause.
    Resume,
    /// End the chain; the note is for people.
    Cancel(String),
}
