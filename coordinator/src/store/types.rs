//! Requests, answers and rows of the store.

use std::ops::RangeInclusive;

use cipherhop_proto::{
    AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, Reason, TokenId, UploadId,
};

use crate::domain::command::{Outcome, Refusal};
use crate::domain::hop::HopState;
use crate::domain::time::Timestamp;
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
