//! Rows in memory. Keeps the same uniqueness rules as the SQL schema, so that the conformance suite
//! means the same on both.

mod tx;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, TokenId, UploadId};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::tx::{Backend, TokenRow, Tx};
use super::types::{AuditEntry, BlobRecord, Result, ResultSignature, StoreError, UploadRecord};
use crate::domain::attempt::Attempt;
use crate::domain::chain::Chain;
use crate::domain::event::Event;
use crate::domain::hop::Hop;
use crate::domain::ledger::ArchiveRow;
use crate::domain::trust::Device;
use crate::domain::view::Accuracy;

type HopKey = (ChainId, u32, u32);

#[derive(Debug, Clone, Default)]
struct World {
    accounts: BTreeMap<AccountId, String>,
    tokens: BTreeMap<TokenId, TokenRow>,
    devices: BTreeMap<DeviceId, (Device, Nonce)>,
    blobs: BTreeMap<Digest, BlobRecord>,
    uploads: BTreeMap<UploadId, UploadRecord>,
    chains: BTreeMap<ChainId, (Chain, Vec<Digest>)>,
    hops: BTreeMap<HopKey, Hop>,
    attempts: BTreeMap<AttemptId, Attempt>,
    archive: Vec<ArchiveRow>,
    ledger_keys: Vec<PublicKey>,
    credits: BTreeMap<AttemptId, AccountId>,
    accuracies: BTreeMap<HopKey, Accuracy>,
    events: Vec<Event>,
    device_keys: BTreeMap<DeviceId, PublicKey>,
    signatures: BTreeMap<AttemptId, ResultSignature>,
    audit: Vec<AuditEntry>,
}

/// The memory backend.
#[derive(Debug, Default)]
pub(super) struct Memory {
    world: Arc<Mutex<World>>,
}

/// One transaction: holds the lock; a writer works on a copy and swaps it in.
struct MemoryTx {
    guard: OwnedMutexGuard<World>,
    copy: Option<World>,
}

#[async_trait]
impl Backend for Memory {
    async fn read(&self) -> Result<Box<dyn Tx>> {
        let guard = self.world.clone().lock_owned().await;
        Ok(Box::new(MemoryTx { guard, copy: None }))
    }

    async fn write(&self) -> Result<Box<dyn Tx>> {
        self.read().await
    }

    async fn close(&self) {}
}

impl MemoryTx {
    fn get(&self) -> &World {
        self.copy.as_ref().unwrap_or(&self.guard)
    }

    fn edit(&mut self) -> &mut World {
        self.copy.get_or_insert_with(|| self.guard.clone())
    }
}

fn unique<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V, what: &str) -> Result<()> {
    match map.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(StoreError::Damaged(format!("{what} exists already"))),
    }
}
