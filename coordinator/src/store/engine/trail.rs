//! What must be on record: device keys and the ledger's, signatures of results, and what operators did.

use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{DeviceId, Reason};

use super::Work;
use crate::domain::attempt::Claim;
use crate::domain::chain::MAX_TEXT_BYTES;
use crate::domain::command::{Holder, OutputCheck, Refusal};
use crate::domain::time::Timestamp;
use crate::store::types::{
    AuditStart, LedgerKeyChange, Result, ResultSignature, StoreError, Submitted,
};

impl Work {
    /// Binds a key to a device, once: the same again changes nothing, anything else is refused.
    pub(super) async fn bind_key(
        &mut self,
        device: DeviceId,
        key: PublicKey,
        now: Timestamp,
    ) -> Result<()> {
        match self.tx.device_of_key(key).await? {
            Some(known) if known == device => return Ok(()),
            Some(_) => {
                let detail = "the key belongs to another device";
                return Err(Refusal::new(Reason::DeviceKeyInvalid, detail).into());
            }
            None => {}
        }
        if self.tx.device_key(device).await?.is_some() {
            let detail = "the device enrolled with another key";
            return Err(Refusal::new(Reason::DeviceKeyInvalid, detail).into());
        }
        self.tx.insert_device_key(device, key, now).await
    }

    /// Makes a key the ledger's newest one. What nobody replaces on purpose stays.
    pub(super) async fn register_ledger_key(
        &mut self,
        key: PublicKey,
        replace: bool,
        now: Timestamp,
    ) -> Result<LedgerKeyChange> {
        let known = self.tx.ledger_keys().await?;
        let change = match known.last().copied() {
            Some(newest) if newest == key => return Ok(LedgerKeyChange::Known),
            Some(newest) if !replace => return Ok(LedgerKeyChange::Refused { known: newest }),
            Some(before) => LedgerKeyChange::Replaced { before },
            None => LedgerKeyChange::First,
        };
        let number = known.len() as u64;
        self.tx.insert_ledger_key(number, key, now).await?;
        Ok(change)
    }

    /// Takes a result, and keeps its signature.
    pub(super) async fn submit_signed(
        &mut self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        signature: Option<ResultSignature>,
        now: Timestamp,
    ) -> Result<Submitted> {
        let submitted = self.submit(holder, claim, check, now).await?;
        if let Some(signature) = signature {
            self.tx.put_signature(&signature, now).await?;
        }
        Ok(submitted)
    }

    pub(super) async fn begin_audit(
        &mut self,
        mut start: AuditStart,
        now: Timestamp,
    ) -> Result<u64> {
        for text in [&mut start.target, &mut start.detail] {
            let mut end = text.len().min(MAX_TEXT_BYTES);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        self.tx.insert_audit(&start, now).await
    }

    pub(super) async fn end_audit(&mut self, number: u64, outcome: &str) -> Result<()> {
        match self.tx.end_audit(number, outcome).await? {
            true => Ok(()),
            false => Err(StoreError::Damaged(format!(
                "audit entry {number} is missing or has its outcome"
            ))),
        }
    }
}
