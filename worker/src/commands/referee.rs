//! `referee`: runs single steps of disputed hops for the coordinator. Its word decides between two results, so an
//! operator has to trust the machine (`cipherhop-coordinator device referee`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cipherhop_ckks::Isa;
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::error::HopError;
use cipherhop_hop::keys::{DirKeys, KeyManifest};
use cipherhop_hop::program::Program;
use cipherhop_hop::single::{StepJob, StepOutput, keys_of_step, run_step};
use cipherhop_proto::client::{
    Backoff, Connection, LONG_POLL_DEADLINE, TransferPolicy, UNARY_DEADLINE, download, unary,
};
use cipherhop_proto::v1::{AcquireStepRequest, BlobRef, BlobRole, DisputedStep, SubmitStepRequest};
use cipherhop_proto::{Digest, Retry};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::cache::{Cache, Pin};
use crate::cli::Referee as Options;
use crate::error::WorkerError;
use crate::hours::Minute;
use crate::permit::Permit;
use crate::preferences::Preferences;
use crate::{machine, selftest};

/// How long a question stays open at the coordinator.
const WAIT_SECONDS: u32 = 20;

/// A referee at work.
struct Office<'a> {
    context: &'a Context,
    connection: Connection,
    cache: Cache,
    threads: usize,
    memory: u64,
    isa: Isa,
}

pub(super) async fn referee(context: &Context, options: Options) -> Result<(), WorkerError> {
    let preferences = Preferences::load(&context.root, &options.choices)?;
    let isa = selftest::usable(preferences.isa.value)?;
    let folder = context.folder()?;
    let _lock = folder.lock()?;
    let threads = preferences.threads.value;
    let tested = {
        let folder = folder.clone();
        tokio::task::spawn_blocking(move || selftest::run_or_recall(&folder, isa, threads)).await
    };
    tested
        .map_err(|_| WorkerError::Request("the self-test was broken off".into()))??
        .check()?;
    let office = Office {
        context,
        connection: context.connect()?,
        cache: Cache::open(&folder.cache(), preferences.cache.value)?,
        threads,
        memory: machine::memory_for_work(preferences.memory.value),
        isa,
    };
    let leave = context.stop.child_token();
    let clock = Arc::new(Minute::now);
    let permit = Permit::new(
        folder.clone(),
        preferences.hours.value,
        clock,
        leave.clone(),
    )?;
    tokio::select! {
        ended = serve(&office, &options, preferences.allow_insecure.value, &permit, &leave) => ended,
        never = permit.follow() => match never {},
    }
}

async fn serve(
    office: &Office<'_>,
    options: &Options,
    allow_insecure: bool,
    permit: &Permit,
    leave: &CancellationToken,
) -> Result<(), WorkerError> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    let mut idle_since = Instant::now();
    while !leave.is_cancelled() {
        tokio::select! {
            () = leave.cancelled() => break,
            () = permit.granted() => {}
        }
        let request = AcquireStepRequest {
            wait_seconds: WAIT_SECONDS,
        };
        let mut volunteer = office.connection.volunteer();
        let asked = unary(LONG_POLL_DEADLINE, volunteer.acquire_step(request));
        let answer = tokio::select! {
            () = leave.cancelled() => break,
            () = permit.withdrawn() => {
                idle_since = Instant::now();
                continue;
            }
            answer = asked => answer,
        };
        match answer {
            Ok(answer) => {
                backoff.reset();
                if let Some(step) = answer.step {
                    if step.insecure && !allow_insecure {
                        return Err(WorkerError::Insecure(step.chain_name, step.parameter_set));
                    }
                    office.decide(step).await?;
                    idle_since = Instant::now();
                    if options.once {
                        return Ok(());
                    }
                }
            }
            Err(error) if matches!(error.retry(), Retry::Same | Retry::BackOff) => {
                let wait = backoff.next(error.retry_after());
                tracing::info!(%error, seconds = wait.as_secs_f64(), "asking again");
                tokio::select! {
                    () = leave.cancelled() => break,
                    () = tokio::time::sleep(wait) => {}
                }
            }
            Err(error) => return Err(error.into()),
        }
        let limit = options.idle_exit.map(Duration::from_secs);
        if limit.is_some_and(|limit| idle_since.elapsed() >= limit) {
            break;
        }
    }
    match options.once {
        true => Err(WorkerError::NotDone("no step was in dispute".into())),
        false => Ok(()),
    }
}

/// What a step needs, on disk.
struct Files {
    program: PathBuf,
    weights: PathBuf,
    manifest: PathBuf,
    inputs: Vec<(String, PathBuf)>,
}

impl Office<'_> {
    /// Fetches, runs and answers.
    async fn decide(&self, step: DisputedStep) -> Result<(), WorkerError> {
        let of = |role: BlobRole| step.blobs.iter().filter(move |blob| blob.role() == role);
        let mut pins = Vec::new();
        for blob in step
            .blobs
            .iter()
            .filter(|b| b.role() != BlobRole::EvaluationKey)
        {
            pins.push(self.fetch(blob).await?);
        }
        let one = |role: BlobRole| {
            let blob = of(role).next();
            let blob = blob.ok_or_else(|| WorkerError::Answer("a blob is missing".into()))?;
            self.path(blob)
        };
        let files = Files {
            program: one(BlobRole::Program)?,
            weights: one(BlobRole::Weights)?,
            manifest: one(BlobRole::KeyManifest)?,
            inputs: of(BlobRole::Input)
                .map(|blob| Ok((blob.name.clone(), self.path(blob)?)))
                .collect::<Result<_, WorkerError>>()?,
        };
        // Of the keys only those of this step.
        let mut job = Job::read(&files, step.hop, step.step, self.isa)?;
        let job = blocking(move || {
            job.keep_needed_keys()?;
            Ok(job)
        })
        .await?;
        for blob in of(BlobRole::EvaluationKey) {
            let digest = hex::encode(&blob.digest);
            if job.manifest.keys.iter().any(|key| key.digest == digest) {
                pins.push(self.fetch(blob).await?);
            }
        }
        let (folder, memory, threads) = (self.cache.folder().to_owned(), self.memory, self.threads);
        let output = blocking(move || job.run(folder, memory, threads)).await?;
        drop(pins);
        let request = SubmitStepRequest {
            first_attempt: step.first_attempt,
            second_attempt: step.second_attempt,
            step: step.step,
            outputs: output
                .outputs
                .iter()
                .map(|(_, digest)| digest.to_vec())
                .collect(),
            seconds: output.seconds,
        };
        let mut volunteer = self.connection.volunteer();
        let answer = unary(UNARY_DEADLINE, volunteer.submit_step(request)).await?;
        let told = json!({
            "event": "step", "chain": step.chain_name, "hop": step.hop, "step": step.step,
            "name": output.name, "seconds": output.seconds, "settled": answer.settled,
        });
        let text = format!(
            "{} hop {}: step {} ({}) run in {:.2} s, {}",
            step.chain_name,
            step.hop,
            step.step,
            output.name,
            output.seconds,
            if answer.settled {
                "settled"
            } else {
                "settled before"
            }
        );
        self.context.print(&told, &text);
        Ok(())
    }

    fn path(&self, blob: &BlobRef) -> Result<PathBuf, WorkerError> {
        let digest = Digest::from_slice(&blob.digest);
        Ok(self
            .cache
            .path(&digest.map_err(|e| WorkerError::Answer(e.to_string()))?))
    }

    async fn fetch(&self, blob: &BlobRef) -> Result<Pin, WorkerError> {
        let digest =
            Digest::from_slice(&blob.digest).map_err(|e| WorkerError::Answer(e.to_string()))?;
        if let Some(pin) = self.cache.pin(&digest, blob.size) {
            return Ok(pin);
        }
        let _room = self.cache.reserve(blob.size)?;
        machine::check_disk(self.cache.folder(), blob.size)?;
        let (path, policy) = (self.cache.path(&digest), TransferPolicy::default());
        download(&self.connection, blob, &path, None, &policy, &|_| ()).await?;
        Ok(self.cache.insert(&digest, blob.size))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HopError> + Send + 'static,
) -> Result<T, WorkerError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|_| WorkerError::Request("the computation was broken off".into()))?;
    done.map_err(|error| WorkerError::Request(format!("the step cannot be run: {error}")))
}

/// A step in memory.
struct Job {
    engine: Engine,
    program: Program,
    manifest: KeyManifest,
    weights: Vec<u8>,
    inputs: Vec<(String, Vec<u8>)>,
    layer: u32,
    step: u32,
}

impl Job {
    fn read(files: &Files, layer: u32, step: u32, isa: Isa) -> Result<Job, WorkerError> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(WorkerError::file(path));
        let broken = |error: HopError| WorkerError::Answer(error.to_string());
        let program = Program::parse(&read(&files.program)?).map_err(|e| broken(e.into()))?;
        let params = program.params().map_err(|e| broken(e.into()))?;
        let mut inputs = Vec::with_capacity(files.inputs.len());
        for (register, path) in &files.inputs {
            inputs.push((register.clone(), read(path)?));
        }
        Ok(Job {
            engine: Engine::on(isa, params).map_err(|e| broken(e.into()))?,
            manifest: KeyManifest::parse(&read(&files.manifest)?).map_err(broken)?,
            weights: read(&files.weights)?,
            program,
            inputs,
            layer,
            step,
        })
    }

    fn of_step(&self) -> StepJob<'_> {
        StepJob {
            layer: self.layer,
            weights: &self.weights,
            step: self.step,
            inputs: &self.inputs,
        }
    }

    /// Cuts the manifest down to the keys that the step uses.
    fn keep_needed_keys(&mut self) -> Result<(), HopError> {
        let specs = keys_of_step(&self.engine, &self.program, &self.of_step())?;
        let ids: Vec<String> = specs.iter().map(|spec| spec.id.to_string()).collect();
        self.manifest.keys.retain(|key| ids.contains(&key.id));
        self.manifest.covers(&specs)
    }

    fn run(self, folder: PathBuf, memory: u64, threads: usize) -> Result<StepOutput, HopError> {
        let keys = DirKeys::open(self.engine.ctx.clone(), folder, self.manifest.clone())?;
        let keys = Arc::new(keys.with_budget(memory / 2));
        run_step(&self.engine, &self.program, &self.of_step(), keys, threads)
    }
}
