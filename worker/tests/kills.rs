//! kill -9 of the worker's program at every named point of a real hop, its computing process included: what it had on
//! disk it goes on from, a finished result is not computed again, no lease is lost, and every chain completes with the
//! same bytes.
//!
//! Many kills, with figures as JSON: `KILLS=300 cargo test -p cipherhop-worker --test kills -- --ignored many --nocapture`.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/tiny.rs"]
mod tiny;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cipherhop_proto::v1::{self, ChainState, HopState};
use common::{Coordinator, worker};
use rand::prelude::*;
use serde_json::Value;
use tiny::Tiny;

/// In the order of a hop's life, with the passes that are chosen from. The computing process passes those with `true`.
const POINTS: &[(&str, u32, bool)] = &[
    ("file.rename.before", 1, false),
    ("file.renamed", 1, false),
    ("ask.recorded", 1, false),
    ("journal.written", 1, false),
    ("lease.answered", 1, false),
    ("lease.recorded", 1, false),
    ("download.written", 20, false),
    ("download.rename.before", 15, false),
    ("download.renamed", 10, false),
    ("cache.insert.before", 5, false),
    ("fetched.recorded", 1, false),
    ("checkpoint.written", 8, true),
    ("checkpoint.renamed", 8, true),
    ("step.computed", 5, true),
    ("trace.written", 5, true),
    ("step.traced", 5, true),
    ("spool.output.written", 1, true),
    ("spool.written", 1, true),
    ("finished.record.before", 1, false),
    ("finished.recorded", 1, false),
    ("submit.before", 1, false),
    ("send.opened", 1, false),
    ("send.segment.kept", 1, false),
    ("send.finished", 1, false),
    ("submit.answered", 1, false),
    ("closed.recorded", 1, false),
];

/// How long a start may take to be killed or done, counted in looks: time in which this test and the worker were
/// stopped together does not count.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(3);
/// How long the agent's next computing process is waited for.
const LATER: Duration = Duration::from_secs(5);

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

fn named(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let parts = text.split("cipherhop_failpoint::at(\"").skip(1);
            found.extend(parts.filter_map(|p| p.split('"').next().map(str::to_owned)));
        }
    }
}

/// A point that nobody tries protects nothing.
#[test]
fn every_point_in_the_source_is_tried() {
    let mut found = Vec::new();
    for folder in ["src", "hop/src", "../proto/src"] {
        named(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join(folder),
            &mut found,
        );
    }
    found.sort();
    let mut known: Vec<&str> = POINTS.iter().map(|(name, ..)| *name).collect();
    known.sort_unstable();
    assert_eq!(found, known);
}

/// A volunteer and what its program has said of its one hop.
struct Volunteer {
    data: PathBuf,
    starts: u32,
    attempt: Option<String>,
    /// Most steps it said were on disk.
    steps: u64,
    /// The result was recorded.
    finished: bool,
    done: bool,
}

/// How a start of the program ended.
#[derive(Debug, PartialEq)]
enum End {
    Killed,
    Done,
}

impl Volunteer {
    async fn new(coordinator: &Coordinator, dir: &Path, name: &str) -> Volunteer {
        Volunteer {
            data: coordinator.enroll(dir, name).await,
            starts: 0,
            attempt: None,
            steps: 0,
            finished: false,
            done: false,
        }
    }

    /// Starts the program with a point armed. After its computing process the agent is killed, too: at once, or when it
    /// has started another one.
    fn start(&mut self, (point, pass, child_point): (&str, u32, bool), with_agent: bool) -> End {
        self.starts += 1;
        let fired = self.data.with_extension(format!("fired-{}", self.starts));
        let mut child = worker(&self.data)
            .args([
                "--json",
                "run",
                "--once",
                "--allow-insecure",
                "--threads",
                "1",
            ])
            .env(
                cipherhop_failpoint::VARIABLE,
                format!("{point}*{pass}={}", fired.display()),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let computing = Arc::new(AtomicU32::new(0));
        let started = computing.clone();
        let events = std::thread::spawn(move || {
            let events = lines.map_while(Result::ok);
            events
                .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
                .inspect(|event| {
                    if event["event"] == "computing" {
                        started.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .collect::<Vec<_>>()
        });
        let begin = Instant::now();
        let mut looks = PATIENCE.as_millis() / LOOK.as_millis();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            looks -= 1;
            if looks == 0 {
                // What it said and what it remembers is all there is to find the reason by.
                child.kill().unwrap();
                child.wait().unwrap();
                let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
                let events = events.join().unwrap();
                let tail = &events[events.len().saturating_sub(10)..];
                let journal = std::fs::read_to_string(self.data.join("journal")).unwrap();
                let journal: Vec<&str> = journal.lines().rev().take(8).collect();
                panic!(
                    "{point} is never reached: {:?} since the start {}, its last events {tail:?}, journal from its \
                     end {journal:?}, said {said}",
                    begin.elapsed(),
                    self.starts
                );
            }
            if child_point && fired.exists() {
                let wait = Instant::now();
                // by what it says, not by time: a fast machine is done with the hop within a second
                while !with_agent
                    && computing.load(Ordering::Relaxed) < 2
                    && wait.elapsed() < LATER
                    && child.try_wait().unwrap().is_none()
                {
                    std::thread::sleep(LOOK);
                }
                child.kill().unwrap();
            }
            std::thread::sleep(LOOK);
        };
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        let end = match status.success() {
            true => End::Done,
            false => End::Killed,
        };
        assert!(
            end == End::Done || fired.exists(),
            "{point}: ended with {status} of itself: {said}"
        );
        self.listen(&events.join().unwrap(), &fired);
        let place = |name: &str| POINTS.iter().position(|(other, ..)| *other == name);
        if fired.exists() && place(point) >= place("finished.recorded") {
            self.finished = true;
        }
        match fired.exists() {
            true => End::Killed,
            false => end,
        }
    }

    fn listen(&mut self, events: &[Value], fired: &Path) {
        for event in events {
            match event["event"].as_str().unwrap_or_default() {
                "hop" => {
                    let attempt = event["attempt"].as_str().unwrap().to_owned();
                    let known = self.attempt.get_or_insert_with(|| attempt.clone());
                    assert_eq!(*known, attempt, "the lease was lost: {fired:?}");
                }
                "computing" => {
                    let steps = event["steps_done"].as_u64().unwrap();
                    assert!(
                        steps >= self.steps,
                        "{steps} of {} steps: {fired:?}",
                        self.steps
                    );
                    assert!(!self.finished, "computed again: {fired:?}");
                }
                "step" => self.steps = self.steps.max(event["steps_done"].as_u64().unwrap()),
                "submitted" => {
                    let outcome = event["outcome"].as_str().unwrap();
                    let fine = ["ACCEPTED_VERIFYING", "ACCEPTED_MATCHED", "DUPLICATE"];
                    assert!(fine.contains(&outcome), "{event}: {fired:?}");
                    self.done = true;
                }
                "parked" | "ended" | "error" => panic!("{event}: {fired:?}"),
                _ => {}
            }
        }
    }
}

struct Count {
    kills: BTreeMap<&'static str, u32>,
    chains: u32,
    digests: Vec<Vec<u8>>,
}

/// One chain, each of two volunteers killed at the given points as they come.
async fn chain(
    coordinator: &Coordinator,
    dir: &Path,
    tiny: &Tiny,
    rng: &mut StdRng,
    plan: [Vec<(&'static str, u32, bool)>; 2],
    count: &mut Count,
) {
    let name = format!("tiny {}", count.chains);
    let id = tiny.create(&coordinator.owner().await, &name).await;
    for (number, points) in plan.into_iter().enumerate() {
        let name = format!("{} {}", ["alice", "bob"][number], count.chains);
        let mut volunteer = Volunteer::new(coordinator, dir, &name).await;
        for (point, passes, child) in points {
            let pass = rng.random_range(1..=passes);
            // After its last step another computing process would be done before the agent is killed.
            let with_agent = point.starts_with("spool") || rng.random_bool(0.5);
            let end = volunteer.start((point, pass, child), with_agent);
            if end == End::Done {
                assert!(volunteer.done);
                eprintln!("{name} was done before pass {pass} of {point}");
                break;
            }
            *count.kills.entry(point).or_default() += 1;
            if volunteer.done || point == "closed.recorded" {
                volunteer.done = true;
                break;
            }
        }
        if !volunteer.done {
            assert_eq!(volunteer.start(("none", 1, false), false), End::Done);
        }
        std::fs::remove_dir_all(&volunteer.data).unwrap();
    }
    let status = coordinator.status(&id).await;
    let hop = &status.hops[0];
    assert_eq!(status.chain.unwrap().state(), ChainState::Completed);
    assert_eq!(
        (hop.state(), hop.attempts, hop.method()),
        (HopState::Verified, 2, v1::VerificationMethod::Quorum),
        "no lease was lost and no work done twice"
    );
    count.digests.push(hop.digest.clone());
    count.chains += 1;
}

async fn kills(wanted: usize, seed: u64) -> Count {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let tiny = Tiny::new();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut count = Count {
        kills: BTreeMap::new(),
        chains: 0,
        digests: Vec::new(),
    };
    if wanted > POINTS.len() {
        // Left alone: the bytes that all others must give.
        chain(
            &coordinator,
            dir.path(),
            &tiny,
            &mut rng,
            [vec![], vec![]],
            &mut count,
        )
        .await;
    }
    let done = |count: &Count| count.kills.values().sum::<u32>() as usize;
    while done(&count) < wanted {
        // Each point once, by one of the two: a lease that was answered but not recorded comes back another way.
        let mut plan = [Vec::new(), Vec::new()];
        for (number, point) in POINTS.iter().enumerate() {
            plan[(number + count.chains as usize) % 2].push(*point);
        }
        let left = wanted - done(&count);
        plan[0].truncate(left);
        plan[1].truncate(left - plan[0].len());
        chain(&coordinator, dir.path(), &tiny, &mut rng, plan, &mut count).await;
        eprintln!("{} kills of the worker", done(&count));
    }
    assert!(
        count
            .digests
            .iter()
            .all(|digest| *digest == count.digests[0])
    );
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_computed_again_by_kill_9_of_the_worker_at_any_point() {
    let count = kills(POINTS.len(), 3).await;
    assert_eq!(count.kills.len(), POINTS.len());
}

/// Prints one JSON object. KILLS: how many (300), SEED: of the random choices.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn nothing_is_lost_by_many_kills_of_the_worker() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let (wanted, seed) = (number("KILLS", 300) as usize, number("SEED", 1));
    let begin = Instant::now();
    let count = kills(wanted, seed).await;
    let report = serde_json::json!({
        "kills": wanted,
        "named_points": POINTS.len(),
        "kills_per_point": count.kills,
        "chains_completed": count.chains,
        "lost": 0,
        "seed": seed,
        "seconds": begin.elapsed().as_secs(),
    });
    println!("{report}");
}
