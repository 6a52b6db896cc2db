//! Runs one hop step by step, with a trace, checkpoints and resume.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cipherhop_ckks::KeySource;

use crate::error::HopError;

/// Everything one hop needs.
#[derive(Clone)]
pub struct HopJob {
    /// Program text (canonical JSON).
    pub program: Vec<u8>,
    /// Decoder layer.
    pub layer: u32,
    /// Weight pack of that layer.
    pub weights: Vec<u8>,
    /// Input ciphertext, wire format.
    pub input: Vec<u8>,
    /// Evaluation keys.
    pub keys: Arc<dyn KeySource>,
    /// Registers and trace live here; a second run with the same folder resumes.
    pub work_dir: PathBuf,
    /// Threads to use; the result does not depend on it.
    pub threads: usize,
}

/// Progress of a hop.
#[derive(Debug, Clone, PartialEq)]
pub enum HopEvent {
    /// Before the first step.
    Started {
        /// Steps of this hop.
        steps_total: u32,
        /// Steps found complete in the work folder.
        steps_done: u32,
    },
    /// A step begins.
    StepStarted {
        /// Step number from 0.
        index: u32,
        /// Steps of this hop.
        total: u32,
        /// Step name.
        name: String,
    },
    /// A step is complete and on disk.
    StepDone {
        /// Step number from 0.
        index: u32,
        /// Steps of this hop.
        total: u32,
        /// Step name.
        name: String,
        /// Wall time of the computation.
        seconds: f64,
    },
}

/// Seconds spent in the stages of all bootstraps of a hop.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BootSeconds {
    /// Slots to coefficients.
    pub stc: f64,
    /// Sparse encapsulation and modulus raising.
    pub modraise: f64,
    /// Coefficients to slots.
    pub cts: f64,
    /// Approximate reduction modulo q0.
    pub evalmod: f64,
    /// Bootstrap calls (a complex one counts once).
    pub count: u32,
}

/// A finished hop.
#[derive(Debug, Clone, PartialEq)]
pub struct HopOutput {
    /// Output ciphertext, wire format.
    pub output: Vec<u8>,
    /// SHA-256 of `output`.
    pub digest: [u8; 32],
    /// JSON lines, one per step.
    pub trace: Vec<u8>,
    /// SHA-256 over the trace without the times.
    pub trace_root: [u8; 32],
    /// Seconds of all steps (as measured when they ran, across resumes).
    pub compute_seconds: f64,
    /// Seconds of the layer's forward part.
    pub lay_seconds: f64,
    /// Seconds of the final refresh.
    pub boot_seconds: f64,
    /// Stages of all bootstraps.
    pub boot_profile: BootSeconds,
}

/// Runs the hop, or the rest of it after an interruption.
pub fn run_hop(
    _job: &HopJob,
    _on_event: &mut dyn FnMut(HopEvent),
    _cancel: &AtomicBool,
) -> Result<HopOutput, HopError> {
    Err(HopError::Internal(
        "running hops is not implemented yet".into(),
    ))
}
