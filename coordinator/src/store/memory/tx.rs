//! One transaction over rows in memory.

use std::ops::Bound;

use async_trait::async_trait;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};

use super::{MemoryTx, unique};
use crate::domain::attempt::{Attempt, AttemptState};
use crate::domain::chain::{Chain, ChainState, NewChain};
use crate::domain::event::{Event, NewEvent};
use crate::domain::hop::Hop;
use crate::domain::ledger::ArchiveRow;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::Accuracy;
use crate::store::tx::{TokenRow, Tx};
use crate::store::types::{
    AuditEntry, AuditStart, BlobRecord, Result, ResultSignature, StoreError, UploadRecord,
};

fn is_pending(attempt: &Attempt) -> bool {
    attempt.state.is_live() || attempt.state == AttemptState::Submitted
}

impl MemoryTx {
    /// Live attempts with the time at which each needs a look.
    fn wakes(&self) -> Vec<(Timestamp, Attempt)> {
        let world = self.get();
        let wake = |attempt: &Attempt| {
            let (chain, _) = world.chains.get(&attempt.chain)?;
            Some((attempt.wake_at(chain.policy.grace)?, attempt.clone()))
        };
        world.attempts.values().filter_map(wake).collect()
    }
}

#[async_trait]
impl Tx for MemoryTx {
    async fn commit(mut self: Box<Self>) -> Result<()> {
        if let Some(copy) = self.copy.take() {
            *self.guard = copy;
        }
        Ok(())
    }

    async fn account_by_name(&mut self, name: &str) -> Result<Option<AccountId>> {
        Ok(self
            .get()
            .accounts
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(id, _)| *id))
    }

    async fn account_name(&mut self, id: AccountId) -> Result<String> {
        Ok(self.get().accounts.get(&id).cloned().unwrap_or_default())
    }

    async fn insert_account(&mut self, id: AccountId, name: &str, _: Timestamp) -> Result<()> {
        unique(&mut self.edit().accounts, id, name.to_owned(), "account")
    }

    async fn token_by_hash(&mut self, hash: Digest) -> Result<Option<TokenRow>> {
        Ok(self
            .get()
            .tokens
            .values()
            .find(|token| token.hash == hash)
            .cloned())
    }

    async fn insert_token(&mut self, row: &TokenRow, _: Timestamp) -> Result<()> {
        unique(
            &mut self.edit().tokens,
            row.identity.token,
            row.clone(),
            "token",
        )
    }

    async fn revoke_token(&mut self, id: TokenId, _: Timestamp) -> Result<bool> {
        let token = self.edit().tokens.get_mut(&id);
        Ok(token.map(|token| token.revoked = true).is_some())
    }

    async fn revoke_device_tokens(&mut self, device: DeviceId, _: Timestamp) -> Result<()> {
        let tokens = self.edit().tokens.values_mut();
        tokens
            .filter(|token| token.identity.device == Some(device))
            .for_each(|token| token.revoked = true);
        Ok(())
    }

    async fn device(&mut self, id: DeviceId) -> Result<Option<Device>> {
        Ok(self
            .get()
            .devices
            .get(&id)
            .map(|(device, _)| device.clone()))
    }

    async fn device_by_nonce(
        &mut self,
        account: AccountId,
        nonce: Nonce,
    ) -> Result<Option<DeviceId>> {
        let mut devices = self.get().devices.values();
        let found = devices.find(|(device, known)| device.account == account && *known == nonce);
        Ok(found.map(|(device, _)| device.id))
    }

    async fn devices(&mut self) -> Result<Vec<Device>> {
        let mut devices: Vec<_> = self
            .get()
            .devices
            .values()
            .map(|(d, _)| d.clone())
            .collect();
        devices.sort_by_key(|device| (device.created, device.id));
        Ok(devices)
    }

    async fn insert_device(&mut self, device: &Device, nonce: Nonce) -> Result<()> {
        unique(
            &mut self.edit().devices,
            device.id,
            (device.clone(), nonce),
            "device",
        )
    }

    async fn update_device(&mut self, device: &Device) -> Result<()> {
        if let Some(row) = self.edit().devices.get_mut(&device.id) {
            row.0 = device.clone();
        }
        Ok(())
    }

    async fn blob(&mut self, digest: Digest) -> Result<Option<BlobRecord>> {
        Ok(self.get().blobs.get(&digest).copied())
    }

    async fn blobs(&mut self, after: Option<Digest>, limit: u32) -> Result<Vec<BlobRecord>> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let blobs = self.get().blobs.range((after, Bound::Unbounded));
        Ok(blobs.take(limit as usize).map(|(_, blob)| *blob).collect())
    }

    async fn insert_blob(&mut self, blob: &BlobRecord) -> Result<()> {
        unique(&mut self.edit().blobs, blob.digest, *blob, "blob")
    }

    async fn upload(&mut self, id: UploadId) -> Result<Option<UploadRecord>> {
        Ok(self.get().uploads.get(&id).copied())
    }

    async fn upload_of(
        &mut self,
        digest: Digest,
        account: AccountId,
    ) -> Result<Option<UploadRecord>> {
        let mut uploads = self.get().uploads.values();
        Ok(uploads
            .find(|u| u.digest == digest && u.account == account)
            .copied())
    }

    async fn uploads(&mut self) -> Result<Vec<UploadRecord>> {
        Ok(self.get().uploads.values().copied().collect())
    }

    async fn put_upload(&mut self, upload: &UploadRecord) -> Result<()> {
        self.edit().uploads.insert(upload.id, *upload);
        Ok(())
    }

    async fn delete_uploads(&mut self, digest: Digest) -> Result<()> {
        self.edit()
            .uploads
            .retain(|_, upload| upload.digest != digest);
        Ok(())
    }

    async fn chain(&mut self, id: ChainId) -> Result<Option<Chain>> {
        Ok(self.get().chains.get(&id).map(|(chain, _)| chain.clone()))
    }

    async fn chain_by_name(&mut self, name: &str) -> Result<Option<Chain>> {
        let mut chains = self.get().chains.values();
        Ok(chains
            .find(|(chain, _)| chain.name == name)
            .map(|(chain, _)| chain.clone()))
    }

    async fn chains(&mut self) -> Result<Vec<Chain>> {
        let mut chains: Vec<_> = self.get().chains.values().map(|(c, _)| c.clone()).collect();
        chains.sort_by_key(|chain| (chain.created, chain.id));
        Ok(chains)
    }

    async fn active_heads(&mut self) -> Result<Vec<(Chain, Hop)>> {
        let mut chains = self.chains().await?;
        chains.retain(|chain| chain.state == ChainState::Active);
        let hops = &self.get().hops;
        let head = |chain: Chain| {
            let hop = hops.get(&(chain.id, chain.generation, chain.head)).cloned();
            hop.map(|hop| (chain, hop))
        };
        Ok(chains.into_iter().filter_map(head).collect())
    }

    async fn insert_chain(&mut self, chain: &Chain, new: &NewChain) -> Result<()> {
        let row = (chain.clone(), new.keys.clone());
        unique(&mut self.edit().chains, chain.id, row, "chain")
    }

    async fn update_chain(&mut self, chain: &Chain, head: u32, generation: u32) -> Result<bool> {
        match self.edit().chains.get_mut(&chain.id) {
            Some((row, _)) if row.head == head && row.generation == generation => {
                *row = chain.clone();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn chain_keys(&mut self, id: ChainId) -> Result<Vec<BlobRecord>> {
        let world = self.get();
        let keys = world
            .chains
            .get(&id)
            .map(|(_, keys)| keys.as_slice())
            .unwrap_or_default();
        Ok(keys
            .iter()
            .filter_map(|key| world.blobs.get(key).copied())
            .collect())
    }

    async fn hop(&mut self, chain: ChainId, generation: u32, index: u32) -> Result<Option<Hop>> {
        Ok(self.get().hops.get(&(chain, generation, index)).cloned())
    }

    async fn hops(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Hop>> {
        let range = (chain, generation, 0)..=(chain, generation, u32::MAX);
        Ok(self
            .get()
            .hops
            .range(range)
            .map(|(_, hop)| hop.clone())
            .collect())
    }

    async fn rechecks(&mut self) -> Result<Vec<Hop>> {
        let world = self.get();
        let current = |hop: &Hop| {
            let chain = world.chains.get(&hop.chain);
            chain.is_some_and(|(chain, _)| chain.generation == hop.generation)
        };
        let doubted = world.hops.values().filter(|h| h.recheck && current(h));
        let mut hops: Vec<Hop> = doubted.cloned().collect();
        hops.sort_by_key(|hop| (hop.since, hop.chain, hop.index));
        Ok(hops)
    }

    async fn insert_hop(&mut self, hop: &Hop) -> Result<()> {
        let key = (hop.chain, hop.generation, hop.index);
        unique(&mut self.edit().hops, key, hop.clone(), "hop")
    }

    async fn update_hop(&mut self, hop: &Hop) -> Result<()> {
        let key = (hop.chain, hop.generation, hop.index);
        self.edit().hops.insert(key, hop.clone());
        Ok(())
    }

    async fn attempt(&mut self, id: AttemptId) -> Result<Option<Attempt>> {
        Ok(self.get().attempts.get(&id).cloned())
    }

    async fn own_attempts(&mut self, device: DeviceId, nonce: Nonce) -> Result<Vec<Attempt>> {
        let own = |a: &&Attempt| a.device == device && (a.nonce == nonce || is_pending(a));
        Ok(self.get().attempts.values().filter(own).cloned().collect())
    }

    async fn attempts_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>> {
        let mut attempts = self.attempts_of_chain(chain, generation).await?;
        attempts.retain(|attempt| attempt.hop == hop);
        Ok(attempts)
    }

    async fn pending_of_hop(
        &mut self,
        chain: ChainId,
        generation: u32,
        hop: u32,
    ) -> Result<Vec<Attempt>> {
        let mut attempts = self.attempts_of_hop(chain, generation, hop).await?;
        attempts.retain(is_pending);
        Ok(attempts)
    }

    async fn pending_of_heads(&mut self) -> Result<Vec<Attempt>> {
        let world = self.get();
        let at_head = |a: &&Attempt| {
            let chain = world.chains.get(&a.chain).map(|(chain, _)| chain);
            chain.is_some_and(|c| {
                c.state == ChainState::Active && (c.generation, c.head) == (a.generation, a.hop)
            })
        };
        let all = world.attempts.values();
        let mut attempts: Vec<_> = all
            .filter(|a| is_pending(a))
            .filter(at_head)
            .cloned()
            .collect();
        attempts.sort_by_key(|attempt| attempt.epoch);
        Ok(attempts)
    }

    async fn attempts_of_chain(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Attempt>> {
        let all = self.get().attempts.values();
        let mut attempts: Vec<_> = all
            .filter(|a| a.chain == chain && a.generation == generation)
            .cloned()
            .collect();
        attempts.sort_by_key(|attempt| (attempt.hop, attempt.epoch));
        Ok(attempts)
    }

    async fn live_attempts(&mut self) -> Result<Vec<Attempt>> {
        Ok(self
            .get()
            .attempts
            .values()
            .filter(|a| a.state.is_live())
            .cloned()
            .collect())
    }

    async fn due_attempts(&mut self, now: Timestamp) -> Result<Vec<Attempt>> {
        let wakes = self.wakes().into_iter();
        let due = wakes.filter(|(wake, _)| *wake <= now);
        Ok(due.map(|(_, attempt)| attempt).collect())
    }

    async fn next_wake(&mut self, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
        let wakes = self.wakes().into_iter().map(|(wake, _)| wake);
        Ok(wakes
            .filter(|wake| after.is_none_or(|after| *wake > after))
            .min())
    }

    async fn pending_of_device(&mut self, device: DeviceId) -> Result<Vec<Attempt>> {
        let pending = |attempt: &&Attempt| attempt.device == device && is_pending(attempt);
        Ok(self
            .get()
            .attempts
            .values()
            .filter(pending)
            .cloned()
            .collect())
    }

    async fn accepted_of_device(
        &mut self,
        device: DeviceId,
        since: Timestamp,
    ) -> Result<Vec<Attempt>> {
        let accepted = |attempt: &&Attempt| {
            let state = attempt.state;
            attempt.device == device
                && matches!(state, AttemptState::Matched | AttemptState::LateValid)
                && attempt.ended.is_some_and(|at| at > since)
        };
        let attempts = self.get().attempts.values().filter(accepted);
        Ok(attempts.cloned().collect())
    }

    async fn insert_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        unique(
            &mut self.edit().attempts,
            attempt.id,
            attempt.clone(),
            "attempt",
        )
    }

    async fn update_attempt(&mut self, attempt: &Attempt) -> Result<()> {
        self.edit().attempts.insert(attempt.id, attempt.clone());
        Ok(())
    }

    async fn accepted_durations(&mut self, chain: ChainId, limit: u32) -> Result<Vec<u64>> {
        let accepted = |a: &&Attempt| a.chain == chain && a.state == AttemptState::Matched;
        let mut rows: Vec<_> = self.get().attempts.values().filter(accepted).collect();
        rows.sort_by_key(|attempt| std::cmp::Reverse(attempt.ended));
        let micros = |a: &Attempt| a.ended.map_or(0, |end| end.since(a.leased).as_micros());
        let durations = rows.into_iter().take(limit as usize).map(micros);
        Ok(durations
            .map(|micros| u64::try_from(micros).unwrap_or(u64::MAX))
            .collect())
    }

    async fn archive(&mut self, chain: ChainId) -> Result<Vec<ArchiveRow>> {
        Ok(self
            .get()
            .archive
            .iter()
            .filter(|row| row.chain == chain)
            .cloned()
            .collect())
    }

    async fn archive_tip(&mut self, chain: ChainId) -> Result<Option<(u64, Digest)>> {
        let tip = self.get().archive.iter().rfind(|row| row.chain == chain);
        Ok(tip.map(|row| (row.position, row.hash)))
    }

    async fn insert_archive(&mut self, row: &ArchiveRow) -> Result<()> {
        let key = |row: &ArchiveRow| (row.chain, row.generation, row.hop);
        if self
            .get()
            .archive
            .iter()
            .any(|known| key(known) == key(row))
        {
            return Err(StoreError::Damaged("archive row exists already".to_owned()));
        }
        self.edit().archive.push(row.clone());
        Ok(())
    }

    async fn ledger_keys(&mut self) -> Result<Vec<PublicKey>> {
        Ok(self.get().ledger_keys.clone())
    }

    async fn insert_ledger_key(
        &mut self,
        _number: u64,
        key: PublicKey,
        _now: Timestamp,
    ) -> Result<()> {
        self.edit().ledger_keys.push(key);
        Ok(())
    }

    async fn insert_credit(
        &mut self,
        attempt: AttemptId,
        account: AccountId,
        _: Timestamp,
    ) -> Result<()> {
        unique(&mut self.edit().credits, attempt, account, "credit")
    }

    async fn credits(&mut self, account: AccountId) -> Result<u64> {
        Ok(self
            .get()
            .credits
            .values()
            .filter(|earner| **earner == account)
            .count() as u64)
    }

    async fn credit_seconds(&mut self, account: AccountId) -> Result<f64> {
        let data = self.get();
        let earned = data
            .credits
            .iter()
            .filter(|(_, earner)| **earner == account);
        let claims = earned.filter_map(|(id, _)| data.attempts.get(id)?.claim.as_ref());
        Ok(claims.map(|claim| claim.compute.as_secs_f64()).sum())
    }

    async fn accuracies(&mut self, chain: ChainId, generation: u32) -> Result<Vec<Accuracy>> {
        let range = (chain, generation, 0)..=(chain, generation, u32::MAX);
        Ok(self
            .get()
            .accuracies
            .range(range)
            .map(|(_, figures)| *figures)
            .collect())
    }

    async fn put_accuracy(
        &mut self,
        chain: ChainId,
        generation: u32,
        figures: Accuracy,
    ) -> Result<()> {
        self.edit()
            .accuracies
            .insert((chain, generation, figures.hop), figures);
        Ok(())
    }

    async fn append_event(
        &mut self,
        chain: ChainId,
        event: &NewEvent,
        at: Timestamp,
    ) -> Result<u64> {
        let events = &mut self.edit().events;
        let sequence = events.len() as u64 + 1;
        events.push(Event {
            sequence,
            chain,
            event: event.clone(),
            at,
        });
        Ok(sequence)
    }

    async fn events(&mut self, chain: ChainId, after: u64, limit: u32) -> Result<Vec<Event>> {
        let newer = |event: &&Event| event.chain == chain && event.sequence > after;
        Ok(self
            .get()
            .events
            .iter()
            .filter(newer)
            .take(limit as usize)
            .cloned()
            .collect())
    }

    async fn last_sequence(&mut self, chain: ChainId) -> Result<u64> {
        let last = self.get().events.iter().rfind(|event| event.chain == chain);
        Ok(last.map_or(0, |event| event.sequence))
    }

    async fn device_key(&mut self, device: DeviceId) -> Result<Option<PublicKey>> {
        Ok(self.get().device_keys.get(&device).copied())
    }

    async fn device_of_key(&mut self, key: PublicKey) -> Result<Option<DeviceId>> {
        let mut keys = self.get().device_keys.iter();
        Ok(keys.find(|(_, known)| **known == key).map(|(id, _)| *id))
    }

    async fn device_keys(&mut self) -> Result<Vec<(DeviceId, PublicKey)>> {
        let keys = self.get().device_keys.iter();
        Ok(keys.map(|(id, key)| (*id, *key)).collect())
    }

    async fn insert_device_key(
        &mut self,
        device: DeviceId,
        key: PublicKey,
        _: Timestamp,
    ) -> Result<()> {
        unique(&mut self.edit().device_keys, device, key, "device key")
    }

    async fn put_signature(&mut self, signed: &ResultSignature, _: Timestamp) -> Result<()> {
        self.edit().signatures.insert(signed.attempt, *signed);
        Ok(())
    }

    async fn signature(&mut self, attempt: AttemptId) -> Result<Option<ResultSignature>> {
        Ok(self.get().signatures.get(&attempt).copied())
    }

    async fn insert_audit(&mut self, start: &AuditStart, now: Timestamp) -> Result<u64> {
        let audit = &mut self.edit().audit;
        let number = audit.len() as u64 + 1;
        audit.push(AuditEntry {
            number,
            at: now,
            token: start.token,
            account: start.account.clone(),
            action: start.action.to_owned(),
            target: start.target.clone(),
            detail: start.detail.clone(),
            outcome: None,
        });
        Ok(number)
    }

    async fn end_audit(&mut self, number: u64, outcome: &str) -> Result<bool> {
        let mut audit = self.edit().audit.iter_mut();
        match audit.find(|entry| entry.number == number && entry.outcome.is_none()) {
            Some(entry) => {
                entry.outcome = Some(outcome.to_owned());
                Ok(true)
            }
            None => Ok(false),
        }
    }

    async fn audit(&mut self, before: u64, limit: u32) -> Result<Vec<AuditEntry>> {
        let newest = self.get().audit.iter().rev();
        Ok(newest
            .filter(|entry| entry.number < before)
            .take(limit as usize)
            .cloned()
            .collect())
    }
}
