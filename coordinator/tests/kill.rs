//! I5: what the store acknowledged survives kill -9. The test runs itself as a child that works on
//! a database and says what was acknowledged; the parent kills it at an arbitrary moment.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/world.rs"]
#[allow(dead_code)]
mod world;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::command::Outcome;
use cipherhop_coordinator::domain::ledger;
use cipherhop_coordinator::store::open_sqlite;
use cipherhop_proto::{AttemptId, ChainId, UploadId};
use tempfile::TempDir;
use world::World;

const CHILD: &str = "CIPHERHOP_TEST_KILL_DATABASE";
const ROUNDS: u64 = 8;

/// The child: works until it is killed. Without the variable this test does nothing.
#[tokio::test]
async fn child_works_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let store = open_sqlite(path.as_ref()).await.unwrap();
    let mut world = World::memory();
    world.store = store;
    let seed = u64::from(std::process::id());
    let crowd = [
        world.device(&format!("a {seed}"), 0).await,
        world.device(&format!("b {seed}"), 0).await,
    ];
    for number in 0.. {
        let mut new = world.new_chain(&format!("chain {seed} {number}"), 3, &[]);
        world.prepare(&mut new).await;
        let chain = world.store.create_chain(new, world.now).await.unwrap();
        println!("\nack chain {}", chain.id);
        for hop in 0..3 {
            for device in crowd {
                let mut request = world.request(device);
                request.chain = Some(chain.id);
                let attempt = world.acquire(request).await.unwrap().attempt;
                println!("\nack lease {} {}", attempt.id, attempt.epoch);
                let outcome = world
                    .submit(&attempt, &format!("{seed} {number} {hop}"))
                    .await;
                println!(
                    "\nack submit {} {}",
                    attempt.id,
                    outcome == Outcome::Matched
                );
            }
        }
        let digest = cipherhop_proto::Digest::of(format!("part {seed} {number}").as_bytes());
        let upload = world.upload(digest, 1 << 20, world.owner);
        world.store.open_upload(upload, world.now).await.unwrap();
        for part in 1..=8 {
            let committed = part << 10;
            world
                .store
                .commit_upload(upload.id, committed, world.now)
                .await
                .unwrap();
            println!("\nack upload {} {committed}", upload.id);
        }
    }
}

fn run_and_kill(path: &str, after: Duration) -> Vec<String> {
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me)
        .args(["--exact", "child_works_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines
            .filter(|line| line.starts_with("ack "))
            .collect::<Vec<_>>()
    });
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[tokio::test]
async fn i5_nothing_acknowledged_is_lost_by_kill_9() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("c.sqlite");
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        let after = Duration::from_millis(250 + round * 97);
        let said = run_and_kill(path.to_str().unwrap(), after);
        acknowledged += said.len();
        let store = open_sqlite(&path).await.unwrap();
        for line in &said {
            let words: Vec<&str> = line.split(' ').collect();
            match words[1] {
                "chain" => {
                    store
                        .chain(words[2].parse::<ChainId>().unwrap())
                        .await
                        .unwrap();
                }
                "lease" => {
                    let id: AttemptId = words[2].parse().unwrap();
                    let attempt = store.attempt(id).await.unwrap();
                    assert_eq!(attempt.epoch.to_string(), words[3]);
                }
                "submit" => {
                    let id: AttemptId = words[2].parse().unwrap();
                    let attempt = store.attempt(id).await.unwrap();
                    assert!(attempt.claim.is_some());
                    let matched = attempt.state == AttemptState::Matched;
                    assert!(matched || attempt.state == AttemptState::Submitted);
                    assert!(matched || words[3] == "false", "a verdict was lost");
                }
                "upload" => {
                    let id: UploadId = words[2].parse().unwrap();
                    let committed: u64 = words[3].parse().unwrap();
                    assert!(store.upload(id).await.unwrap().committed >= committed);
                }
                other => panic!("unknown word {other}"),
            }
        }
        for chain in store.chains().await.unwrap() {
            let archive = store.archive(chain.id).await.unwrap();
            ledger::verify(&archive).unwrap();
            assert_eq!(archive.len(), chain.head as usize);
            assert_eq!(
                chain.state == ChainState::Completed,
                chain.head == chain.hops
            );
        }
        store.close().await;
    }
    assert!(
        acknowledged > 20,
        "only {acknowledged} acknowledgements in {ROUNDS} rounds"
    );
    println!("{acknowledged} acknowledgements checked over {ROUNDS} kills");
}
