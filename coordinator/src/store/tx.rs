//! What a backend provides: rows inside one transaction. The rules live above, in the engine.

use async_trait::async_trait;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};

use super::types::{
    AuditEntry, AuditStart, BlobRecord, Duty, Identity, Result, ResultSignature, UploadRecord,
};
use crate::domain::attempt::Attempt;
use crate::domain::chain::{Chain, NewChain};
use crate::domain::event::{Event, NewEvent};
use crate::domain::hop::Hop;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::Accuracy;

/// Opens transactions.
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    /// A consistent view of one moment.
    async fn read(&self) -> Result<Box<dyn Tx>>;
    /// As [`Backend::read`], but each call may see a moment of its own: for one row, and for looks that a writing
    /// transaction repeats before anything rests on them.
    async fn look(&self) -> Result<Box<dyn Tx>> {
        self.read().await
    }
    /// For a decision and what follows from it: rows read by [`Tx::chain`], [`Tx::device`] and
    /// [`Tx::upload`] do not change under it, and a locked chain covers its hops, attempts, archive
    /// and events. Either the only writer at a time, or these rows are locked; lock chains before
    /// devices. May fail because of another writer, see [`super::types::StoreError::is_conflict`]. Dropped without
    /// [`Tx::commit`], nothing happened.
    async fn write(&self) -> Result<Box<dyn Tx>>;
    /// A transaction that appended events committed; `newest` is the last one's sequence number, and `opens` whether
    /// there may be work after them.
    fn committed(&self, newest: u64, opens: bool) {
        let _ = (newest, opens);
    }
    /// A token was revoked: replicas shall not believe what they remember of tokens.
    async fn revoked(&self) {}
    /// Whether this process is the one that should do the duty now.
    async fn leads(&self, duty: Duty) -> Result<bool> {
        let _ = duty;
        Ok(true)
    }
    /// Ends every connection; calls after it fail.
    async fn close(&self);
}

/// A token's row.
#[derive(Debug, Clone)]
pub(super) struct TokenRow {
    pub hash: Digest,
    pub identity: Identity,
    pub revoked: bool,
}

/// Rows inside one transaction. `put_*` inserts or replaces, `insert_*` fails on a second one.
#[async_trait]
pub(super) trait Tx: Send {
    async fn commit(self: Box<Self>) -> Result<()>;

    async fn account_by_name(&mut self, name: &str) -> Result<Option<AccountId>>;
    async fn account_name(&mut self, id: AccountId) -> Result<String>;
    async fn insert_account(&mut self, id: AccountId, name: &str, now: Timestamp) -> Result<()>;

    async fn token_by_hash(&mut self, hash: Digest) -> Result<Option<TokenRow>>;
    async fn insert_token(&mut self, row: &TokenRow, now: Timestamp) -> Result<()>;
    /// False when there is no such token.
    async fn revoke_token(&mut self, id: TokenId, now: Timestamp) -> Result<bool>;
    async fn revoke_device_tokens(&mut self, device: DeviceId, now: Timestamp) -> Result<()>;

    async fn device(&mut self, id: DeviceId) -> Result<Option<Device>>;
    async fn device_by_nonce(
        &mut self,
        account: AccountId,
        nonce: Nonce,
    ) -> Result<Option<DeviceId>>;
    async fn devices(&mut self) -> Result<Vec<Device>>;
    async fn insert_device(&mut self, device: &Device, nonce: Nonce) -> Result<()>;
    async fn update_device(&mut self, device: &Device) -> Result<()>;

    async fn blob(&mut self, digest: Digest) -> Result<Option<BlobRecord>>;
    /// Complete blobs by digest, those above `after` first.
    async fn blobs(&mut self, after: Option<Digest>, limit: u32) -> Result<Vec<BlobRecord>>;
    async fn insert_blob(&mut self, blob: &BlobRecord) -> Result<()>;
    async fn upload(&mut self, id: UploadId) -> Result<Option<UploadRecord>>;
    async fn upload_of(
        &mut self,
        digest: Digest,
        account: AccountId,
    ) -> Result<Option<UploadRecord>>;
    async fn uploads(&mut self) -> Result<Vec<UploadRecord>>;
    async fn put_upload(&mut self, upload: &UploadRecord) -> Result<()>;
    async fn delete_uploads(&mut self, digest: Digest) -> Result<()>;

    /// [`Tx::chain`] that does not wait: also `None` when another writer has the chain.
    async fn chain_if_free(&mut self, id: ChainId) -> Result<Option<Chain>> {
        self.chain(id).await
    }
    async fn chain(&mut self, id: ChainId) -> Result<Option<Chain>>;
    /// The chain, by [`Tx::chain_if_free`] or [`Tx::chain`], and then its head hop.
    async fn head(&mut self, id: ChainId, if_free: bool) -> Result<Option<(Chain, Option<Hop>)>> {
        let chain = match if_free {
            true => self.chain_if_free(id).await?,
            false => self.chain(id).await?,
        };
        let Some(chain) = chain else { return Ok(None) };
        let index = chain.head.min(chain.hops.saturating_sub(1));
        let hop = self.hop(id, chain.generation, index).await?;
        Ok(Some((chain, hop)))
    }
    /// [`Tx::chain`] and then [`Tx::hop`].
    async fn chain_and_hop(
        &mut self,
        id: ChainId,
        generation: u32,
        index: u32,
    ) -> Result<Option<(Chain, Option<Hop>)>> {
        let Some(chain) = self.chain(id).await? else {
            return Ok(None);
        };
        let hop = self.hop(id, generation, index).await?;
        Ok(Some((chain, hop)))
    }
    async fn chain_by_name(&mut self, name: &str) -> Result<Option<Chain>>;
    /// By time of creation.
    async fn chains(&mut self) -> Result<Vec<Chain>>;
    /// Active chains, each with its head hop, by time of creation.
    async fn active_heads(&mut self) -> Result<Vec<(Chain, Hop)>>;
    async fn insert_chain(&mut self, chain: &Chain, new: &NewChain) -> Result<()>;
    /// Compare-and-set on head and generation: false when the row has moved on.
    async fn update_chain(&mut self, chain: &Chain, head: u32, generation: u32) -> Result<bool>;
    /// Evaluation keys in the manifest's order.
    async fn chain_keys(&mut self, id: ChainId) -> Result<Vec<BlobRecord>>;

    async fn hop(&mut self, chain: ChainId, generation: u32, index: u32) -> Result<Option<Hop>>;
    /// In order.
    async fn hops(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Hop>>;
    /// Verified hops in doubt, of every chain's current generation, the longest in doubt first.
    async fn rechecks(&mut self) -> Result<Vec<Hop>>;
    async fn insert_hop(&mut self, hop: &Hop) -> Result<()>;
    async fn update_hop(&mut self, hop: &Hop) -> Result<()>;

    async fn attempt(&mut self, id: AttemptId) -> Result<Option<Attempt>>;
    /// The attempt of this nonce, and the live and Submitted ones of the device.
    async fn own_attempts(&mut self, device: DeviceId, nonce: Nonce) -> Result<Vec<Attempt>>;
    /// In order of epoch.
    async fn attempts_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>>;
    /// The live and Submitted ones among [`Tx::attempts_of_hop`].
    async fn pending_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>>;
    /// [`Tx::pending_of_hop`] of every active chain's head hop, in order of epoch.
    async fn pending_of_heads(&mut self) -> Result<Vec<Attempt>>;
    /// In order of hop, then epoch.
    async fn attempts_of_chain(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Attempt>>;
    /// Every live attempt.
    async fn live_attempts(&mut self) -> Result<Vec<Attempt>>;
    /// Live attempts whose [`Attempt::wake_at`] is `now` or before.
    async fn due_attempts(&mut self, now: Timestamp) -> Result<Vec<Attempt>>;
    /// The earliest [`Attempt::wake_at`] after this time; of all without one.
    async fn next_wake(&mut self, after: Option<Timestamp>) -> Result<Option<Timestamp>>;
    /// Live and Submitted attempts of a device.
    async fn pending_of_device(&mut self, device: DeviceId) -> Result<Vec<Attempt>>;
    /// Accepted attempts of a device that ended after `since`.
    async fn accepted_of_device(
        &mut self,
        device: DeviceId,
        since: Timestamp,
    ) -> Result<Vec<Attempt>>;
    async fn insert_attempt(&mut self, attempt: &Attempt) -> Result<()>;
    async fn update_attempt(&mut self, attempt: &Attempt) -> Result<()>;
    /// Microseconds from lease to submit of the chain's newest accepted attempts, at most `limit`.
    async fn accepted_durations(&mut self, chain: ChainId, limit: u32) -> Result<Vec<u64>>;

    async fn archive(&mut self, chain: ChainId) -> Result<Vec<ArchiveRow>>;
    /// Position and hash of the newest row.
    async fn archive_tip(&mut self, chain: ChainId) -> Result<Option<(u64, Digest)>>;
    async fn insert_archive(&mut self, row: &ArchiveRow) -> Result<()>;
    /// Every ledger key, the newest last.
    async fn ledger_keys(&mut self) -> Result<Vec<PublicKey>>;
    /// A newer ledger key; `number`: how many there were.
    async fn insert_ledger_key(
        &mut self,
        number: u64,
        key: PublicKey,
        now: Timestamp,
    ) -> Result<()>;
    async fn insert_credit(
        &mut self,
        attempt: AttemptId,
        account: AccountId,
        now: Timestamp,
    ) -> Result<()>;
    async fn credits(&mut self, account: AccountId) -> Result<u64>;
    async fn credit_seconds(&mut self, account: AccountId) -> Result<f64>;

    async fn accuracies(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Accuracy>>;
    async fn put_accuracy(
        &mut self,
        chain: ChainId,
        generation: u32,
        figures: Accuracy,
    ) -> Result<()>;

    async fn append_event(
        &mut self,
        chain: ChainId,
        event: &NewEvent,
        now: Timestamp,
    ) -> Result<u64>;
    /// A new attempt (`made`) or a changed one, its changed hop, and an event: as the three calls, in that order.
    async fn record(
        &mut self,
        attempt: &Attempt,
        made: bool,
        hop: &Hop,
        event: &NewEvent,
        now: Timestamp,
    ) -> Result<u64> {
        match made {
            true => self.insert_attempt(attempt).await?,
            false => self.update_attempt(attempt).await?,
        }
        self.update_hop(hop).await?;
        self.append_event(hop.chain, event, now).await
    }
    async fn events(&mut self, chain: ChainId, after: u64, limit: u32) -> Result<Vec<Event>>;
    async fn last_sequence(&mut self, chain: ChainId) -> Result<u64>;

    async fn device_key(&mut self, device: DeviceId) -> Result<Option<PublicKey>>;
    async fn device_of_key(&mut self, key: PublicKey) -> Result<Option<DeviceId>>;
    async fn device_keys(&mut self) -> Result<Vec<(DeviceId, PublicKey)>>;
    async fn insert_device_key(
        &mut self,
        device: DeviceId,
        key: PublicKey,
        now: Timestamp,
    ) -> Result<()>;
    async fn put_signature(&mut self, signed: &ResultSignature, now: Timestamp) -> Result<()>;
    async fn signature(&mut self, attempt: AttemptId) -> Result<Option<ResultSignature>>;
    async fn insert_audit(&mut self, start: &AuditStart, now: Timestamp) -> Result<u64>;
    /// False when there is no such entry without an outcome.
    async fn end_audit(&mut self, number: u64, outcome: &str) -> Result<bool>;
    /// Newest first.
    async fn audit(&mut self, before: u64, limit: u32) -> Result<Vec<AuditEntry>>;
}
