//! The agent: asks for hops, has them computed, hands results in. Everything it must not forget is in the journal
//! before it is acted upon, so that it can be killed at any moment.

mod acquire;
mod attempt;
mod away;
mod deliver;
mod fetch;
mod follow;
mod inbox;
pub(crate) mod inputs;
mod lease;
mod run;

pub(crate) use acquire::PROGRAM_FORMATS;
pub use away::Wanted;
pub use deliver::{Delivery, deliver};
pub use inbox::{Request, leave_request};
pub use run::{Goal, run};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cipherhop_proto::client::{Backoff, ClientError, Connection, TransferPolicy};
use cipherhop_proto::signing::{DeviceKey, ResultStatement};
use cipherhop_proto::{AttemptId, ChainId, Digest, Retry};
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::child::Runner;
use crate::error::WorkerError;
use crate::eta::Timings;
use crate::folder::{Folder, FolderLock};
use crate::hours::Hours;
use crate::journal::{Entry, Finished, Journal, Lease, State, WorkState};
use crate::permit::{Clock, Permit};
use crate::report::{Event, Reporter};

/// What a person chose.
#[derive(Clone)]
pub struct Options {
    /// Threads of a computation.
    pub threads: usize,
    /// Limit of the cache, bytes.
    pub cache_quota: u64,
    /// Most memory of a computation, bytes; `None` for what is available.
    pub memory: Option<u64>,
    /// Memory of the machine that will compute, bytes, where it is not this one.
    pub memory_elsewhere: Option<u64>,
    /// Work on chains whose parameter set protects nothing.
    pub allow_insecure: bool,
    /// When to work.
    pub hours: Hours,
    /// Tells the time of the day.
    pub clock: Clock,
    /// Work only on this chain, beside claims.
    pub chain: Option<ChainId>,
    /// Work on nothing but claims.
    pub only_claims: bool,
    /// Waits between tries.
    pub backoff: Backoff,
}

/// Everything the parts of the agent share.
pub struct Agent {
    /// Where things lie.
    pub folder: Folder,
    /// To the coordinator.
    pub connection: Connection,
    /// Its address, for people.
    pub coordinator: String,
    /// Starts the computing process.
    pub runner: Runner,
    /// Where blobs are kept.
    pub cache: Cache,
    /// Whom events are told.
    pub reporter: Arc<Reporter>,
    /// What a person chose.
    pub options: Options,
    /// Ends everything within seconds, with checkpoints kept.
    pub stop: CancellationToken,
    /// Ends everything after the running step; cancelled with `stop`, too.
    pub leave: CancellationToken,
    /// Whether to work now.
    pub permit: Permit,
    /// Result of the self-test.
    pub golden: Option<Digest>,
    key: Option<DeviceKey>,
    journal: Mutex<Journal>,
    timings: Mutex<Timings>,
    _lock: FolderLock,
}

impl Agent {
    /// Takes the data folder for this process and opens what lies in it.
    pub fn open(
        folder: Folder,
        runner: Runner,
        options: Options,
        reporter: Arc<Reporter>,
        stop: CancellationToken,
    ) -> Result<Agent, WorkerError> {
        let identity = folder.identity()?;
        let lock = folder.lock()?;
        let leave = stop.child_token();
        let permit = Permit::new(
            folder.clone(),
            options.hours.clone(),
            options.clock.clone(),
            leave.clone(),
        )?;
        let journal = Journal::open(&folder.journal())?;
        remove_stray_checkpoints(&folder, journal.state())?;
        Ok(Agent {
            connection: Connection::lazy(&folder.connect_options(&identity)?)?,
            coordinator: identity.coordinator,
            runner,
            cache: Cache::open(&folder.cache(), options.cache_quota)?,
            reporter,
            options,
            stop,
            leave,
            permit,
            golden: None,
            key: folder.device_key()?,
            journal: Mutex::new(journal),
            timings: Mutex::new(Timings::open(&folder.timings())),
            _lock: lock,
            folder,
        })
    }

    /// A copy of what the journal holds.
    pub fn state(&self) -> State {
        self.journal().state().clone()
    }

    /// Makes an entry durable.
    pub fn record(&self, entry: Entry) -> Result<(), WorkerError> {
        self.journal().append(entry)
    }

    /// The signature under a result; empty when the device enrolled without a key.
    fn sign(&self, lease: &Lease, result: &Finished) -> Vec<u8> {
        let statement = ResultStatement {
            chain: lease.chain,
            generation: lease.generation,
            hop: lease.hop,
            attempt: lease.attempt,
            output: result.output,
            trace_root: result.trace_root,
        };
        match &self.key {
            Some(key) => key.sign(&statement).to_vec(),
            None => Vec::new(),
        }
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // A panic while holding it can only have happened between complete entries.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timings(&self) -> MutexGuard<'_, Timings> {
        self.timings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        self.reporter.tell(&event);
    }

    fn policy(&self) -> TransferPolicy {
        TransferPolicy {
            backoff: self.options.backoff.clone(),
            ..TransferPolicy::default()
        }
    }

    /// Sleeps, or returns false at once when the worker is to stop.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.leave.cancelled() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Repeats a call for as long as its error says that repeating helps. `None` when the worker is to stop.
    async fn persist<T>(
        &self,
        what: &'static str,
        mut call: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<Option<T>, ClientError> {
        let mut backoff = self.options.backoff.clone();
        loop {
            let answer = tokio::select! {
                () = self.leave.cancelled() => return Ok(None),
                answer = call() => answer,
            };
            let error = match answer {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) => error,
            };
            if !matches!(error.retry(), Retry::Same | Retry::BackOff) {
                return Err(error);
            }
            let wait = backoff.next(error.retry_after());
            self.tell(Event::Retrying {
                what,
                error: error.to_string(),
                seconds: wait.as_secs_f64(),
            });
            if !self.pause(wait).await {
                return Ok(None);
            }
        }
    }
}

/// Removes work folders of attempts that are over, left behind when the program was killed between two moves.
fn remove_stray_checkpoints(folder: &Folder, state: &State) -> Result<(), WorkerError> {
    let works = folder.works();
    for entry in std::fs::read_dir(&works).map_err(WorkerError::file(&works))? {
        let entry = entry.map_err(WorkerError::file(&works))?;
        let attempt = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<AttemptId>().ok());
        let Some(attempt) = attempt else { continue };
        let computing = state.works.get(&attempt).is_some_and(|work| {
            matches!(
                work.state,
                WorkState::Leased | WorkState::Fetched | WorkState::Computing
            )
        });
        if !computing {
            crate::durable::remove_folder(&folder.work(attempt))?;
        }
    }
    Ok(())
}
