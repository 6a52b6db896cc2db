//! What the running worker tells: JSON lines for machines, plain lines in a pipe, a progress bar on a terminal.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cipherhop_proto::{AttemptId, Digest};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::child::Profile;
use crate::units;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Hello was answered.
    Connected {
        /// Address.
        coordinator: String,
        /// Its version.
        version: String,
    },
    /// A call failed and will be tried again.
    Retrying {
        /// What failed.
        what: &'static str,
        /// Why.
        error: String,
        /// Wait before the next try.
        seconds: f64,
    },
    /// No work at the moment.
    Waiting {
        /// The coordinator's reason.
        reason: String,
    },
    /// A hop was leased, or an attempt of an earlier run is taken up again.
    Hop {
        /// Chain's name.
        chain: String,
        /// Number.
        hop: u32,
        /// Attempt.
        attempt: AttemptId,
        /// From an earlier run.
        resumed: bool,
    },
    /// Blobs are being fetched.
    Fetching {
        /// Not in the cache.
        missing: usize,
        /// Their bytes.
        bytes: u64,
        /// In the cache.
        cached: usize,
    },
    /// The computation begins.
    Computing {
        /// Hop number.
        hop: u32,
        /// Steps found complete.
        steps_done: u32,
        /// Steps of the hop.
        steps_total: u32,
    },
    /// A step was completed.
    Step {
        /// Hop number.
        hop: u32,
        /// Completed steps.
        steps_done: u32,
        /// Steps of the hop.
        steps_total: u32,
        /// Its name.
        name: String,
        /// Its time.
        seconds: f64,
        /// Lowest and highest estimate of what remains; absent while unknown.
        eta_seconds: Option<(f64, f64)>,
    },
    /// The result is in the spool.
    Finished {
        /// Hop number.
        hop: u32,
        /// Of the output.
        digest: Digest,
        /// Computing time.
        seconds: f64,
        /// Where it went.
        profile: Profile,
    },
    /// Bytes of a result are being sent.
    Uploading {
        /// Hop number.
        hop: u32,
        /// Which blob.
        digest: Digest,
        /// Size.
        bytes: u64,
    },
    /// The result was judged.
    Submitted {
        /// Hop number.
        hop: u32,
        /// Attempt.
        attempt: AttemptId,
        /// The coordinator's outcome.
        outcome: String,
    },
    /// The result was refused and stays in the spool.
    Parked {
        /// Hop number.
        hop: u32,
        /// Attempt.
        attempt: AttemptId,
        /// The coordinator's reason.
        reason: String,
    },
    /// The attempt ended without a result.
    Ended {
        /// Hop number.
        hop: u32,
        /// Attempt.
        attempt: AttemptId,
        /// Why.
        reason: String,
    },
    /// The computing process died and is started again.
    Crashed {
        /// Hop number.
        hop: u32,
        /// What is known.
        detail: String,
    },
    /// The computation is to halt after its running step.
    Halting {
        /// Hop number.
        hop: u32,
    },
    /// The worker rests: paused by a person, or outside its hours.
    Resting {
        /// When its hours begin, as 22:00; absent when a person paused it.
        until: Option<String>,
    },
    /// It rests no longer.
    GoingOn,
    /// The worker ends.
    Done {
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Connected {
                coordinator,
                version,
            } => write!(f, "connected to {coordinator} (version {version})"),
            Event::Retrying {
                what,
                error,
                seconds,
            } => {
                write!(
                    f,
                    "{what}: {error}; next try in {}",
                    units::seconds(*seconds)
                )
            }
            Event::Waiting { reason } => write!(f, "waiting for work ({reason})"),
            Event::Hop {
                chain,
                hop,
                attempt,
                resumed,
            } => {
                write!(
                    f,
                    "{} hop {hop} of {chain} (attempt {attempt})",
                    if *resumed { "resuming" } else { "leased" }
                )
            }
            Event::Fetching {
                missing,
                bytes,
                cached,
            } => {
                write!(
                    f,
                    "fetching {missing} blobs, {} ({cached} are here already)",
                    units::bytes(*bytes)
                )
            }
            Event::Computing {
                hop,
                steps_done: 0,
                steps_total,
            } => write!(f, "hop {hop}: computing, {steps_total} steps"),
            Event::Computing {
                hop,
                steps_done,
                steps_total,
            } => {
                write!(
                    f,
                    "hop {hop}: computing from the checkpoint, {steps_done} of {steps_total} steps are done"
                )
            }
            Event::Step {
                hop,
                steps_done,
                steps_total,
                name,
                seconds,
                eta_seconds,
            } => {
                let (low, high) = eta_seconds.unwrap_or_default();
                let eta = if steps_done == steps_total {
                    "none".into()
                } else {
                    units::eta(low, high)
                };
                write!(
                    f,
                    "hop {hop}: step {steps_done}/{steps_total} {name} {} (left: {eta})",
                    units::seconds(*seconds)
                )
            }
            Event::Finished {
                hop,
                digest,
                seconds,
                profile,
            } => write!(
                f,
                "hop {hop}: computed in {} (lay {}, boot {}; {} bootstraps: stc {}, modraise {}, cts {}, evalmod {}; {} of keys used, {} keys loaded in {}; peak memory {}), digest {digest}",
                units::seconds(*seconds),
                units::seconds(profile.lay),
                units::seconds(profile.boot),
                profile.bootstraps,
                units::seconds(profile.stc),
                units::seconds(profile.modraise),
                units::seconds(profile.cts),
                units::seconds(profile.evalmod),
                units::bytes(profile.key_bytes),
                profile.key_loads,
                units::seconds(profile.key_seconds),
                units::bytes(profile.peak_memory)
            ),
            Event::Uploading { hop, bytes, .. } => {
                write!(f, "hop {hop}: uploading {}", units::bytes(*bytes))
            }
            Event::Submitted { hop, outcome, .. } => write!(f, "hop {hop}: submitted, {outcome}"),
            Event::Parked {
                hop,
                attempt,
                reason,
            } => write!(
                f,
                "hop {hop}: the result was refused ({reason}); it stays in the spool, `resubmit {attempt}` sends it again"
            ),
            Event::Ended { hop, reason, .. } => write!(f, "hop {hop}: given up, {reason}"),
            Event::Crashed { hop, detail } => {
                write!(f, "hop {hop}: {detail}; going on from the checkpoint")
            }
            Event::Halting { hop } => write!(f, "hop {hop}: halting after the running step"),
            Event::Resting { until: Some(until) } => write!(f, "resting until {until}"),
            Event::Resting { until: None } => {
                f.write_str("paused; `cipherhop-worker resume` goes on")
            }
            Event::GoingOn => f.write_str("going on"),
            Event::Done { reason } => write!(f, "ending: {reason}"),
        }
    }
}

/// Writes events to standard output.
#[derive(Debug)]
pub struct Reporter {
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    Json,
    Lines(Mutex<Option<Instant>>),
    Bar(ProgressBar),
    Silent,
}

/// In a pipe, steps are told at most this often.
const STEP_PAUSE: Duration = Duration::from_secs(2);

impl Reporter {
    /// For this standard output.
    pub fn new(json: bool) -> Reporter {
        let mode = if json {
            Mode::Json
        } else if std::io::stdout().is_terminal() {
            let bar = ProgressBar::new(0);
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {wide_msg}")
            {
                bar.set_style(style);
            }
            Mode::Bar(bar)
        } else {
            Mode::Lines(Mutex::new(None))
        };
        Reporter { mode }
    }

    /// Tells nothing, for tests.
    pub fn silent() -> Reporter {
        Reporter { mode: Mode::Silent }
    }

    /// Tells one event.
    pub fn tell(&self, event: &Event) {
        match &self.mode {
            Mode::Silent => {}
            Mode::Json => say(&serde_json::to_string(event).unwrap_or_default()),
            Mode::Lines(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if let Event::Step {
                    steps_done,
                    steps_total,
                    ..
                } = event
                {
                    if steps_done < steps_total && last.is_some_and(|at| at.elapsed() < STEP_PAUSE)
                    {
                        return;
                    }
                    *last = Some(Instant::now());
                }
                say(&event.to_string());
            }
            Mode::Bar(bar) => match event {
                Event::Computing {
                    hop,
                    steps_done,
                    steps_total,
                } => {
                    bar.reset();
                    bar.set_prefix(format!("hop {hop}"));
                    bar.set_length(u64::from(*steps_total));
                    bar.set_position(u64::from(*steps_done));
                }
                Event::Step {
                    steps_done,
                    name,
                    eta_seconds,
                    ..
                } => {
                    let (low, high) = eta_seconds.unwrap_or_default();
                    bar.set_position(u64::from(*steps_done));
                    bar.set_message(format!("{name}, left: {}", units::eta(low, high)));
                }
                other => {
                    if matches!(
                        other,
                        Event::Finished { .. }
                            | Event::Ended { .. }
                            | Event::Resting { .. }
                            | Event::Done { .. }
                    ) {
                        bar.finish_and_clear();
                    }
                    bar.suspend(|| say(&other.to_string()));
                }
            },
        }
    }
}

/// A closed pipe is no reason to stop working.
pub fn say(line: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
