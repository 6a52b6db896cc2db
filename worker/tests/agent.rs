//! The agent against the real coordinator over a real socket, with kill -9 where it hurts. The computing process is a
//! script here; the real hop is run in `hop.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use cipherhop_proto::client::{UNARY_DEADLINE, unary};
use cipherhop_proto::{AttemptId, ChainId, Nonce, v1};
use cipherhop_worker::agent::{Delivery, Goal, Request, deliver, leave_request, run};
use cipherhop_worker::error::WorkerError;
use cipherhop_worker::folder::Folder;
use cipherhop_worker::journal::{Asking, Claim, Entry, Journal, State, WorkState};
use common::{
    Coordinator, agent, apart, create_chain, output, prepare_output, script, starts, until, worker,
};
use v1::{ChainState, HopState};

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

fn journal(data: &std::path::Path) -> State {
    Journal::read_only(&Folder::open(data).unwrap().journal()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_volunteers_complete_a_chain_and_fetch_keys_once() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "two", 3, 2).await;
    let id = ChainId::from_slice(&chain).unwrap();
    let runner = script(dir.path(), 3, "");
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );
    let (a, b) = (agent(&alice, runner.clone()), agent(&bob, runner));
    let (first, second) = tokio::join!(
        run(&a, Goal::UntilDone(id), None),
        run(&b, Goal::UntilDone(id), None)
    );
    first.unwrap();
    second.unwrap();
    let status = coordinator.status(&chain).await;
    assert_eq!(status.chain.unwrap().state(), ChainState::Completed);
    for hop in &status.hops {
        assert_eq!(hop.state(), HopState::Verified);
        assert_eq!(hop.verified_by.len(), 2);
        assert_eq!(
            hop.digest,
            cipherhop_proto::Digest::of(&output(hop.hop)).to_vec()
        );
    }
    // Program, manifest and key once; weights and input per hop.
    assert_eq!(a.cache.usage().blobs, 3 + 2 * 3);
    assert_eq!(a.cache.usage().in_use, 0);
    assert_eq!(starts(dir.path()), 6);
    let works = a.state().works;
    assert!(works.values().all(
        |w| matches!(&w.state, WorkState::Closed { outcome, .. } if outcome.starts_with("ACCEPTED"))
    ));
    assert!(
        std::fs::read_dir(a.folder.works())
            .unwrap()
            .next()
            .is_none(),
        "checkpoints of finished hops are gone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_finished_while_the_coordinator_is_dead_is_submitted_later_and_never_recomputed() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "dead", 1, 2).await;
    let go = dir.path().join("go");
    let runner = script(
        dir.path(),
        1,
        &format!("until [ -e {} ]; do sleep 0.02; done", go.display()),
    );
    let data = coordinator.enroll(dir.path(), "alice").await;
    let a = agent(&data, runner);
    let stop = a.stop.clone();
    let working = apart(async move || run(&a, Goal::Once, None).await);
    until("the hop is computed", async || starts(dir.path()) == 1).await;
    coordinator.kill();
    std::fs::write(&go, b"").unwrap();
    until("the result is in the spool", async || {
        journal(&data)
            .works
            .values()
            .any(|w| matches!(w.state, WorkState::Finished(_)))
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.cancel();
    assert!(matches!(
        working.await.unwrap(),
        Err(WorkerError::NotDone(_))
    ));

    coordinator.restart().await;
    let done = worker(&data).args(["--json", "resubmit"]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(text.contains(r#""outcome":"ACCEPTED_VERIFYING""#), "{text}");
    assert_eq!(starts(dir.path()), 1);
    let status = coordinator.status(&chain).await;
    assert_eq!(
        (status.hops[0].state(), status.hops[0].results_waiting),
        (HopState::Verifying, 1)
    );

    // Delivered twice: counted once.
    let attempt = *journal(&data).works.keys().next().unwrap();
    let again = worker(&data)
        .args(["--json", "resubmit", &attempt.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        again.status.success() && text.contains(r#""outcome":"DUPLICATE""#),
        "{text}"
    );
    assert_eq!(coordinator.status(&chain).await.hops[0].results_waiting, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_coordinator_may_die_at_any_time_and_the_work_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "killed", 3, 2).await;
    let id = ChainId::from_slice(&chain).unwrap();
    let runner = script(dir.path(), 3, "sleep 0.2");
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );
    let (a, b) = (agent(&alice, runner.clone()), agent(&bob, runner));
    let working = apart(async move || {
        tokio::join!(
            run(&a, Goal::UntilDone(id), None),
            run(&b, Goal::UntilDone(id), None)
        )
    });
    for wait in [300, 150, 450] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        coordinator.kill();
        tokio::time::sleep(Duration::from_millis(100)).await;
        coordinator.restart().await;
    }
    let (first, second) = tokio::time::timeout(Duration::from_secs(60), working)
        .await
        .unwrap()
        .unwrap();
    first.unwrap();
    second.unwrap();
    assert_eq!(
        coordinator.status(&chain).await.chain.unwrap().state(),
        ChainState::Completed
    );
    assert_eq!(starts(dir.path()), 6, "nothing was computed twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_answer_was_lost_is_found_again_by_its_nonce() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "nonce", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let nonce = Nonce::generate();
    let token = std::fs::read_to_string(data.join("token")).unwrap();
    let request = v1::AcquireRequest {
        nonce: nonce.to_vec(),
        capabilities: Some(v1::Capabilities {
            memory_bytes: 8 << 30,
            disk_bytes: 8 << 30,
            program_formats: vec!["cipherhop-program/1".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = unary(
        UNARY_DEADLINE,
        coordinator
            .connect(Some(&token))
            .volunteer()
            .acquire(request),
    )
    .await
    .unwrap();
    let Some(v1::acquire_response::Answer::Assignment(given)) = answer.answer else {
        panic!("no lease")
    };
    let a = agent(&data, script(dir.path(), 1, ""));
    a.record(Entry::Asking(Asking { nonce, claim: None }))
        .unwrap();
    run(&a, Goal::Once, None).await.unwrap();
    let works = a.state().works;
    assert_eq!(
        works.keys().copied().collect::<Vec<_>>(),
        vec![AttemptId::from_slice(&given.attempt_id).unwrap()]
    );
    assert_eq!(coordinator.status(&chain).await.hops[0].attempts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_reinstalled_worker_does_not_know_is_sent_again_at_hello() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "lost", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let token = std::fs::read_to_string(data.join("token")).unwrap();
    let request = v1::AcquireRequest {
        nonce: Nonce::generate().to_vec(),
        capabilities: Some(v1::Capabilities {
            memory_bytes: 8 << 30,
            disk_bytes: 8 << 30,
            program_formats: vec!["cipherhop-program/1".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let connection = coordinator.connect(Some(&token));
    unary(UNARY_DEADLINE, connection.volunteer().acquire(request))
        .await
        .unwrap();
    let a = agent(&data, script(dir.path(), 1, ""));
    run(&a, Goal::Once, None).await.unwrap();
    assert!(a.state().asking.is_none(), "it never had to ask");
    assert_eq!(a.state().works.len(), 1);
    assert_eq!(coordinator.status(&chain).await.hops[0].attempts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_blob_in_the_cache_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    create_chain(&coordinator.owner().await, "damaged", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let key = cipherhop_proto::Digest::of(b"an evaluation key");
    Folder::open(&data).unwrap();
    std::fs::write(
        data.join("cache").join(key.to_string()),
        b"an evaluation kez",
    )
    .unwrap();
    let a = agent(&data, script(dir.path(), 1, ""));
    run(&a, Goal::Once, None).await.unwrap();
    assert_eq!(starts(dir.path()), 2);
    assert_eq!(
        std::fs::read(a.cache.path(&key)).unwrap(),
        b"an evaluation key"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashing_computation_is_started_again_and_given_up_after_three_crashes_in_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "crash", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let a = agent(&data, script(dir.path(), 1, "kill -9 $$"));
    assert!(matches!(
        run(&a, Goal::Once, None).await,
        Err(WorkerError::NotDone(_))
    ));
    assert_eq!(starts(dir.path()), 3);
    let status = coordinator.status(&chain).await;
    assert!(status.hops[0].running.is_empty());
    assert!(
        status.hops[0].reason.contains("signal: 9"),
        "{}",
        status.hops[0].reason
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_result_stays_in_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "refused", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let a = agent(&data, script(dir.path(), 1, ""));
    let mut wrong = output(0);
    let end = wrong.len();
    wrong[end - 8..].copy_from_slice(&u64::MAX.to_le_bytes());
    prepare_output(dir.path(), 0, &wrong);
    assert!(matches!(
        run(&a, Goal::Once, None).await,
        Err(WorkerError::NotDone(_))
    ));
    let (attempt, work) = a.state().works.into_iter().next().unwrap();
    assert!(
        matches!(&work.state, WorkState::Parked { reason, .. } if reason == "OUTPUT_RESIDUE_RANGE"),
        "{:?}",
        work.state
    );
    assert_eq!(
        std::fs::read(a.folder.spool(attempt).join("output")).unwrap(),
        wrong
    );
    assert_ne!(
        coordinator.status(&chain).await.hops[0].state(),
        HopState::Verified
    );
    // Bytes that rot in the spool are noticed before they are offered.
    std::fs::write(a.folder.spool(attempt).join("output"), b"rot").unwrap();
    assert_eq!(
        deliver(&a, attempt).await.unwrap(),
        Delivery::Parked("SPOOL_DAMAGED".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_chain_stops_the_computation_and_frees_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "cancelled", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let a = agent(&data, script(dir.path(), 1, "exec sleep 60"));
    let begin = Instant::now();
    let working = async {
        let ended = run(&a, Goal::Once, None).await;
        assert!(matches!(ended, Err(WorkerError::NotDone(_))), "{ended:?}");
    };
    let cancelling = async {
        until("computing", async || starts(dir.path()) == 1).await;
        let state = ChainState::Cancelled.into();
        let request = v1::SetChainStateRequest {
            chain_id: chain.clone(),
            state,
            reason: "test".into(),
        };
        coordinator
            .admin()
            .admin()
            .set_chain_state(request)
            .await
            .unwrap();
    };
    tokio::join!(working, cancelling);
    assert!(begin.elapsed() < Duration::from_secs(20));
    let (attempt, work) = a.state().works.into_iter().next().unwrap();
    assert!(matches!(work.state, WorkState::Closed { result: None, .. }));
    assert!(!a.folder.work(attempt).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_come_first_and_are_struck_off_when_they_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let owner = coordinator.owner().await;
    create_chain(&owner, "first", 1, 2).await;
    let wanted = create_chain(&owner, "second", 1, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let claimed = worker(&data)
        .args(["claim", "--chain", "second", "--hops", "0"])
        .output()
        .unwrap();
    assert!(
        claimed.status.success(),
        "{}",
        String::from_utf8_lossy(&claimed.stderr)
    );
    let beyond = worker(&data)
        .args(["claim", "--chain", "second", "--hops", "0-7"])
        .output()
        .unwrap();
    assert_eq!(beyond.status.code(), Some(2));
    let a = agent(&data, script(dir.path(), 1, ""));
    run(&a, Goal::Once, None).await.unwrap();
    let (_, work) = a.state().works.into_iter().next().unwrap();
    assert_eq!(work.lease.chain.to_vec(), wanted);
    // A request left by another process is taken up by the running worker.
    let claim = Claim {
        chain: work.lease.chain,
        hops: "0".parse().ok(),
    };
    assert_eq!(a.state().claims, vec![claim.clone()]);
    leave_request(&a.folder, &Request::Unclaim(claim)).unwrap();
    run(&a, Goal::Once, None).await.unwrap();
    assert!(a.state().claims.is_empty());
    assert_eq!(a.state().works.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_stops_on_a_signal_and_tells_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let mut running = worker(&data)
        .arg("run")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the folder is taken", async || {
        matches!(
            Folder::open(&data).unwrap().lock(),
            Err(WorkerError::FolderBusy(_))
        )
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = worker(&data).arg("run").output().unwrap();
    assert_eq!(second.status.code(), Some(7));
    let status = worker(&data).args(["--json", "status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).contains(r#""running":true"#));
    let begin = Instant::now();
    let pid = nix::unistd::Pid::from_raw(running.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = tokio::task::spawn_blocking(move || running.wait().unwrap())
        .await
        .unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(5));
    // A token that is not known any more.
    std::fs::write(data.join("token"), "chw_wrong").unwrap();
    let wrong = worker(&data).args(["--json", "run"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(3));
    let told = String::from_utf8_lossy(&wrong.stdout).into_owned();
    assert!(told.contains(r#""reason":"TOKEN_INVALID""#), "{told}");
    assert!(!told.contains("chw_wrong"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_follows_a_chain_across_a_killed_coordinator_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "watched", 2, 2).await;
    let id = ChainId::from_slice(&chain).unwrap();
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );
    let watch = |json: bool| {
        let mut command = worker(&alice);
        if json {
            command.arg("--json");
        }
        command
            .args(["watch", "watched"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (lines, json) = (watch(false), watch(true));
    tokio::time::sleep(Duration::from_millis(700)).await;
    coordinator.kill();
    coordinator.restart().await;
    let runner = script(dir.path(), 2, "");
    let (a, b) = (agent(&alice, runner.clone()), agent(&bob, runner));
    let (first, second) = tokio::join!(
        run(&a, Goal::UntilDone(id), None),
        run(&b, Goal::UntilDone(id), None)
    );
    first.unwrap();
    second.unwrap();
    for (child, wanted) in [
        (lines, "chain watched: completed, 2 of 2"),
        (json, r#""state":"completed""#),
    ] {
        let done = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
        let done = tokio::time::timeout(Duration::from_secs(45), done)
            .await
            .unwrap()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}");
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("hop"), "{text}");
    }
}
