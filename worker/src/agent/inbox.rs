//! Requests of other processes (`claim`, `resubmit`, `unpack`) to the worker that holds the data folder: one file each, taken up
//! between two hops.

use serde::{Deserialize, Serialize};

use super::Agent;
use crate::durable::{remove_folder, write_atomic};
use crate::error::WorkerError;
use crate::folder::{Folder, to_json};
use crate::journal::{Claim, Entry, Finished, WorkState};
use cipherhop_proto::{AttemptId, Nonce};

/// What is asked of the running worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Work on this before anything else.
    Claim(Claim),
    /// Withdraw a claim.
    Unclaim(Claim),
    /// Hand this finished result in again.
    Resubmit(AttemptId),
    /// The result of a carried hop lies in the spool: hand it in.
    Computed(AttemptId, Finished),
}

/// Leaves a request for the running worker.
pub fn leave_request(folder: &Folder, request: &Request) -> Result<(), WorkerError> {
    let name = format!("{}.json", Nonce::generate());
    write_atomic(&folder.inbox().join(name), &to_json(request), true)
}

impl Agent {
    /// Takes up what was left. A request is journalled before its file goes.
    pub(super) fn read_inbox(&self) -> Result<(), WorkerError> {
        let folder = self.folder.inbox();
        let mut paths: Vec<_> = std::fs::read_dir(&folder)
            .map_err(WorkerError::file(&folder))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .collect();
        paths.sort();
        for path in paths {
            let bytes = std::fs::read(&path).map_err(WorkerError::file(&path))?;
            match serde_json::from_slice(&bytes) {
                Ok(request) => self.accept(request)?,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a request was not understood")
                }
            }
            std::fs::remove_file(&path).map_err(WorkerError::file(&path))?;
        }
        Ok(())
    }

    /// Journals one request.
    pub fn accept(&self, request: Request) -> Result<(), WorkerError> {
        match request {
            Request::Claim(claim) => self.record(Entry::Claimed(claim)),
            Request::Unclaim(claim) => self.record(Entry::Unclaimed(claim)),
            Request::Computed(attempt, result) => {
                let state = self.state();
                match state.works.get(&attempt) {
                    Some(work) if work.state.result().is_none() => {
                        self.record(Entry::Moved {
                            attempt,
                            to: WorkState::Finished(result),
                        })?;
                        remove_folder(&self.folder.work(attempt))
                    }
                    _ => {
                        tracing::warn!(%attempt, "a result came back that is not waited for");
                        Ok(())
                    }
                }
            }
            Request::Resubmit(attempt) => {
                let state = self.state();
                match state
                    .works
                    .get(&attempt)
                    .and_then(|work| work.state.result())
                {
                    Some(result) => self.record(Entry::Moved {
                        attempt,
                        to: WorkState::Finished(result.clone()),
                    }),
                    None => {
                        tracing::warn!(%attempt, "no finished result to submit again");
                        Ok(())
                    }
                }
            }
        }
    }
}
