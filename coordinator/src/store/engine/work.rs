//! Handing out hops and taking their results.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use cipherhop_proto::{AttemptId, ChainId, DeviceId, Digest, Reason};

use super::Work;
use crate::domain::attempt::{Attempt, AttemptState, Claim};
use crate::domain::chain::{Chain, ChainState};
use crate::domain::command::{
    Command, Directive, Effects, Holder, OutputCheck, Refusal, Reply, State,
};
use crate::domain::hop::HopState;
use crate::domain::schedule;
use crate::domain::time::Timestamp;
use crate::domain::view::{Assignment, BlobRole, NeededBlob};
use crate::store::types::{AcquireRequest, Acquired, ReapReport, Result, StoreError, Submitted};

/// Live attempts one device may hold.
const MAX_LIVE_PER_DEVICE: usize = 4;
/// Wait a device is told when nothing is open and nothing says how long that lasts.
const IDLE_WAIT: Duration = Duration::from_secs(5);

/// What a request for work comes to.
pub(super) enum Found {
    /// The device has this attempt already.
    Held(Box<Attempt>),
    /// This hop may be leased.
    Open(Box<State>),
}

impl Work {
    /// Looks for work; the inner error is the answer "nothing now".
    pub(super) async fn find_work(
        &mut self,
        request: &AcquireRequest,
        now: Timestamp,
    ) -> Result<std::result::Result<Found, Refusal>> {
        let device = self.device(request.device).await?;
        if let Some(attempt) = self.tx.attempt_by_nonce(device.id, request.nonce).await? {
            return Ok(Ok(Found::Held(Box::new(attempt))));
        }
        if !device.state.may_work() {
            return Err(Reason::DeviceQuarantined.into());
        }
        let mut live = self.tx.pending_of_device(device.id).await?;
        live.retain(|attempt| attempt.state.is_live());
        let wanted = |attempt: &Attempt| {
            request.chain.is_none_or(|chain| chain == attempt.chain)
                && request
                    .hops
                    .as_ref()
                    .is_none_or(|hops| hops.contains(&attempt.hop))
        };
        if let Some(attempt) = live.iter().find(|attempt| wanted(attempt)) {
            return Ok(Ok(Found::Held(Box::new(attempt.clone()))));
        }
        if live.len() >= MAX_LIVE_PER_DEVICE {
            return Ok(Err(Reason::DeviceBusy.into()));
        }
        let chains = match request.chain {
            Some(id) => vec![self.chain(id).await?],
            None => self.tx.chains().await?,
        };
        let single = request.chain.is_some();
        let mut best: Option<(u64, State)> = None;
        let mut refusal: Option<Refusal> = None;
        for chain in chains {
            if chain.state != ChainState::Active && !single {
                continue;
            }
            match self.candidate(request, &chain, device.account, now).await? {
                Ok((score, state)) => {
                    if best.as_ref().is_none_or(|(other, _)| score > *other) {
                        best = Some((score, state));
                    }
                }
                Err(other) => refusal = Some(sooner(refusal, other)),
            }
        }
        if let Some((_, state)) = best {
            return Ok(Ok(Found::Open(Box::new(state))));
        }
        let mut refusal = refusal.unwrap_or_else(|| Reason::NoOpenHop.into());
        refusal.retry_after.get_or_insert(IDLE_WAIT);
        Ok(Err(refusal))
    }

    /// The chain's head hop with its score for the device, or why not.
    async fn candidate(
        &mut self,
        request: &AcquireRequest,
        chain: &Chain,
        account: cipherhop_proto::AccountId,
        now: Timestamp,
    ) -> Result<std::result::Result<(u64, State), Refusal>> {
        if let Some(reason) = chain.state.closed_reason() {
            return Ok(Err(reason.into()));
        }
        if let Some(hops) = &request.hops {
            if *hops.end() < chain.head {
                let detail = format!("hops {}-{} are verified", hops.start(), hops.end());
                return Ok(Err(Refusal::new(Reason::HopVerified, detail)));
            }
            if !hops.contains(&chain.head) {
                let detail = format!("the chain is at hop {}", chain.head);
                return Ok(Err(Refusal::new(Reason::NoOpenHop, detail)));
            }
        }
        if request.memory_bytes < chain.spec.worker_memory_bytes {
            let needed = chain.spec.worker_memory_bytes;
            let detail = format!("{} of {needed} bytes of memory", request.memory_bytes);
            return Ok(Err(Refusal::new(Reason::NotEnoughMemory, detail)));
        }
        let state = self.load(chain.id, chain.generation, chain.head).await?;
        if let Err(refusal) = schedule::eligible(&state, request.device, account, now) {
            return Ok(Err(refusal));
        }
        let needed = self.needed_blobs(&state.chain, &state.hop).await?;
        let cached: HashSet<Digest> = request.cached.iter().copied().collect();
        let total: u64 = needed.iter().map(|blob| blob.size).sum();
        let kept = needed.iter().filter(|blob| cached.contains(&blob.digest));
        let kept: u64 = kept.map(|blob| blob.size).sum();
        let room = (total - kept).saturating_add(chain.spec.boundary_bytes);
        if request.disk_bytes > 0 && request.disk_bytes < room {
            let detail = format!("{} of {room} bytes of disk", request.disk_bytes);
            return Ok(Err(Refusal::new(Reason::NotEnoughDisk, detail)));
        }
        let permille = u128::from(kept) * 1000 / u128::from(total.max(1));
        let permille = u32::try_from(permille).unwrap_or(1000);
        Ok(Ok((schedule::score(&state, permille, now), state)))
    }

    pub(super) async fn acquire(
        &mut self,
        request: AcquireRequest,
        now: Timestamp,
    ) -> Result<Acquired> {
        let attempt = match self.find_work(&request, now).await? {
            Err(refusal) => return Ok(Acquired::NoWork(refusal)),
            Ok(Found::Held(attempt)) => *attempt,
            Ok(Found::Open(mut state)) => {
                state.p95 = self.p95(state.chain.id).await?;
                let device = self.device(request.device).await?;
                let lease = Command::Lease {
                    attempt: request.attempt,
                    device: device.id,
                    account: device.account,
                    nonce: request.nonce,
                };
                let (effects, _) = self.run(&state, lease, now).await?;
                let made = effects
                    .attempts
                    .into_iter()
                    .find(|made| made.id == request.attempt);
                made.ok_or_else(|| StoreError::Damaged("a lease without attempt".to_owned()))?
            }
        };
        self.seen(request.device, now).await?;
        Ok(Acquired::Assigned(Box::new(
            self.assignment(attempt).await?,
        )))
    }

    async fn seen(&mut self, device: DeviceId, now: Timestamp) -> Result<()> {
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

    async fn needed_blobs(
        &mut self,
        chain: &Chain,
        hop: &crate::domain::hop::Hop,
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

/// Of two answers "nothing now", the one that may change sooner; equal ones count as the more
/// telling second.
fn sooner(known: Option<Refusal>, other: Refusal) -> Refusal {
    let wait = |refusal: &Refusal| refusal.retry_after.unwrap_or(IDLE_WAIT);
    match known {
        Some(known) if wait(&known) < wait(&other) => known,
        _ => other,
    }
}
