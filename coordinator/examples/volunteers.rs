//! Ten thousand simulated volunteers, each with a live attempt, send Sync every 30 seconds over gRPC to the real
//! program; what that takes of its processor and memory, as one JSON object.
//!
//! `cargo build -p cipherhop-coordinator && cargo run -p cipherhop-coordinator --example volunteers -- [MINUTES] [VOLUNTEERS]`
//! SQLite, or the empty PostgreSQL database of CIPHERHOP_DATABASE_URL.
#![allow(clippy::unwrap_used)]

#[path = "../tests/store/world.rs"]
#[allow(dead_code, missing_docs)]
mod world;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::store::{Enrolment, Role, open_postgres, open_sqlite};
use cipherhop_proto::client::{BearerToken, ConnectOptions, Connection};
use cipherhop_proto::v1::sync_response::Directive;
use cipherhop_proto::{DeviceId, Digest, Nonce, TokenId, v1};
use tokio::sync::mpsc;
use world::World;

const EVERY: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 100;
const ACCOUNTS: usize = 200;

struct Volunteer {
    token: String,
    attempt: Vec<u8>,
    epoch: u64,
}

/// Devices with a token and a live attempt each, two on a hop.
async fn prepare(data: &Path, database: Option<&str>, number: usize) -> Vec<Volunteer> {
    let mut world = World::memory();
    world.store = match database {
        Some(url) => open_postgres(url, 4).await.unwrap(),
        None => open_sqlite(&data.join("coordinator.db")).await.unwrap(),
    };
    world.now = SystemClock::default().now();
    let mut chain = world.new_chain("chain", 1, &[]);
    world.prepare(&mut chain).await;
    for account in 0..ACCOUNTS {
        let name = format!("account {account}");
        world.token(Role::Invite, &name, &name).await.unwrap();
    }
    let mut volunteers = Vec::with_capacity(number);
    for index in 0..number {
        if index % 2 == 0 {
            let mut one = world.new_chain(&format!("chain {index}"), 1, &[]);
            one.owner = world.owner;
            chain.id = one.id;
            world.store.create_chain(one, world.now).await.unwrap();
        }
        let token = Token::generate(Role::Volunteer).unwrap();
        let enrolment = Enrolment {
            invite: Digest::of(format!("account {}", index % ACCOUNTS).as_bytes()),
            nonce: Nonce::generate(),
            display_name: format!("box {index}"),
            device: DeviceId::generate(),
            token: TokenId::generate(),
            token_hash: token.hash(),
        };
        let enrolled = world.store.enroll(enrolment, world.now).await.unwrap();
        let mut request = world.request(world::Device {
            id: enrolled.device.unwrap(),
            account: enrolled.account,
        });
        request.chain = Some(chain.id);
        let attempt = world.acquire(request).await.unwrap().attempt;
        volunteers.push(Volunteer {
            token: token.reveal().to_owned(),
            attempt: attempt.id.to_vec(),
            epoch: attempt.epoch,
        });
    }
    world.store.close().await;
    volunteers
}

fn program() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.with_file_name("../cipherhop-coordinator")
}

fn start(data: &Path) -> (Child, String) {
    let mut child = Command::new(program())
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .expect("build the program first");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let url = line.trim().rsplit(' ').next().unwrap().to_owned();
    (child, url)
}

/// Processor seconds used and bytes resident.
fn usage(pid: u32) -> (f64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // fields 14 and 15 of proc(5), in ticks of 1/100 s on Linux
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (ticks as f64 / 100.0, kib << 10)
}

async fn beat(
    connection: Connection,
    volunteer: Volunteer,
    phase: Duration,
    told: mpsc::UnboundedSender<Option<Duration>>,
) {
    let mut due = tokio::time::interval_at(tokio::time::Instant::now() + phase, EVERY);
    for step in 0u32.. {
        due.tick().await;
        let request = v1::SyncRequest {
            attempt_id: volunteer.attempt.clone(),
            epoch: volunteer.epoch,
            phase: v1::AttemptPhase::Computing.into(),
            progress: Some(v1::Progress {
                steps_done: step,
                steps_total: 45,
                ..Default::default()
            }),
        };
        let mut request = tonic::Request::new(request);
        let bearer = format!("Bearer {}", volunteer.token);
        request
            .metadata_mut()
            .insert("authorization", bearer.parse().unwrap());
        let begin = Instant::now();
        let answer = connection.volunteer().sync(request).await;
        let good = answer.is_ok_and(|a| a.into_inner().directive() == Directive::Continue);
        if told.send(good.then(|| begin.elapsed())).is_err() {
            return;
        }
    }
}

fn main() {
    let number = |at, default| {
        std::env::args()
            .nth(at)
            .map_or(default, |a| a.parse().unwrap())
    };
    let (minutes, volunteers) = (number(1, 10), number(2, 10_000));
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(run(minutes, volunteers));
}

async fn run(minutes: usize, number: usize) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let database = std::env::var("CIPHERHOP_DATABASE_URL").ok();
    let begin = Instant::now();
    let crowd = prepare(&data, database.as_deref(), number).await;
    eprintln!("{number} volunteers after {:.0?}", begin.elapsed());
    let (mut server, url) = start(&data);
    let connections: Arc<Vec<Connection>> = Arc::new(
        (0..CONNECTIONS)
            .map(|_| {
                let options = ConnectOptions {
                    url: url.clone(),
                    token: None::<BearerToken>,
                    ca: None,
                    allow_plaintext: false,
                };
                Connection::lazy(&options).unwrap()
            })
            .collect(),
    );
    let (told, mut heard) = mpsc::unbounded_channel();
    for (index, volunteer) in crowd.into_iter().enumerate() {
        let phase = EVERY.mul_f64(index as f64 / number as f64);
        let connection = connections[index % CONNECTIONS].clone();
        tokio::spawn(beat(connection, volunteer, phase, told.clone()));
    }
    // Everybody has connected and spoken once.
    tokio::time::sleep(EVERY).await;
    while heard.try_recv().is_ok() {}
    let mut times = Vec::new();
    let mut failed = 0u64;
    let mut shares = Vec::new();
    let mut resident = vec![usage(server.id()).1 >> 20];
    let (first, began) = (usage(server.id()).0, Instant::now());
    let mut before = first;
    for minute in 1..=minutes {
        let end = began + Duration::from_secs(60) * minute as u32;
        while let Ok(Some(time)) = tokio::time::timeout_at(end.into(), heard.recv()).await {
            match time {
                Some(time) => times.push(time),
                None => failed += 1,
            }
        }
        let (now, bytes) = usage(server.id());
        shares.push((now - before) / 60.0);
        resident.push(bytes >> 20);
        before = now;
        eprintln!(
            "minute {minute}: {:.2} cores, {} MiB",
            shares[minute - 1],
            bytes >> 20
        );
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |permille: usize| {
        times[(times.len() * permille / 1000).min(times.len() - 1)].as_secs_f64() * 1e3
    };
    let report = serde_json::json!({
        "volunteers": number,
        "connections": CONNECTIONS,
        "store": if database.is_some() { "PostgreSQL" } else { "SQLite" },
        "seconds": seconds.round(),
        "syncs": times.len(),
        "failed": failed,
        "cores": (before - first) / seconds,
        "cores_by_minute": shares,
        "resident_mib_by_minute": resident,
        "sync_ms": { "p50": at(500), "p95": at(950), "p99": at(990), "most": at(1000) },
        "debug_assertions": cfg!(debug_assertions),
    });
    println!("{report}");
    server.kill().unwrap();
    server.wait().unwrap();
}
