//! A hop: one decoder layer of one chain in one generation.

use cipherhop_proto::{ChainId, DeviceId, Digest, Reason};

use super::chain::Chain;
use super::time::Timestamp;

/// Where a hop stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HopState {
    /// An earlier hop is not verified yet.
    Blocked,
    /// No attempt is live and no result waits.
    Ready,
    /// At least one attempt is live.
    Running,
    /// A result waits for agreement, and no attempt is live.
    Verifying,
    /// Its result is in the archive.
    Verified,
    /// Gave up for this reason until it is opened again (I10).
    Stuck(Reason),
    /// Its chain was cancelled.
    Cancelled,
}

impl HopState {
    /// The state's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocked => "Blocked",
            Self::Ready => "Ready",
            Self::Running => "Running",
            Self::Verifying => "Verifying",
            Self::Verified => "Verified",
            Self::Stuck(_) => "Stuck",
            Self::Cancelled => "Cancelled",
        }
    }

    /// Attempts may be handed out or judged.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Ready | Self::Running | Self::Verifying)
    }
}

/// How a hop's result was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Equal to the digest archived before.
    Archive,
    /// Equal results of the quorum's distinct accounts.
    Quorum,
    /// The result of one trusted device.
    Trusted,
    /// What a referee left standing: it ran the step in which two results first differed.
    Referee,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 4] = [Self::Archive, Self::Quorum, Self::Trusted, Self::Referee];

    /// The method's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Archive => "Archive",
            Self::Quorum => "Quorum",
            Self::Trusted => "Trusted",
            Self::Referee => "Referee",
        }
    }

    /// The whole output rests on one account's word.
    pub const fn rests_on_one(self) -> bool {
        matches!(self, Self::Trusted | Self::Referee)
    }
}

/// An accepted result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Digest of the output.
    pub digest: Digest,
    /// How it was accepted.
    pub method: Method,
}

/// Failures since the hop was last opened, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    /// In the computation.
    pub compute: u32,
    /// Vanished, expired or out of room.
    pub disconnect: u32,
    /// Mismatching or malformed results, or disagreement without quorum.
    pub mismatch: u32,
}

impl Failures {
    /// Failures of every kind.
    pub const fn total(&self) -> u32 {
        self.compute
            .saturating_add(self.disconnect)
            .saturating_add(self.mismatch)
    }
}

/// The last failure of a hop; kept when the hop is opened again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFailure {
    /// Why.
    pub reason: Reason,
    /// Plain words.
    pub detail: String,
    /// When.
    pub at: Timestamp,
}

/// A hop's row. Holds the archived digest, so it never leaves the coordinator: readers get a
/// [`super::view::HopView`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The chain.
    pub chain: ChainId,
    /// The chain's generation.
    pub generation: u32,
    /// Number of the hop, from 0.
    pub index: u32,
    /// Where it stands.
    pub state: HopState,
    /// Epoch of the newest lease; only ever grows.
    pub epoch: u64,
    /// The layer's weight pack.
    pub weights: Digest,
    /// Input ciphertext, once the hop before it is verified.
    pub input: Option<Digest>,
    /// Archived digest, known before anybody computed the hop here.
    pub(crate) expected: Option<Digest>,
    /// The accepted result, exactly when Verified.
    pub accepted: Option<Accepted>,
    /// Failures since the hop was last opened.
    pub failures: Failures,
    /// The last failure on record.
    pub last_failure: Option<LastFailure>,
    /// Device of the last attempt, where that failed.
    pub last_failed_device: Option<DeviceId>,
    /// Not handed out before this time.
    pub not_before: Option<Timestamp>,
    /// Times a volunteer had the hop opened again.
    pub reopened: u32,
    /// Verified, but the device it rests on has lost its trust: other accounts run it again.
    pub recheck: bool,
    /// Since when it is in this state.
    pub since: Timestamp,
}

impl Hop {
    /// Hop `index` of a new chain: the first is Ready with `input`, the others are Blocked.
    pub fn new(chain: &Chain, index: u32, weights: Digest, input: Digest, now: Timestamp) -> Self {
        let first = index == 0;
        Self {
            chain: chain.id,
            generation: chain.generation,
            index,
            state: if first {
                HopState::Ready
            } else {
                HopState::Blocked
            },
            epoch: 0,
            weights,
            input: first.then_some(input),
            expected: None,
            accepted: None,
            failures: Failures::default(),
            last_failure: None,
            last_failed_device: None,
            not_before: None,
            reopened: 0,
            recheck: false,
            since: now,
        }
    }
}
