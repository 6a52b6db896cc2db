//! A hop carried to a machine without a connection and its result carried back: the real program on both sides, a
//! real hop of the tiny model.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/running.rs"]
mod running;
#[path = "common/tiny.rs"]
mod tiny;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use cipherhop_proto::v1::{ChainState, HopState};
use common::{Coordinator, until, worker};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use running::{start, start_without_end};
use serde_json::Value;
use tiny::Tiny;

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The last object that a command of the program says.
fn told(data: &Path, arguments: &[&str]) -> Value {
    let done = worker(data).arg("--json").args(arguments).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", said(&done));
    let text = String::from_utf8(done.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn refused(data: &Path, arguments: &[&str], code: i32) -> String {
    let done = worker(data).args(arguments).output().unwrap();
    assert_eq!(
        done.status.code(),
        Some(code),
        "{arguments:?}: {}",
        said(&done)
    );
    said(&done)
}

const AWAY: [&str; 5] = ["--allow-insecure", "--threads", "1", "--nice", "1"];

fn run_packed<'a>(pack: &'a str, out: &'a str) -> Vec<&'a str> {
    [&["run-packed", pack, "--out", out], &AWAY[..]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_computed_without_a_connection_counts_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (hop, result) = (path("hop.tar"), path("result.tar"));
    let pack = ["pack", "--chain", "tiny", "--out", &hop];
    let text = refused(&alice, &pack, 5);
    assert!(text.contains("--allow-insecure"), "{text}");
    let packed = told(&alice, &[&pack[..], &["--allow-insecure"]].concat());
    assert_eq!(packed["hop"], 0);
    let again = refused(&alice, &[&pack[..], &["--allow-insecure"]].concat(), 2);
    assert!(again.contains("is there already"), "{again}");

    // The other machine has neither identity nor coordinator. It is stopped on the way, and goes on.
    coordinator.kill();
    let away = dir.path().join("away");
    let no_way = refused(&away, &["unpack", &hop], 3);
    assert!(no_way.contains("enroll"), "{no_way}");
    let mut child = worker(&away)
        .arg("--json")
        .args(run_packed(&hop, &result))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let step = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["event"] == "step" && event["steps_done"].as_u64().unwrap() >= 4
    };
    lines
        .by_ref()
        .find(|line| step(line.as_ref().unwrap()))
        .unwrap()
        .unwrap();
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert!(!Path::new(&result).exists());
    let done = worker(&away)
        .arg("--json")
        .args(run_packed(&hop, &result))
        .output()
        .unwrap();
    let text = said(&done);
    assert!(done.status.success(), "{text}");
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let event = |kind: &str| {
        events
            .iter()
            .find(|e| e["event"] == kind)
            .unwrap_or_else(|| panic!("{kind}: {text}"))
    };
    assert!(event("computing")["steps_done"].as_u64().unwrap() >= 4);
    let digest = event("finished")["digest"].clone();
    let left = std::fs::read_dir(away.join("packed")).unwrap().count();
    assert_eq!(left, 0, "checkpoint and result are in the pack now");
    let text = refused(&away, &run_packed(&result, &path("x.tar")), 2);
    assert!(text.contains("unpack"), "{text}");

    // Back home: a damaged copy changes nothing, and only who leased the hop can hand its result in.
    coordinator.restart().await;
    let damaged = path("damaged.tar");
    let mut bytes = std::fs::read(&result).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let text = refused(&alice, &["unpack", &damaged], 11);
    assert!(text.contains("copy the pack again"), "{text}");
    let text = refused(&alice, &["unpack", &hop], 2);
    assert!(text.contains("run-packed"), "{text}");
    let text = refused(&bob, &["unpack", &result], 2);
    assert!(text.contains("not leased by this worker"), "{text}");
    assert_eq!(told(&alice, &["status"])["attempts"][0]["state"], "away");
    let submitted = told(&alice, &["unpack", &result]);
    assert_eq!(submitted["outcome"], "ACCEPTED_VERIFYING");
    let text = refused(&alice, &["unpack", &result], 2);
    assert!(text.contains("already"), "{text}");

    let mut running = start(&bob);
    assert_eq!(running.event("finished")["digest"], digest);
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_MATCHED");
    let status = coordinator.status(&chain).await;
    assert_eq!(status.chain.unwrap().state(), ChainState::Completed);
    assert_eq!(
        (status.hops[0].state(), status.hops[0].attempts),
        (HopState::Verified, 2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_worker_keeps_a_carried_hop_and_takes_its_result_and_keys_are_carried_once() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let (tiny, owner) = (Tiny::new(), coordinator.owner().await);
    let chain = tiny.create(&owner, "first").await;
    let alice = coordinator.enroll(dir.path(), "alice").await;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (hop, result) = (path("hop.tar"), path("result.tar"));
    let pack = |chain, out, more: &[&str]| {
        told(
            &alice,
            &[
                &["pack", "--chain", chain, "--allow-insecure", "--out", out],
                more,
            ]
            .concat(),
        )
    };
    let whole = pack("first", &hop, &[])["bytes"].as_u64().unwrap();

    let mut running = start_without_end(&alice);
    assert_eq!(running.event("waiting")["reason"], "CARRIED_AWAY");
    let seen = async || coordinator.status(&chain).await.hops[0].running.clone();
    until("the lease is kept", async || {
        let running = seen().await;
        eprintln!("{running:?}");
        running.len() == 1 && running[0].phase() == cipherhop_proto::v1::AttemptPhase::Computing
    })
    .await;
    assert!(running.children().is_empty(), "it is not computed here");
    let away = dir.path().join("away");
    told(&away, &run_packed(&hop, &result));
    assert_eq!(
        told(&alice, &["unpack", &result])["left_to_running_worker"],
        true
    );
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
    told(&alice, &["quit"]);
    running.child.wait().unwrap();

    // The next hop goes without the keys, to where they are, and nowhere else. A finished result packs, too.
    tiny.create(&owner, "second").await;
    let (hop, other) = (path("hop2.tar"), path("result2.tar"));
    let small = pack("second", &hop, &["--no-keys"])["bytes"]
        .as_u64()
        .unwrap();
    assert!(small < whole / 2, "{small} of {whole}");
    let text = refused(
        &dir.path().join("elsewhere"),
        &run_packed(&hop, &path("x.tar")),
        2,
    );
    assert!(text.contains("--no-keys"), "{text}");
    let packed = told(&away, &run_packed(&hop, &other));
    let attempt = packed["attempt"].as_str().unwrap();
    assert_eq!(
        told(&alice, &["unpack", &other])["outcome"],
        "ACCEPTED_VERIFYING"
    );
    let again = path("again.tar");
    assert_eq!(
        told(&alice, &["pack", "--attempt", attempt, "--out", &again])["result"],
        true
    );
    assert_eq!(
        std::fs::read(&again).unwrap(),
        std::fs::read(&other).unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hop_is_out_at_a_time_and_can_be_packed_again_or_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let alice = coordinator.enroll(dir.path(), "alice").await;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (first, second) = (path("first.tar"), path("second.tar"));
    let pack = |out| ["pack", "--chain", "tiny", "--allow-insecure", "--out", out];
    let attempt = told(&alice, &pack(&first))["attempt"]
        .as_str()
        .unwrap()
        .to_owned();
    let text = refused(&alice, &pack(&second), 9);
    assert!(
        text.contains(&attempt) && text.contains("--give-back"),
        "{text}"
    );
    told(
        &alice,
        &[
            "pack",
            "--attempt",
            &attempt,
            "--allow-insecure",
            "--out",
            &second,
        ],
    );
    assert_eq!(
        std::fs::read(&first).unwrap(),
        std::fs::read(&second).unwrap()
    );
    assert_eq!(coordinator.status(&chain).await.hops[0].running.len(), 1);
    told(&alice, &["unpack", "--give-back", &attempt]);
    assert!(coordinator.status(&chain).await.hops[0].running.is_empty());
    refused(&alice, &["unpack", "--give-back", &attempt], 2);
}
