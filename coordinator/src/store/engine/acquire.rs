//! Looking for a hop to hand out, and handing it out.

use std::collections::HashSet;
use std::time::Duration;

use cipherhop_proto::{ChainId, Digest, Reason};

use super::Work;
use super::recheck::{Handout, asker};
use crate::domain::attempt::Attempt;
use crate::domain::chain::Chain;
use crate::domain::command::{Command, Refusal, State};
use crate::domain::hop::{Hop, HopState};
use crate::domain::schedule;
use crate::domain::time::Timestamp;
use crate::domain::trust::Device;
use crate::domain::view::{Assignment, NeededBlob};
use crate::store::types::{AcquireRequest, Acquired, Result, StoreError};

/// Live attempts one device may hold.
const MAX_LIVE_PER_DEVICE: usize = 4;
/// Open hops that are compared by what the device has cached.
pub(super) const MAX_COMPARED: usize = 16;
/// Wait a device is told when nothing is open and nothing says how long that lasts.
const IDLE_WAIT: Duration = Duration::from_secs(5);

/// Wait a device is told when every open hop was just being handed to others.
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// What a request for work comes to.
pub(super) enum Found {
    /// The device has this attempt already.
    Held(Box<Attempt>),
    /// The head hops of these chains may be leased; the best first, at least one.
    Open(Vec<ChainId>),
    /// A verified hop may be handed out once more.
    Again(Box<Handout>),
}

pub(super) type Answer<T> = std::result::Result<T, Refusal>;

impl Work {
    /// The asking device and the attempt that it has already for this request; the inner error: it gets none.
    async fn held(
        &mut self,
        request: &AcquireRequest,
    ) -> Result<Answer<(Device, Option<Attempt>)>> {
        let device = self.device(request.device).await?;
        self.known.keep_account(device.id, device.account);
        let mut live = self.tx.own_attempts(device.id, request.nonce).await?;
        if let Some(attempt) = live.iter().find(|own| own.nonce == request.nonce) {
            return Ok(Ok((device, Some(attempt.clone()))));
        }
        if !device.state.may_work() {
            return Err(Reason::DeviceQuarantined.into());
        }
        live.retain(|attempt| attempt.state.is_live());
        let wanted = |attempt: &Attempt| {
            request.chain.is_none_or(|chain| chain == attempt.chain)
                && request
                    .hops
                    .as_ref()
                    .is_none_or(|hops| hops.contains(&attempt.hop))
        };
        if let Some(attempt) = live.iter().find(|attempt| wanted(attempt)) {
            let attempt = attempt.clone();
            return Ok(Ok((device, Some(attempt))));
        }
        if live.len() >= MAX_LIVE_PER_DEVICE {
            return Ok(Err(Reason::DeviceBusy.into()));
        }
        Ok(Ok((device, None)))
    }

    /// Looks for work; the inner error is the answer "nothing now".
    pub(super) async fn find_work(
        &mut self,
        request: &AcquireRequest,
        now: Timestamp,
    ) -> Result<Answer<Found>> {
        let device = match self.held(request).await? {
            Err(refusal) => return Ok(Err(refusal)),
            Ok((_, Some(attempt))) => return Ok(Ok(Found::Held(Box::new(attempt)))),
            Ok((device, None)) => device,
        };
        if let Some(handout) = self.find_recheck(request, &device, now).await? {
            return Ok(Ok(Found::Again(Box::new(handout))));
        }
        let heads = match request.chain {
            Some(id) => {
                let head = self.tx.head(id, false).await?;
                let (chain, hop) = head.ok_or(Reason::ChainNotFound)?;
                vec![self.head_state(chain, hop).await?]
            }
            None => self.head_states().await?,
        };
        let mut refusal: Option<Refusal> = None;
        let mut open = Vec::new();
        for state in heads {
            match self.open_for(request, &device, state, now).await? {
                Ok(state) => open.push((schedule::score(&state, 0, now), state)),
                Err(other) => refusal = Some(sooner(refusal, other)),
            }
        }
        open.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        let mut best = Vec::new();
        for (_, state) in open.into_iter().take(MAX_COMPARED) {
            let needed = match request.disk_bytes == 0 && request.cached.is_empty() {
                true => Vec::new(),
                false => self.needed_blobs(&state.chain, &state.hop).await?,
            };
            match cached_permille(request, &state.chain, &needed) {
                Ok(permille) => {
                    let score = schedule::score(&state, permille, now);
                    best.push((score, state.chain.id));
                }
                Err(other) => refusal = Some(sooner(refusal, other)),
            }
        }
        if !best.is_empty() {
            best.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
            let chains: Vec<ChainId> = best.into_iter().map(|(_, chain)| chain).collect();
            let permille = device.standing().probe_permille(request.probes);
            if request.draw % 1000 < u64::from(permille)
                && let Some(best) = chains.first()
            {
                let chain = self.chain(*best).await?;
                if let Some(probe) = self.find_probe(request, &device, &chain, now).await? {
                    return Ok(Ok(Found::Again(Box::new(probe))));
                }
            }
            return Ok(Ok(Found::Open(chains)));
        }
        let mut refusal = refusal.unwrap_or_else(|| Reason::NoOpenHop.into());
        refusal.retry_after.get_or_insert(IDLE_WAIT);
        Ok(Err(refusal))
    }

    /// The state of a chain's head hop. A Ready hop has no attempt that matters, so none is read for it.
    async fn head_state(&mut self, chain: Chain, hop: Option<Hop>) -> Result<State> {
        let hop = hop.ok_or(Reason::HopNotFound)?;
        let closed = chain.state.closed_reason().is_some();
        let attempts = match hop.state {
            HopState::Ready => Vec::new(),
            _ if closed => Vec::new(),
            _ => {
                self.tx
                    .pending_of_hop(chain.id, chain.generation, hop.index)
                    .await?
            }
        };
        Ok(State {
            chain,
            hop,
            attempts,
            p95: None,
        })
    }

    /// The head hop's state if the device may take it, or why not.
    async fn open_for(
        &mut self,
        request: &AcquireRequest,
        device: &Device,
        state: State,
        now: Timestamp,
    ) -> Result<Answer<State>> {
        if let Err(refusal) = fits(request, &state.chain) {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = schedule::eligible(&state, device.id, device.account, now) {
            return Ok(Err(refusal));
        }
        // No deadline is shorter than four times the middle.
        let slow = device.pace.is_some_and(|pace| pace.permille > 4000);
        if slow {
            let (middle, p95) = self.usual_durations(state.chain.id).await?;
            let policy = &state.chain.policy;
            if let Err(refusal) = schedule::feasible(policy, device.pace, middle, p95, now) {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(state))
    }

    /// Hands out what an earlier look found, if it is still there for the device.
    pub(super) async fn acquire(
        &mut self,
        request: &AcquireRequest,
        found: &Found,
        last: bool,
        now: Timestamp,
    ) -> Result<Acquired> {
        match found {
            Found::Open(likely) => self.lease_first(request, likely, last, now).await,
            Found::Again(again) => self.again(request, again, now).await,
            Found::Held(attempt) => self.assigned(Attempt::clone(attempt), now).await,
        }
    }

    /// Leases the head hop of the first of these chains that is still open for the device. A chain
    /// that another writer has is passed over, unless it is the only one wanted, or the best one at the last look:
    /// its hop may well be open still. No other chain is locked by then.
    async fn lease_first(
        &mut self,
        request: &AcquireRequest,
        likely: &[ChainId],
        last: bool,
        now: Timestamp,
    ) -> Result<Acquired> {
        let mut refusal: Option<Refusal> = None;
        let mut asking: Option<Device> = None;
        for (rank, id) in likely.iter().enumerate() {
            let if_free = request.chain.is_none() && !(last && rank == 0);
            let (chain, hop) = match self.tx.head(*id, if_free).await? {
                Some(head) => head,
                None if if_free => continue,
                None => return Err(Reason::ChainNotFound.into()),
            };
            // After a chain, because that is the order of locks; once is enough.
            let device = match &asking {
                Some(device) => device,
                None => match self.held(request).await? {
                    Err(refusal) => return Ok(Acquired::NoWork(refusal)),
                    Ok((_, Some(attempt))) => return self.assigned(attempt, now).await,
                    Ok((device, None)) => asking.insert(device),
                },
            };
            let device = device.clone();
            let state = self.head_state(chain, hop).await?;
            let state = match self.open_for(request, &device, state, now).await? {
                Ok(state) => state,
                Err(other) => {
                    refusal = Some(sooner(refusal, other));
                    continue;
                }
            };
            let lease = Command::Lease(asker(request, &device));
            return self.hand_out(request, state, lease, now).await;
        }
        let refusal = refusal.unwrap_or_else(|| Refusal {
            retry_after: Some(BUSY_WAIT),
            ..Reason::NoOpenHop.into()
        });
        Ok(Acquired::NoWork(refusal))
    }

    /// Hands out a verified hop once more.
    async fn again(
        &mut self,
        request: &AcquireRequest,
        again: &Handout,
        now: Timestamp,
    ) -> Result<Acquired> {
        let hop = &again.state.hop;
        let state = self.load(hop.chain, hop.generation, hop.index).await?;
        match self.held(request).await? {
            Err(refusal) => Ok(Acquired::NoWork(refusal)),
            Ok((_, Some(attempt))) => self.assigned(attempt, now).await,
            Ok((_, None)) => {
                self.hand_out(request, state, again.command.clone(), now)
                    .await
            }
        }
    }

    async fn hand_out(
        &mut self,
        request: &AcquireRequest,
        mut state: State,
        command: Command,
        now: Timestamp,
    ) -> Result<Acquired> {
        state.p95 = self.p95(state.chain.id).await?;
        let effects = match self.run(&state, command, now).await {
            Ok((effects, _)) => effects,
            // Decided before anything was written: another writer took it since.
            Err(StoreError::Refused(refusal)) => return Ok(Acquired::NoWork(refusal)),
            Err(error) => return Err(error),
        };
        cipherhop_failpoint::at("claim.commit.before");
        let mut made = effects.attempts.into_iter();
        let attempt = made
            .find(|made| made.id == request.attempt)
            .ok_or_else(|| StoreError::Damaged("a lease without attempt".to_owned()))?;
        let place = (attempt.chain, attempt.generation, attempt.hop);
        self.known.keep_place(attempt.id, place);
        self.seen(attempt.device, now).await?;
        let blobs = self.needed_blobs(&state.chain, &state.hop).await?;
        Ok(Acquired::Assigned(Box::new(Assignment {
            chain: effects.chain.unwrap_or(state.chain),
            attempt,
            blobs,
        })))
    }

    async fn assigned(&mut self, attempt: Attempt, now: Timestamp) -> Result<Acquired> {
        self.seen(attempt.device, now).await?;
        let assignment = self.assignment(attempt).await?;
        Ok(Acquired::Assigned(Box::new(assignment)))
    }
}

/// Whether the chain's head hop is wanted and the machine is large enough.
pub(super) fn fits(request: &AcquireRequest, chain: &Chain) -> Answer<()> {
    if let Some(reason) = chain.state.closed_reason() {
        return Err(reason.into());
    }
    if request.held.contains(&chain.id) {
        let detail = "a referee is about to decide between two results";
        return Err(Refusal {
            retry_after: Some(IDLE_WAIT),
            ..Refusal::new(Reason::HopBackingOff, detail)
        });
    }
    if let Some(hops) = &request.hops {
        if *hops.end() < chain.head {
            let detail = format!("hops {}-{} are verified", hops.start(), hops.end());
            return Err(Refusal::new(Reason::HopVerified, detail));
        }
        if !hops.contains(&chain.head) {
            let detail = format!("the chain is at hop {}", chain.head);
            return Err(Refusal::new(Reason::NoOpenHop, detail));
        }
    }
    if request.memory_bytes < chain.spec.worker_memory_bytes {
        let needed = chain.spec.worker_memory_bytes;
        let detail = format!("{} of {needed} bytes of memory", request.memory_bytes);
        return Err(Refusal::new(Reason::NotEnoughMemory, detail));
    }
    Ok(())
}

/// The share of the hop's bytes that the device has cached, or that its disk is too small.
pub(super) fn cached_permille(
    request: &AcquireRequest,
    chain: &Chain,
    needed: &[NeededBlob],
) -> Answer<u32> {
    if request.disk_bytes == 0 && request.cached.is_empty() {
        return Ok(0);
    }
    let cached: HashSet<Digest> = request.cached.iter().copied().collect();
    let total: u64 = needed.iter().map(|blob| blob.size).sum();
    let kept = needed.iter().filter(|blob| cached.contains(&blob.digest));
    let kept: u64 = kept.map(|blob| blob.size).sum();
    let room = (total - kept).saturating_add(chain.spec.boundary_bytes);
    if request.disk_bytes > 0 && request.disk_bytes < room {
        let detail = format!("{} of {room} bytes of disk", request.disk_bytes);
        return Err(Refusal::new(Reason::NotEnoughDisk, detail));
    }
    let permille = u128::from(kept) * 1000 / u128::from(total.max(1));
    Ok(u32::try_from(permille).unwrap_or(1000))
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
