//! What the coordinator remembers. One trait, several backends, one conformance suite.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};
use tokio::sync::watch;

use crate::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use crate::domain::chain::{Chain, ChainChange, NewChain};
use crate::domain::command::{Directive, Holder, Outcome, OutputCheck, Refusal};
use crate::domain::event::Event;
use crate::domain::hop::HopState;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Accuracy, Assignment, BlobRole, ChainStatus, HopResult, NeededBlob};

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
    pub was: Option<cipherhop_proto::Reason>,
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

/// What the coordinator remembers. Each call is one transaction; a call that returned survives
/// kill -9 on a durable backend (I5). Times and fresh ids come from the caller.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // Accounts, tokens, devices.

    /// Keeps a token's hash; makes its account when the name is new.
    async fn create_token(&self, token: NewToken, now: Timestamp) -> Result<Identity>;
    /// From now on the token gets TOKEN_REVOKED. Refuses with TOKEN_INVALID when unknown.
    async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<()>;
    /// Who holds the token of this hash; TOKEN_INVALID or TOKEN_REVOKED.
    async fn identify(&self, hash: Digest) -> Result<Identity>;
    /// Turns an invite into a device and its token; INVITE_INVALID.
    async fn enroll(&self, enrolment: Enrolment, now: Timestamp) -> Result<Identity>;
    /// Every device, by time of enrolment.
    async fn devices(&self) -> Result<Vec<Device>>;
    /// Puts a device into quarantine (its live attempts end) or lifts it back to Probation.
    async fn quarantine(
        &self,
        device: DeviceId,
        lift: bool,
        note: String,
        now: Timestamp,
    ) -> Result<Device>;

    // Blobs: rows only; bytes are the blob store's.

    /// The blob, if it is complete.
    async fn blob(&self, digest: Digest) -> Result<Option<BlobRecord>>;
    /// Opens or resumes the account's upload of a digest; BLOB_SIZE_MISMATCH when it contradicts
    /// the earlier declaration.
    async fn open_upload(&self, upload: NewUpload, now: Timestamp) -> Result<OpenedUpload>;
    /// An upload in progress; UPLOAD_NOT_FOUND.
    async fn upload(&self, id: UploadId) -> Result<UploadRecord>;
    /// Every upload in progress, to repair files at start.
    async fn uploads(&self) -> Result<Vec<UploadRecord>>;
    /// Records bytes as durable. `committed` must not shrink nor pass the size: UPLOAD_OFFSET.
    async fn commit_upload(&self, id: UploadId, committed: u64, now: Timestamp) -> Result<()>;
    /// Back to zero bytes after the received bytes turned out wrong.
    async fn restart_upload(&self, id: UploadId, now: Timestamp) -> Result<()>;
    /// The bytes are durable under their digest: the blob is complete and every upload of the digest
    /// ends. BLOB_INCOMPLETE while bytes lack.
    async fn complete_upload(&self, id: UploadId, now: Timestamp) -> Result<BlobRecord>;

    // Chains.

    /// Creates a chain; BLOB_NOT_FOUND, CHAIN_EXISTS. Creating the same one again changes nothing.
    async fn create_chain(&self, chain: NewChain, now: Timestamp) -> Result<Chain>;
    /// Every chain, by time of creation.
    async fn chains(&self) -> Result<Vec<Chain>>;
    /// CHAIN_NOT_FOUND.
    async fn chain(&self, id: ChainId) -> Result<Chain>;
    /// CHAIN_NOT_FOUND.
    async fn chain_by_name(&self, name: &str) -> Result<Chain>;
    /// Chain, hops and last sequence number of one moment.
    async fn status(&self, id: ChainId) -> Result<ChainStatus>;
    /// Inputs and verified outputs, for the owner.
    async fn results(&self, id: ChainId) -> Result<Vec<HopResult>>;
    /// The archive's rows in order, all generations.
    async fn archive(&self, id: ChainId) -> Result<Vec<ArchiveRow>>;
    /// Takes expected digests for hops; all or nothing; ARCHIVE_CONFLICT, HOP_NOT_FOUND.
    async fn import_archive(
        &self,
        id: ChainId,
        digests: Vec<(u32, Digest)>,
        now: Timestamp,
    ) -> Result<Imported>;
    /// Keeps the owner's figures for verified hops; HOP_NOT_FOUND, CHAIN_STATE_CONFLICT.
    async fn publish_accuracy(
        &self,
        id: ChainId,
        figures: Vec<Accuracy>,
        now: Timestamp,
    ) -> Result<()>;
    /// Pause, resume, cancel; CHAIN_STATE_CONFLICT.
    async fn change_chain(&self, id: ChainId, change: ChainChange, now: Timestamp)
    -> Result<Chain>;
    /// An operator opens a stuck or failing hop again; HOP_NOT_STUCK.
    async fn requeue(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Reopened>;
    /// A volunteer asks the same; also OPERATOR_ONLY.
    async fn reopen(&self, id: ChainId, hop: u32, note: String, now: Timestamp)
    -> Result<Reopened>;

    // Work.

    /// Hands out a hop. Refuses only for the device itself (DEVICE_QUARANTINED, TOKEN_INVALID) or an
    /// unknown chain; "nothing now" is an answer.
    async fn acquire(&self, request: AcquireRequest, now: Timestamp) -> Result<Acquired>;
    /// Renews a lease.
    async fn sync(
        &self,
        holder: Holder,
        phase: Phase,
        progress: Progress,
        now: Timestamp,
    ) -> Result<Directive>;
    /// Renews a lease because bytes of the attempt flow.
    async fn touch(&self, holder: Holder, now: Timestamp) -> Result<Directive>;
    /// Takes a result. A [`OutputCheck::Sound`] whose blobs are not complete counts as Missing (I3).
    async fn submit(
        &self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        now: Timestamp,
    ) -> Result<Submitted>;
    /// The worker gave up.
    async fn fail(
        &self,
        holder: Holder,
        kind: FailKind,
        detail: String,
        now: Timestamp,
    ) -> Result<HopState>;
    /// The worker gives the hop back.
    async fn release(&self, holder: Holder, now: Timestamp) -> Result<()>;
    /// One attempt; ATTEMPT_NOT_FOUND.
    async fn attempt(&self, id: AttemptId) -> Result<Attempt>;
    /// The blobs an attempt may read.
    async fn attempt_blobs(&self, id: AttemptId) -> Result<Vec<NeededBlob>>;

    // Time and events.

    /// Ends and silences leases whose time has come. Safe to call from anywhere at any time.
    async fn reap(&self, now: Timestamp) -> Result<ReapReport>;
    /// Events of a chain after a sequence number, oldest first, at most `limit`.
    async fn events(&self, id: ChainId, after: u64, limit: u32) -> Result<Vec<Event>>;
    /// Changes whenever an event was appended: a hint to read events or to look for work again.
    fn changes(&self) -> watch::Receiver<u64>;
}
