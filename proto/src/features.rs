//! Names of what a side can do beyond the protocol version; they travel in Hello. Unknown names are ignored, so either
//! side may learn something new first.

/// Enrolment takes a device key, and results are signed with it.
pub const DEVICE_SIGNATURES: &str = "device-signatures";

/// Tokens may be for one chain.
pub const TOKEN_SCOPES: &str = "token-scopes";

/// What this version's coordinator says it can do, beside the program formats.
pub const COORDINATOR: &[&str] = &[DEVICE_SIGNATURES, TOKEN_SCOPES];

/// What this version's worker says it can do.
pub const WORKER: &[&str] = &[DEVICE_SIGNATURES];
