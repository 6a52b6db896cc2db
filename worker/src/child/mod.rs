//! A hop is computed in a process of its own (`cipherhop-worker hop-exec`): when it crashes or is killed for its
//! memory, the agent lives on and resumes it from the last complete step.

mod exec;
mod runner;

pub use exec::exec;
pub use runner::{Halt, Outcome, Runner};

use std::path::PathBuf;

use cipherhop_proto::Digest;
use cipherhop_proto::v1::{BlobRole, FailKind};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::error::WorkerError;
use crate::journal::{Finished, Lease};

/// A file and the digest it has to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckedFile {
    /// Where.
    pub path: PathBuf,
    /// SHA-256.
    pub digest: Digest,
}

/// What the child is to do; written by the agent into the work folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Decoder layer, which is the hop's number.
    pub layer: u32,
    /// Name of the parameter set.
    pub parameter_set: String,
    /// The chain's program.
    pub program: CheckedFile,
    /// The layer's weight pack.
    pub weights: CheckedFile,
    /// Which key has which digest.
    pub key_manifest: CheckedFile,
    /// The hop's input ciphertext.
    pub input: CheckedFile,
    /// Key files by digest.
    pub keys: PathBuf,
    /// Checkpoints.
    pub work: PathBuf,
    /// Where output and trace go.
    pub spool: PathBuf,
    /// Threads to use.
    pub threads: usize,
    /// Memory to use, bytes.
    pub memory: u64,
}

impl Job {
    /// For a lease whose blobs are all in the cache.
    pub fn of(
        lease: &Lease,
        cache: &Cache,
        work: PathBuf,
        spool: PathBuf,
        threads: usize,
        memory: u64,
    ) -> Result<Job, WorkerError> {
        let file = |role: BlobRole| {
            let blob = lease
                .blob(role)
                .ok_or_else(|| WorkerError::Answer(format!("no blob {}", role.as_str_name())))?;
            Ok::<_, WorkerError>(CheckedFile {
                path: cache.path(&blob.digest),
                digest: blob.digest,
            })
        };
        Ok(Job {
            layer: lease.hop,
            parameter_set: lease.parameter_set.clone(),
            program: file(BlobRole::Program)?,
            weights: file(BlobRole::Weights)?,
            key_manifest: file(BlobRole::KeyManifest)?,
            input: file(BlobRole::Input)?,
            keys: cache.folder().to_owned(),
            work,
            spool,
            threads,
            memory,
        })
    }
}

/// Stages of the hop's bootstraps, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The layer's forward part.
    pub lay: f64,
    /// The final refresh.
    pub boot: f64,
    /// Bootstraps run.
    pub bootstraps: u32,
    /// All of them: slots to coefficients.
    pub stc: f64,
    /// All of them: modulus raising.
    pub modraise: f64,
    /// All of them: coefficients to slots.
    pub cts: f64,
    /// All of them: reduction modulo q0.
    pub evalmod: f64,
    /// All of them: bytes of evaluation keys read.
    pub key_bytes: u64,
    /// Most memory of the process, bytes; 0 where the system does not say.
    #[serde(default)]
    pub peak_memory: u64,
    /// Evaluation keys loaded, each time anew when memory was short.
    #[serde(default)]
    pub key_loads: u64,
    /// Seconds of loading keys.
    #[serde(default)]
    pub key_seconds: f64,
}

/// Why the child could not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The computation itself.
    Compute,
    /// Program, weights, keys or input.
    Input,
    /// No room or a broken disk.
    Disk,
    /// The system took the memory away.
    OutOfMemory,
}

impl Failure {
    /// As the wire names it.
    pub fn to_wire(self) -> FailKind {
        match self {
            Failure::Compute => FailKind::Compute,
            Failure::Input => FailKind::Input,
            Failure::Disk => FailKind::Disk,
            Failure::OutOfMemory => FailKind::OutOfMemory,
        }
    }
}

/// One line of the child's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Line {
    /// Before the first step.
    Started {
        /// Steps of the hop.
        steps_total: u32,
        /// Steps found complete.
        steps_done: u32,
    },
    /// A step begins.
    StepStarted {
        /// From 0.
        index: u32,
        /// Name in the program.
        name: String,
    },
    /// A step is complete and on disk.
    StepDone {
        /// From 0.
        index: u32,
        /// Name in the program.
        name: String,
        /// Wall time.
        seconds: f64,
    },
    /// Output and trace are in the spool.
    Finished {
        /// What lies there.
        result: Finished,
        /// Where the time went.
        profile: Profile,
    },
    /// Stopped on request.
    Cancelled,
    /// Not begun, because the memory does not suffice.
    Refused {
        /// Bytes needed.
        needed: u64,
        /// Bytes it may use.
        available: u64,
    },
    /// It cannot be done.
    Failed {
        /// What kind of trouble.
        kind: Failure,
        /// In words.
        detail: String,
    },
}
