//! Errors of planning and of running a hop.

use cipherhop_ckks::CkksError;

/// Why a model, calibration, parameter set and prompt length cannot become a program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The tokens or the vectors do not fit into the slots.
    #[error("{what} does not fit: {need} needed, {have} available; {hint}")]
    TooLarge {
        /// What does not fit.
        what: &'static str,
        /// Amount needed.
        need: usize,
        /// Amount available.
        have: usize,
        /// What to change.
        hint: String,
    },
    /// A stage needs more levels than a bootstrap leaves.
    #[error("layer {layer}, {stage}: {need} levels needed, {have} available; {hint}")]
    Levels {
        /// Decoder layer.
        layer: usize,
        /// Stage of the circuit.
        stage: &'static str,
        /// Levels needed.
        need: usize,
        /// Levels available.
        have: usize,
        /// What to change.
        hint: &'static str,
    },
    /// Model shape, calibration and weight packs contradict each other.
    #[error("inconsistent input: {0}")]
    Inconsistent(String),
    /// The program text is not one this version writes.
    #[error("not a valid program: {0}")]
    BadProgram(String),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] CkksError),
}

/// Why a hop could not be run.
#[derive(Debug, thiserror::Error)]
pub enum HopError {
    /// The caller asked to stop; complete steps stay on disk.
    #[error("cancelled")]
    Cancelled,
    /// The program is not valid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The engine refused (missing key, malformed ciphertext, level exhausted).
    #[error(transparent)]
    Engine(#[from] CkksError),
    /// An input does not belong to this program.
    #[error("input refused: {0}")]
    BadInput(String),
    /// A slot left the interval its polynomial was made for (only the plaintext simulation can see that).
    #[error("{what}: value {value:.4} outside [-1, 1]")]
    OutOfInterval {
        /// Step or polynomial.
        what: String,
        /// Normalised value.
        value: f64,
    },
    /// Reading or writing the work folder failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Cause.
        source: std::io::Error,
    },
    /// Something that cannot happen unless this program is wrong.
    #[error("internal error: {0}")]
    Internal(String),
}
