//! The rules over rows: load a hop's state, decide, write what follows, all in one transaction.
//! Written once for every backend.

mod accounts;
mod acquire;
mod apply;
mod blobs;
mod chains;
mod claim;
mod heads;
mod known;
mod overview;
mod recheck;
mod tokens;
mod trail;
mod work;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cipherhop_proto::ledger::LedgerKey;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Reason, TokenId, UploadId};
use tokio::sync::watch;

use self::acquire::Found;
use self::heads::Change;
use self::known::Known;
use super::tx::{Backend, Tx};
use super::types::*;
use super::{Result, Store};
use crate::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use crate::domain::chain::{Chain, ChainChange, NewChain};
use crate::domain::command::{Command, Directive, Holder, OutputCheck, Refusal};
use crate::domain::event::Event;
use crate::domain::hop::HopState;
use crate::domain::ledger::ArchiveRow;
use crate::domain::reconcile::Held;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Accuracy, ChainStatus, HopResult, NeededBlob};

/// How often a request for work looks again when others took what it had found.
const LOOKS: usize = 3;
/// How often a transaction is made again when another writer was in its way.
const TRIES: u32 = 6;
/// Pause before the second try; later ones wait longer.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// Runs one writing transaction; the body is run again when another writer was in the way, so it
/// must not use up its arguments.
macro_rules! transaction {
    ($engine:ident, $work:ident => $body:expr) => {{
        let mut tries = 0;
        loop {
            let mut $work = $engine.write().await?;
            // a block of its own, so that `?` in the body ends the try and not the method
            let done: Result<_> = async { $body }.await;
            let done = match done {
                Ok(value) => $engine.commit($work).await.map(|()| value),
                Err(error) => {
                    drop($work);
                    Err(error)
                }
            };
            tries += 1;
            match done {
                Err(error) if error.is_conflict() && tries < TRIES => {
                    tracing::debug!(%error, tries, "another writer was in the way");
                    tokio::time::sleep(RETRY_PAUSE * tries).await;
                }
                done => break done,
            }
        }
    }};
}

/// A store over a backend.
pub(super) struct Engine<B> {
    backend: B,
    changes: watch::Sender<u64>,
    openings: watch::Sender<u64>,
    known: Arc<Known>,
    /// Signs the archive's rows, once it is given.
    ledger: Arc<OnceLock<LedgerKey>>,
}

impl<B: Backend> Engine<B> {
    /// `last_sequence`: of the newest event in the backend.
    pub fn new(backend: B, last_sequence: u64) -> Self {
        let (openings, revocations) = (watch::Sender::new(0), watch::Sender::new(0));
        let changes = watch::Sender::new(last_sequence);
        Self::over(backend, changes, openings, revocations)
    }

    /// `changes` is also told of events that other processes append, `openings` of those after which there may be work,
    /// `revocations` of tokens that they revoke.
    pub fn over(
        backend: B,
        changes: watch::Sender<u64>,
        openings: watch::Sender<u64>,
        revocations: watch::Sender<u64>,
    ) -> Self {
        Self {
            backend,
            changes,
            openings,
            known: Arc::new(Known::new(revocations)),
            ledger: Arc::default(),
        }
    }

    fn work(&self, tx: Box<dyn Tx>) -> Work {
        Work {
            tx,
            last_event: 0,
            known: self.known.clone(),
            ledger: self.ledger.clone(),
            heads: Vec::new(),
            settled: Vec::new(),
            rechecks: false,
            opens: false,
        }
    }

    async fn read(&self) -> Result<Work> {
        Ok(self.work(self.backend.read().await?))
    }

    async fn look(&self) -> Result<Work> {
        Ok(self.work(self.backend.look().await?))
    }

    async fn write(&self) -> Result<Work> {
        Ok(self.work(self.backend.write().await?))
    }

    async fn commit(&self, work: Work) -> Result<()> {
        cipherhop_failpoint::at("commit.before");
        work.tx.commit().await?;
        cipherhop_failpoint::at("commit.after");
        if !work.heads.is_empty() {
            self.known.heads.note(work.heads);
        }
        if work.rechecks {
            self.known.heads.note_recheck();
        }
        for chain in work.settled {
            self.known.forget_durations(chain);
        }
        let newest = work.last_event;
        if newest > 0 {
            self.changes.send_modify(|last| *last = newest.max(*last));
            cipherhop_failpoint::at("outbox.told");
            if work.opens {
                self.openings.send_modify(|count| *count += 1);
            }
            self.backend.committed(newest, work.opens);
        }
        Ok(())
    }
}

/// One transaction at work.
struct Work {
    tx: Box<dyn Tx>,
    /// Sequence number of the newest event appended here.
    last_event: u64,
    known: Arc<Known>,
    ledger: Arc<OnceLock<LedgerKey>>,
    /// What became of chains' head hops here.
    heads: Vec<Change>,
    /// Chains with attempts accepted here.
    settled: Vec<ChainId>,
    /// A verified hop is in doubt.
    rechecks: bool,
    /// There may be work now.
    opens: bool,
}

#[async_trait]
impl<B: Backend> Store for Engine<B> {
    async fn create_scoped_token(
        &self,
        token: NewToken,
        scope: Option<ChainId>,
        now: Timestamp,
    ) -> Result<Identity> {
        transaction!(self, work => {
            work.create_token(token.clone(), scope, now).await
        })
    }

    async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<()> {
        let revoking = self.known.tokens.revoking();
        transaction!(self, work => {
            work.revoke_token(token, now).await
        })?;
        drop(revoking);
        self.backend.revoked().await;
        Ok(())
    }

    async fn identify(&self, hash: Digest) -> Result<Identity> {
        let tokens = &self.known.tokens;
        if let Some(identity) = tokens.get(hash) {
            return Ok(identity);
        }
        let (round, begun) = (tokens.round(), Instant::now());
        let identity = self.look().await?.identify(hash).await?;
        tokens.put(hash, identity.clone(), round, begun);
        Ok(identity)
    }

    async fn enroll_with_key(
        &self,
        enrolment: Enrolment,
        key: Option<PublicKey>,
        now: Timestamp,
    ) -> Result<Identity> {
        // A device that enrolls again loses its former tokens.
        let revoking = self.known.tokens.revoking();
        let identity = transaction!(self, work => {
            work.enroll(enrolment.clone(), key, now).await
        })?;
        drop(revoking);
        if identity.device != Some(enrolment.device) {
            self.backend.revoked().await;
        }
        Ok(identity)
    }

    async fn device_key(&self, device: DeviceId) -> Result<Option<PublicKey>> {
        self.look().await?.tx.device_key(device).await
    }

    async fn device_keys(&self) -> Result<Vec<(DeviceId, PublicKey)>> {
        self.look().await?.tx.device_keys().await
    }

    async fn begin_audit(&self, start: AuditStart, now: Timestamp) -> Result<u64> {
        transaction!(self, work => {
            work.begin_audit(start.clone(), now).await
        })
    }

    async fn end_audit(&self, number: u64, outcome: &str) -> Result<()> {
        transaction!(self, work => {
            work.end_audit(number, outcome).await
        })
    }

    async fn audit(&self, before: u64, limit: u32) -> Result<Vec<AuditEntry>> {
        self.look().await?.tx.audit(before, limit).await
    }

    async fn devices(&self) -> Result<Vec<Device>> {
        self.look().await?.tx.devices().await
    }

    async fn quarantine(
        &self,
        device: DeviceId,
        lift: bool,
        note: String,
        now: Timestamp,
    ) -> Result<Device> {
        transaction!(self, work => {
            work.quarantine(device, lift, note.clone(), now).await
        })
    }

    async fn credits(&self, account: AccountId) -> Result<u64> {
        self.look().await?.tx.credits(account).await
    }

    async fn credit_seconds(&self, account: AccountId) -> Result<f64> {
        self.look().await?.tx.credit_seconds(account).await
    }

    async fn blob(&self, digest: Digest) -> Result<Option<BlobRecord>> {
        self.look().await?.tx.blob(digest).await
    }

    async fn open_upload(&self, upload: NewUpload, now: Timestamp) -> Result<OpenedUpload> {
        transaction!(self, work => {
            work.open_upload(upload, now).await
        })
    }

    async fn upload(&self, id: UploadId) -> Result<UploadRecord> {
        self.look().await?.upload(id).await
    }

    async fn blobs(&self, after: Option<Digest>, limit: u32) -> Result<Vec<BlobRecord>> {
        self.read().await?.tx.blobs(after, limit).await
    }

    async fn uploads(&self) -> Result<Vec<UploadRecord>> {
        self.look().await?.tx.uploads().await
    }

    async fn commit_upload(&self, id: UploadId, committed: u64, now: Timestamp) -> Result<()> {
        transaction!(self, work => {
            work.commit_upload(id, committed, now).await
        })
    }

    async fn restart_upload(&self, id: UploadId, now: Timestamp) -> Result<()> {
        transaction!(self, work => {
            work.restart_upload(id, now).await
        })
    }

    async fn complete_upload(&self, id: UploadId, now: Timestamp) -> Result<BlobRecord> {
        transaction!(self, work => {
            work.complete_upload(id, now).await
        })
    }

    async fn create_chain(&self, chain: NewChain, now: Timestamp) -> Result<Chain> {
        transaction!(self, work => {
            work.create_chain(chain.clone(), now).await
        })
    }

    async fn chains(&self) -> Result<Vec<Chain>> {
        self.look().await?.tx.chains().await
    }

    async fn chain(&self, id: ChainId) -> Result<Chain> {
        self.look().await?.chain(id).await
    }

    async fn chain_by_name(&self, name: &str) -> Result<Chain> {
        self.look().await?.chain_by_name(name).await
    }

    async fn status(&self, id: ChainId) -> Result<ChainStatus> {
        self.read().await?.status(id).await
    }

    async fn results(&self, id: ChainId) -> Result<Vec<HopResult>> {
        self.read().await?.results(id).await
    }

    async fn archive(&self, id: ChainId) -> Result<Vec<ArchiveRow>> {
        let mut work = self.read().await?;
        work.chain(id).await?;
        work.tx.archive(id).await
    }

    async fn sign_ledger(
        &self,
        key: LedgerKey,
        replace: bool,
        now: Timestamp,
    ) -> Result<LedgerKeyChange> {
        let public = key.public();
        let change = transaction!(self, work => {
            work.register_ledger_key(public, replace, now).await
        })?;
        if !matches!(change, LedgerKeyChange::Refused { .. }) {
            // A process has one key as long as it runs.
            let _ = self.ledger.set(key);
        }
        Ok(change)
    }

    fn ledger_key(&self) -> Option<PublicKey> {
        self.ledger.get().map(LedgerKey::public)
    }

    async fn ledger_keys(&self) -> Result<Vec<PublicKey>> {
        self.look().await?.tx.ledger_keys().await
    }

    async fn import_archive(
        &self,
        id: ChainId,
        digests: Vec<(u32, Digest)>,
        now: Timestamp,
    ) -> Result<Imported> {
        transaction!(self, work => {
            work.import_archive(id, digests.clone(), now).await
        })
    }

    async fn publish_accuracy(
        &self,
        id: ChainId,
        figures: Vec<Accuracy>,
        now: Timestamp,
    ) -> Result<()> {
        transaction!(self, work => {
            work.publish_accuracy(id, figures.clone(), now).await
        })
    }

    async fn change_chain(
        &self,
        id: ChainId,
        change: ChainChange,
        now: Timestamp,
    ) -> Result<Chain> {
        transaction!(self, work => {
            work.change_chain(id, change.clone(), now).await
        })
    }

    async fn requeue(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Reopened> {
        transaction!(self, work => {
            work
            .open_again(id, hop, Command::Requeue(note.clone()), now)
            .await
        })
    }

    async fn reopen(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Reopened> {
        transaction!(self, work => {
            work.open_again(id, hop, Command::Reopen(note.clone()), now).await
        })
    }

    async fn drop_archived(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<HopState> {
        transaction!(self, work => {
            work.drop_archived(id, hop, note.clone(), now).await
        })
    }

    async fn invalidate(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Chain> {
        transaction!(self, work => {
            work.invalidate(id, hop, note.clone(), now).await
        })
    }

    async fn acquire(&self, request: AcquireRequest, now: Timestamp) -> Result<Acquired> {
        if let Some((chains, _pick)) = self.likely(&request, now).await? {
            let found = Found::Open(chains);
            match transaction!(self, work => work.acquire(&request, &found, false, now).await)? {
                // Others were faster, or what is known of these chains is old.
                Acquired::NoWork(_) => self.known.heads.forget(&found),
                assigned => return Ok(assigned),
            }
        }
        let mut nothing = Refusal::from(Reason::NoOpenHop);
        for look_number in 1..=LOOKS {
            // Most polls find nothing: look first without a lock.
            let mut look = self.look().await?;
            let found = match look.find_work(&request, now).await? {
                Ok(found) => found,
                Err(refusal) => return Ok(Acquired::NoWork(refusal)),
            };
            if let Found::Held(attempt) = found {
                let assignment = look.assignment(*attempt).await?;
                drop(look);
                if self.known.is_due(request.device, now) {
                    transaction!(self, work => work.seen(request.device, now).await)?;
                }
                return Ok(Acquired::Assigned(Box::new(assignment)));
            }
            drop(look);
            let last = look_number == LOOKS;
            match transaction!(self, work => work.acquire(&request, &found, last, now).await)? {
                // Others were faster; there may be more.
                Acquired::NoWork(refusal) => nothing = refusal,
                assigned => return Ok(assigned),
            }
        }
        Ok(Acquired::NoWork(nothing))
    }

    async fn reconcile(
        &self,
        device: DeviceId,
        held: Vec<Held>,
        now: Timestamp,
    ) -> Result<Reconciled> {
        transaction!(self, work => {
            work.reconcile(device, held.clone(), now).await
        })
    }

    async fn sync(
        &self,
        holder: Holder,
        phase: Phase,
        progress: Progress,
        now: Timestamp,
    ) -> Result<Directive> {
        let command = Command::Sync(holder, phase, progress);
        transaction!(self, work => {
            work.renew(holder, command.clone(), now).await
        })
    }

    async fn touch(&self, holder: Holder, now: Timestamp) -> Result<Directive> {
        transaction!(self, work => {
            work.renew(holder, Command::Touch(holder), now).await
        })
    }

    async fn submit_signed(
        &self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        signature: Option<ResultSignature>,
        now: Timestamp,
    ) -> Result<Submitted> {
        transaction!(self, work => {
            work.submit_signed(holder, claim.clone(), check, signature, now).await
        })
    }

    async fn fail(
        &self,
        holder: Holder,
        kind: FailKind,
        detail: String,
        now: Timestamp,
    ) -> Result<HopState> {
        let command = Command::Fail(holder, kind, detail);
        transaction!(self, work => {
            let (_, hop_state) = work.by_holder(holder, command.clone(), now).await?;
            Ok(hop_state)
        })
    }

    async fn release(&self, holder: Holder, now: Timestamp) -> Result<()> {
        transaction!(self, work => {
            work.by_holder(holder, Command::Release(holder), now).await?;
            Ok(())
        })
    }

    async fn attempt(&self, id: AttemptId) -> Result<Attempt> {
        self.look().await?.attempt(id).await
    }

    async fn signature(&self, attempt: AttemptId) -> Result<Option<ResultSignature>> {
        self.look().await?.tx.signature(attempt).await
    }

    async fn attempt_blobs(&self, id: AttemptId) -> Result<Vec<NeededBlob>> {
        let mut work = self.read().await?;
        let attempt = work.attempt(id).await?;
        Ok(work.assignment(attempt).await?.blobs)
    }

    async fn disputes(&self) -> Result<Vec<Disputed>> {
        self.read().await?.disputes().await
    }

    async fn convict(
        &self,
        id: ChainId,
        generation: u32,
        hop: u32,
        guilty: BTreeSet<AttemptId>,
        upheld: Option<AttemptId>,
        now: Timestamp,
    ) -> Result<bool> {
        let command = Command::Convict(guilty, upheld);
        transaction!(self, work => {
            work.convict(id, generation, hop, command.clone(), now).await
        })
    }

    async fn set_referee(&self, device: DeviceId, referee: bool) -> Result<Device> {
        transaction!(self, work => {
            work.set_referee(device, referee).await
        })
    }

    async fn reap(&self, now: Timestamp) -> Result<ReapReport> {
        let (due, mut next_wake) = self.read().await?.due(now).await?;
        let mut report = ReapReport::default();
        if !due.is_empty() {
            for attempt in due {
                // One at a time: a lease that cannot be ended does not keep the others.
                let ticked = transaction!(self, work => work.tick(&attempt, now).await)?;
                report.silent += ticked.silent;
                report.expired += ticked.expired;
            }
            next_wake = self.read().await?.due(now).await?.1;
        }
        report.next_wake = next_wake;
        Ok(report)
    }

    async fn events(&self, id: ChainId, after: u64, limit: u32) -> Result<Vec<Event>> {
        self.look().await?.tx.events(id, after, limit).await
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn openings(&self) -> watch::Receiver<u64> {
        self.openings.subscribe()
    }

    async fn may_have_work(
        &self,
        request: &AcquireRequest,
        since: Instant,
        now: Timestamp,
    ) -> Result<bool> {
        self.worth_asking(request, since, now).await
    }

    async fn overview(&self, now: Timestamp) -> Result<Overview> {
        self.read().await?.overview(now).await
    }

    async fn leads(&self, duty: Duty) -> Result<bool> {
        self.backend.leads(duty).await
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}
