//! `run-packed`: computes a packed hop on a machine that needs no connection and no identity.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cipherhop_proto::client::Backoff;

use super::Context;
use super::pack::{refuse_existing, refused};
use crate::cache::{Cache, Pin};
use crate::child::{Halt, Job, Line, Outcome, Runner};
use crate::cli::RunPacked;
use crate::durable::{make_folder, remove_folder};
use crate::error::WorkerError;
use crate::eta::{Estimator, Timings};
use crate::folder::Folder;
use crate::hours::Minute;
use crate::journal::{Finished, Lease};
use crate::pack::{Card, PackError, Reader, write};
use crate::permit::{Permission, Permit};
use crate::preferences::Preferences;
use crate::report::{Event, Reporter};
use crate::{machine, selftest, units};

/// Crashes in a row without a completed step before it gives up.
const MAX_CRASHES: u32 = 3;

pub(super) async fn run_packed(context: &Context, options: RunPacked) -> Result<(), WorkerError> {
    refuse_existing(&options.out)?;
    let preferences = Preferences::load(&context.root, &options.choices)?;
    let isa = selftest::usable(preferences.isa.value)?;
    let folder = context.folder()?;
    let _lock = folder.lock()?;
    let leave = context.stop.child_token();
    let clock = Arc::new(Minute::now);
    let permit = Permit::new(
        folder.clone(),
        preferences.hours.value.clone(),
        clock,
        leave.clone(),
    )?;
    let (reporter, threads) = (Reporter::new(context.json), preferences.threads.value);
    let cache = Cache::open(&folder.cache(), preferences.cache.value)?;
    let preparing = {
        let (folder, cache, pack) = (folder.clone(), cache.clone(), options.pack.clone());
        let insecure = preferences.allow_insecure.value;
        tokio::task::spawn_blocking(move || {
            selftest::run_or_recall(&folder, isa, threads)?.check()?;
            take_in(&cache, &pack, insecure)
        })
    };
    let (lease, pins) = tokio::select! {
        () = leave.cancelled() => return Err(stopped()),
        prepared = preparing => prepared.map_err(|_| WorkerError::Request("unpacking was broken off".into()))??,
    };
    let attempt = lease.attempt;
    // Apart from the work of `run`, whose journal knows nothing of it.
    let place = folder.root().join("packed").join(attempt.to_string());
    let job = Job::of(
        &lease,
        &cache,
        place.join("work"),
        place.join("spool"),
        threads,
        machine::memory_for_work(preferences.memory.value),
    )?;
    make_folder(&place)?;
    reporter.tell(&Event::Hop {
        chain: lease.chain_name.clone(),
        hop: lease.hop,
        attempt,
        resumed: job.work.join("hop").exists(),
    });
    let computing = Computing {
        runner: Runner::of_this_program(preferences.isa.value, preferences.nice.value)?,
        permit,
        leave,
        context,
        reporter: &reporter,
        folder: &folder,
        lease: &lease,
        job: &job,
    };
    let result = tokio::select! {
        result = computing.to_the_end() => result?,
        never = computing.permit.follow() => match never {},
    };
    drop(pins);
    let card = Card::new(lease, Some(result));
    let members = card.members().map_err(refused(&options.out))?;
    write(&options.out, &card, &members, |m| job.spool.join(&m.name))
        .map_err(refused(&options.out))?;
    remove_folder(&place)?;
    let text = format!(
        "the result is in {}; carry it back to where the hop was packed and say there: cipherhop-worker unpack {}",
        options.out.display(),
        options.out.display()
    );
    let object = serde_json::json!({ "event": "packed", "attempt": attempt, "hop": card.lease.hop, "pack": options.out });
    context.print(&object, &text);
    Ok(())
}

fn stopped() -> WorkerError {
    WorkerError::NotDone(
        "stopped; the checkpoint is kept, and the same command goes on from it".into(),
    )
}

/// Checks the pack and brings what it holds into the cache.
fn take_in(
    cache: &Cache,
    pack: &Path,
    allow_insecure: bool,
) -> Result<(Lease, Vec<Pin>), WorkerError> {
    enum Stop {
        Pack(PackError),
        Other(WorkerError),
    }
    impl From<PackError> for Stop {
        fn from(error: PackError) -> Stop {
            Stop::Pack(error)
        }
    }
    let mut pins = Vec::new();
    let mut room = None;
    let reader = Reader::open(pack).map_err(refused(pack))?;
    let read = reader.unpack(|head| {
        let lease = &head.card.lease;
        if head.card.result.is_some() {
            return Err(Stop::Other(WorkerError::Request(format!(
                "{} holds a result: carry it back and say `cipherhop-worker unpack` where the hop was packed",
                pack.display()
            ))));
        }
        if lease.insecure && !allow_insecure {
            return Err(Stop::Other(WorkerError::Insecure(lease.chain_name.clone(), lease.parameter_set.clone())));
        }
        for key in &head.left_out {
            pins.push(cache.pin(&key.digest, key.size).ok_or_else(|| {
                Stop::Other(WorkerError::Request(format!(
                    "the key {} is neither in the pack nor here: pack the hop without --no-keys",
                    key.digest
                )))
            })?);
        }
        let mut places: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut bytes = 0u64;
        for member in &head.members {
            match cache.pin(&member.digest, member.size) {
                Some(pin) => pins.push(pin),
                None => {
                    bytes = bytes.saturating_add(member.size);
                    places.insert(member.name.clone(), cache.path(&member.digest));
                }
            }
        }
        room = Some(cache.reserve(bytes).map_err(Stop::Other)?);
        machine::check_disk(cache.folder(), bytes).map_err(Stop::Other)?;
        Ok(places)
    });
    let head = match read {
        Ok(head) => head,
        Err(Stop::Pack(error)) => return Err(refused(pack)(error)),
        Err(Stop::Other(error)) => return Err(error),
    };
    pins.extend(head.members.iter().map(|m| cache.insert(&m.digest, m.size)));
    drop(room);
    Ok((head.card.lease, pins))
}

struct Computing<'a> {
    runner: Runner,
    permit: Permit,
    leave: tokio_util::sync::CancellationToken,
    context: &'a Context,
    reporter: &'a Reporter,
    folder: &'a Folder,
    lease: &'a Lease,
    job: &'a Job,
}

impl Computing<'_> {
    /// Starts the computing process until it has finished, however often it has to rest or crashes.
    async fn to_the_end(&self) -> Result<Finished, WorkerError> {
        let mut crashes = 0;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            match self.permit.now() {
                Permission::Work => {}
                Permission::Paused => self.reporter.tell(&Event::Resting { until: None }),
                Permission::Rest(minute) => self.reporter.tell(&Event::Resting {
                    until: Some(minute.to_string()),
                }),
            }
            tokio::select! {
                () = self.leave.cancelled() => return Err(stopped()),
                () = self.permit.granted() => {}
            }
            let (outcome, progressed) = self.once().await?;
            match outcome {
                Outcome::Finished(result, profile) => {
                    self.reporter.tell(&Event::Finished {
                        hop: self.lease.hop,
                        digest: result.output,
                        seconds: result.compute_seconds,
                        profile,
                    });
                    return Ok(result);
                }
                Outcome::Stopped if self.leave.is_cancelled() => return Err(stopped()),
                Outcome::Stopped => {}
                Outcome::Refused(needed, available) => {
                    return Err(WorkerError::Resources(format!(
                        "this hop needs {} of memory, {} are available to it: end other programs, or raise memory if it is set",
                        units::bytes(needed),
                        units::bytes(available)
                    )));
                }
                Outcome::Failed(_, detail) => {
                    return Err(WorkerError::NotDone(format!(
                        "the hop cannot be computed here: {detail}; where it was packed, `pack --attempt {}` packs it again",
                        self.lease.attempt
                    )));
                }
                Outcome::Crashed(_, detail) => {
                    crashes = if progressed { 1 } else { crashes + 1 };
                    if crashes >= MAX_CRASHES {
                        return Err(WorkerError::NotDone(format!(
                            "{detail}, {crashes} times in a row; the checkpoint is kept"
                        )));
                    }
                    self.reporter.tell(&Event::Crashed {
                        hop: self.lease.hop,
                        detail,
                    });
                    tokio::select! {
                        () = self.leave.cancelled() => return Err(stopped()),
                        () = tokio::time::sleep(backoff.next(None)) => {}
                    }
                }
            }
        }
    }

    /// One run of the computing process, and whether it completed a step.
    async fn once(&self) -> Result<(Outcome, bool), WorkerError> {
        let halt = Halt::default();
        let watcher = async {
            tokio::select! {
                () = self.leave.cancelled() => {}
                () = self.permit.withdrawn() => {}
            }
            halt.after_step.cancel();
            if !self.context.stop.is_cancelled() {
                self.reporter.tell(&Event::Halting {
                    hop: self.lease.hop,
                });
            }
            self.context.stop.cancelled().await;
            halt.soon.cancel();
            std::future::pending::<std::convert::Infallible>().await
        };
        let mut timings = Timings::open(&self.folder.timings());
        let mut estimator = None;
        let mut progressed = false;
        let follow = |line: &Line| match line {
            Line::Started {
                steps_total,
                steps_done,
            } => {
                let (set, threads) = (&self.lease.parameter_set, self.job.threads);
                estimator = Some(Estimator::new(set, *steps_total, *steps_done, threads));
                self.reporter.tell(&Event::Computing {
                    hop: self.lease.hop,
                    steps_done: *steps_done,
                    steps_total: *steps_total,
                });
            }
            Line::StepDone {
                index,
                name,
                seconds,
            } => {
                progressed = true;
                let Some(estimator) = &mut estimator else {
                    return;
                };
                estimator.step_done(&mut timings, *index, *seconds);
                self.reporter.tell(&Event::Step {
                    hop: self.lease.hop,
                    steps_done: estimator.done(),
                    steps_total: estimator.total(),
                    name: name.clone(),
                    seconds: *seconds,
                    eta_seconds: estimator.remaining(&timings),
                });
            }
            _ => {}
        };
        let outcome = tokio::select! {
            outcome = self.runner.run(self.job, &halt, follow) => outcome?,
            never = watcher => match never {},
        };
        if let Err(error) = timings.save() {
            tracing::warn!(%error, "step times were not kept");
        }
        Ok((outcome, progressed))
    }
}
