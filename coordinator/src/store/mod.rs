//! What the coordinator remembers. One trait, several backends, one conformance suite.

mod engine;
mod memory;
mod postgres;
mod sqlite;
mod tx;
mod types;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use cipherhop_proto::ledger::LedgerKey;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, TokenId, UploadId};
use tokio::sync::watch;

use crate::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use crate::domain::chain::{Chain, ChainChange, NewChain};
use crate::domain::command::{Directive, Holder, OutputCheck};
use crate::domain::event::Event;
use crate::domain::hop::HopState;
use crate::domain::ledger::ArchiveRow;
use crate::domain::reconcile::Held;
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

/// Connects to a PostgreSQL database, which several coordinators may share, and brings its schema up
/// to date. `connections`: most that this process opens for calls, beside two of its own.
pub async fn open_postgres(url: &str, connections: u32) -> Result<Arc<dyn Store>> {
    let changes = watch::Sender::new(0);
    let (openings, revocations) = (watch::Sender::new(0), watch::Sender::new(0));
    let told = postgres::Told {
        changes: changes.clone(),
        openings: openings.clone(),
        revocations: revocations.clone(),
    };
    let backend = postgres::Pg::open(url, connections, told).await?;
    Ok(Arc::new(engine::Engine::over(
        backend,
        changes,
        openings,
        revocations,
    )))
}

/// What the coordinator remembers. Each call is one transaction; a call that returned survives
/// kill -9 on a durable backend (I5). Times and fresh ids come from the caller.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // Accounts, tokens, devices.

    /// Keeps a token's hash; makes its account when the name is new.
    async fn create_token(&self, token: NewToken, now: Timestamp) -> Result<Identity> {
        self.create_scoped_token(token, None, now).await
    }
    /// As [`Store::create_token`], for one chain only where `scope` names it.
    async fn create_scoped_token(
        &self,
        token: NewToken,
        scope: Option<ChainId>,
        now: Timestamp,
    ) -> Result<Identity>;
    /// From now on the token gets TOKEN_REVOKED. Refuses with TOKEN_INVALID when unknown.
    async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<()>;
    /// Who holds the token of this hash; TOKEN_INVALID or TOKEN_REVOKED.
    async fn identify(&self, hash: Digest) -> Result<Identity>;
    /// Turns an invite into a device and its token, of the invite's scope; INVITE_INVALID.
    async fn enroll(&self, enrolment: Enrolment, now: Timestamp) -> Result<Identity> {
        self.enroll_with_key(enrolment, None, now).await
    }
    /// As [`Store::enroll`], with the key the device signs its results with; DEVICE_KEY_INVALID when the device has
    /// another one or another device has this one.
    async fn enroll_with_key(
        &self,
        enrolment: Enrolment,
        key: Option<PublicKey>,
        now: Timestamp,
    ) -> Result<Identity>;
    /// The key a device enrolled with.
    async fn device_key(&self, device: DeviceId) -> Result<Option<PublicKey>>;
    /// Every device's key.
    async fn device_keys(&self) -> Result<Vec<(DeviceId, PublicKey)>>;
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
    /// Seconds that these attempts took, as the account's devices say.
    async fn credit_seconds(&self, account: AccountId) -> Result<f64>;

    // What operators did.

    /// Records an action before it is done; the entry's number.
    async fn begin_audit(&self, start: AuditStart, now: Timestamp) -> Result<u64>;
    /// Records how it went, once.
    async fn end_audit(&self, number: u64, outcome: &str) -> Result<()>;
    /// Entries before a number, newest first.
    async fn audit(&self, before: u64, limit: u32) -> Result<Vec<AuditEntry>>;

    // Blobs: rows only; bytes are the blob store's.

    /// The blob, if it is complete.
    async fn blob(&self, digest: Digest) -> Result<Option<BlobRecord>>;
    /// Complete blobs in the order of their digests, those after `after`.
    async fn blobs(&self, after: Option<Digest>, limit: u32) -> Result<Vec<BlobRecord>>;
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
    /// From now on this process signs the archive's rows with the key. Where the database knows another one as the
    /// newest, it is refused unless it is to replace that one.
    async fn sign_ledger(
        &self,
        key: LedgerKey,
        replace: bool,
        now: Timestamp,
    ) -> Result<LedgerKeyChange>;
    /// The key this process signs the archive's rows with.
    fn ledger_key(&self) -> Option<PublicKey>;
    /// Every key that rows were or are signed with, the newest last.
    async fn ledger_keys(&self) -> Result<Vec<PublicKey>>;
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

    /// The archived digest of an open hop is wrong: it is forgotten, and results it refuted wait for a
    /// verdict by quorum again. CHAIN_STATE_CONFLICT where none is known or the hop is verified.
    async fn drop_archived(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<HopState>;
    /// A verified hop is wrong: a new generation begins there, the old one is kept as it was.
    /// CHAIN_STATE_CONFLICT where the hop is not verified.
    async fn invalidate(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Chain>;

    // Work.

    /// Hands out a hop. Refuses only for the device itself (DEVICE_QUARANTINED, TOKEN_INVALID) or an
    /// unknown chain; "nothing now" is an answer.
    async fn acquire(&self, request: AcquireRequest, now: Timestamp) -> Result<Acquired>;
    /// Compares what a device holds with what is known here; its live attempts are renewed.
    async fn reconcile(
        &self,
        device: DeviceId,
        held: Vec<Held>,
        now: Timestamp,
    ) -> Result<Reconciled>;
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
    ) -> Result<Submitted> {
        self.submit_signed(holder, claim, check, None, now).await
    }
    /// As [`Store::submit`]; keeps the (checked) signature in the same transaction.
    async fn submit_signed(
        &self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        signature: Option<ResultSignature>,
        now: Timestamp,
    ) -> Result<Submitted>;
    /// The signature of an attempt's claim.
    async fn signature(&self, attempt: AttemptId) -> Result<Option<ResultSignature>>;
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

    // Disputes.

    /// Open hops without an archived digest whose waiting results differ.
    async fn disputes(&self) -> Result<Vec<Disputed>>;
    /// A referee's verdict on a disputed hop: these results are wrong, that one stands and is accepted where no
    /// other is left. False when the hop was settled before.
    async fn convict(
        &self,
        id: ChainId,
        generation: u32,
        hop: u32,
        guilty: BTreeSet<AttemptId>,
        upheld: Option<AttemptId>,
        now: Timestamp,
    ) -> Result<bool>;
    /// An operator lets a device run single steps of disputed hops, or not any more; DEVICE_NOT_FOUND.
    async fn set_referee(&self, device: DeviceId, referee: bool) -> Result<Device>;

    // Time and events.

    /// Ends and silences leases whose time has come. Safe to call from anywhere at any time.
    async fn reap(&self, now: Timestamp) -> Result<ReapReport>;
    /// Events of a chain after a sequence number, oldest first, at most `limit`.
    async fn events(&self, id: ChainId, after: u64, limit: u32) -> Result<Vec<Event>>;
    /// Changes whenever an event was appended: a hint to read events or to look for work again.
    fn changes(&self) -> watch::Receiver<u64>;
    /// Changes when there may be work that there was not before: a hint to ask for work again.
    fn openings(&self) -> watch::Receiver<u64>;
    /// Whether asking for work again is worth it: no where nothing fits that was seen at `since` or later. Far cheaper than
    /// asking, however many wait.
    async fn may_have_work(
        &self,
        request: &AcquireRequest,
        since: Instant,
        now: Timestamp,
    ) -> Result<bool>;
    /// What an operator wants to know, of one moment.
    async fn overview(&self, now: Timestamp) -> Result<Overview>;
    /// Whether this process is the one that should do the duty now: always true where no other
    /// process shares the store. Ask again before each round.
    async fn leads(&self, duty: Duty) -> Result<bool>;
    /// Ends connections in good order; calls after it fail.
    async fn close(&self);
}
