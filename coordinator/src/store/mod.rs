//! What the coordinator remembers. One trait, several backends, one conformance suite.

mod engine;
mod memory;
mod sqlite;
mod tx;
mod types;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, TokenId, UploadId};
use tokio::sync::watch;

use crate::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use crate::domain::chain::{Chain, ChainChange, NewChain};
use crate::domain::command::{Directive, Holder, OutputCheck};
use crate::domain::event::Event;
use crate::domain::hop::HopState;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Accuracy, ChainStatus, HopResult, NeededBlob};

pub use types::*;

/// A store that forgets everything when dropped, for tests and simulations.
pub fn open_memory() -> Arc<dyn Store> {
    Arc::new(engine::Engine::new(memory::Memory::default(), 0))
}

/// Opens or creates a SQLite database and brings its schema up to date. The caller holds the lock
/// that keeps a second coordinator away.
pub async fn open_sqlite(path: &Path) -> Result<Arc<dyn Store>> {
    let (backend, last_sequence) = sqlite::Sqlite::open(path).await?;
    Ok(Arc::new(engine::Engine::new(backend, last_sequence)))
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
    /// Attempts of the account that earned credit (I6).
    async fn credits(&self, account: AccountId) -> Result<u64>;

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
    /// Ends connections in good order; calls after it fail.
    async fn close(&self);
}
