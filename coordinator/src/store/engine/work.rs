//! Renewing leases, taking results, letting time pass.

use std::collections::HashMap;
use std::time::Duration;

use cipherhop_proto::{AttemptId, ChainId, DeviceId, Reason};

use super::Work;
use crate::domain::attempt::{Attempt, AttemptState, Claim};
use crate::domain::chain::Chain;
use crate::domain::command::{Command, Directive, Effects, Holder, OutputCheck, Refusal, Reply};
use crate::domain::hop::{Hop, HopState};
use crate::domain::time::Timestamp;
use crate::domain::view::{Assignment, BlobRole, NeededBlob};
use crate::store::types::{ReapReport, Result, StoreError, Submitted};

impl Work {
    pub(super) async fn seen(&mut self, device: DeviceId, now: Timestamp) -> Result<()> {
        if let Some(mut row) = self.tx.device(device).await?
            && row.last_seen < now
        {
            row.last_seen = now;
            self.tx.update_device(&row).await?;
        }
        Ok(())
    }

    pub(super) async fn attempt(&mut self, id: AttemptId) -> Result<Attempt> {
        Ok(self.tx.attempt(id).await?.ok_or(Reason::AttemptNotFound)?)
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
        let keys = self.tx.chain_keys(chain.id).await?;
        let single = [
            (Some(chain.spec.program), BlobRole::Program),
            (Some(hop.weights), BlobRole::Weights),
            (Some(chain.spec.key_manifest), BlobRole::KeyManifest),
            (hop.input, BlobRole::Input),
        ];
        for (digest, role) in single {
            let Some(digest) = digest else { continue };
            let row = self.tx.blob(digest).await?;
            let row = row.ok_or_else(|| StoreError::Damaged(format!("blob {digest} is gone")))?;
            blobs.push(NeededBlob {
                digest,
                size: row.size,
                role,
            });
        }
        let role = BlobRole::EvaluationKey;
        let key = |row: super::BlobRecord| NeededBlob {
            digest: row.digest,
            size: row.size,
            role,
        };
        blobs.extend(keys.into_iter().map(key));
        Ok(blobs)
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

    pub(super) async fn renew(
        &mut self,
        holder: Holder,
        command: Command,
        now: Timestamp,
    ) -> Result<Directive> {
        match self.by_attempt(holder, command, now).await?.0.reply {
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
        let (effects, hop_state) = self
            .by_attempt(holder, Command::Submit(holder, claim, check), now)
            .await?;
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
        let mut due: Vec<Attempt> = Vec::new();
        let mut next: Option<Timestamp> = None;
        let mut graces: HashMap<ChainId, Duration> = HashMap::new();
        for attempt in self.tx.live_attempts().await? {
            let grace = match graces.get(&attempt.chain) {
                Some(grace) => *grace,
                None => self.chain(attempt.chain).await?.policy.grace,
            };
            graces.insert(attempt.chain, grace);
            let Some(wake) = attempt.wake_at(grace) else {
                continue;
            };
            if wake <= now {
                due.push(attempt);
            } else {
                next = Some(next.map_or(wake, |other| other.min(wake)));
            }
        }
        Ok((due, next))
    }

    pub(super) async fn reap(&mut self, now: Timestamp) -> Result<ReapReport> {
        let (due, _) = self.due(now).await?;
        let mut report = ReapReport::default();
        for attempt in due {
            let state = self
                .load(attempt.chain, attempt.generation, attempt.hop)
                .await?;
            let (effects, _) = self.run(&state, Command::Tick, now).await?;
            for changed in &effects.attempts {
                report.silent += u32::from(changed.silent);
                report.expired += u32::from(changed.state == AttemptState::Expired);
            }
        }
        report.next_wake = self.due(now).await?.1;
        Ok(report)
    }
}
