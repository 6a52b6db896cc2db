//! Calls of referees, and of workers whose results are in dispute.

use std::time::Duration;

use cipherhop_proto::status::bad_request;
use cipherhop_proto::{AttemptId, DeviceId, Digest, v1};
use tokio::time::Instant;
use tonic::{Response, Status};

use super::arbitrate::Dispute;
use super::error::of_store;
use super::{Core, convert, parse};
use crate::domain::attempt::AttemptState;
use crate::domain::view::BlobRole;

type Answered<T> = Result<Response<T>, Status>;

/// Longest long poll.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Most attempts a worker may ask about at once.
const MAX_ATTEMPTS: usize = 64;
/// Most outputs of a step.
const MAX_OUTPUTS: usize = 256;

impl Core {
    pub(super) async fn list_inputs(
        &self,
        device: DeviceId,
        asked: v1::ListWantedInputsRequest,
    ) -> Answered<v1::ListWantedInputsResponse> {
        if asked.attempt_ids.len() > MAX_ATTEMPTS {
            let detail = format!("at most {MAX_ATTEMPTS} attempts");
            return Err(bad_request("attempt_ids", detail));
        }
        let mut named: Vec<AttemptId> = Vec::with_capacity(asked.attempt_ids.len());
        for id in &asked.attempt_ids {
            named.push(parse::field("attempt_ids", id)?);
        }
        let deadline = deadline(asked.wait_seconds);
        loop {
            let mut settled = Vec::new();
            for id in &named {
                let waits = match self.store.attempt(*id).await {
                    Ok(attempt) => {
                        attempt.device == device && attempt.state == AttemptState::Submitted
                    }
                    Err(crate::store::StoreError::Refused(_)) => false,
                    Err(error) => return Err(of_store("list_wanted_inputs")(error)),
                };
                if !waits {
                    settled.push(id.to_vec());
                }
            }
            let mut inputs = Vec::new();
            for (attempt, step, missing) in self.wanted_inputs(device).await? {
                if named.contains(&attempt.id) {
                    inputs.push(v1::WantedInputs {
                        attempt_id: attempt.id.to_vec(),
                        epoch: attempt.epoch,
                        step: step.name,
                        digests: missing.into_iter().map(Vec::from).collect(),
                    });
                }
            }
            if !settled.is_empty() || !inputs.is_empty() || self.pause(deadline).await {
                return Ok(Response::new(v1::ListWantedInputsResponse {
                    inputs,
                    settled,
                }));
            }
        }
    }

    pub(super) async fn next_step(
        &self,
        device: DeviceId,
        asked: v1::AcquireStepRequest,
    ) -> Answered<v1::AcquireStepResponse> {
        self.must_be_referee(device).await?;
        let deadline = deadline(asked.wait_seconds);
        loop {
            self.board.referee_came();
            self.look_at_disputes().await?;
            for dispute in self.board.disputes() {
                if self.missing_inputs(&dispute).await?.is_empty() {
                    let step = self.step(&dispute).await?;
                    return Ok(Response::new(v1::AcquireStepResponse { step: Some(step) }));
                }
            }
            if self.pause(deadline).await {
                return Ok(Response::new(v1::AcquireStepResponse { step: None }));
            }
        }
    }

    async fn step(&self, dispute: &Dispute) -> Result<v1::DisputedStep, Status> {
        let (case, step) = (&dispute.case, &dispute.step);
        let blobs = self
            .store
            .attempt_blobs(dispute.first.id)
            .await
            .map_err(of_store("acquire_step"))?;
        let needed = blobs.iter().filter(|blob| blob.role != BlobRole::Input);
        let mut blobs: Vec<v1::BlobRef> = needed.map(convert::blob).collect();
        for (register, digest) in &step.inputs {
            let stored = self.store.blob(*digest).await;
            let stored = stored.map_err(of_store("acquire_step"))?;
            blobs.push(v1::BlobRef {
                digest: digest.to_vec(),
                size: stored.map_or(0, |blob| blob.size),
                role: v1::BlobRole::Input.into(),
                name: register.clone(),
            });
        }
        Ok(v1::DisputedStep {
            first_attempt: dispute.first.id.to_vec(),
            second_attempt: dispute.second.id.to_vec(),
            chain_name: case.chain.name.clone(),
            hop: case.hop,
            step: step.step,
            step_name: step.name.clone(),
            parameter_set: case.chain.spec.parameter_set.clone(),
            insecure: case.chain.spec.insecure,
            blobs,
        })
    }

    pub(super) async fn take_step(
        &self,
        device: DeviceId,
        asked: v1::SubmitStepRequest,
    ) -> Answered<v1::SubmitStepResponse> {
        self.must_be_referee(device).await?;
        if asked.outputs.len() > MAX_OUTPUTS {
            let detail = format!("at most {MAX_OUTPUTS} outputs");
            return Err(bad_request("outputs", detail));
        }
        let pair = (
            parse::field("first_attempt", &asked.first_attempt)?,
            parse::field("second_attempt", &asked.second_attempt)?,
        );
        let mut outputs: Vec<Digest> = Vec::with_capacity(asked.outputs.len());
        for output in &asked.outputs {
            outputs.push(parse::field("outputs", output)?);
        }
        let seconds = parse::seconds("seconds", asked.seconds)?.as_secs_f64();
        let settled = self.judge_step(pair, asked.step, &outputs, seconds).await?;
        Ok(Response::new(v1::SubmitStepResponse { settled }))
    }

    /// Waits a little; true when the deadline has come or the server goes down.
    async fn pause(&self, deadline: Instant) -> bool {
        if Instant::now() >= deadline {
            return true;
        }
        tokio::select! {
            () = self.shutdown.cancelled() => true,
            () = tokio::time::sleep(LOOK_AGAIN) => false,
        }
    }
}

fn deadline(wait_seconds: u32) -> Instant {
    Instant::now() + Duration::from_secs(wait_seconds.into()).min(LONGEST_WAIT)
}
