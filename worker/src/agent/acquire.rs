//! Asking for work: claims first, then anything. The question's nonce is journalled before it is sent, so that a hop
//! leased to a worker that died before it read the answer is found again.

use std::time::Duration;

use cipherhop_proto::client::{ClientError, LONG_POLL_DEADLINE, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::acquire_response::Answer;
use cipherhop_proto::v1::{
    AcquireRequest, Capabilities, Chain, GetChainRequest, HopState, HopStatus,
};
use cipherhop_proto::{AttemptId, ChainId, Nonce, Reason};

use super::Agent;
use crate::error::WorkerError;
use crate::journal::{Asking, Claim, Entry, Lease, WorkState};
use crate::machine;

/// Formats of the program this build can run.
pub(crate) const PROGRAM_FORMATS: [&str; 1] = ["cipherhop-program/1"];
/// Why there is no other work: a packed hop is out.
pub(super) const CARRIED_AWAY: &str = "CARRIED_AWAY";
/// Digests sent as a hint.
const CACHED_HINT: usize = 1024;

/// The answer to one question.
#[derive(Debug)]
pub(super) enum Next {
    /// A new attempt, in the journal.
    Work(AttemptId),
    /// Nothing now.
    Nothing {
        reason: String,
        retry_after: Duration,
    },
    /// The worker is to stop.
    Stopped,
}

impl Agent {
    /// Asks once for every claim and, unless only claims count, for any hop. The last question waits up to `wait`.
    pub(super) async fn next_work(&self, wait: Duration) -> Result<Next, WorkerError> {
        let state = self.state();
        if let Some(asking) = state.asking {
            // Asked before a restart; the answer may have been a lease.
            match self.ask(asking, Duration::ZERO).await? {
                Next::Nothing { .. } => {}
                found => return Ok(found),
            }
        }
        let mut questions: Vec<Option<Claim>> = state.claims.into_iter().map(Some).collect();
        if !self.options.only_claims {
            questions.push(self.options.chain.map(|chain| Claim { chain, hops: None }));
        }
        let mut last = Next::Nothing {
            reason: "NO_CLAIMS".into(),
            retry_after: Duration::from_secs(2),
        };
        let count = questions.len();
        for (index, claim) in questions.into_iter().enumerate() {
            let wait = if index + 1 == count {
                wait
            } else {
                Duration::ZERO
            };
            let asking = Asking {
                nonce: Nonce::from_bytes(rand::random()),
                claim: claim.clone(),
            };
            last = self.ask(asking, wait).await?;
            match (&last, claim) {
                (Next::Nothing { reason, .. }, Some(claim)) => self.review(claim, reason).await?,
                (Next::Nothing { .. }, None) => {}
                _ => return Ok(last),
            }
        }
        Ok(last)
    }

    pub(super) async fn ask(&self, asking: Asking, wait: Duration) -> Result<Next, WorkerError> {
        self.record(Entry::Asking(asking.clone()))?;
        cipherhop_failpoint::at("ask.recorded");
        let hops = asking.claim.as_ref().and_then(|claim| claim.hops);
        let request = AcquireRequest {
            nonce: asking.nonce.to_vec(),
            capabilities: Some(self.capabilities()?),
            chain_id: asking
                .claim
                .as_ref()
                .map(|claim| claim.chain.to_vec())
                .unwrap_or_default(),
            hop_first: hops.map(|hops| hops.first),
            hop_last: hops.map(|hops| hops.last),
            cached: self
                .cache
                .recent(CACHED_HINT)
                .into_iter()
                .map(Vec::from)
                .collect(),
            wait_seconds: u32::try_from(wait.as_secs()).unwrap_or(0).min(30),
        };
        let call = async || {
            unary(
                LONG_POLL_DEADLINE,
                self.connection.volunteer().acquire(request.clone()),
            )
            .await
        };
        let answer = match self.persist("asking for work", call).await {
            Ok(Some(answer)) => answer.answer,
            Ok(None) => return Ok(Next::Stopped),
            Err(error) => return self.not_given(error),
        };
        match answer {
            Some(Answer::Assignment(assignment)) => {
                let lease = Lease::from_wire(assignment).map_err(WorkerError::Answer)?;
                let attempt = lease.attempt;
                cipherhop_failpoint::at("lease.answered");
                let known = self.state().works.remove(&attempt);
                if known.is_some_and(|work| work.state == WorkState::Away) {
                    // A device holds one lease at a time, and is told of that one whatever it asks for.
                    self.record(Entry::Answered)?;
                    return Ok(Next::Nothing {
                        reason: CARRIED_AWAY.into(),
                        retry_after: Duration::from_secs(2),
                    });
                }
                self.record(Entry::Leased(Box::new(lease)))?;
                cipherhop_failpoint::at("lease.recorded");
                Ok(Next::Work(attempt))
            }
            Some(Answer::NoWork(none)) => {
                self.record(Entry::Answered)?;
                let seconds = if none.retry_after_seconds.is_finite() {
                    none.retry_after_seconds
                } else {
                    5.0
                };
                let retry_after = Duration::from_secs_f64(seconds.clamp(0.1, 60.0));
                Ok(Next::Nothing {
                    reason: none.reason,
                    retry_after,
                })
            }
            None => Err(WorkerError::Answer(
                "neither an assignment nor a reason".into(),
            )),
        }
    }

    /// A refusal about the chain asked for is an answer; one about this worker is an error.
    fn not_given(&self, error: ClientError) -> Result<Next, WorkerError> {
        match error.reason() {
            Some(
                reason @ (Reason::ChainNotFound
                | Reason::ChainCompleted
                | Reason::ChainCancelled
                | Reason::HopNotFound
                | Reason::HopVerified
                | Reason::HopClosed
                | Reason::AccountAlreadyOnHop
                | Reason::DeviceFailedLast
                | Reason::AttemptClosed),
            ) => {
                self.record(Entry::Answered)?;
                Ok(Next::Nothing {
                    reason: reason.as_str().into(),
                    retry_after: Duration::from_secs(5),
                })
            }
            _ => Err(error.into()),
        }
    }

    /// Strikes a claim off that can give no more work.
    async fn review(&self, claim: Claim, reason: &str) -> Result<(), WorkerError> {
        let over = match reason.parse() {
            Ok(
                Reason::ChainNotFound
                | Reason::ChainCompleted
                | Reason::ChainCancelled
                | Reason::HopNotFound,
            ) => true,
            _ => match (claim.hops, self.chain(claim.chain).await) {
                (Some(hops), Ok((chain, states))) => {
                    let mut left = states.iter().filter(|s| hops.contains(s.hop));
                    chain.hops <= hops.first || left.all(|s| s.state() == HopState::Verified)
                }
                _ => false,
            },
        };
        if over && self.state().claims.contains(&claim) {
            tracing::info!(chain = %claim.chain, reason, "a claim is done");
            self.record(Entry::Unclaimed(claim))?;
        }
        Ok(())
    }

    /// A chain and its hops.
    pub(super) async fn chain(
        &self,
        chain: ChainId,
    ) -> Result<(Chain, Vec<HopStatus>), ClientError> {
        let request = GetChainRequest {
            chain_id: chain.to_vec(),
            name: String::new(),
        };
        let answer = unary(UNARY_DEADLINE, self.connection.chain().get_chain(request)).await?;
        Ok((
            answer
                .chain
                .ok_or(ClientError::Protocol("no chain in the answer"))?,
            answer.hops,
        ))
    }

    fn capabilities(&self) -> Result<Capabilities, WorkerError> {
        Ok(Capabilities {
            memory_bytes: (self.options.memory_elsewhere)
                .unwrap_or_else(|| machine::memory_for_work(self.options.memory)),
            // What lies in the cache already makes room for itself.
            disk_bytes: machine::free_disk(self.folder.root())?
                .saturating_sub(machine::DISK_MARGIN)
                .saturating_add(self.cache.usage().bytes)
                .min(self.options.cache_quota),
            threads: u32::try_from(self.options.threads).unwrap_or(u32::MAX),
            isa: machine::isa(),
            program_formats: PROGRAM_FORMATS.map(str::to_owned).to_vec(),
            golden_digest: self.golden.map(Vec::from).unwrap_or_default(),
        })
    }
}
