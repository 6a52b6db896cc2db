//! What a volunteer says to a worker at work: pause, resume, quit, signals, hours; and where its preferences come from.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/running.rs"]
mod running;
#[path = "common/tiny.rs"]
mod tiny;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use cipherhop_worker::agent::{Agent, Goal, Options, run};
use cipherhop_worker::folder::Folder;
use cipherhop_worker::hours::Minute;
use cipherhop_worker::report::Reporter;
use common::{Coordinator, agent, create_chain, script, starts, until, worker};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use running::{Running, start, start_with, start_without_end};
use serde_json::Value;
use tiny::Tiny;
use tokio_util::sync::CancellationToken;

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

fn told(data: &Path, arguments: &[&str]) -> Value {
    let done = worker(data).arg("--json").args(arguments).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    serde_json::from_slice(&done.stdout).unwrap()
}

fn steps(running: &mut Running, wanted: u64) {
    while running.event("step")["steps_done"].as_u64().unwrap() < wanted {}
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// What a command is told while the computing process stands still: on a fast machine it would be done with the hop
/// before the command has started.
fn told_meanwhile(running: &Running, data: &Path, arguments: &[&str]) -> Value {
    let computing = running.children()[0];
    signal(computing, Signal::SIGSTOP);
    let answer = told(data, arguments);
    signal(computing, Signal::SIGCONT);
    answer
}

fn pid(running: &Running) -> i32 {
    i32::try_from(running.child.id()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_worker_rests_after_its_step_and_goes_on_from_there_when_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let options = ["--once", "--allow-insecure", "--threads=1", "--nice=7"];
    let mut running = start_with(&data, &options);
    steps(&mut running, 2);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.children()[0])).unwrap();
    let nice = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(16)
        .unwrap();
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own = own
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(16)
        .unwrap();
    assert_eq!(
        nice.parse::<i32>().unwrap(),
        (own.parse::<i32>().unwrap() + 7).min(19)
    );

    let answer = told_meanwhile(&running, &data, &["pause"]);
    assert_eq!(answer["running"], true);
    running.event("halting");
    assert_eq!(running.event("resting")["until"], Value::Null);
    assert!(running.children().is_empty(), "nothing computes");
    let status = told(&data, &["status"]);
    assert_eq!(
        (&status["running"], &status["paused"]),
        (&true.into(), &true.into())
    );
    assert_eq!(status["attempts"][0]["state"], "computing");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(running.children().is_empty());

    assert_eq!(told(&data, &["resume"])["was_paused"], true);
    running.event("going_on");
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 2);
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
    assert!(running.child.wait().unwrap().success());
    assert_eq!(told(&data, &["resume"])["was_paused"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_quit_completes_its_step_and_the_next_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    assert_eq!(told(&data, &["quit"])["was_running"], false);
    let mut running = start_without_end(&data);
    steps(&mut running, 2);
    let computing = running.children()[0];
    // A step that takes long is waited for: stopped for longer than a signal's patience, it is not killed.
    signal(computing, Signal::SIGSTOP);
    assert_eq!(told(&data, &["quit", "--no-wait"])["ended"], false);
    running.event("halting");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(running.children(), [computing]);
    signal(computing, Signal::SIGCONT);
    assert_eq!(
        running.event("done")["reason"],
        "stopped; a begun hop is resumed by the next run"
    );
    assert_eq!(running.child.wait().unwrap().code(), Some(0));

    let mut running = start_without_end(&data);
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 2);
    told_meanwhile(&running, &data, &["quit", "--no-wait"]);
    assert_eq!(running.child.wait().unwrap().code(), Some(0));

    // Paused, too, it ends when asked to, and stays paused.
    told(&data, &["pause"]);
    let mut running = start_without_end(&data);
    running.event("resting");
    assert!(running.children().is_empty());
    assert_eq!(told(&data, &["quit"])["ended"], true);
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    told(&data, &["resume"]);
    let mut running = start(&data);
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 2);
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_worker_within_five_seconds_and_a_second_one_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let data = coordinator.enroll(dir.path(), "alice").await;

    // A step that would take for ever.
    let mut running = start_without_end(&data);
    steps(&mut running, 2);
    signal(running.children()[0], Signal::SIGSTOP);
    let begin = Instant::now();
    signal(pid(&running), Signal::SIGTERM);
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );

    let mut running = start_without_end(&data);
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 2);
    steps(&mut running, 4);
    let computing = running.children()[0];
    signal(computing, Signal::SIGSTOP);
    let begin = Instant::now();
    signal(pid(&running), Signal::SIGINT);
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal(pid(&running), Signal::SIGINT);
    assert_eq!(running.child.wait().unwrap().code(), Some(130));
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    signal(computing, Signal::SIGCONT);

    let mut running = start(&data);
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 4);
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_its_hours_a_worker_begins_nothing_and_a_begun_hop_rests() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "hours", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;

    // The program itself, by the hours of its file, which begin in two hours.
    let now = Minute::now().to_string();
    let hour: u16 = now[..2].parse().unwrap();
    let text = |ahead: u16| Minute::new(hour + ahead, 0).to_string();
    let hours = format!("hours = \"{}-{}\"\n", text(2), text(4));
    std::fs::write(data.join("config.toml"), hours).unwrap();
    let mut running = start_without_end(&data);
    assert_eq!(running.event("resting")["until"], text(2).as_str());
    assert_eq!(coordinator.status(&chain).await.hops[0].attempts, 0);
    told(&data, &["quit"]);
    running.child.wait().unwrap();

    // The loop, by a clock of ours: the first computation waits to be stopped.
    let again = dir.path().join("again").display().to_string();
    let wait = format!(
        "if [ ! -e {again} ]; then touch {again}; read -r word; [ \"$word\" = stop ] && echo '{{\"event\":\"cancelled\"}}'; exit 0; fi"
    );
    let other = agent(
        &coordinator.enroll(dir.path(), "bob").await,
        script(dir.path(), 1, &wait),
    );
    let hour = Arc::new(AtomicU16::new(7));
    let clock = {
        let hour = hour.clone();
        Arc::new(move || Minute::new(hour.load(Ordering::Relaxed), 0))
    };
    let options = Options {
        hours: "08:00-10:00".parse().unwrap(),
        clock,
        ..other.options.clone()
    };
    let (folder, runner) = (other.folder.clone(), other.runner.clone());
    drop(other);
    let silent = Arc::new(Reporter::silent());
    let bob = Agent::open(folder, runner, options, silent, CancellationToken::new()).unwrap();
    let working = run(&bob, Goal::Once, Some(Duration::from_secs(1)));
    let day = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(
            starts(dir.path()),
            0,
            "resting is not the idle time of --idle-exit"
        );
        hour.store(8, Ordering::Relaxed);
        until("the hop is begun", async || starts(dir.path()) == 1).await;
        hour.store(10, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(starts(dir.path()), 1);
        assert_eq!(
            coordinator.status(&chain).await.hops[0].running.len(),
            1,
            "the lease is kept"
        );
        hour.store(9, Ordering::Relaxed);
    };
    let (ended, ()) = tokio::join!(working, day);
    ended.unwrap();
    assert_eq!(starts(dir.path()), 2);
    assert_eq!(coordinator.status(&chain).await.hops[0].attempts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn config_check_says_what_counts_and_why_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let path = told(&data, &["config", "path"])["path"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(Path::new(&path), data.join("config.toml"));
    told(&data, &["config", "init"]);
    let twice = worker(&data).args(["config", "init"]).output().unwrap();
    assert_eq!(twice.status.code(), Some(2));
    assert_eq!(
        told(&data, &["config", "check"])["preferences"]["nice"]["from"],
        "default"
    );

    std::fs::write(&path, "cache = \"5GiB\"\nnice = 3\n").unwrap();
    let object = told(&data, &["config", "check", "--nice", "4"]);
    let expected = serde_json::json!({ "value": 5u64 << 30, "from": "file" });
    assert_eq!(object["preferences"]["cache"], expected);
    assert_eq!(
        object["preferences"]["nice"],
        serde_json::json!({ "value": 4, "from": "flag" })
    );
    let text = worker(&data).args(["config", "check"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let token = std::fs::read_to_string(data.join("token")).unwrap();
    assert!(!text.contains(token.trim()) && !object.to_string().contains(token.trim()));
    for part in [
        "nice",
        "5.0 GiB",
        "always",
        "default",
        "file",
        "(hidden)",
        &coordinator.url(),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    std::fs::write(&path, "treads = 2\n").unwrap();
    for command in [&["config", "check"][..], &["run", "--once"], &["doctor"]] {
        let wrong = worker(&data).args(command).output().unwrap();
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!(wrong.status.code(), Some(10), "{said}");
        assert!(
            said.contains("treads") && said.contains("config.toml"),
            "{said}"
        );
    }
    // Looking at a folder that is not there makes none.
    let other = dir.path().join("nobody");
    assert_eq!(told(&other, &["config", "check"])["file_found"], false);
    assert!(!other.exists() && Folder::open(&other).is_ok());
}
