//! Claims through gRPC on a real socket: claims per second, latency, and whether a hop was ever with one who should
//! not have it.
//!
//! `cargo run --release -p cipherhop-coordinator --example claims -- [--database sqlite|postgres|URL] [--devices N]
//! [--chains N] [--seconds N] [--runs N] [--watchers N]`. `postgres` starts a cluster of its own, with fsync on; the database of a
//! URL should be empty. Every device claims, holds for 2 ms and gives back, in a loop, so each claim counted stands
//! for two calls. Prints a line of JSON for each run and one with the medians; fails if a hop was with more accounts
//! than its quorum at once, twice with one account, or an epoch was handed out twice.
//!
//! `--watchers N`: so many browsers follow the first chain by server-sent events and get its page at each one, as the
//! page's script does; each run then measures without and with them, in turns of a quarter of the time.
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "claims/watchers.rs"]
mod watchers;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::store::{Store, open_postgres, open_sqlite};
use cipherhop_proto::v1;
use common::cluster::{Database, durable_database};
use common::{Server, Volunteer, new_chain, quick_config};
use serde_json::json;

const QUORUM: usize = 2;
const HOLD: Duration = Duration::from_millis(2);

struct Settings {
    database: String,
    devices: usize,
    chains: usize,
    seconds: u64,
    runs: usize,
    watchers: usize,
}

fn settings() -> Settings {
    let mut settings = Settings {
        database: "sqlite".into(),
        devices: 16,
        chains: 64,
        seconds: 10,
        runs: 1,
        watchers: 0,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().expect("every setting has a value");
        match word.as_str() {
            "--database" => settings.database = value,
            "--devices" => settings.devices = value.parse().unwrap(),
            "--chains" => settings.chains = value.parse().unwrap(),
            "--seconds" => settings.seconds = value.parse().unwrap(),
            "--watchers" => settings.watchers = value.parse().unwrap(),
            "--runs" => settings.runs = value.parse().unwrap(),
            other => panic!("unknown setting {other}"),
        }
    }
    settings
}

/// Who holds which hop, as the devices saw it. Every chain is at its first hop.
#[derive(Default)]
struct Seen {
    holders: HashMap<Vec<u8>, HashSet<usize>>,
    epochs: HashSet<(Vec<u8>, u64)>,
    wrong: Vec<String>,
}

impl Seen {
    fn take(&mut self, number: usize, given: &v1::Assignment) {
        if !self.epochs.insert((given.chain_id.clone(), given.epoch)) {
            self.wrong.push(format!("epoch {} twice", given.epoch));
        }
        let holders = self.holders.entry(given.chain_id.clone()).or_default();
        if !holders.insert(number) {
            self.wrong.push(format!("account {number} twice"));
        }
        if holders.len() > QUORUM {
            let line = format!("a hop with {} accounts at once", holders.len());
            self.wrong.push(line);
        }
    }

    fn give_back(&mut self, number: usize, given: &v1::Assignment) {
        if let Some(holders) = self.holders.get_mut(&given.chain_id) {
            holders.remove(&number);
        }
    }
}

#[derive(Default)]
struct Counted {
    claims: Vec<Duration>,
    releases: Vec<Duration>,
    no_work: u32,
}

/// One device until `end`.
async fn work(
    number: usize,
    volunteer: Volunteer,
    seen: Arc<Mutex<Seen>>,
    end: Instant,
) -> Counted {
    let mut counted = Counted::default();
    while Instant::now() < end {
        let asked = Instant::now();
        let Ok(given) = volunteer.acquire(0).await else {
            counted.no_work += 1;
            continue;
        };
        counted.claims.push(asked.elapsed());
        seen.lock().unwrap().take(number, &given);
        // Held for a moment, so that a hop handed out twice is seen.
        tokio::time::sleep(HOLD).await;
        // Taken off before the release is sent: the server may hand it out again at once.
        seen.lock().unwrap().give_back(number, &given);
        let release = v1::ReleaseRequest {
            attempt_id: given.attempt_id,
            epoch: given.epoch,
        };
        let asked = Instant::now();
        let mut calls = volunteer.connection.volunteer();
        calls.release(release).await.unwrap();
        counted.releases.push(asked.elapsed());
    }
    counted
}

fn millis(times: &mut [Duration], permille: usize) -> f64 {
    times.sort_unstable();
    let at = times.get((times.len().saturating_sub(1)) * permille / 1000);
    at.map_or(f64::NAN, |time| (time.as_secs_f64() * 1e6).round() / 1000.0)
}

/// Every device until `end`.
async fn measure(volunteers: &[Volunteer], seen: &Arc<Mutex<Seen>>, end: Instant) -> Counted {
    let mut devices = tokio::task::JoinSet::new();
    for (number, volunteer) in volunteers.iter().enumerate() {
        devices.spawn(work(number, volunteer.clone(), seen.clone(), end));
    }
    let mut all = Counted::default();
    while let Some(done) = devices.join_next().await {
        let mut one = done.unwrap();
        all.claims.append(&mut one.claims);
        all.releases.append(&mut one.releases);
        all.no_work += one.no_work;
    }
    all
}

fn quantiles(times: &mut [Duration]) -> serde_json::Value {
    json!({
        "p50": millis(times, 500),
        "p95": millis(times, 950),
        "p99": millis(times, 990),
    })
}

struct Figures {
    per_second: f64,
    p50: f64,
    p95: f64,
    p99: f64,
}

async fn run(settings: &Settings) -> Figures {
    let dir = tempfile::tempdir().unwrap();
    let mut config = quick_config();
    // One token calls far more often here than a volunteer does.
    config.limits.calls_per_second = 0;
    let blobs = LocalBlobs::open(&dir.path().join("blobs"), config.blobs.local_limits()).unwrap();
    let mut own: Option<Database> = None;
    let store: Arc<dyn Store> = match settings.database.as_str() {
        "sqlite" => open_sqlite(&dir.path().join("c.db")).await.unwrap(),
        "postgres" => {
            let made = durable_database().await.expect("PostgreSQL is installed");
            let url = made.url.clone();
            own = Some(made);
            open_postgres(&url, 16).await.unwrap()
        }
        url => open_postgres(url, 16).await.unwrap(),
    };
    let server = Server::over(store, Arc::new(blobs), config, dir).await;
    let owner = server.owner().await;
    for number in 0..settings.chains {
        new_chain(&format!("chain {number}"), 2)
            .create(&owner)
            .await;
    }
    let mut volunteers = Vec::new();
    for number in 0..settings.devices {
        let volunteer = server.volunteer(&format!("account {number}")).await;
        volunteers.push(volunteer);
    }
    let seen: Arc<Mutex<Seen>> = Arc::default();
    if settings.watchers > 0 {
        let address = server.pages(Arc::default()).await;
        for turn in 0..4 {
            let crowd = match turn % 2 {
                1 => Some(watchers::crowd(address, settings.watchers, "chain%200").await),
                _ => None,
            };
            let before = crowd
                .as_ref()
                .map_or(0, |c| c.pages.load(Ordering::Relaxed));
            let time = Duration::from_secs(settings.seconds).div_f64(4.0);
            let start = Instant::now();
            let mut counted = measure(&volunteers, &seen, start + time).await;
            let seconds = start.elapsed().as_secs_f64();
            let got = crowd.map(|c| c.pages.load(Ordering::Relaxed) - before);
            println!(
                "{}",
                json!({
                    "watchers": got.map_or(0, |_| settings.watchers),
                    "pages_per_second": got.map(|pages| (pages as f64 / seconds).round()),
                    "claims_per_second": (counted.claims.len() as f64 / seconds).round(),
                    "claim_ms": quantiles(&mut counted.claims),
                })
            );
        }
    }
    let start = Instant::now();
    let end = start + Duration::from_secs(settings.seconds);
    let mut all = measure(&volunteers, &seen, end).await;
    let elapsed = start.elapsed().as_secs_f64();
    let wrong = std::mem::take(&mut seen.lock().unwrap().wrong);
    let figures = Figures {
        per_second: (all.claims.len() as f64 / elapsed).round(),
        p50: millis(&mut all.claims, 500),
        p95: millis(&mut all.claims, 950),
        p99: millis(&mut all.claims, 990),
    };
    println!(
        "{}",
        json!({
            "database": settings.database.split(':').next(),
            "devices": settings.devices,
            "chains": settings.chains,
            "seconds": elapsed.round(),
            "claims": all.claims.len(),
            "claims_per_second": figures.per_second,
            "claim_ms": { "p50": figures.p50, "p95": figures.p95, "p99": figures.p99 },
            "release_ms": quantiles(&mut all.releases),
            "answers_without_work": all.no_work,
            "handed_out_wrongly": wrong.len(),
        })
    );
    server.shutdown.cancel();
    server.task.await.unwrap();
    server.store.close().await;
    drop(own);
    assert!(wrong.is_empty(), "{wrong:?}");
    figures
}

#[tokio::main]
async fn main() {
    let settings = settings();
    let mut runs = Vec::new();
    for _ in 0..settings.runs {
        runs.push(run(&settings).await);
    }
    let spread = |figure: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        json!({
            "median": values[values.len() / 2],
            "min": values[0],
            "max": values[values.len() - 1],
        })
    };
    println!(
        "{}",
        json!({
            "database": settings.database.split(':').next(),
            "runs": settings.runs,
            "claims_per_second": spread(|f| f.per_second),
            "claim_p50_ms": spread(|f| f.p50),
            "claim_p95_ms": spread(|f| f.p95),
            "claim_p99_ms": spread(|f| f.p99),
        })
    );
}
