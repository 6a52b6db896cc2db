//! The golden self-test: proof, before the first lease, that this machine computes the same bytes as all others.

use cipherhop_ckks::{Isa, kernel_for};
use cipherhop_proto::Digest;
use serde::{Deserialize, Serialize};

use crate::durable::write_atomic;
use crate::error::WorkerError;
use crate::folder::{Folder, to_json};
use crate::machine;

/// A result and what it was made with; another build or processor needs a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    made_with: String,
    digest: Digest,
}

/// What the self-test found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SelfTest {
    /// Computed here.
    pub digest: Digest,
    /// What every machine computes; absent in builds that have none committed.
    pub expected: Option<Digest>,
}

impl SelfTest {
    /// Refuses a machine that computes other bytes.
    pub fn check(&self) -> Result<Digest, WorkerError> {
        match self.expected {
            Some(expected) if expected != self.digest => Err(WorkerError::SelfTest {
                got: self.digest.to_string(),
                expected: expected.to_string(),
            }),
            _ => Ok(self.digest),
        }
    }
}

/// The instruction set asked for, or the fastest; refused where this machine lacks it.
pub fn usable(asked: Option<Isa>) -> Result<Isa, WorkerError> {
    let isa = asked.unwrap_or_else(Isa::best);
    kernel_for(isa)
        .map(|_| isa)
        .map_err(|e| WorkerError::Resources(format!("--isa: {e}")))
}

/// Runs the self-test (seconds).
pub fn run(isa: Isa, threads: usize) -> Result<SelfTest, WorkerError> {
    let (digest, expected) = golden(isa, threads)?;
    Ok(SelfTest { digest, expected })
}

/// The kept result if it was made with this build on this processor, otherwise a new run.
pub fn run_or_recall(folder: &Folder, isa: Isa, threads: usize) -> Result<SelfTest, WorkerError> {
    let made_with = made_with(isa);
    let path = folder.golden();
    if let Ok(bytes) = std::fs::read(&path)
        && let Ok(kept) = serde_json::from_slice::<Kept>(&bytes)
        && kept.made_with == made_with
        && expected().is_none_or(|expected| expected == kept.digest)
    {
        return Ok(SelfTest {
            digest: kept.digest,
            expected: expected(),
        });
    }
    let found = run(isa, threads)?;
    if found.check().is_ok() {
        write_atomic(
            &path,
            &to_json(&Kept {
                made_with,
                digest: found.digest,
            }),
            false,
        )?;
    }
    Ok(found)
}

fn made_with(isa: Isa) -> String {
    let built = std::env::current_exe()
        .and_then(|path| path.metadata())
        .and_then(|meta| meta.modified())
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map(|since| since.as_nanos())
        .unwrap_or_default();
    format!(
        "{} built {built} on {} {} with {isa}",
        env!("CARGO_PKG_VERSION"),
        machine::cpu(),
        machine::features().join(" ")
    )
}

fn expected() -> Option<Digest> {
    cipherhop_hop::golden::GOLDEN.parse().ok()
}

fn golden(isa: Isa, threads: usize) -> Result<(Digest, Option<Digest>), WorkerError> {
    let digest = cipherhop_hop::golden::golden_digest_on(isa, threads)
        .map_err(|e| WorkerError::Resources(format!("the self-test could not be run: {e}")))?;
    Ok((Digest::from_bytes(digest), expected()))
}
