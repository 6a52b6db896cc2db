//! What readers may see. These types cannot hold an archived or unverified digest (I7).

use std::time::Duration;

use cipherhop_proto::{AccountId, AttemptId, DeviceId, Digest, Reason, manifest};

use super::attempt::{Attempt, AttemptState, Progress, Purpose};
use super::chain::Chain;
use super::hop::{Accepted, Hop, HopState, LastFailure};
use super::time::Timestamp;

/// A live attempt as observers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningView {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its device.
    pub device: DeviceId,
    /// The volunteer's name.
    pub volunteer: String,
    /// Its state (live).
    pub state: AttemptState,
    /// What the worker reported.
    pub progress: Progress,
    /// Last sign of life.
    pub last_seen: Timestamp,
}

/// What came with an accepted result besides its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Digest of its trace.
    pub trace: Digest,
    /// How long it took, as its volunteer says.
    pub compute: Duration,
}

/// Accuracy figures the owner published for a hop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accuracy {
    /// The hop.
    pub hop: u32,
    /// Largest error over the full scale F.
    pub max_err_over_f: f64,
    /// Worst relative root mean square over the tokens.
    pub worst_rel_rms: f64,
}

/// A hop as everybody may see it.
#[derive(Debug, Clone, PartialEq)]
pub struct HopView {
    /// Number of the hop, from 0.
    pub index: u32,
    /// Where it stands.
    pub state: HopState,
    /// The reason it is stuck for.
    pub stuck: Option<Reason>,
    /// The last failure on record, also after the hop was opened again.
    pub last_failure: Option<LastFailure>,
    /// An archived digest was known beforehand (which one is told when Verified).
    pub archived: bool,
    /// Attempts so far in this generation.
    pub attempts: u32,
    /// Sound results that wait for agreement.
    pub results_waiting: u32,
    /// Live attempts.
    pub running: Vec<RunningView>,
    /// The accepted result; present exactly when Verified.
    pub accepted: Option<Accepted>,
    /// Names of the volunteers whose results were accepted.
    pub verified_by: Vec<String>,
    /// Accepted results, in order of epoch; none before the hop is Verified.
    pub reports: Vec<Report>,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Not handed out before this time.
    pub not_before: Option<Timestamp>,
    /// Figures the owner published.
    pub accuracy: Option<Accuracy>,
}

impl HopView {
    /// The public part of a hop; `attempts` are the hop's in its generation, `name` maps accounts to names.
    pub fn of(
        hop: &Hop,
        attempts: &[Attempt],
        mut name: impl FnMut(AccountId) -> String,
        accuracy: Option<Accuracy>,
    ) -> Self {
        let mut running = Vec::new();
        let mut verified_by = Vec::new();
        let mut reports = Vec::new();
        let mut results_waiting = 0;
        // Examinations and rechecks of verified hops are nobody's business.
        let work = attempts.iter().filter(|a| a.purpose == Purpose::Work);
        for attempt in work.clone() {
            match attempt.state {
                AttemptState::Live(_) => running.push(RunningView {
                    attempt: attempt.id,
                    device: attempt.device,
                    volunteer: name(attempt.account),
                    state: attempt.state,
                    progress: attempt.progress.clone(),
                    last_seen: attempt.last_seen,
                }),
                AttemptState::Submitted => results_waiting += 1,
                AttemptState::Matched | AttemptState::LateValid => {
                    let volunteer = name(attempt.account);
                    if !verified_by.contains(&volunteer) {
                        verified_by.push(volunteer);
                    }
                    reports.extend(attempt.claim.as_ref().map(|claim| Report {
                        trace: claim.trace,
                        compute: claim.compute,
                    }));
                }
                _ => {}
            }
        }
        if hop.accepted.is_none() {
            reports.clear();
        }
        Self {
            index: hop.index,
            state: hop.state,
            stuck: match hop.state {
                HopState::Stuck(reason) => Some(reason),
                _ => None,
            },
            last_failure: hop.last_failure.clone(),
            archived: hop.expected.is_some(),
            attempts: u32::try_from(work.count()).unwrap_or(u32::MAX),
            results_waiting,
            running,
            accepted: hop.accepted,
            verified_by,
            reports,
            since: hop.since,
            not_before: hop.not_before,
            accuracy,
        }
    }
}

/// A chain with its hops and the sequence number they were read at.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainStatus {
    /// The chain.
    pub chain: Chain,
    /// Its hops in order, of the current generation.
    pub hops: Vec<HopView>,
    /// Last event's sequence number: watch from here.
    pub sequence: u64,
}

impl ChainStatus {
    /// Digests of the verified outputs, as `manifest.sha256` has them.
    pub fn manifest(&self) -> String {
        let verified = self
            .hops
            .iter()
            .filter_map(|hop| Some((hop.index, hop.accepted?.digest)));
        manifest::format(verified)
    }
}

/// Input and, once Verified, output of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopResult {
    /// The hop.
    pub hop: u32,
    /// Digest of the input; `None` while the hop is Blocked.
    pub input: Option<Digest>,
    /// Digest of the accepted output.
    pub output: Option<Digest>,
}

/// A blob an assignment needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeededBlob {
    /// Its digest.
    pub digest: Digest,
    /// Its size, bytes.
    pub size: u64,
    /// What it is for.
    pub role: BlobRole,
}

/// What a blob is for. The names are those of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlobRole {
    /// The chain's program.
    Program,
    /// Weights of one layer.
    Weights,
    /// The key manifest.
    KeyManifest,
    /// One evaluation key.
    EvaluationKey,
    /// A ciphertext that enters a hop.
    Input,
    /// A ciphertext that leaves a hop.
    Output,
    /// The trace of an attempt.
    Trace,
}

impl BlobRole {
    /// Every role.
    pub const ALL: [Self; 7] = [
        Self::Program,
        Self::Weights,
        Self::KeyManifest,
        Self::EvaluationKey,
        Self::Input,
        Self::Output,
        Self::Trace,
    ];

    /// The role's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Program => "Program",
            Self::Weights => "Weights",
            Self::KeyManifest => "KeyManifest",
            Self::EvaluationKey => "EvaluationKey",
            Self::Input => "Input",
            Self::Output => "Output",
            Self::Trace => "Trace",
        }
    }
}

/// Everything a worker needs to run an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The chain.
    pub chain: Chain,
    /// The attempt: id, hop, epoch, lease times.
    pub attempt: Attempt,
    /// Program, key manifest, keys, weights, input.
    pub blobs: Vec<NeededBlob>,
}

impl Assignment {
    /// Time until the lease goes silent, as of `now`.
    pub fn soft_lease(&self, now: Timestamp) -> Duration {
        self.attempt.soft_expiry.since(now)
    }

    /// Time until the hard deadline, as of `now`.
    pub fn hard_deadline(&self, now: Timestamp) -> Duration {
        self.attempt.hard_deadline.since(now)
    }
}
