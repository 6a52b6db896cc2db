//! The rules over rows: load a hop's state, decide, write what follows, all in one transaction.
//! Written once for every backend.

mod accounts;
mod acquire;
mod apply;
mod blobs;
mod chains;
mod work;

use async_trait::async_trait;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, TokenId, UploadId};
use tokio::sync::watch;

use self::acquire::Found;
use super::tx::{Backend, Tx};
use super::types::*;
use super::{Result, Store};
use crate::domain::attempt::{Attempt, Claim, FailKind, Phase, Progress};
use crate::domain::chain::{Chain, ChainChange, NewChain};
use crate::domain::command::{Command, Directive, Holder, OutputCheck};
use crate::domain::event::Event;
use crate::domain::hop::HopState;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Accuracy, ChainStatus, HopResult, NeededBlob};

/// A store over a backend.
pub(super) struct Engine<B> {
    backend: B,
    changes: watch::Sender<u64>,
}

impl<B: Backend> Engine<B> {
    /// `last_sequence`: of the newest event in the backend.
    pub fn new(backend: B, last_sequence: u64) -> Self {
        Self {
            backend,
            changes: watch::Sender::new(last_sequence),
        }
    }

    async fn read(&self) -> Result<Work> {
        Ok(Work {
            tx: self.backend.read().await?,
            last_event: 0,
        })
    }

    async fn write(&self) -> Result<Work> {
        Ok(Work {
            tx: self.backend.write().await?,
            last_event: 0,
        })
    }

    async fn commit(&self, work: Work) -> Result<()> {
        work.tx.commit().await?;
        let newest = work.last_event;
        if newest > 0 {
            self.changes.send_modify(|last| *last = newest.max(*last));
        }
        Ok(())
    }
}

/// One transaction at work.
struct Work {
    tx: Box<dyn Tx>,
    /// Sequence number of the newest event appended here.
    last_event: u64,
}

#[async_trait]
impl<B: Backend> Store for Engine<B> {
    async fn create_token(&self, token: NewToken, now: Timestamp) -> Result<Identity> {
        let mut work = self.write().await?;
        let identity = work.create_token(token, now).await?;
        self.commit(work).await?;
        Ok(identity)
    }

    async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<()> {
        let mut work = self.write().await?;
        work.revoke_token(token, now).await?;
        self.commit(work).await
    }

    async fn identify(&self, hash: Digest) -> Result<Identity> {
        self.read().await?.identify(hash).await
    }

    async fn enroll(&self, enrolment: Enrolment, now: Timestamp) -> Result<Identity> {
        let mut work = self.write().await?;
        let identity = work.enroll(enrolment, now).await?;
        self.commit(work).await?;
        Ok(identity)
    }

    async fn devices(&self) -> Result<Vec<Device>> {
        self.read().await?.tx.devices().await
    }

    async fn quarantine(
        &self,
        device: DeviceId,
        lift: bool,
        note: String,
        now: Timestamp,
    ) -> Result<Device> {
        let mut work = self.write().await?;
        let device = work.quarantine(device, lift, note, now).await?;
        self.commit(work).await?;
        Ok(device)
    }

    async fn credits(&self, account: AccountId) -> Result<u64> {
        self.read().await?.tx.credits(account).await
    }

    async fn blob(&self, digest: Digest) -> Result<Option<BlobRecord>> {
        self.read().await?.tx.blob(digest).await
    }

    async fn open_upload(&self, upload: NewUpload, now: Timestamp) -> Result<OpenedUpload> {
        let mut work = self.write().await?;
        let opened = work.open_upload(upload, now).await?;
        self.commit(work).await?;
        Ok(opened)
    }

    async fn upload(&self, id: UploadId) -> Result<UploadRecord> {
        self.read().await?.upload(id).await
    }

    async fn uploads(&self) -> Result<Vec<UploadRecord>> {
        self.read().await?.tx.uploads().await
    }

    async fn commit_upload(&self, id: UploadId, committed: u64, now: Timestamp) -> Result<()> {
        let mut work = self.write().await?;
        work.commit_upload(id, committed, now).await?;
        self.commit(work).await
    }

    async fn restart_upload(&self, id: UploadId, now: Timestamp) -> Result<()> {
        let mut work = self.write().await?;
        work.restart_upload(id, now).await?;
        self.commit(work).await
    }

    async fn complete_upload(&self, id: UploadId, now: Timestamp) -> Result<BlobRecord> {
        let mut work = self.write().await?;
        let blob = work.complete_upload(id, now).await?;
        self.commit(work).await?;
        Ok(blob)
    }

    async fn create_chain(&self, chain: NewChain, now: Timestamp) -> Result<Chain> {
        let mut work = self.write().await?;
        let chain = work.create_chain(chain, now).await?;
        self.commit(work).await?;
        Ok(chain)
    }

    async fn chains(&self) -> Result<Vec<Chain>> {
        self.read().await?.tx.chains().await
    }

    async fn chain(&self, id: ChainId) -> Result<Chain> {
        self.read().await?.chain(id).await
    }

    async fn chain_by_name(&self, name: &str) -> Result<Chain> {
        self.read().await?.chain_by_name(name).await
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

    async fn import_archive(
        &self,
        id: ChainId,
        digests: Vec<(u32, Digest)>,
        now: Timestamp,
    ) -> Result<Imported> {
        let mut work = self.write().await?;
        let imported = work.import_archive(id, digests, now).await?;
        self.commit(work).await?;
        Ok(imported)
    }

    async fn publish_accuracy(
        &self,
        id: ChainId,
        figures: Vec<Accuracy>,
        now: Timestamp,
    ) -> Result<()> {
        let mut work = self.write().await?;
        work.publish_accuracy(id, figures, now).await?;
        self.commit(work).await
    }

    async fn change_chain(
        &self,
        id: ChainId,
        change: ChainChange,
        now: Timestamp,
    ) -> Result<Chain> {
        let mut work = self.write().await?;
        let chain = work.change_chain(id, change, now).await?;
        self.commit(work).await?;
        Ok(chain)
    }

    async fn requeue(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Reopened> {
        let mut work = self.write().await?;
        let reopened = work
            .open_again(id, hop, Command::Requeue(note), now)
            .await?;
        self.commit(work).await?;
        Ok(reopened)
    }

    async fn reopen(
        &self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Reopened> {
        let mut work = self.write().await?;
        let reopened = work.open_again(id, hop, Command::Reopen(note), now).await?;
        self.commit(work).await?;
        Ok(reopened)
    }

    async fn acquire(&self, request: AcquireRequest, now: Timestamp) -> Result<Acquired> {
        // Most polls find nothing: look first without the writer's lock.
        let likely = match self.read().await?.find_work(&request, now).await? {
            Err(refusal) => return Ok(Acquired::NoWork(refusal)),
            Ok(Found::Open(chain)) => Some(chain),
            Ok(Found::Held(_)) => None,
        };
        let mut work = self.write().await?;
        let acquired = work.acquire(request, likely, now).await?;
        self.commit(work).await?;
        Ok(acquired)
    }

    async fn sync(
        &self,
        holder: Holder,
        phase: Phase,
        progress: Progress,
        now: Timestamp,
    ) -> Result<Directive> {
        let mut work = self.write().await?;
        let command = Command::Sync(holder, phase, progress);
        let directive = work.renew(holder, command, now).await?;
        self.commit(work).await?;
        Ok(directive)
    }

    async fn touch(&self, holder: Holder, now: Timestamp) -> Result<Directive> {
        let mut work = self.write().await?;
        let directive = work.renew(holder, Command::Touch(holder), now).await?;
        self.commit(work).await?;
        Ok(directive)
    }

    async fn submit(
        &self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        now: Timestamp,
    ) -> Result<Submitted> {
        let mut work = self.write().await?;
        let submitted = work.submit(holder, claim, check, now).await?;
        self.commit(work).await?;
        Ok(submitted)
    }

    async fn fail(
        &self,
        holder: Holder,
        kind: FailKind,
        detail: String,
        now: Timestamp,
    ) -> Result<HopState> {
        let mut work = self.write().await?;
        let command = Command::Fail(holder, kind, detail);
        let (_, hop_state) = work.by_attempt(holder, command, now).await?;
        self.commit(work).await?;
        Ok(hop_state)
    }

    async fn release(&self, holder: Holder, now: Timestamp) -> Result<()> {
        let mut work = self.write().await?;
        work.by_attempt(holder, Command::Release(holder), now)
            .await?;
        self.commit(work).await
    }

    async fn attempt(&self, id: AttemptId) -> Result<Attempt> {
        self.read().await?.attempt(id).await
    }

    async fn attempt_blobs(&self, id: AttemptId) -> Result<Vec<NeededBlob>> {
        let mut work = self.read().await?;
        let attempt = work.attempt(id).await?;
        Ok(work.assignment(attempt).await?.blobs)
    }

    async fn reap(&self, now: Timestamp) -> Result<ReapReport> {
        let (due, next_wake) = self.read().await?.due(now).await?;
        if due.is_empty() {
            return Ok(ReapReport {
                next_wake,
                ..ReapReport::default()
            });
        }
        let mut work = self.write().await?;
        let report = work.reap(now).await?;
        self.commit(work).await?;
        Ok(report)
    }

    async fn events(&self, id: ChainId, after: u64, limit: u32) -> Result<Vec<Event>> {
        self.read().await?.tx.events(id, after, limit).await
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}
