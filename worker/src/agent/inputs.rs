//! Answers the coordinator when a result of this worker is in dispute: the inputs of one step, kept beside the result
//! until it is judged.

use std::path::PathBuf;
use std::time::Duration;

use cipherhop_proto::client::{AttemptRef, LONG_POLL_DEADLINE, Source, unary, upload};
use cipherhop_proto::v1::{BlobRef, BlobRole, ListWantedInputsRequest, WantedInputs};
use cipherhop_proto::{AttemptId, Digest};

use super::Agent;
use crate::durable::remove_folder;
use crate::error::WorkerError;
use crate::folder::Folder;
use crate::journal::{State, WorkState};

/// How long a question stays open at the coordinator.
const WAIT_SECONDS: u32 = 20;
/// Pause while nothing waits for a verdict, and after a failure.
const PAUSE: Duration = Duration::from_secs(3);
/// Results whose steps are kept, the newest.
const KEEP: usize = 4;

/// Where an attempt's registers are kept, by digest.
pub(crate) fn kept(folder: &Folder, attempt: AttemptId) -> PathBuf {
    folder.spool(attempt).join("steps")
}

/// Attempts that wait for a verdict and whose registers are kept, newest last.
fn waiting(folder: &Folder, state: &State) -> Vec<AttemptId> {
    let waits = |state: &WorkState| matches!(state, WorkState::Closed { outcome, .. } if outcome == "ACCEPTED_VERIFYING");
    let works = state.works.iter().filter(|(_, work)| waits(&work.state));
    works
        .map(|(attempt, _)| *attempt)
        .filter(|attempt| kept(folder, *attempt).is_dir())
        .collect()
}

/// Removes what is kept of all but the newest results.
pub(super) fn prune(folder: &Folder, state: &State) -> Result<(), WorkerError> {
    let waiting = waiting(folder, state);
    for attempt in waiting.iter().rev().skip(KEEP) {
        remove_folder(&kept(folder, *attempt))?;
    }
    Ok(())
}

/// Answers for as long as it is polled.
pub(super) async fn answer(agent: &Agent) {
    loop {
        let waiting = waiting(&agent.folder, &agent.state());
        let answered = match waiting.is_empty() {
            true => Ok(false),
            false => ask(agent, waiting).await,
        };
        match answered {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "inputs of disputed steps could not be handed in");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One question; whether everything it asked for was done.
async fn ask(agent: &Agent, waiting: Vec<AttemptId>) -> Result<bool, WorkerError> {
    let newest = waiting.into_iter().rev().take(KEEP);
    let request = ListWantedInputsRequest {
        attempt_ids: newest.map(Vec::from).collect(),
        wait_seconds: WAIT_SECONDS,
    };
    let mut volunteer = agent.connection.volunteer();
    let answer = unary(LONG_POLL_DEADLINE, volunteer.list_wanted_inputs(request)).await?;
    for attempt in &answer.settled {
        let attempt =
            AttemptId::from_slice(attempt).map_err(|e| WorkerError::Answer(e.to_string()))?;
        remove_folder(&kept(&agent.folder, attempt))?;
    }
    let mut all = true;
    for wanted in answer.inputs {
        all &= send(agent, wanted).await?;
    }
    Ok(all)
}

async fn send(agent: &Agent, wanted: WantedInputs) -> Result<bool, WorkerError> {
    let attempt = AttemptId::from_slice(&wanted.attempt_id)
        .map_err(|e| WorkerError::Answer(e.to_string()))?;
    let from = AttemptRef {
        attempt_id: wanted.attempt_id,
        epoch: wanted.epoch,
    };
    let mut all = true;
    for digest in &wanted.digests {
        let digest = Digest::from_slice(digest).map_err(|e| WorkerError::Answer(e.to_string()))?;
        let path = kept(&agent.folder, attempt).join(digest.to_string());
        let Ok(size) = std::fs::metadata(&path).map(|file| file.len()) else {
            tracing::warn!(%attempt, step = %wanted.step, %digest, "an input of a disputed step is not kept any more");
            all = false;
            continue;
        };
        let blob = BlobRef {
            digest: digest.to_vec(),
            size,
            role: BlobRole::Output.into(),
            name: String::new(),
        };
        let (source, policy) = (Source::File(&path), agent.policy());
        upload(
            &agent.connection,
            &blob,
            source,
            Some(&from),
            &policy,
            &|_| (),
        )
        .await?;
        tracing::info!(%attempt, step = %wanted.step, %digest, "an input of a disputed step was handed in");
    }
    Ok(all)
}
