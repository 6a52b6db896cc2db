//! What the journal remembers: claims, the question being asked, attempts and their results.

use std::collections::BTreeMap;

use cipherhop_proto::v1::{self, BlobRef, BlobRole};
use cipherhop_proto::{AttemptId, ChainId, Digest, Nonce};
use serde::{Deserialize, Serialize};

use crate::range::HopRange;

/// Longest name of a chain or parameter set, bytes.
const MAX_NAME: usize = 256;

/// A wish of the volunteer, worked before anything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The chain.
    pub chain: ChainId,
    /// `None`: every hop.
    pub hops: Option<HopRange>,
}

/// An Acquire that was sent; asked again with the same nonce it gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asking {
    /// The request's nonce.
    pub nonce: Nonce,
    /// For which claim; `None`: any hop.
    pub claim: Option<Claim>,
}

/// A blob of an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Content address.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    /// `BlobRole` as on the wire.
    pub role: i32,
    /// Name inside the role.
    pub name: String,
}

impl Blob {
    /// As the wire carries it.
    pub fn to_wire(&self) -> BlobRef {
        BlobRef {
            digest: self.digest.to_vec(),
            size: self.size,
            role: self.role,
            name: self.name.clone(),
        }
    }
}

/// An assignment as this worker got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence.
    pub epoch: u64,
    /// The chain.
    pub chain: ChainId,
    /// The chain's name, for people.
    pub chain_name: String,
    /// The hop, which is also the layer.
    pub hop: u32,
    /// The chain's generation.
    pub generation: u32,
    /// Digest of the program.
    pub program: Digest,
    /// Name of the parameter set.
    pub parameter_set: String,
    /// The parameter set protects nothing.
    pub insecure: bool,
    /// What the hop needs.
    pub blobs: Vec<Blob>,
    /// Size of the output, bytes.
    pub expected_output_bytes: u64,
}

impl Lease {
    /// Reads an assignment; what is wrong with it otherwise.
    pub fn from_wire(a: v1::Assignment) -> Result<Lease, String> {
        let digest = |bytes: &[u8]| Digest::from_slice(bytes).map_err(|e| e.to_string());
        let blob = |b: BlobRef| {
            Ok(Blob {
                digest: digest(&b.digest)?,
                size: b.size,
                role: b.role,
                name: b.name,
            })
        };
        let lease = Lease {
            attempt: AttemptId::from_slice(&a.attempt_id).map_err(|e| e.to_string())?,
            epoch: a.epoch,
            chain: ChainId::from_slice(&a.chain_id).map_err(|e| e.to_string())?,
            chain_name: a.chain_name,
            hop: a.hop,
            generation: a.generation,
            program: digest(&a.program_digest)?,
            parameter_set: a.parameter_set,
            insecure: a.insecure,
            blobs: a
                .blobs
                .into_iter()
                .map(blob)
                .collect::<Result<_, String>>()?,
            expected_output_bytes: a.expected_output_bytes,
        };
        match lease.problem() {
            Some(problem) => Err(problem),
            None => Ok(lease),
        }
    }

    /// What is wrong with a lease that came from somewhere else.
    pub fn problem(&self) -> Option<String> {
        for text in [&self.chain_name, &self.parameter_set] {
            if text.len() > MAX_NAME || text.chars().any(char::is_control) {
                return Some("the name of its chain or parameter set cannot be shown".into());
            }
        }
        for role in [
            BlobRole::Program,
            BlobRole::Weights,
            BlobRole::KeyManifest,
            BlobRole::Input,
        ] {
            match self.blobs.iter().filter(|b| b.role == role as i32).count() {
                1 => {}
                n => {
                    return Some(format!(
                        "{n} blobs of the role {} where one is needed",
                        role.as_str_name()
                    ));
                }
            }
        }
        None
    }

    /// The one blob of a role ([`Lease::from_wire`] has checked that it is there).
    pub fn blob(&self, role: BlobRole) -> Option<&Blob> {
        self.blobs.iter().find(|b| b.role == role as i32)
    }
}

/// A finished result; the bytes lie in the spool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The output ciphertext.
    pub output: Digest,
    /// Its size, bytes.
    pub output_size: u64,
    /// The trace file.
    pub trace: Digest,
    /// Its size, bytes.
    pub trace_size: u64,
    /// SHA-256 over the trace's lines without times.
    pub trace_root: Digest,
    /// Summed over restarts.
    pub compute_seconds: f64,
}

/// How far an attempt is on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkState {
    /// Leased; blobs may be missing.
    Leased,
    /// All blobs were in the cache.
    Fetched,
    /// The computation was begun; checkpoints lie in the work folder.
    Computing,
    /// Packed and carried to another machine, which computes it; this one does not.
    Away,
    /// The result is in the spool and has to be handed in.
    Finished(Finished),
    /// The result was refused for this reason; it stays in the spool for `resubmit`.
    Parked {
        /// The result.
        result: Finished,
        /// The coordinator's reason.
        reason: String,
    },
    /// Over. The result, where there is one, may be pruned from the spool.
    Closed {
        /// The result, while it is in the spool.
        result: Option<Finished>,
        /// The outcome or reason that ended it.
        outcome: String,
    },
}

impl WorkState {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            WorkState::Leased => "leased",
            WorkState::Fetched => "fetched",
            WorkState::Computing => "computing",
            WorkState::Away => "away",
            WorkState::Finished(_) => "finished",
            WorkState::Parked { .. } => "parked",
            WorkState::Closed { .. } => "closed",
        }
    }

    /// The result, if it is in the spool.
    pub fn result(&self) -> Option<&Finished> {
        match self {
            WorkState::Finished(result) | WorkState::Parked { result, .. } => Some(result),
            WorkState::Closed { result, .. } => result.as_ref(),
            _ => None,
        }
    }

    /// Whether the worker has to go on with it by itself.
    pub fn is_live(&self) -> bool {
        matches!(
            self,
            WorkState::Leased | WorkState::Fetched | WorkState::Computing | WorkState::Finished(_)
        )
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// What was leased.
    pub lease: Lease,
    /// How far it is.
    pub state: WorkState,
    /// Seconds computed in earlier runs of the child process.
    pub compute_seconds: f64,
    /// Crashes of the child process since the last completed step.
    pub crashes: u32,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// Everything at one moment; first line after a compaction.
    Snapshot(Box<State>),
    /// A claim was added.
    Claimed(Claim),
    /// A claim is done or was withdrawn.
    Unclaimed(Claim),
    /// An Acquire is about to be sent.
    Asking(Asking),
    /// It was answered with no work.
    Answered,
    /// It was answered with this assignment.
    Leased(Box<Lease>),
    /// An attempt's state changed.
    Moved {
        /// Which.
        attempt: AttemptId,
        /// Now.
        to: WorkState,
    },
    /// Computing time was used.
    Used {
        /// By which attempt.
        attempt: AttemptId,
        /// Seconds in this run of the child.
        seconds: f64,
        /// The child crashed without completing a step.
        crashed: bool,
    },
    /// A closed attempt is not remembered any longer.
    Forgotten {
        /// Which.
        attempt: AttemptId,
    },
}

/// The journal's content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// In the order they were made.
    pub claims: Vec<Claim>,
    /// Sent and not answered as far as is known.
    pub asking: Option<Asking>,
    /// Attempts; the ids are ordered by time.
    pub works: BTreeMap<AttemptId, Work>,
}

impl State {
    /// Applies one line. Lines about attempts that are not known (lost with a damaged line) change nothing.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Snapshot(state) => *self = *state,
            Entry::Claimed(claim) => {
                if !self.claims.contains(&claim) {
                    self.claims.push(claim);
                }
            }
            Entry::Unclaimed(claim) => self.claims.retain(|c| *c != claim),
            Entry::Asking(asking) => self.asking = Some(asking),
            Entry::Answered => self.asking = None,
            Entry::Leased(lease) => {
                self.asking = None;
                self.works.entry(lease.attempt).or_insert(Work {
                    lease: *lease,
                    state: WorkState::Leased,
                    compute_seconds: 0.0,
                    crashes: 0,
                });
            }
            Entry::Moved { attempt, to } => {
                if let Some(work) = self.works.get_mut(&attempt) {
                    work.state = to;
                }
            }
            Entry::Used {
                attempt,
                seconds,
                crashed,
            } => {
                if let Some(work) = self.works.get_mut(&attempt) {
                    work.compute_seconds += seconds;
                    work.crashes = if crashed { work.crashes + 1 } else { 0 };
                }
            }
            Entry::Forgotten { attempt } => {
                self.works.remove(&attempt);
            }
        }
    }
}
