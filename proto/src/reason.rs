//! The one table of reasons: what went wrong, the gRPC code, whether to try again, what to do.
//!
//! Clients branch on [`Reason`], never on an error's text.

use std::fmt;
use std::str::FromStr;

use tonic::Code;

/// What a client does about a failed call without asking a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Send the same request again, at once or after the wait that comes with it.
    Same,
    /// Send the same request again after a growing wait.
    BackOff,
    /// Leave this attempt (keep its result in the spool) and ask for another hop.
    NextHop,
    /// Somebody must change something first.
    AfterChange,
    /// The answer will not change: do not ask again.
    Never,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident, $name:literal, $code:ident, $retry:ident, $advice:literal;)+) => {
        /// Why a call was refused, a hop is stuck, or no work was given.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)+];

            /// The name on the wire, for example `STALE_EPOCH`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $name,)+ }
            }

            /// The gRPC status code that carries it.
            pub const fn code(self) -> Code {
                match self { $(Reason::$variant => Code::$code,)+ }
            }

            /// What a client does about it by itself.
            pub const fn retry(self) -> Retry {
                match self { $(Reason::$variant => Retry::$retry,)+ }
            }

            /// What it means, one line.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// What a person should do, one line.
            pub const fn advice(self) -> &'static str {
                match self { $(Reason::$variant => $advice,)+ }
            }
        }
    };
}

reasons! {
    // Who is asking.
    /// The call carries no bearer token.
    TokenMissing, "TOKEN_MISSING", Unauthenticated, AfterChange, "Enrol first, or pass the token's file.";
    /// The bearer token is unknown or malformed.
    TokenInvalid, "TOKEN_INVALID", Unauthenticated, AfterChange, "Check that the token belongs to this coordinator; ask its operator for a new one.";
    /// The bearer token was revoked.
    TokenRevoked, "TOKEN_REVOKED", Unauthenticated, AfterChange, "Ask the operator for a new token.";
    /// The token's role may not make this call.
    RoleNotAllowed, "ROLE_NOT_ALLOWED", PermissionDenied, AfterChange, "Use a token of the role that the call names.";
    /// The token is for another chain.
    TokenScope, "TOKEN_SCOPE", PermissionDenied, AfterChange, "Ask the operator for a token of this chain or of every chain.";
    /// The invite is unknown or revoked.
    InviteInvalid, "INVITE_INVALID", Unauthenticated, AfterChange, "Ask the operator for a new invite.";
    /// The device is quarantined or banned.
    DeviceQuarantined, "DEVICE_QUARANTINED", PermissionDenied, AfterChange, "Run `doctor` on the machine, then ask the operator to lift the quarantine.";
    /// No device of that id.
    DeviceNotFound, "DEVICE_NOT_FOUND", NotFound, Never, "List the devices and check the id.";

    /// The device's key is no valid key, is not proven by its signature, or belongs to another device.
    DeviceKeyInvalid, "DEVICE_KEY_INVALID", InvalidArgument, AfterChange, "Enrol in a new data folder, so that a new key is made.";
    /// The device must sign its results and this one is not signed.
    SignatureMissing, "SIGNATURE_MISSING", FailedPrecondition, AfterChange, "Update the worker; if it has no key, enrol it again in a new data folder.";
    /// The signature is not the device's over this result.
    SignatureInvalid, "SIGNATURE_INVALID", PermissionDenied, NextHop, "Check that the data folder's device.key is the one it enrolled with; the result stays in the spool.";

    // Versions and requests.
    /// No protocol version is spoken by both sides.
    ProtocolUnsupported, "PROTOCOL_UNSUPPORTED", FailedPrecondition, AfterChange, "Update the older side.";
    /// A field of the request is missing or has a value it cannot have.
    BadRequest, "BAD_REQUEST", InvalidArgument, Never, "The details name the field; this is a fault of the client program.";
    /// The program's format or digest is unknown here.
    ProgramUnknown, "PROGRAM_UNKNOWN", FailedPrecondition, AfterChange, "Update the worker: the chain needs a program it cannot run.";
    /// The self-test's golden digest is not one the coordinator knows.
    SelfTestFailed, "SELF_TEST_FAILED", FailedPrecondition, AfterChange, "Run `doctor`; the machine or the build computes other bytes than everyone else.";
    /// The parameter set is unknown here.
    ParametersUnknown, "PARAMETERS_UNKNOWN", InvalidArgument, AfterChange, "Use a parameter set of this version, or update the coordinator.";
    /// The parameter set is below 128 bits and that was not allowed.
    InsecureNotAllowed, "INSECURE_NOT_ALLOWED", FailedPrecondition, AfterChange, "Use a secure parameter set, or say --allow-insecure for a test.";

    // Chains.
    /// No chain of that id or name.
    ChainNotFound, "CHAIN_NOT_FOUND", NotFound, AfterChange, "List the chains and check the id.";
    /// A chain of that id or name exists with other contents.
    ChainExists, "CHAIN_EXISTS", AlreadyExists, Never, "Choose a new chain id and name.";
    /// The chain is paused: nothing new is handed out.
    ChainPaused, "CHAIN_PAUSED", FailedPrecondition, BackOff, "Wait for the operator to resume it; finished work can still be submitted.";
    /// The chain waits for an operator: a hop is stuck.
    ChainStuck, "CHAIN_STUCK", FailedPrecondition, BackOff, "See the hop's reason; reopen or requeue the hop.";
    /// Every hop of the chain is verified.
    ChainCompleted, "CHAIN_COMPLETED", FailedPrecondition, Never, "Nothing to do; the key holder can decrypt.";
    /// The chain was cancelled.
    ChainCancelled, "CHAIN_CANCELLED", FailedPrecondition, Never, "Choose another chain.";
    /// The chain's state does not allow this change.
    ChainStateConflict, "CHAIN_STATE_CONFLICT", FailedPrecondition, Never, "Look at the chain's state first.";
    /// The chain has no hop of that number.
    HopNotFound, "HOP_NOT_FOUND", NotFound, Never, "Hops count from 0 to the chain's length less one.";

    // Asking for work.
    /// No hop is open for this device at the moment.
    NoOpenHop, "NO_OPEN_HOP", Unavailable, BackOff, "Wait; hops open when earlier ones are verified or leases end.";
    /// The hop waits after a failure before it is handed out again.
    HopBackingOff, "HOP_BACKING_OFF", Unavailable, BackOff, "Wait; it opens by itself.";
    /// The account already works on this hop or has handed in its result.
    AccountAlreadyOnHop, "ACCOUNT_ALREADY_ON_HOP", FailedPrecondition, BackOff, "Another account has to confirm the hop; wait for the next one.";
    /// The device failed this hop last; another one goes first.
    DeviceFailedLast, "DEVICE_FAILED_LAST", FailedPrecondition, BackOff, "Another device tries first; after a while this one may again, and at once when the operator requeues the hop.";
    /// The device is too slow to finish the hop before its deadline.
    DeviceTooSlow, "DEVICE_TOO_SLOW", FailedPrecondition, BackOff, "Use a faster machine or another chain; the measure is forgotten after four deadlines, at most a day.";
    /// The device holds as many attempts as it may.
    DeviceBusy, "DEVICE_BUSY", ResourceExhausted, BackOff, "Finish or release an attempt first.";
    /// The machine has less memory than the chain's hops need.
    NotEnoughMemory, "NOT_ENOUGH_MEMORY", FailedPrecondition, AfterChange, "Use a machine with more memory or another chain.";
    /// The machine has less free disk than the hop's blobs need.
    NotEnoughDisk, "NOT_ENOUGH_DISK", FailedPrecondition, AfterChange, "Free some disk space or raise the cache's quota.";
    /// The server is going down or the operator asked devices to stop.
    Draining, "DRAINING", Unavailable, BackOff, "Wait; connect again later.";

    // Attempts.
    /// No attempt of that id.
    AttemptNotFound, "ATTEMPT_NOT_FOUND", NotFound, NextHop, "The coordinator's data is another one than before; keep the spool.";
    /// The attempt belongs to another device.
    AttemptNotYours, "ATTEMPT_NOT_YOURS", PermissionDenied, NextHop, "Use the device that took the hop.";
    /// The epoch is not the lease's: the caller was fenced off.
    StaleEpoch, "STALE_EPOCH", Aborted, NextHop, "Two workers share one identity, or the lease was taken over; run one worker per folder.";
    /// The attempt has ended.
    AttemptClosed, "ATTEMPT_CLOSED", FailedPrecondition, NextHop, "A finished result may still be submitted; otherwise take another hop.";
    /// The attempt already handed in another digest.
    SubmitConflict, "SUBMIT_CONFLICT", AlreadyExists, NextHop, "Run `doctor`: the machine computed two results for one input.";
    /// The hop is verified; this attempt is not needed any more.
    HopVerified, "HOP_VERIFIED", FailedPrecondition, NextHop, "Take another hop.";
    /// The hop is closed: its chain was cancelled or began a new generation.
    HopClosed, "HOP_CLOSED", FailedPrecondition, NextHop, "Take another hop.";
    /// The lease's hard deadline passed.
    DeadlinePassed, "DEADLINE_PASSED", DeadlineExceeded, NextHop, "Submit the result anyway if it is finished; it is still judged.";

    // Why an attempt failed.
    /// The computation of the hop failed.
    AttemptFailedCompute, "ATTEMPT_FAILED_COMPUTE", FailedPrecondition, NextHop, "Run `doctor`; read the worker's log.";
    /// The worker lost its connection for too long.
    AttemptFailedDisconnect, "ATTEMPT_FAILED_DISCONNECT", FailedPrecondition, NextHop, "Check the network.";
    /// An input blob could not be fetched or read.
    AttemptFailedInput, "ATTEMPT_FAILED_INPUT", FailedPrecondition, NextHop, "The operator checks the chain's blobs.";
    /// The result is not the expected one.
    ResultMismatch, "RESULT_MISMATCH", FailedPrecondition, NextHop, "Run `doctor`: the machine computes other bytes than others do.";

    // Why a hop is stuck.
    /// The hop failed in the computation too often.
    ComputeBudget, "COMPUTE_BUDGET", FailedPrecondition, AfterChange, "Read the failures' details; the program or its inputs may be wrong. Then requeue.";
    /// The hop's volunteers vanished or ran out of room too often.
    DisconnectBudget, "DISCONNECT_BUDGET", FailedPrecondition, AfterChange, "Check deadlines and memory needs against the volunteers, then requeue.";
    /// Too many results did not match the archived digest or were malformed.
    MismatchBudget, "MISMATCH_BUDGET", FailedPrecondition, AfterChange, "Check devices and the archive, then requeue.";
    /// Accounts disagree with each other and no quorum formed.
    QuorumDisagrees, "QUORUM_DISAGREES", FailedPrecondition, AfterChange, "Quarantine suspicious devices, then requeue: results so far are set aside.";
    /// Three accounts agree with each other against the archived digest.
    ArchiveSuspect, "ARCHIVE_SUSPECT", FailedPrecondition, AfterChange, "The archived digest is probably wrong: the key holder decides.";

    // Opening hops again.
    /// The hop is not stuck and has not failed.
    HopNotStuck, "HOP_NOT_STUCK", FailedPrecondition, Never, "Nothing to reopen.";
    /// Only an operator may open this hop again.
    OperatorOnly, "OPERATOR_ONLY", PermissionDenied, AfterChange, "Ask the operator to requeue the hop.";

    // Blobs.
    /// No such blob, or not complete.
    BlobNotFound, "BLOB_NOT_FOUND", NotFound, AfterChange, "Upload the blob first.";
    /// The caller may not read or write this blob.
    BlobNotAllowed, "BLOB_NOT_ALLOWED", PermissionDenied, Never, "Volunteers read the blobs of their live attempt and write its results.";
    /// The declared size contradicts the stored or claimed one.
    BlobSizeMismatch, "BLOB_SIZE_MISMATCH", InvalidArgument, Never, "The size must be the blob's length in bytes.";
    /// The bytes received do not have the declared digest.
    BlobDigestMismatch, "BLOB_DIGEST_MISMATCH", DataLoss, Same, "Upload again from the start; if it repeats, check memory and disk.";
    /// The blob is larger than this coordinator accepts.
    BlobTooLarge, "BLOB_TOO_LARGE", ResourceExhausted, AfterChange, "Ask the operator to raise the limit.";
    /// A blob still lacks bytes.
    BlobIncomplete, "BLOB_INCOMPLETE", FailedPrecondition, Same, "Send the rest, from the committed offset.";
    /// No upload of that id: open it again.
    UploadNotFound, "UPLOAD_NOT_FOUND", NotFound, Same, "Open the upload again; it goes on from the committed offset.";
    /// The offset is not the committed one.
    UploadOffset, "UPLOAD_OFFSET", OutOfRange, Same, "Open the upload again to learn the committed offset.";
    /// No byte of the stream arrived for too long.
    StreamIdle, "STREAM_IDLE", DeadlineExceeded, BackOff, "Open the upload again; it goes on from the committed offset. If it repeats, check the network.";
    /// The disk is full; nothing acknowledged was lost.
    DiskFull, "DISK_FULL", ResourceExhausted, BackOff, "The operator has to free space; keep the spool.";

    // Result bytes.
    /// The output does not parse as a ciphertext.
    OutputMalformed, "OUTPUT_MALFORMED", InvalidArgument, NextHop, "Run `doctor`; update the worker.";
    /// The output belongs to another parameter set.
    OutputWrongParameters, "OUTPUT_WRONG_PARAMETERS", InvalidArgument, NextHop, "Run `doctor`; update the worker.";
    /// The output's level, scale or component count is not the chain's.
    OutputWrongShape, "OUTPUT_WRONG_SHAPE", InvalidArgument, NextHop, "Run `doctor`; update the worker.";
    /// The output holds a residue that is not below its prime.
    OutputResidueRange, "OUTPUT_RESIDUE_RANGE", InvalidArgument, NextHop, "Run `doctor`: results must be canonical.";
    /// The output's size is not the chain's.
    OutputWrongSize, "OUTPUT_WRONG_SIZE", InvalidArgument, NextHop, "Run `doctor`; update the worker.";

    // Archive.
    /// The manifest names another digest than the one already known for the hop.
    ArchiveConflict, "ARCHIVE_CONFLICT", AlreadyExists, Never, "Find out which manifest is right; the stored one is unchanged.";
    /// The manifest is not in the form `hex  path`.
    ArchiveFormat, "ARCHIVE_FORMAT", InvalidArgument, Never, "Lines must be as sha256sum writes them.";

    // The server itself.
    /// Too many requests; submits are never limited.
    RateLimited, "RATE_LIMITED", ResourceExhausted, BackOff, "Wait as long as RetryInfo says.";
    /// The store is busy or unreachable.
    StoreUnavailable, "STORE_UNAVAILABLE", Unavailable, BackOff, "Wait; if it lasts, the operator looks at the database and the blob storage.";
    /// A fault inside the coordinator.
    Internal, "INTERNAL", Internal, BackOff, "Tell the operator the time of the call; the log has the cause.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is not in the table, perhaps of a newer version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reason {0:?}")]
pub struct UnknownReason(pub String);

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().find(|reason| reason.as_str() == name);
        known
            .copied()
            .ok_or_else(|| UnknownReason(name.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_has_one_name_a_code_and_an_advice() {
        let mut names = HashSet::new();
        for reason in Reason::ALL {
            let name = reason.as_str();
            assert!(names.insert(name), "{name} twice");
            assert!(
                name.chars().all(|c| c.is_ascii_uppercase() || c == '_'),
                "{name}"
            );
            assert_eq!(name.parse::<Reason>().unwrap(), *reason);
            assert_ne!(reason.code(), Code::Ok, "{name}");
            assert!(
                reason.meaning().ends_with('.') && reason.advice().ends_with('.'),
                "{name}"
            );
        }
    }

    #[test]
    fn codes_that_ask_for_a_retry_belong_to_reasons_that_allow_it() {
        for reason in Reason::ALL {
            if matches!(reason.code(), Code::Unavailable) {
                assert_eq!(reason.retry(), Retry::BackOff, "{reason}");
            }
            if matches!(reason.code(), Code::InvalidArgument | Code::Unauthenticated) {
                assert_ne!(reason.retry(), Retry::BackOff, "{reason}");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_with_bounded_text() {
        assert_eq!("x".repeat(500).parse::<Reason>().unwrap_err().0.len(), 64);
    }
}
