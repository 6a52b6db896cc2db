//! Looking for a hop to hand out, and handing it out.

use std::collections::HashSet;
use std::time::Duration;

use cipherhop_proto::{AccountId, ChainId, Digest, Reason};

use super::Work;
use crate::domain::attempt::Attempt;
use crate::domain::chain::Chain;
use crate::domain::command::{Command, Refusal, State};
use crate::domain::hop::{Hop, HopState};
use crate::domain::schedule;
use crate::domain::time::Timestamp;
use crate::store::types::{AcquireRequest, Acquired, Result, StoreError};

/// Live attempts one device may hold.
const MAX_LIVE_PER_DEVICE: usize = 4;
/// Open hops that are compared by what the device has cached.
const MAX_COMPARED: usize = 16;
/// Wait a device is told when nothing is open and nothing says how long that lasts.
const IDLE_WAIT: Duration = Duration::from_secs(5);

/// What a request for work comes to.
pub(super) enum Found {
    /// The device has this attempt already.
    Held(Box<Attempt>),
    /// The head hop of this chain may be leased.
    Open(ChainId),
}

type Answer<T> = std::result::Result<T, Refusal>;

impl Work {
    /// Looks for work; the inner error is the answer "nothing now".
    pub(super) async fn find_work(
        &mut self,
        request: &AcquireRequest,
        now: Timestamp,
    ) -> Result<Answer<Found>> {
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
        let heads = match request.chain {
            Some(id) => {
                let chain = self.chain(id).await?;
                let head = chain.head.min(chain.hops.saturating_sub(1));
                let hop = self.tx.hop(id, chain.generation, head).await?;
                vec![(chain, hop.ok_or(Reason::HopNotFound)?)]
            }
            None => self.tx.active_heads().await?,
        };
        let mut refusal: Option<Refusal> = None;
        let mut open = Vec::new();
        for (chain, hop) in heads {
            match self
                .open_for(request, device.account, chain, hop, now)
                .await?
            {
                Ok(state) => open.push((schedule::score(&state, 0, now), state)),
                Err(other) => refusal = Some(sooner(refusal, other)),
            }
        }
        open.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        let mut best: Option<(u64, ChainId)> = None;
        for (_, state) in open.into_iter().take(MAX_COMPARED) {
            match self.cached_permille(request, &state).await? {
                Ok(permille) => {
                    let score = schedule::score(&state, permille, now);
                    if best.is_none_or(|(other, _)| score > other) {
                        best = Some((score, state.chain.id));
                    }
                }
                Err(other) => refusal = Some(sooner(refusal, other)),
            }
        }
        if let Some((_, chain)) = best {
            return Ok(Ok(Found::Open(chain)));
        }
        let mut refusal = refusal.unwrap_or_else(|| Reason::NoOpenHop.into());
        refusal.retry_after.get_or_insert(IDLE_WAIT);
        Ok(Err(refusal))
    }

    /// The head hop's state if the device may take it, or why not. A Ready hop has no attempt that
    /// matters, so none is read for it.
    async fn open_for(
        &mut self,
        request: &AcquireRequest,
        account: AccountId,
        chain: Chain,
        hop: Hop,
        now: Timestamp,
    ) -> Result<Answer<State>> {
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
        let attempts = match hop.state {
            HopState::Ready => Vec::new(),
            _ => {
                self.tx
                    .attempts_of_hop(chain.id, chain.generation, hop.index)
                    .await?
            }
        };
        let state = State {
            chain,
            hop,
            attempts,
            p95: None,
        };
        Ok(schedule::eligible(&state, request.device, account, now).map(|()| state))
    }

    /// The share of the hop's bytes that the device has cached, or that its disk is too small.
    async fn cached_permille(
        &mut self,
        request: &AcquireRequest,
        state: &State,
    ) -> Result<Answer<u32>> {
        if request.disk_bytes == 0 && request.cached.is_empty() {
            return Ok(Ok(0));
        }
        let needed = self.needed_blobs(&state.chain, &state.hop).await?;
        let cached: HashSet<Digest> = request.cached.iter().copied().collect();
        let total: u64 = needed.iter().map(|blob| blob.size).sum();
        let kept = needed.iter().filter(|blob| cached.contains(&blob.digest));
        let kept: u64 = kept.map(|blob| blob.size).sum();
        let room = (total - kept).saturating_add(state.chain.spec.boundary_bytes);
        if request.disk_bytes > 0 && request.disk_bytes < room {
            let detail = format!("{} of {room} bytes of disk", request.disk_bytes);
            return Ok(Err(Refusal::new(Reason::NotEnoughDisk, detail)));
        }
        let permille = u128::from(kept) * 1000 / u128::from(total.max(1));
        Ok(Ok(u32::try_from(permille).unwrap_or(1000)))
    }

    /// `likely`: the chain that an earlier look found open; tried first.
    pub(super) async fn acquire(
        &mut self,
        request: AcquireRequest,
        likely: Option<ChainId>,
        now: Timestamp,
    ) -> Result<Acquired> {
        let mut found = Err(Reason::NoOpenHop.into());
        if likely.is_some() {
            let there = AcquireRequest {
                chain: likely,
                ..request.clone()
            };
            found = self.find_work(&there, now).await?;
        }
        if found.is_err() {
            found = self.find_work(&request, now).await?;
        }
        let attempt = match found {
            Err(refusal) => return Ok(Acquired::NoWork(refusal)),
            Ok(Found::Held(attempt)) => *attempt,
            Ok(Found::Open(chain)) => self.lease(&request, chain, now).await?,
        };
        self.seen(request.device, now).await?;
        Ok(Acquired::Assigned(Box::new(
            self.assignment(attempt).await?,
        )))
    }

    async fn lease(
        &mut self,
        request: &AcquireRequest,
        chain: ChainId,
        now: Timestamp,
    ) -> Result<Attempt> {
        let device = self.device(request.device).await?;
        let chain = self.chain(chain).await?;
        let mut state = self.load(chain.id, chain.generation, chain.head).await?;
        state.p95 = self.p95(chain.id).await?;
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
        made.ok_or_else(|| StoreError::Damaged("a lease without attempt".to_owned()))
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
