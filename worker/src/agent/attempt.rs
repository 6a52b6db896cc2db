//! One attempt from lease to verdict: fetch, compute in the child process, hand in. Takes up at the point the journal
//! names, so it serves new leases and attempts of an earlier run alike.

use std::time::{Duration, Instant};

use cipherhop_proto::client::{ClientError, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::{AttemptPhase, FailRequest, ReleaseRequest};
use cipherhop_proto::{AttemptId, Reason, Retry};

use super::follow::Follow;
use super::lease::Keeper;
use super::{Agent, Delivery, deliver, fetch};
use crate::cache::Pin;
use crate::child::{Failure, Halt, Job, Outcome};
use crate::durable::remove_folder;
use crate::error::WorkerError;
use crate::journal::{Entry, Finished, Lease, Work, WorkState};
use crate::machine;
use crate::report::Event;

/// Crashes in a row without a completed step before the attempt is given up.
const MAX_CRASHES: u32 = 3;
/// Times a damaged cache is filled again for one attempt.
const MAX_REFILLS: u32 = 2;

/// How work on an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The result was handed in, or waits in the spool.
    Delivered(Delivery),
    /// Not wanted any more, for this reason.
    Unwanted(String),
    /// Failed, for this reason.
    Failed(String),
    /// The worker is to stop; the checkpoint is kept.
    Stopped,
    /// The worker is to rest; the checkpoint is kept.
    Paused,
}

/// How the computation ended.
enum Computed {
    Finished(Finished),
    Failed(Failure, String),
    /// Not begun: bytes of memory needed and available.
    Refused(u64, u64),
    Halted,
}

impl Agent {
    /// Works on an attempt of the journal. The flag says whether the coordinator asked to take no more after it.
    pub(super) async fn work_on(
        &self,
        attempt: AttemptId,
        resumed: bool,
    ) -> Result<(End, bool), WorkerError> {
        let Some(work) = self.state().works.remove(&attempt) else {
            return Err(WorkerError::Request(format!(
                "the journal has no attempt {attempt}"
            )));
        };
        let lease = &work.lease;
        self.tell(Event::Hop {
            chain: lease.chain_name.clone(),
            hop: lease.hop,
            attempt,
            resumed,
        });
        if lease.insecure
            && !self.options.allow_insecure
            && !matches!(work.state, WorkState::Finished(_))
        {
            self.release(lease, "INSECURE_NOT_ALLOWED").await?;
            return Err(WorkerError::Insecure(
                lease.chain_name.clone(),
                lease.parameter_set.clone(),
            ));
        }
        let phase = match work.state {
            WorkState::Computing => AttemptPhase::Computing,
            WorkState::Finished(_) => AttemptPhase::Uploading,
            _ => AttemptPhase::Fetching,
        };
        let keeper = Keeper::start(&self.connection, lease, phase, work.compute_seconds);
        let end = match work.state {
            WorkState::Finished(_) => End::Delivered(deliver(self, attempt).await?),
            _ => self.fetch_and_compute(&work, &keeper).await?,
        };
        Ok((end, keeper.drain()))
    }

    async fn fetch_and_compute(&self, work: &Work, keeper: &Keeper) -> Result<End, WorkerError> {
        let attempt = work.lease.attempt;
        let mut refills = 0;
        loop {
            let pins = match self.fetch_all(&work.lease, keeper).await? {
                Ok(pins) => pins,
                Err(end) => return Ok(end),
            };
            if self
                .state()
                .works
                .get(&attempt)
                .is_some_and(|w| w.state == WorkState::Leased)
            {
                self.record(Entry::Moved {
                    attempt,
                    to: WorkState::Fetched,
                })?;
                cipherhop_failpoint::at("fetched.recorded");
            }
            keeper.phase(AttemptPhase::Computing);
            let computed = self.compute(work, keeper).await?;
            drop(pins);
            match computed {
                Computed::Finished(result) => {
                    cipherhop_failpoint::at("finished.record.before");
                    self.record(Entry::Moved {
                        attempt,
                        to: WorkState::Finished(result),
                    })?;
                    cipherhop_failpoint::at("finished.recorded");
                    remove_folder(&self.folder.work(attempt))?;
                    keeper.phase(AttemptPhase::Uploading);
                    return Ok(End::Delivered(deliver(self, attempt).await?));
                }
                Computed::Halted if keeper.unwanted().is_cancelled() => {
                    return self.unwanted(&work.lease, keeper);
                }
                Computed::Halted if self.leave.is_cancelled() => return Ok(End::Stopped),
                Computed::Halted => return Ok(End::Paused),
                Computed::Refused(needed, available) => {
                    self.release(&work.lease, Reason::NotEnoughMemory.as_str())
                        .await?;
                    return Err(WorkerError::Resources(format!(
                        "this hop needs {} of memory, {} are available to it: end other programs, raise --memory if \
                         it is set, or work on another chain",
                        crate::units::bytes(needed),
                        crate::units::bytes(available)
                    )));
                }
                Computed::Failed(kind @ (Failure::Input | Failure::Disk), detail) => {
                    refills += 1;
                    if refills > MAX_REFILLS
                        || fetch::discard_damaged(self, &work.lease).await? == 0
                    {
                        return self.give_up(&work.lease, kind, detail).await;
                    }
                }
                Computed::Failed(kind, detail) => {
                    return self.give_up(&work.lease, kind, detail).await;
                }
            }
        }
    }

    /// Fetches with patience: broken connections are retried for as long as the attempt is wanted.
    pub(super) async fn fetch_all(
        &self,
        lease: &Lease,
        keeper: &Keeper,
    ) -> Result<Result<Vec<Pin>, End>, WorkerError> {
        let mut backoff = self.options.backoff.clone();
        loop {
            let fetched = tokio::select! {
                () = self.leave.cancelled() => return Ok(Err(End::Stopped)),
                () = self.permit.withdrawn() => return Ok(Err(End::Paused)),
                () = keeper.unwanted().cancelled() => return self.unwanted(lease, keeper).map(Err),
                fetched = fetch::fetch(self, lease) => fetched,
            };
            let error = match fetched {
                Ok(pins) => return Ok(Ok(pins)),
                Err(WorkerError::Client(error)) => error,
                Err(WorkerError::Resources(text)) => {
                    self.release(lease, Reason::NotEnoughDisk.as_str()).await?;
                    return Err(WorkerError::Resources(text));
                }
                Err(error) => return Err(error),
            };
            match error.retry() {
                Retry::Same | Retry::BackOff => {
                    let wait = backoff.next(error.retry_after());
                    self.tell(Event::Retrying {
                        what: "fetching",
                        error: error.to_string(),
                        seconds: wait.as_secs_f64(),
                    });
                    if !self.pause(wait).await {
                        return Ok(Err(End::Stopped));
                    }
                }
                Retry::NextHop => {
                    let reason = error.reason().map(Reason::as_str).unwrap_or("UNKNOWN");
                    return self
                        .end(lease, reason)
                        .map(|()| Err(End::Unwanted(reason.into())));
                }
                Retry::AfterChange | Retry::Never if about_the_blob(&error) => {
                    return self
                        .give_up(lease, Failure::Input, error.to_string())
                        .await
                        .map(Err);
                }
                Retry::AfterChange | Retry::Never => return Err(error.into()),
            }
        }
    }

    async fn compute(&self, work: &Work, keeper: &Keeper) -> Result<Computed, WorkerError> {
        let lease = &work.lease;
        let attempt = lease.attempt;
        let job = Job::of(
            lease,
            &self.cache,
            self.folder.work(attempt),
            self.folder.spool(attempt),
            self.options.threads,
            machine::memory_for_work(self.options.memory),
        )?;
        let mut backoff = self.options.backoff.clone();
        self.record(Entry::Moved {
            attempt,
            to: WorkState::Computing,
        })?;
        loop {
            let begin = Instant::now();
            let before = self
                .state()
                .works
                .get(&attempt)
                .map(|w| w.compute_seconds)
                .unwrap_or_default();
            let mut follow = Follow {
                agent: self,
                keeper,
                lease,
                begin,
                before,
                estimator: None,
                progressed: false,
            };
            let halt = Halt::default();
            let watcher = async {
                tokio::select! {
                    () = self.leave.cancelled() => {}
                    () = self.permit.withdrawn() => {}
                    () = keeper.unwanted().cancelled() => {}
                }
                halt.after_step.cancel();
                if !keeper.unwanted().is_cancelled() && !self.stop.is_cancelled() {
                    self.tell(Event::Halting { hop: lease.hop });
                }
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = keeper.unwanted().cancelled() => {}
                }
                halt.soon.cancel();
                std::future::pending::<std::convert::Infallible>().await
            };
            let outcome = tokio::select! {
                outcome = self.runner.run(&job, &halt, |line| follow.line(line)) => outcome?,
                never = watcher => match never {},
            };
            let progressed = follow.progressed;
            let crashed = matches!(outcome, Outcome::Crashed(..)) && !progressed;
            self.record(Entry::Used {
                attempt,
                seconds: begin.elapsed().as_secs_f64(),
                crashed,
            })?;
            if let Err(error) = self.timings().save() {
                tracing::warn!(%error, "step times were not kept");
            }
            match outcome {
                Outcome::Finished(result, profile) => {
                    let (digest, seconds) = (result.output, result.compute_seconds);
                    self.tell(Event::Finished {
                        hop: lease.hop,
                        digest,
                        seconds,
                        profile,
                    });
                    return Ok(Computed::Finished(result));
                }
                Outcome::Stopped => return Ok(Computed::Halted),
                Outcome::Failed(kind, detail) => return Ok(Computed::Failed(kind, detail)),
                Outcome::Refused(needed, available) => {
                    return Ok(Computed::Refused(needed, available));
                }
                Outcome::Crashed(kind, detail) => {
                    let crashes = self
                        .state()
                        .works
                        .get(&attempt)
                        .map(|w| w.crashes)
                        .unwrap_or_default();
                    if crashes >= MAX_CRASHES {
                        return Ok(Computed::Failed(kind, detail));
                    }
                    self.tell(Event::Crashed {
                        hop: lease.hop,
                        detail,
                    });
                    if progressed {
                        backoff.reset();
                    }
                    tokio::select! {
                        going = self.pause(backoff.next(None)) => if !going { return Ok(Computed::Halted) },
                        () = keeper.unwanted().cancelled() => return Ok(Computed::Halted),
                        () = self.permit.withdrawn() => return Ok(Computed::Halted),
                    }
                }
            }
        }
    }

    /// Tells the coordinator that the attempt failed and closes it here.
    async fn give_up(
        &self,
        lease: &Lease,
        kind: Failure,
        detail: String,
    ) -> Result<End, WorkerError> {
        let cut = detail.floor_char_boundary(1000);
        let request = FailRequest {
            attempt_id: lease.attempt.to_vec(),
            epoch: lease.epoch,
            kind: kind.to_wire() as i32,
            detail: detail[..cut].to_owned(),
        };
        let call = async || {
            unary(
                UNARY_DEADLINE,
                self.connection.volunteer().fail(request.clone()),
            )
            .await
        };
        match self.persist("reporting a failure", call).await {
            Ok(None) => return Ok(End::Stopped),
            Ok(Some(_)) => {}
            Err(error) if matches!(error.retry(), Retry::NextHop | Retry::Never) => {
                tracing::info!(attempt = %lease.attempt, %error, "the failure was not taken");
            }
            Err(error) => return Err(error.into()),
        }
        let reason = format!("{}: {detail}", kind.to_wire().as_str_name());
        self.end(lease, &reason)?;
        Ok(End::Failed(reason))
    }

    /// Gives a hop back that this worker cannot or may not run.
    pub(super) async fn release(&self, lease: &Lease, reason: &str) -> Result<(), WorkerError> {
        let request = ReleaseRequest {
            attempt_id: lease.attempt.to_vec(),
            epoch: lease.epoch,
        };
        // Not heard: the lease runs out by itself.
        if let Err(error) = unary(
            Duration::from_secs(3),
            self.connection.volunteer().release(request),
        )
        .await
        {
            tracing::info!(attempt = %lease.attempt, %error, "the hop could not be given back");
        }
        self.end(lease, reason)
    }

    fn unwanted(&self, lease: &Lease, keeper: &Keeper) -> Result<End, WorkerError> {
        let reason = keeper.reason();
        self.end(lease, &reason)?;
        Ok(End::Unwanted(reason))
    }

    /// Closes an attempt that has no result.
    pub(super) fn end(&self, lease: &Lease, reason: &str) -> Result<(), WorkerError> {
        let attempt = lease.attempt;
        self.record(Entry::Moved {
            attempt,
            to: WorkState::Closed {
                result: None,
                outcome: reason.into(),
            },
        })?;
        remove_folder(&self.folder.work(attempt))?;
        remove_folder(&self.folder.spool(attempt))?;
        self.tell(Event::Ended {
            hop: lease.hop,
            attempt,
            reason: reason.into(),
        });
        Ok(())
    }
}

fn about_the_blob(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::DigestMismatch { .. } | ClientError::SizeMismatch { .. }
    ) || matches!(
        error.reason(),
        Some(Reason::BlobNotFound | Reason::BlobNotAllowed | Reason::BlobSizeMismatch)
    )
}
