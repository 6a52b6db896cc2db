//! Everything that can go wrong in the engine, one variant per cause so that callers can branch on it.

use crate::cipher::ScaleId;
use crate::isa::Isa;
use crate::keys::KeyId;

/// A parameter set that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// No set of that name exists.
    #[error("unknown parameter set '{0}'")]
    Unknown(String),
    /// The set is below 128 bits and its name does not say INSECURE.
    #[error(
        "parameter set '{name}' has log2(QP) = {log_qp:.1}, above the 128-bit bound {bound} for its ring, and is not named INSECURE"
    )]
    BelowSecurity {
        /// Name of the set.
        name: String,
        /// log2 of the product of all primes.
        log_qp: f64,
        /// Largest log2(QP) allowed for 128 bits at this ring degree.
        bound: f64,
    },
    /// A modulus is unusable (not prime, too large, not 1 modulo 2N, or repeated).
    #[error("modulus {0} is not usable at this ring degree")]
    BadModulus(u64),
    /// Level counts and number of primes disagree, or the ring degree is out of range.
    #[error("inconsistent parameter set: {0}")]
    Inconsistent(&'static str),
}

/// Errors of the engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CkksError {
    /// The parameter set is unusable.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// The key source has no such evaluation key.
    #[error("evaluation key '{0}' is missing")]
    MissingKey(KeyId),
    /// The evaluation key covers fewer limbs than the ciphertext has.
    #[error("evaluation key '{id}' covers {have} limbs, the ciphertext has {need}")]
    KeyTooSmall {
        /// Which key.
        id: KeyId,
        /// Limbs the key covers.
        have: usize,
        /// Limbs needed.
        need: usize,
    },
    /// A key to the sparse secret at more than q0*p0 would be insecure, so it cannot exist.
    #[error("a key to the sparse secret exists only modulo q0*p0")]
    SparseKeyTooLarge,
    /// Not enough levels left.
    #[error("level {have} is too low, {need} needed")]
    LevelTooLow {
        /// Level of the operand.
        have: usize,
        /// Level needed.
        need: usize,
    },
    /// A level outside the chain of this scale row.
    #[error("level {0} does not exist on this scale row")]
    BadLevel(usize),
    /// Operands on different scale rows.
    #[error("operands are on different scale rows ({0:?}, {1:?})")]
    ScaleMismatch(ScaleId, ScaleId),
    /// Plaintext made for another level or another operation.
    #[error("plaintext does not fit: {0}")]
    PlaintextMismatch(&'static str),
    /// Number of slot values is not a power of two up to N/2.
    #[error("{0} slot values: not a power of two, or more than there are slots")]
    BadSlotCount(usize),
    /// A value to encode is NaN or infinite.
    #[error("value is not finite")]
    NotFinite,
    /// A value to encode does not fit in 62 bits at its scale.
    #[error("value too large for its scale")]
    ValueTooLarge,
    /// Polynomial of the wrong shape for the operation.
    #[error("polynomial does not fit: {0}")]
    ShapeMismatch(&'static str),
    /// No operand given where at least one is needed.
    #[error("at least one operand is needed")]
    Empty,
    /// Input ended early.
    #[error("truncated: {need} bytes needed, {have} given")]
    Truncated {
        /// Bytes the header announces.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// Bytes after the end.
    #[error("oversize: {need} bytes expected, {have} given")]
    Oversize {
        /// Bytes the header announces.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// The file of a key could not be read.
    #[error("key file: {0}")]
    Unreadable(String),
    /// First bytes are not those of this format.
    #[error("not a {0}")]
    BadMagic(&'static str),
    /// Version of the format not known here.
    #[error("format version {0} is not supported")]
    UnsupportedVersion(u16),
    /// Made under another parameter set.
    #[error("made under another parameter set")]
    ForeignParams,
    /// Header field with an undefined value.
    #[error("header field '{0}' has an undefined value")]
    BadHeader(&'static str),
    /// A residue that is not smaller than its modulus.
    #[error("residue out of range in limb {limb} at position {index}")]
    ResidueOutOfRange {
        /// Limb number within its component.
        limb: usize,
        /// Position in the limb.
        index: usize,
    },
    /// Text that names no key.
    #[error("'{0}' names no evaluation key")]
    BadKeyName(String),
    /// The processor, or the architecture this was built for, has no such instructions.
    #[error("this processor has no {0} instructions")]
    IsaMissing(Isa),
    /// Text that names no instruction set.
    #[error("unknown instruction set '{0}': scalar, avx2, avx512ifma or neon")]
    UnknownIsa(String),
}
