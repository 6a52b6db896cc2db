//! Requests, answers and rows of the store.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use cipherhop_proto::signing::{PublicKey, Signature};
use cipherhop_proto::{
    AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, Reason, TokenId, UploadId,
};

use crate::domain::attempt::Attempt;
use crate::domain::chain::Chain;
use crate::domain::command::{Outcome, Refusal};
use crate::domain::hop::HopState;
use crate::domain::reconcile::Fate;
use crate::domain::time::Timestamp;
use crate::domain::trust::ProbeOdds;
use crate::domain::view::{Assignment, BlobRole};

/// Why a store call failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The rules refuse it; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The database failed; nothing changed.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    /// The database's schema could not be brought up to date.
    #[error("migration: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row holds what no version of this program writes.
    #[error("damaged row: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Another writer was in the way: the same call may succeed when it is made again.
    pub fn is_conflict(&self) -> bool {
        // PostgreSQL: serialization failure, deadlock, a unique row that another writer made first.
        const CODES: [&str; 3] = ["40001", "40P01", "23505"];
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| CODES.contains(&&*code))
            }
            _ => false,
        }
    }

    /// The database's disk is full.
    pub fn is_disk_full(&self) -> bool {
        // SQLITE_FULL; PostgreSQL: disk_full.
        const CODES: [&str; 2] = ["13", "53100"];
        match self {
            Self::Database(sqlx::Error::Database(error)) => {
                error.code().is_some_and(|code| CODES.contains(&&*code))
            }
            _ => false,
        }
    }
}

/// Work that one of several replicas does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Duty {
    /// Ending leases whose time has come.
    Reaper,
    /// Keeping blobs in a folder that no other process sees: only one may do that on one database.
    LocalBlobs,
}

/// Result of a store call.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Enrols devices of its account.
    Invite,
    /// A device's own token.
    Volunteer,
    /// A key holder.
    Owner,
    /// An operator.
    Admin,
    /// May only look.
    Observer,
}

/// A token to create. Only its hash is kept.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Public handle.
    pub id: TokenId,
    /// SHA-256 of the secret.
    pub hash: Digest,
    /// What it allows; not [`Role::Volunteer`], those come from [`Store::enroll`].
    pub role: Role,
    /// Name of the account it belongs to; made when new.
    pub account_name: String,
}

/// Who a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token.
    pub token: TokenId,
    /// What it allows.
    pub role: Role,
    /// Its account.
    pub account: AccountId,
    /// The account's name.
    pub account_name: String,
    /// Its device, for volunteers.
    pub device: Option<DeviceId>,
    /// The one chain it is for; `None`: every chain.
    pub scope: Option<ChainId>,
}

/// A device that enrols.
#[derive(Debug, Clone)]
pub struct Enrolment {
    /// SHA-256 of the invite.
    pub invite: Digest,
    /// The same nonce (of one account) gets the same device.
    pub nonce: Nonce,
    /// Shown to observers.
    pub display_name: String,
    /// Id for the device if it is new.
    pub device: DeviceId,
    /// Handle of the device's token.
    pub token: TokenId,
    /// SHA-256 of the device's token. On a repeat it replaces the earlier one, whose secret was lost.
    pub token_hash: Digest,
}

/// What a device signed with a result; chain, generation and hop are the attempt's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultSignature {
    /// The attempt.
    pub attempt: AttemptId,
    /// The key it was checked with.
    pub key: PublicKey,
    /// Digest of the output.
    pub output: Digest,
    /// Root of the trace.
    pub trace_root: Digest,
    /// The signature.
    pub signature: Signature,
}

/// An operator's action that is about to be done.
#[derive(Debug, Clone)]
pub struct AuditStart {
    /// Token of the caller.
    pub token: TokenId,
    /// Account of the caller.
    pub account: String,
    /// Name of the action.
    pub action: &'static str,
    /// What it is done to.
    pub target: String,
    /// Parameters and reasons, in words; no secrets.
    pub detail: String,
}

/// An operator's action on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Ascending with time.
    pub number: u64,
    /// When it began.
    pub at: Timestamp,
    /// Token of the caller.
    pub token: TokenId,
    /// Account of the caller.
    pub account: String,
    /// Name of the action.
    pub action: String,
    /// What it was done to.
    pub target: String,
    /// Parameters and reasons, in words.
    pub detail: String,
    /// "done" or a reason; `None`: the coordinator ended before it was known.
    pub outcome: Option<String>,
}

/// A request for work.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The same nonce of a device gets the same attempt.
    pub nonce: Nonce,
    /// The device (from its token).
    pub device: DeviceId,
    /// Id for the attempt if one is made.
    pub attempt: AttemptId,
    /// Only this chain.
    pub chain: Option<ChainId>,
    /// Only these hops.
    pub hops: Option<RangeInclusive<u32>>,
    /// Memory of the machine, bytes.
    pub memory_bytes: u64,
    /// Free disk, bytes; 0 while unknown.
    pub disk_bytes: u64,
    /// Blobs already in the machine's cache, for scoring.
    pub cached: Vec<Digest>,
    /// Chains whose open hop a referee is about to decide: nothing of them is handed out.
    pub held: Vec<ChainId>,
    /// How often known-answer hops are mixed in.
    pub probes: ProbeOdds,
    /// Uniform, made for this request: whether it gets a known-answer hop, and which.
    pub draw: u64,
}

/// The answer to a request for work.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// An attempt: new, of the same nonce, or the live one the device already holds.
    Assigned(Box<Assignment>),
    /// Nothing now; the refusal's reason and wait are for the worker.
    NoWork(Refusal),
}

/// The answer to a submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// What became of the result.
    pub outcome: Outcome,
    /// State of the hop afterwards.
    pub hop_state: HopState,
}

/// An open hop whose waiting results differ.
#[derive(Debug, Clone)]
pub struct Disputed {
    /// Its chain.
    pub chain: Chain,
    /// The chain's generation.
    pub generation: u32,
    /// The hop.
    pub hop: u32,
    /// Input of the hop.
    pub input: Digest,
    /// Attempts whose results wait, in order of epoch.
    pub attempts: Vec<Attempt>,
}

/// What a device and the coordinator hold of each other's attempts.
#[derive(Debug, Clone)]
pub struct Reconciled {
    /// One per attempt the device named, in their order.
    pub fates: Vec<Fate>,
    /// Live attempts the device did not name.
    pub lost: Vec<Assignment>,
}

/// The answer to requeue and reopen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reopened {
    /// State of the hop afterwards.
    pub hop_state: HopState,
    /// Why it had failed.
    pub was: Option<Reason>,
}

/// A complete blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRecord {
    /// Content address.
    pub digest: Digest,
    /// Length, bytes.
    pub size: u64,
    /// When it became complete.
    pub completed: Timestamp,
}

/// State of an upload: Reserved until the first byte is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadState {
    /// Nothing acknowledged.
    Reserved,
    /// Some bytes acknowledged.
    Uploading,
}

/// An upload in progress. One per digest and account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its id.
    pub id: UploadId,
    /// Declared digest.
    pub digest: Digest,
    /// Declared length, bytes.
    pub size: u64,
    /// What the blob is for.
    pub role: BlobRole,
    /// Who sends it.
    pub account: AccountId,
    /// The attempt it belongs to, for volunteers.
    pub attempt: Option<AttemptId>,
    /// Bytes acknowledged as durable.
    pub committed: u64,
    /// Reserved or Uploading.
    pub state: UploadState,
    /// Last change.
    pub updated: Timestamp,
}

/// An upload to open.
#[derive(Debug, Clone, Copy)]
pub struct NewUpload {
    /// Id for the upload if it is new.
    pub id: UploadId,
    /// Declared digest.
    pub digest: Digest,
    /// Declared length, bytes.
    pub size: u64,
    /// What the blob is for.
    pub role: BlobRole,
    /// Who sends it.
    pub account: AccountId,
    /// The attempt it belongs to, for volunteers.
    pub attempt: Option<AttemptId>,
}

/// An opened upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenedUpload {
    /// The blob is there: nothing to send.
    Complete(BlobRecord),
    /// Send from the committed offset.
    Open(UploadRecord),
}

/// What an import of an archive did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    /// Digests that were new.
    pub imported: u32,
    /// Digests that were known (expected or verified).
    pub already_known: u32,
}

/// What one pass of the reaper did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReapReport {
    /// Leases that went silent.
    pub silent: u32,
    /// Attempts whose hard deadline passed.
    pub expired: u32,
    /// Next time a lease needs a look (I8); `None` without live leases.
    pub next_wake: Option<Timestamp>,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [
        Self::Invite,
        Self::Volunteer,
        Self::Owner,
        Self::Admin,
        Self::Observer,
    ];

    /// The role's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invite => "Invite",
            Self::Volunteer => "Volunteer",
            Self::Owner => "Owner",
            Self::Admin => "Admin",
            Self::Observer => "Observer",
        }
    }
}

impl UploadState {
    /// The state's name as rows hold it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserved => "Reserved",
            Self::Uploading => "Uploading",
        }
    }
}

impl From<Reason> for StoreError {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason.into())
    }
}

/// Everything at a glance, for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overview {
    /// Chains by state.
    pub chains: BTreeMap<&'static str, u64>,
    /// Open hops of active chains by state.
    pub hops: BTreeMap<&'static str, u64>,
    /// Devices by state.
    pub devices: BTreeMap<&'static str, u64>,
    /// Live leases.
    pub leases: u64,
    /// Those that went silent.
    pub silent: u64,
    /// Time since the oldest live lease was handed out.
    pub oldest_lease: Duration,
    /// Time since the last sign of life of the quietest live lease.
    pub longest_silence: Duration,
    /// Time the longest waiting ready hop has waited, its back-off not counted.
    pub oldest_ready: Duration,
    /// Time the longest waiting result has waited for a second one.
    pub oldest_verifying: Duration,
    /// Verified hops that wait to be run again.
    pub rechecks: u64,
    /// Uploads in progress.
    pub uploads: u64,
    /// Sequence number of the newest event.
    pub newest_event: u64,
}

/// What a ledger key is to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerKeyChange {
    /// The newest one already.
    Known,
    /// The first one.
    First,
    /// It takes the place of another.
    Replaced {
        /// The one before.
        before: PublicKey,
    },
    /// Another one is in use; nothing was changed.
    Refused {
        /// That one.
        known: PublicKey,
    },
}
