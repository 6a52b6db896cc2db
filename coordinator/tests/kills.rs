//! I5: kill -9 of the real program at every named point and at any moment, over SQLite and PostgreSQL. Sites of clients
//! go on working over gRPC; after each kill everything they were ever told is compared with what is stored.
//!
//! Many kills, with figures as JSON: `KILLS=1000 cargo test -p cipherhop-coordinator --test kills -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "kills/collector.rs"]
mod collector;
mod common;
#[path = "kills/ledger.rs"]
mod ledger;
#[path = "kills/points.rs"]
mod points;
#[path = "kills/process.rs"]
mod process;
#[path = "kills/send.rs"]
mod send;
#[path = "kills/site.rs"]
mod site;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cipherhop_coordinator::store::{Store, open_postgres, open_sqlite};
use common::{cluster, connect};
use ledger::Ledger;
use points::POINTS;
use process::{Death, Place};
use rand::prelude::*;
use site::{Shared, Site};
use tokio::process::Child;

const SITES: u32 = 3;
/// How long a point may take to be passed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kills after which everything is compared, not only what is new.
const WHOLE_CHECK: usize = 50;

#[derive(Default)]
struct Count {
    kills: BTreeMap<String, u32>,
    ledger: Vec<Ledger>,
}

/// Deaths in random order, those of the first start first.
fn plan(rng: &mut StdRng, points: &[(&'static str, u32)], any_moment: usize) -> Vec<Death> {
    let mut deaths: Vec<Death> = points
        .iter()
        .map(|(name, passes)| Death::At(name, rng.random_range(1..=*passes)))
        .collect();
    deaths.extend((0..any_moment).map(|_| {
        let micros = rng.random_range(20_000..600_000);
        Death::After(Duration::from_micros(micros))
    }));
    deaths.shuffle(rng);
    // On an empty database these make the schema and the first token.
    deaths.sort_by_key(|death| match death {
        Death::At(name, _) => !(name.starts_with("migrate") || name.starts_with("admin_token")),
        Death::After(_) => true,
    });
    deaths
}

async fn die(place: &mut Place, death: &Death) {
    if matches!(death, Death::At(name, _) if name.starts_with("admin_token")) {
        // Else there is nothing to make.
        let _ = std::fs::remove_file(place.data.join("admin.token"));
    }
    if matches!(death, Death::At(name, _) if name.starts_with("ledger_key")) {
        let _ = std::fs::remove_file(place.data.join("ledger.key"));
    }
    let (mut child, fired) = place.start(Some(death));
    let log = || std::fs::read_to_string(place.log()).unwrap_or_default();
    match death {
        Death::After(time) => {
            tokio::time::sleep(*time).await;
            child.kill().await.unwrap();
        }
        Death::At(..) => {
            let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
            assert!(ended.is_ok(), "{death:?} is never reached\n{}", log());
            assert!(
                fired.exists(),
                "{death:?}: {:?} of itself\n{}",
                ended.unwrap(),
                log()
            );
        }
    }
}

async fn ready(place: &mut Place) -> Child {
    let (child, _) = place.start(None);
    let begin = Instant::now();
    while tokio::net::TcpStream::connect(("127.0.0.1", place.port))
        .await
        .is_err()
    {
        let log = std::fs::read_to_string(place.log()).unwrap_or_default();
        assert!(begin.elapsed() < PATIENCE, "does not start\n{log}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    child
}

async fn compare(place: &Place, ledger: &Shared, all: bool) {
    let store: Arc<dyn Store> = match &place.database {
        Some(url) => open_postgres(url, 2).await.unwrap(),
        None => open_sqlite(&place.data.join("coordinator.db"))
            .await
            .unwrap(),
    };
    // What comes in meanwhile was said before the kill, too; it is compared next time.
    let due = ledger.lock().unwrap().due(all);
    due.check(&*store, &place.data.join("blobs")).await;
    store.close().await;
}

/// Kills as planned on one data folder; at its end every chain is completed and everything is compared.
async fn campaign(deaths: Vec<Death>, database: Option<String>, count: &mut Count) {
    let dir = tempfile::tempdir().unwrap();
    let mut place = Place::new(dir.path(), database);
    let early: Vec<Death> = deaths
        .iter()
        .take_while(|death| matches!(death, Death::At(name, _) if name.starts_with("migrate") || name.starts_with("admin_token")))
        .cloned()
        .collect();
    for death in &early {
        die(&mut place, death).await;
    }
    drop(ready(&mut place).await.kill().await);
    let admin = std::fs::read_to_string(place.data.join("admin.token")).unwrap();
    let ledger = Shared::default();
    let stop = Arc::new(AtomicBool::new(false));
    let sites: Vec<_> = (0..SITES)
        .map(|number| {
            let site = Site {
                number,
                url: place.url(),
                admin: connect(&place.url(), Some(&admin)),
                ledger: ledger.clone(),
                stop: stop.clone(),
            };
            // A thread each: what they wait in is not Send.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            std::thread::spawn(move || runtime.unwrap().block_on(site.run()))
        })
        .collect();
    for (number, death) in deaths.iter().enumerate() {
        if number >= early.len() {
            die(&mut place, death).await;
        }
        let name = match death {
            Death::At(name, _) => *name,
            Death::After(_) => "any moment",
        };
        *count.kills.entry(name.to_owned()).or_default() += 1;
        assert!(
            !sites.iter().any(std::thread::JoinHandle::is_finished),
            "a site failed after {death:?}"
        );
        compare(&place, &ledger, number % WHOLE_CHECK == WHOLE_CHECK - 1).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut last = ready(&mut place).await;
    let begin = Instant::now();
    for site in sites {
        while !site.is_finished() {
            assert!(begin.elapsed() < 2 * PATIENCE, "every chain completes");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        site.join().expect("every chain completes");
    }
    last.kill().await.unwrap();
    compare(&place, &ledger, true).await;
    let book =
        Arc::try_unwrap(ledger).unwrap_or_else(|shared| Mutex::new(shared.lock().unwrap().clone()));
    let book = book.into_inner().unwrap();
    assert!(book.completed as usize == book.heads.len(), "every chain");
    count.ledger.push(book);
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_i5_nothing_acknowledged_is_lost_by_kill_9_at_any_point_over_sqlite() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut count = Count::default();
    campaign(plan(&mut rng, POINTS, 6), None, &mut count).await;
    assert!(count.ledger[0].submits.len() > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_i5_nothing_acknowledged_is_lost_by_kill_9_at_any_point_over_postgresql() {
    let Some(database) = cluster::empty_database().await else {
        return;
    };
    let mut rng = StdRng::seed_from_u64(6);
    // Bytes of blobs are the same files whatever the database.
    let points: Vec<_> = POINTS
        .iter()
        .filter(|(name, _)| !name.starts_with("upload.") && !name.starts_with("publish."))
        .copied()
        .collect();
    let mut count = Count::default();
    campaign(
        plan(&mut rng, &points, 4),
        Some(database.url.clone()),
        &mut count,
    )
    .await;
}

/// Prints one JSON object. KILLS: how many (1000), SEED: of the random choices.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn i3_i5_nothing_is_lost_by_a_thousand_kills() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let (wanted, seed) = (number("KILLS", 1000) as usize, number("SEED", 1));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut count = Count::default();
    let (mut killed, mut over_postgres) = (0, 0);
    let begin = Instant::now();
    for round in 0.. {
        if killed >= wanted {
            break;
        }
        let mut deaths = plan(&mut rng, POINTS, 11);
        deaths.truncate(wanted - killed);
        killed += deaths.len();
        let database = match round % 3 {
            2 => cluster::empty_database().await,
            _ => None,
        };
        if database.is_some() {
            over_postgres += deaths.len();
        }
        let url = database.as_ref().map(|database| database.url.clone());
        campaign(deaths, url, &mut count).await;
        eprintln!("{killed} kills, {:.0?}", begin.elapsed());
    }
    let sum = |of: &dyn Fn(&Ledger) -> u64| count.ledger.iter().map(of).sum::<u64>();
    let report = serde_json::json!({
        "kills": killed,
        "named_points": POINTS.len(),
        "kills_per_point": count.kills,
        "over_postgresql": over_postgres,
        "acknowledged": {
            "bytes": sum(&|l| l.bytes),
            "blobs": sum(&|l| l.blobs.len() as u64),
            "tokens": sum(&|l| l.tokens.len() as u64),
            "leases": sum(&|l| l.leases.len() as u64),
            "submits": sum(&|l| l.submits.len() as u64),
            "verified_hops": sum(&|l| l.verified.len() as u64),
        },
        "lost": 0,
        "chains": sum(&|l| l.heads.len() as u64),
        "chains_completed": sum(&|l| l.completed),
        "seed": seed,
        "seconds": begin.elapsed().as_secs(),
    });
    println!("{report}");
}
