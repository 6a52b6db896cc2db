//! Renewing leases, taking results, letting time pass.

use std::sync::Arc;

use cipherhop_proto::{AttemptId, ChainId, DeviceId, Digest, Reason};

use super::Work;
use super::known::singles;
use crate::domain::attempt::{Attempt, AttemptState, Claim};
use crate::domain::chain::{Chain, ChainState};
use crate::domain::command::{
    Chance, Command, Directive, Effects, Holder, OutputCheck, Refusal, Reply,
};
use crate::domain::hop::{Hop, HopState};
use crate::domain::reconcile::{self, Fate, Held};
use crate::domain::time::Timestamp;
use crate::domain::view::{Assignment, BlobRole, NeededBlob};
use crate::store::types::{ReapReport, Reconciled, Result, StoreError, Submitted};

impl Work {
    /// Notes now and then that the device called.
    pub(super) async fn seen(&mut self, device: DeviceId, now: Timestamp) -> Result<()> {
        if !self.known.is_due(device, now) {
            return Ok(());
        }
        if let Some(mut row) = self.tx.device(device).await?
            && row.last_seen < now
        {
            row.last_seen = now;
            self.tx.update_device(&row).await?;
        }
        self.known.saw(device, now);
        Ok(())
    }

    pub(super) async fn attempt(&mut self, id: AttemptId) -> Result<Attempt> {
        Ok(self.tx.attempt(id).await?.ok_or(Reason::AttemptNotFound)?)
    }

    /// Chain, generation and hop of an attempt, which never change.
    async fn place_of(&mut self, id: AttemptId) -> Result<(ChainId, u32, u32)> {
        if let Some(place) = self.known.place(id) {
            return Ok(place);
        }
        let attempt = self.attempt(id).await?;
        let place = (attempt.chain, attempt.generation, attempt.hop);
        self.known.keep_place(id, place);
        Ok(place)
    }

    pub(super) async fn assignment(&mut self, attempt: Attempt) -> Result<Assignment> {
        let chain = self.chain(attempt.chain).await?;
        let hop = self
            .tx
            .hop(attempt.chain, attempt.generation, attempt.hop)
            .await?;
        let hop = hop.ok_or(Reason::HopNotFound)?;
        let blobs = self.needed_blobs(&chain, &hop).await?;
        Ok(Assignment {
            chain,
            attempt,
            blobs,
        })
    }

    pub(super) async fn needed_blobs(
        &mut self,
        chain: &Chain,
        hop: &Hop,
    ) -> Result<Vec<NeededBlob>> {
        let mut blobs = Vec::new();
        for (digest, role) in singles(chain, hop) {
            let size = self.size_of(digest).await?;
            blobs.push(NeededBlob { digest, size, role });
        }
        blobs.extend_from_slice(&self.keys_of(chain.id).await?);
        Ok(blobs)
    }

    async fn size_of(&mut self, digest: Digest) -> Result<u64> {
        if let Some(size) = self.known.size(digest) {
            return Ok(size);
        }
        let row = self.tx.blob(digest).await?;
        let row = row.ok_or_else(|| StoreError::Damaged(format!("blob {digest} is gone")))?;
        self.known.keep_size(digest, row.size);
        Ok(row.size)
    }

    async fn keys_of(&mut self, chain: ChainId) -> Result<Arc<[NeededBlob]>> {
        if let Some(keys) = self.known.keys(chain) {
            return Ok(keys);
        }
        let key = |row: super::BlobRecord| NeededBlob {
            digest: row.digest,
            size: row.size,
            role: BlobRole::EvaluationKey,
        };
        let rows = self.tx.chain_keys(chain).await?;
        let keys: Arc<[NeededBlob]> = rows.into_iter().map(key).collect();
        self.known.keep_keys(chain, keys.clone());
        Ok(keys)
    }

    /// Runs a command on the hop of the holder's attempt.
    pub(super) async fn by_attempt(
        &mut self,
        holder: Holder,
        command: Command,
        now: Timestamp,
    ) -> Result<(Effects, HopState)> {
        let attempt = self.attempt(holder.attempt).await?;
        let state = self
            .load(attempt.chain, attempt.generation, attempt.hop)
            .await?;
        let done = self.run(&state, command, now).await?;
        self.seen(holder.device, now).await?;
        Ok(done)
    }

    /// [`Work::by_attempt`] for a command that looks at nothing but the holder's attempt and the hop's live and
    /// waiting ones. A hop may have very many that came to nothing.
    pub(super) async fn by_holder(
        &mut self,
        holder: Holder,
        command: Command,
        now: Timestamp,
    ) -> Result<(Effects, HopState)> {
        let (chain, generation, hop) = self.place_of(holder.attempt).await?;
        let mut state = self.load_pending(chain, generation, hop).await?;
        let pending = |known: &Attempt| known.id == holder.attempt;
        if !state.attempts.iter().any(pending) {
            // Read only now that the chain is locked.
            state.attempts.push(self.attempt(holder.attempt).await?);
            state.attempts.sort_by_key(|attempt| attempt.epoch);
        }
        let done = self.run(&state, command, now).await?;
        self.seen(holder.device, now).await?;
        Ok(done)
    }

    /// `command` is Convict.
    pub(super) async fn convict(
        &mut self,
        id: ChainId,
        generation: u32,
        hop: u32,
        command: Command,
        now: Timestamp,
    ) -> Result<bool> {
        let state = self.load(id, generation, hop).await?;
        let (effects, _) = self.run(&state, command, now).await?;
        Ok(effects.reply == Reply::Convicted(true))
    }

    pub(super) async fn reconcile(
        &mut self,
        device: DeviceId,
        held: Vec<Held>,
        now: Timestamp,
    ) -> Result<Reconciled> {
        let mut fates = Vec::with_capacity(held.len());
        for known in &held {
            let attempt = self.tx.attempt(known.holder.attempt).await?;
            let closed = match &attempt {
                Some(attempt) => self.closed(attempt).await?,
                None => None,
            };
            let fate = reconcile::fate(attempt.as_ref(), *known, closed);
            if fate == Fate::Continue {
                let command = Command::Touch(known.holder);
                self.by_holder(known.holder, command, now).await?;
            }
            fates.push(fate);
        }
        let mut lost = Vec::new();
        for attempt in self.tx.pending_of_device(device).await? {
            let named = held.iter().any(|known| known.holder.attempt == attempt.id);
            if named || !attempt.state.is_live() || attempt.hard_deadline <= now {
                continue;
            }
            let holder = Holder {
                attempt: attempt.id,
                device,
                epoch: attempt.epoch,
            };
            self.by_holder(holder, Command::Touch(holder), now).await?;
            let renewed = self.attempt(attempt.id).await?;
            lost.push(self.assignment(renewed).await?);
        }
        self.seen(device, now).await?;
        Ok(Reconciled { fates, lost })
    }

    /// Why nothing of the attempt's hop matters any more.
    async fn closed(&mut self, attempt: &Attempt) -> Result<Option<Reason>> {
        let chain = self.chain(attempt.chain).await?;
        if matches!(chain.state, ChainState::Cancelled(_)) {
            return Ok(Some(Reason::ChainCancelled));
        }
        Ok((chain.generation != attempt.generation).then_some(Reason::HopClosed))
    }

    pub(super) async fn renew(
        &mut self,
        holder: Holder,
        command: Command,
        now: Timestamp,
    ) -> Result<Directive> {
        match self.by_holder(holder, command, now).await?.0.reply {
            Reply::Directive(directive) => Ok(directive),
            _ => Err(StoreError::Damaged(
                "a renewal without directive".to_owned(),
            )),
        }
    }

    pub(super) async fn submit(
        &mut self,
        holder: Holder,
        claim: Claim,
        check: OutputCheck,
        now: Timestamp,
    ) -> Result<Submitted> {
        let sound = check == OutputCheck::Sound;
        let check = match sound && !self.is_stored(&claim).await? {
            true => OutputCheck::Missing,
            false => check,
        };
        let chance = Chance {
            standing: self.device(holder.device).await?.standing(),
            draw: rand::random(),
        };
        let (effects, hop_state) = self
            .by_attempt(holder, Command::Submit(holder, claim, check, chance), now)
            .await?;
        cipherhop_failpoint::at("submit.commit.before");
        match effects.reply {
            Reply::Outcome(outcome) => Ok(Submitted { outcome, hop_state }),
            _ => Err(StoreError::Damaged("a submit without outcome".to_owned())),
        }
    }

    /// Output and trace are complete and as long as claimed (I3).
    async fn is_stored(&mut self, claim: &Claim) -> Result<bool> {
        for (digest, size) in [
            (claim.output, claim.output_size),
            (claim.trace, claim.trace_size),
        ] {
            match self.tx.blob(digest).await? {
                Some(blob) if blob.size == size => {}
                Some(blob) => {
                    let detail = format!("{digest} has {} bytes, not {size}", blob.size);
                    return Err(Refusal::new(Reason::BlobSizeMismatch, detail).into());
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Hops with a lease that needs a look at `now`, and when the next look is due.
    pub(super) async fn due(
        &mut self,
        now: Timestamp,
    ) -> Result<(Vec<Attempt>, Option<Timestamp>)> {
        let next = self.tx.next_wake(None).await?;
        if next.is_none_or(|wake| wake > now) {
            return Ok((Vec::new(), next));
        }
        let due = self.tx.due_attempts(now).await?;
        Ok((due, self.tx.next_wake(Some(now)).await?))
    }

    /// Lets time pass for the hop of a lease; `next_wake` stays open.
    pub(super) async fn tick(&mut self, due: &Attempt, now: Timestamp) -> Result<ReapReport> {
        let (chain, generation, hop) = (due.chain, due.generation, due.hop);
        let state = self.load_pending(chain, generation, hop).await?;
        let (effects, _) = self.run(&state, Command::Tick, now).await?;
        cipherhop_failpoint::at("reaper.commit.before");
        let mut report = ReapReport::default();
        for changed in &effects.attempts {
            report.silent += u32::from(changed.silent);
            report.expired += u32::from(changed.state == AttemptState::Expired);
        }
        Ok(report)
    }
}
