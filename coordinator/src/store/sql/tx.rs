//! One SQL transaction as the engine sees it.

use async_trait::async_trait;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};

use super::{Handle, archive, chains, people, record, trail, work};
use crate::domain::attempt::Attempt;
use crate::domain::chain::{Chain, NewChain};
use crate::domain::event::{Event, NewEvent};
use crate::domain::hop::Hop;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::Accuracy;
use crate::store::tx::{TokenRow, Tx};
use crate::store::types::{
    AuditEntry, AuditStart, BlobRecord, Result, ResultSignature, UploadRecord,
};

/// Rolls back when dropped without commit.
pub(super) struct SqlTx {
    tx: Handle,
    /// Rows that a decision is made on are locked while they are read.
    writing: bool,
}

impl SqlTx {
    pub fn reading(tx: Handle) -> Self {
        Self { tx, writing: false }
    }

    pub fn writing(tx: Handle) -> Self {
        Self { tx, writing: true }
    }
}

#[async_trait]
impl Tx for SqlTx {
    async fn commit(self: Box<Self>) -> Result<()> {
        self.tx.commit().await
    }

    async fn account_by_name(&mut self, name: &str) -> Result<Option<AccountId>> {
        people::account_by_name(&mut self.tx, name).await
    }

    async fn account_name(&mut self, id: AccountId) -> Result<String> {
        people::account_name(&mut self.tx, id).await
    }

    async fn insert_account(&mut self, id: AccountId, name: &str, now: Timestamp) -> Result<()> {
        people::insert_account(&mut self.tx, id, name, now).await
    }

    async fn token_by_hash(&mut self, hash: Digest) -> Result<Option<TokenRow>> {
        people::token_by_hash(&mut self.tx, hash).await
    }

    async fn insert_token(&mut self, row: &TokenRow, now: Timestamp) -> Result<()> {
        people::insert_token(&mut self.tx, row, now).await
    }

    async fn revoke_token(&mut self, id: TokenId, now: Timestamp) -> Result<bool> {
        people::revoke_token(&mut self.tx, id, now).await
    }

    async fn revoke_device_tokens(&mut self, device: DeviceId, now: Timestamp) -> Result<()> {
        people::revoke_device_tokens(&mut self.tx, device, now).await
    }

    async fn device(&mut self, id: DeviceId) -> Result<Option<Device>> {
        people::device(&mut self.tx, id, self.writing).await
    }

    async fn device_by_nonce(
        &mut self,
        account: AccountId,
        nonce: Nonce,
    ) -> Result<Option<DeviceId>> {
        people::device_by_nonce(&mut self.tx, account, nonce).await
    }

    async fn devices(&mut self) -> Result<Vec<Device>> {
        people::devices(&mut self.tx).await
    }

    async fn insert_device(&mut self, device: &Device, nonce: Nonce) -> Result<()> {
        people::insert_device(&mut self.tx, device, nonce).await
    }

    async fn update_device(&mut self, device: &Device) -> Result<()> {
        people::update_device(&mut self.tx, device).await
    }

    async fn blob(&mut self, digest: Digest) -> Result<Option<BlobRecord>> {
        people::blob(&mut self.tx, digest).await
    }

    async fn blobs(&mut self, after: Option<Digest>, limit: u32) -> Result<Vec<BlobRecord>> {
        people::blobs(&mut self.tx, after, limit).await
    }

    async fn insert_blob(&mut self, blob: &BlobRecord) -> Result<()> {
        people::insert_blob(&mut self.tx, blob).await
    }

    async fn upload(&mut self, id: UploadId) -> Result<Option<UploadRecord>> {
        people::upload(&mut self.tx, id, self.writing).await
    }

    async fn upload_of(
        &mut self,
        digest: Digest,
        account: AccountId,
    ) -> Result<Option<UploadRecord>> {
        people::upload_of(&mut self.tx, digest, account, self.writing).await
    }

    async fn uploads(&mut self) -> Result<Vec<UploadRecord>> {
        people::uploads(&mut self.tx).await
    }

    async fn put_upload(&mut self, upload: &UploadRecord) -> Result<()> {
        people::put_upload(&mut self.tx, upload).await
    }

    async fn delete_uploads(&mut self, digest: Digest) -> Result<()> {
        people::delete_uploads(&mut self.tx, digest).await
    }

    async fn chain_if_free(&mut self, id: ChainId) -> Result<Option<Chain>> {
        chains::chain_if_free(&mut self.tx, id).await
    }

    async fn chain(&mut self, id: ChainId) -> Result<Option<Chain>> {
        chains::chain(&mut self.tx, id, self.writing).await
    }

    async fn head(&mut self, id: ChainId, if_free: bool) -> Result<Option<(Chain, Option<Hop>)>> {
        if super::ONE_WRITER
            && let Some(both) = chains::head(&mut self.tx, id).await?
        {
            return Ok(Some(both));
        }
        let chain = match if_free {
            true => self.chain_if_free(id).await?,
            false => self.chain(id).await?,
        };
        let Some(chain) = chain else { return Ok(None) };
        let index = chain.head.min(chain.hops.saturating_sub(1));
        let hop = self.hop(id, chain.generation, index).await?;
        Ok(Some((chain, hop)))
    }

    async fn chain_and_hop(
        &mut self,
        id: ChainId,
        generation: u32,
        index: u32,
    ) -> Result<Option<(Chain, Option<Hop>)>> {
        if super::ONE_WRITER
            && let Some(both) = chains::chain_and_hop(&mut self.tx, id, generation, index).await?
        {
            return Ok(Some(both));
        }
        let Some(chain) = self.chain(id).await? else {
            return Ok(None);
        };
        let hop = self.hop(id, generation, index).await?;
        Ok(Some((chain, hop)))
    }

    async fn chain_by_name(&mut self, name: &str) -> Result<Option<Chain>> {
        chains::chain_by_name(&mut self.tx, name).await
    }

    async fn chains(&mut self) -> Result<Vec<Chain>> {
        chains::chains(&mut self.tx).await
    }

    async fn active_heads(&mut self) -> Result<Vec<(Chain, Hop)>> {
        chains::active_heads(&mut self.tx).await
    }

    async fn insert_chain(&mut self, chain: &Chain, new: &NewChain) -> Result<()> {
        chains::insert_chain(&mut self.tx, chain, new).await
    }

    async fn update_chain(&mut self, chain: &Chain, head: u32, generation: u32) -> Result<bool> {
        chains::update_chain(&mut self.tx, chain, head, generation).await
    }

    async fn chain_keys(&mut self, id: ChainId) -> Result<Vec<BlobRecord>> {
        chains::chain_keys(&mut self.tx, id).await
    }

    async fn hop(&mut self, chain: ChainId, generation: u32, index: u32) -> Result<Option<Hop>> {
        chains::hop(&mut self.tx, chain, generation, index).await
    }

    async fn hops(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Hop>> {
        chains::hops(&mut self.tx, chain, generation).await
    }

    async fn rechecks(&mut self) -> Result<Vec<Hop>> {
        chains::rechecks(&mut self.tx).await
    }

    async fn insert_hop(&mut self, hop: &Hop) -> Result<()> {
        chains::put_hop(&mut self.tx, hop).await
    }

    async fn update_hop(&mut self, hop: &Hop) -> Result<()> {
        chains::put_hop(&mut self.tx, hop).await
    }

    async fn attempt(&mut self, id: AttemptId) -> Result<Option<Attempt>> {
        work::attempt(&mut self.tx, id).await
    }

    async fn own_attempts(&mut self, device: DeviceId, nonce: Nonce) -> Result<Vec<Attempt>> {
        work::own_attempts(&mut self.tx, device, nonce).await
    }

    async fn attempts_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>> {
        work::attempts_of_hop(&mut self.tx, chain, generation, hop).await
    }

    async fn pending_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>> {
        work::pending_of_hop(&mut self.tx, chain, generation, hop).await
    }

    async fn pending_of_heads(&mut self) -> Result<Vec<Attempt>> {
        work::pending_of_heads(&mut self.tx).await
    }

    async fn attempts_of_chain(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Attempt>> {
        work::attempts_of_chain(&mut self.tx, chain, generation).await
    }

    async fn live_attempts(&mut self) -> Result<Vec<Attempt>> {
        work::live_attempts(&mut self.tx).await
    }

    async fn due_attempts(&mut self, now: Timestamp) -> Result<Vec<Attempt>> {
        work::due_attempts(&mut self.tx, now).await
    }

    async fn next_wake(&mut self, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
        work::next_wake(&mut self.tx, after).await
    }

    async fn pending_of_device(&mut self, device: DeviceId) -> Result<Vec<Attempt>> {
        work::pending_of_device(&mut self.tx, device).await
    }

    async fn accepted_of_device(
        &mut self,
        device: DeviceId,
        since: Timestamp,
    ) -> Result<Vec<Attempt>> {
        work::accepted_of_device(&mut self.tx, device, since).await
    }

    async fn insert_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        work::insert_attempt(&mut self.tx, attempt).await
    }

    async fn update_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        work::update_attempt(&mut self.tx, attempt).await
    }

    async fn accepted_durations(&mut self, chain: ChainId, limit: u32) -> Result<Vec<u64>> {
        work::accepted_durations(&mut self.tx, chain, limit).await
    }

    async fn archive(&mut self, chain: ChainId) -> Result<Vec<ArchiveRow>> {
        archive::archive(&mut self.tx, chain).await
    }

    async fn archive_tip(&mut self, chain: ChainId) -> Result<Option<(u64, Digest)>> {
        archive::archive_tip(&mut self.tx, chain).await
    }

    async fn insert_archive(&mut self, row: &ArchiveRow) -> Result<()> {
        archive::insert_archive(&mut self.tx, row).await
    }

    async fn ledger_keys(&mut self) -> Result<Vec<PublicKey>> {
        archive::ledger_keys(&mut self.tx).await
    }

    async fn insert_ledger_key(
        &mut self,
        number: u64,
        key: PublicKey,
        now: Timestamp,
    ) -> Result<()> {
        archive::insert_ledger_key(&mut self.tx, number, key, now).await
    }

    async fn insert_credit(
        &mut self,
        attempt: AttemptId,
        account: AccountId,
        now: Timestamp,
    ) -> Result<()> {
        work::insert_credit(&mut self.tx, attempt, account, now).await
    }

    async fn credits(&mut self, account: AccountId) -> Result<u64> {
        work::credits(&mut self.tx, account).await
    }

    async fn credit_seconds(&mut self, account: AccountId) -> Result<f64> {
        work::credit_seconds(&mut self.tx, account).await
    }

    async fn accuracies(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Accuracy>> {
        archive::accuracies(&mut self.tx, chain, generation).await
    }

    async fn put_accuracy(
        &mut self,
        chain: ChainId,
        generation: u32,
        figures: Accuracy,
    ) -> Result<()> {
        archive::put_accuracy(&mut self.tx, chain, generation, figures).await
    }

    async fn append_event(
        &mut self,
        chain: ChainId,
        event: &NewEvent,
        now: Timestamp,
    ) -> Result<u64> {
        work::append_event(&mut self.tx, chain, event, now).await
    }

    async fn record(
        &mut self,
        attempt: &Attempt,
        made: bool,
        hop: &Hop,
        event: &NewEvent,
        now: Timestamp,
    ) -> Result<u64> {
        record::record(&mut self.tx, attempt, made, hop, event, now).await
    }

    async fn events(&mut self, chain: ChainId, after: u64, limit: u32) -> Result<Vec<Event>> {
        work::events(&mut self.tx, chain, after, limit).await
    }

    async fn last_sequence(&mut self, chain: ChainId) -> Result<u64> {
        work::last_sequence(&mut self.tx, chain).await
    }

    async fn device_key(&mut self, device: DeviceId) -> Result<Option<PublicKey>> {
        trail::device_key(&mut self.tx, device).await
    }

    async fn device_of_key(&mut self, key: PublicKey) -> Result<Option<DeviceId>> {
        trail::device_of_key(&mut self.tx, key).await
    }

    async fn device_keys(&mut self) -> Result<Vec<(DeviceId, PublicKey)>> {
        trail::device_keys(&mut self.tx).await
    }

    async fn insert_device_key(
        &mut self,
        device: DeviceId,
        key: PublicKey,
        now: Timestamp,
    ) -> Result<()> {
        trail::insert_device_key(&mut self.tx, device, key, now).await
    }

    async fn put_signature(&mut self, signed: &ResultSignature, now: Timestamp) -> Result<()> {
        trail::put_signature(&mut self.tx, signed, now).await
    }

    async fn signature(&mut self, attempt: AttemptId) -> Result<Option<ResultSignature>> {
        trail::signature(&mut self.tx, attempt).await
    }

    async fn insert_audit(&mut self, start: &AuditStart, now: Timestamp) -> Result<u64> {
        trail::insert_audit(&mut self.tx, start, now).await
    }

    async fn end_audit(&mut self, number: u64, outcome: &str) -> Result<bool> {
        trail::end_audit(&mut self.tx, number, outcome).await
    }

    async fn audit(&mut self, before: u64, limit: u32) -> Result<Vec<AuditEntry>> {
        trail::audit(&mut self.tx, before, limit).await
    }
}
