//! One SQLite transaction as the engine sees it.

use async_trait::async_trait;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};
use sqlx::{Sqlite, Transaction};

use super::{archive, chains, people, work};
use crate::domain::attempt::Attempt;
use crate::domain::chain::{Chain, NewChain};
use crate::domain::event::{Event, NewEvent};
use crate::domain::hop::Hop;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::Accuracy;
use crate::store::tx::{TokenRow, Tx};
use crate::store::types::{BlobRecord, Result, UploadRecord};

/// Rolls back when dropped without commit.
pub(super) struct SqliteTx(Transaction<'static, Sqlite>);

impl SqliteTx {
    pub fn new(transaction: Transaction<'static, Sqlite>) -> Self {
        Self(transaction)
    }
}

#[async_trait]
impl Tx for SqliteTx {
    async fn commit(self: Box<Self>) -> Result<()> {
        Ok(self.0.commit().await?)
    }

    async fn account_by_name(&mut self, name: &str) -> Result<Option<AccountId>> {
        people::account_by_name(&mut self.0, name).await
    }

    async fn account_name(&mut self, id: AccountId) -> Result<String> {
        people::account_name(&mut self.0, id).await
    }

    async fn insert_account(&mut self, id: AccountId, name: &str, now: Timestamp) -> Result<()> {
        people::insert_account(&mut self.0, id, name, now).await
    }

    async fn token_by_hash(&mut self, hash: Digest) -> Result<Option<TokenRow>> {
        people::token_by_hash(&mut self.0, hash).await
    }

    async fn insert_token(&mut self, row: &TokenRow, now: Timestamp) -> Result<()> {
        people::insert_token(&mut self.0, row, now).await
    }

    async fn revoke_token(&mut self, id: TokenId, now: Timestamp) -> Result<bool> {
        people::revoke_token(&mut self.0, id, now).await
    }

    async fn revoke_device_tokens(&mut self, device: DeviceId, now: Timestamp) -> Result<()> {
        people::revoke_device_tokens(&mut self.0, device, now).await
    }

    async fn device(&mut self, id: DeviceId) -> Result<Option<Device>> {
        people::device(&mut self.0, id).await
    }

    async fn device_by_nonce(
        &mut self,
        account: AccountId,
        nonce: Nonce,
    ) -> Result<Option<DeviceId>> {
        people::device_by_nonce(&mut self.0, account, nonce).await
    }

    async fn devices(&mut self) -> Result<Vec<Device>> {
        people::devices(&mut self.0).await
    }

    async fn insert_device(&mut self, device: &Device, nonce: Nonce) -> Result<()> {
        people::insert_device(&mut self.0, device, nonce).await
    }

    async fn update_device(&mut self, device: &Device) -> Result<()> {
        people::update_device(&mut self.0, device).await
    }

    async fn blob(&mut self, digest: Digest) -> Result<Option<BlobRecord>> {
        people::blob(&mut self.0, digest).await
    }

    async fn insert_blob(&mut self, blob: &BlobRecord) -> Result<()> {
        people::insert_blob(&mut self.0, blob).await
    }

    async fn upload(&mut self, id: UploadId) -> Result<Option<UploadRecord>> {
        people::upload(&mut self.0, id).await
    }

    async fn upload_of(
        &mut self,
        digest: Digest,
        account: AccountId,
    ) -> Result<Option<UploadRecord>> {
        people::upload_of(&mut self.0, digest, account).await
    }

    async fn uploads(&mut self) -> Result<Vec<UploadRecord>> {
        people::uploads(&mut self.0).await
    }

    async fn put_upload(&mut self, upload: &UploadRecord) -> Result<()> {
        people::put_upload(&mut self.0, upload).await
    }

    async fn delete_uploads(&mut self, digest: Digest) -> Result<()> {
        people::delete_uploads(&mut self.0, digest).await
    }

    async fn chain(&mut self, id: ChainId) -> Result<Option<Chain>> {
        chains::chain(&mut self.0, id).await
    }

    async fn chain_by_name(&mut self, name: &str) -> Result<Option<Chain>> {
        chains::chain_by_name(&mut self.0, name).await
    }

    async fn chains(&mut self) -> Result<Vec<Chain>> {
        chains::chains(&mut self.0).await
    }

    async fn active_heads(&mut self) -> Result<Vec<(Chain, Hop)>> {
        chains::active_heads(&mut self.0).await
    }

    async fn insert_chain(&mut self, chain: &Chain, new: &NewChain) -> Result<()> {
        chains::insert_chain(&mut self.0, chain, new).await
    }

    async fn update_chain(&mut self, chain: &Chain, head: u32, generation: u32) -> Result<bool> {
        chains::update_chain(&mut self.0, chain, head, generation).await
    }

    async fn chain_keys(&mut self, id: ChainId) -> Result<Vec<BlobRecord>> {
        chains::chain_keys(&mut self.0, id).await
    }

    async fn hop(&mut self, chain: ChainId, generation: u32, index: u32) -> Result<Option<Hop>> {
        chains::hop(&mut self.0, chain, generation, index).await
    }

    async fn hops(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Hop>> {
        chains::hops(&mut self.0, chain, generation).await
    }

    async fn insert_hop(&mut self, hop: &Hop) -> Result<()> {
        chains::put_hop(&mut self.0, hop).await
    }

    async fn update_hop(&mut self, hop: &Hop) -> Result<()> {
        chains::put_hop(&mut self.0, hop).await
    }

    async fn attempt(&mut self, id: AttemptId) -> Result<Option<Attempt>> {
        work::attempt(&mut self.0, id).await
    }

    async fn attempt_by_nonce(
        &mut self,
        device: DeviceId,
        nonce: Nonce,
    ) -> Result<Option<Attempt>> {
        work::attempt_by_nonce(&mut self.0, device, nonce).await
    }

    async fn attempts_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>> {
        work::attempts_of_hop(&mut self.0, chain, generation, hop).await
    }

    async fn attempts_of_chain(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Attempt>> {
        work::attempts_of_chain(&mut self.0, chain, generation).await
    }

    async fn live_attempts(&mut self) -> Result<Vec<Attempt>> {
        work::live_attempts(&mut self.0).await
    }

    async fn pending_of_device(&mut self, device: DeviceId) -> Result<Vec<Attempt>> {
        work::pending_of_device(&mut self.0, device).await
    }

    async fn insert_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        work::insert_attempt(&mut self.0, attempt).await
    }

    async fn update_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        work::update_attempt(&mut self.0, attempt).await
    }

    async fn accepted_durations(&mut self, chain: ChainId, limit: u32) -> Result<Vec<u64>> {
        work::accepted_durations(&mut self.0, chain, limit).await
    }

    async fn archive(&mut self, chain: ChainId) -> Result<Vec<ArchiveRow>> {
        archive::archive(&mut self.0, chain).await
    }

    async fn archive_tip(&mut self, chain: ChainId) -> Result<Option<(u64, Digest)>> {
        archive::archive_tip(&mut self.0, chain).await
    }

    async fn insert_archive(&mut self, row: &ArchiveRow) -> Result<()> {
        archive::insert_archive(&mut self.0, row).await
    }

    async fn insert_credit(
        &mut self,
        attempt: AttemptId,
        account: AccountId,
        now: Timestamp,
    ) -> Result<()> {
        work::insert_credit(&mut self.0, attempt, account, now).await
    }

    async fn credits(&mut self, account: AccountId) -> Result<u64> {
        work::credits(&mut self.0, account).await
    }

    async fn accuracies(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Accuracy>> {
        archive::accuracies(&mut self.0, chain, generation).await
    }

    async fn put_accuracy(
        &mut self,
        chain: ChainId,
        generation: u32,
        figures: Accuracy,
    ) -> Result<()> {
        archive::put_accuracy(&mut self.0, chain, generation, figures).await
    }

    async fn append_event(
        &mut self,
        chain: ChainId,
        event: &NewEvent,
        now: Timestamp,
    ) -> Result<u64> {
        work::append_event(&mut self.0, chain, event, now).await
    }

    async fn events(&mut self, chain: ChainId, after: u64, limit: u32) -> Result<Vec<Event>> {
        work::events(&mut self.0, chain, after, limit).await
    }

    async fn last_sequence(&mut self, chain: ChainId) -> Result<u64> {
        work::last_sequence(&mut self.0, chain).await
    }
}
