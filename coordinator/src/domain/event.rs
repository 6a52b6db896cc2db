//! What happened, for observers and for the log of a chain. Never holds an unverified digest (I7).

use cipherhop_proto::{AttemptId, ChainId};

use super::time::Timestamp;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// The kind of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind { $($(#[doc = $doc])+ $variant,)+ }

        impl EventKind {
            /// Every kind.
            pub const ALL: &'static [EventKind] = &[$(EventKind::$variant,)+];

            /// The name on the wire, for example `hop.verified`.
            pub const fn as_str(self) -> &'static str {
                match self { $(EventKind::$variant => $name,)+ }
            }
        }
    };
}

kinds! {
    /// The chain was created.
    ChainCreated = "chain.created",
    /// An operator paused the chain.
    ChainPaused = "chain.paused",
    /// The chain hands out hops again.
    ChainResumed = "chain.resumed",
    /// The chain waits for an operator.
    ChainStuck = "chain.stuck",
    /// Every hop is verified.
    ChainCompleted = "chain.completed",
    /// The chain was ended.
    ChainCancelled = "chain.cancelled",
    /// Expected digests were imported.
    ArchiveImported = "archive.imported",
    /// A wrong archived digest was dropped.
    ArchiveDropped = "archive.dropped",
    /// A new generation began.
    ChainForked = "chain.forked",
    /// The owner published accuracy figures.
    AccuracyPublished = "accuracy.published",
    /// The hop can be handed out.
    HopReady = "hop.ready",
    /// The hop's result is in the archive.
    HopVerified = "hop.verified",
    /// The hop's result is in doubt and is checked again.
    HopDoubted = "hop.doubted",
    /// The check of a doubted result confirmed it.
    HopConfirmed = "hop.confirmed",
    /// The hop's result turned out wrong.
    HopRefuted = "hop.refuted",
    /// The hop gave up.
    HopStuck = "hop.stuck",
    /// An operator opened the hop again.
    HopRequeued = "hop.requeued",
    /// A volunteer had the hop opened again.
    HopReopened = "hop.reopened",
    /// The hop was handed out.
    AttemptLeased = "attempt.leased",
    /// The attempt entered another phase.
    AttemptPhase = "attempt.phase",
    /// The lease went silent: another attempt may run beside it.
    AttemptSilent = "attempt.silent",
    /// A sound result waits for a verdict.
    AttemptSubmitted = "attempt.submitted",
    /// The result was refuted or malformed.
    AttemptMismatched = "attempt.mismatched",
    /// The worker gave up.
    AttemptFailed = "attempt.failed",
    /// The worker gave the hop back.
    AttemptReleased = "attempt.released",
    /// The hard deadline passed.
    AttemptExpired = "attempt.expired",
    /// The attempt is not needed any more.
    AttemptCancelled = "attempt.cancelled",
    /// A result arrived that is not needed.
    AttemptLate = "attempt.late",
}

impl EventKind {
    /// Whether there may be work after it that there was not before.
    pub const fn may_open(self) -> bool {
        match self {
            Self::ChainCreated
            | Self::ChainResumed
            | Self::ChainForked
            | Self::ArchiveImported
            | Self::ArchiveDropped
            | Self::HopReady
            | Self::HopDoubted
            | Self::HopRefuted
            | Self::HopRequeued
            | Self::HopReopened
            | Self::AttemptSilent
            | Self::AttemptSubmitted
            | Self::AttemptMismatched
            | Self::AttemptFailed
            | Self::AttemptReleased
            | Self::AttemptExpired
            | Self::AttemptCancelled => true,
            Self::ChainPaused
            | Self::ChainStuck
            | Self::ChainCompleted
            | Self::ChainCancelled
            | Self::AccuracyPublished
            | Self::HopVerified
            | Self::HopConfirmed
            | Self::HopStuck
            | Self::AttemptLeased
            | Self::AttemptPhase
            | Self::AttemptLate => false,
        }
    }
}

/// An event to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// What happened.
    pub kind: EventKind,
    /// The hop, where it is about one.
    pub hop: Option<u32>,
    /// The attempt, where it is about one.
    pub attempt: Option<AttemptId>,
    /// Reason or words for people.
    pub detail: String,
}

/// An event of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Grows by at least one; watch resumes after it.
    pub sequence: u64,
    /// The chain.
    pub chain: ChainId,
    /// What happened.
    pub event: NewEvent,
    /// When.
    pub at: Timestamp,
}
