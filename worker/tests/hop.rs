//! The real program on a real hop of the tiny model: killed with -9 in the middle, it goes on from its checkpoint and
//! gives the same bytes as a worker that was left alone. The evaluation keys are pseudo-random, so no secret key is
//! needed: the plaintext is noise, the bytes are those of the circuit.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/running.rs"]
mod running;
#[path = "common/tiny.rs"]
mod tiny;

use std::path::Path;
use std::process::Stdio;

use cipherhop_ckks::{Ciphertext, Params, inspect};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_proto::{Digest, v1};
use cipherhop_worker::folder::Folder;
use common::{Coordinator, SET, until, worker};
use running::{Running, start, start_without_end};
use serde_json::Value;
use tiny::Tiny;
use v1::{ChainState, HopState};

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_a_hop_goes_on_from_its_checkpoint_with_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );

    // Enough for the coordinator's figure, which is wrong here, but not for the hop: it is given back unbegun.
    let small = coordinator.enroll(dir.path(), "carol").await;
    let refused = worker(&small)
        .args(["run", "--once", "--allow-insecure", "--memory", "2MiB"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(8), "{said}");
    assert!(said.contains("of memory, 2.0 MiB are available"), "{said}");

    let mut running = start(&alice);
    let attempt = running.event("hop")["attempt"].clone();
    while running.event("step")["steps_done"].as_u64().unwrap() < 5 {}
    let computing = running.children();
    assert_eq!(computing.len(), 1);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    until("the computing process has noticed", async || {
        !Path::new(&format!("/proc/{}", computing[0])).exists()
    })
    .await;

    let mut running = start(&alice);
    let hop = running.event("hop");
    assert_eq!(
        (&hop["attempt"], &hop["resumed"]),
        (&attempt, &Value::Bool(true))
    );
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 5);
    let digest = running.event("finished")["digest"].clone();
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
    assert!(running.child.wait().unwrap().success());

    // The other one's computing process is killed, as the kernel does when memory runs out; the agent goes on.
    let mut running = start(&bob);
    while running.event("step")["steps_done"].as_u64().unwrap() < 3 {}
    let pid = nix::unistd::Pid::from_raw(running.children()[0]);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    running.event("crashed");
    assert!(running.event("computing")["steps_done"].as_u64().unwrap() >= 3);
    assert_eq!(running.event("finished")["digest"], digest);
    assert_eq!(running.event("submitted")["outcome"], "ACCEPTED_MATCHED");
    assert!(running.child.wait().unwrap().success());

    let status = coordinator.status(&chain).await;
    assert_eq!(status.chain.unwrap().state(), ChainState::Completed);
    assert_eq!(
        (status.hops[0].state(), status.hops[0].attempts),
        (HopState::Verified, 3),
        "the one given back counts as an attempt"
    );
}

/// Kills a worker in the middle of its hop and damages the output of the last complete step in its checkpoint, as a
/// lying or broken machine would have it. Returns the number of that step.
async fn damage_one_step(mut running: Running, data: &Path) -> u64 {
    let attempt = running.event("hop")["attempt"].as_str().unwrap().to_owned();
    while running.event("step")["steps_done"].as_u64().unwrap() < 12 {}
    let computing = running.children();
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    until("the computing process has noticed", async || {
        computing
            .iter()
            .all(|id| !Path::new(&format!("/proc/{id}")).exists())
    })
    .await;
    let work = Folder::open(data)
        .unwrap()
        .work(attempt.parse().unwrap())
        .join("hop");
    let text = std::fs::read_to_string(work.join("trace.jsonl")).unwrap();
    let mut lines: Vec<Value> = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = lines.last_mut().unwrap();
    let register = last["outputs"][0][0].as_str().unwrap().to_owned();
    let path = work.join("regs").join(format!("{register}.ct"));
    let engine = Engine::new(Params::by_name(SET).unwrap()).unwrap();
    let info = inspect(engine.ctx.params(), &std::fs::read(&path).unwrap()).unwrap();
    let wrong = Ciphertext::pseudorandom(&engine.ctx, info.level, info.scale, &[9; 32]).unwrap();
    let wrong = wrong.to_bytes(&engine.ctx);
    last["outputs"][0][1] = Digest::of(&wrong).to_string().into();
    let step = last["step"].as_u64().unwrap();
    std::fs::write(&path, wrong).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(work.join("trace.jsonl"), text).unwrap();
    step
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_one_wrong_step_is_found_and_settled_by_running_that_step_alone() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = Tiny::new().create(&coordinator.owner().await, "tiny").await;
    let (alice, bob, carol) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
        coordinator.enroll(dir.path(), "carol").await,
    );
    let referee = || {
        let mut command = worker(&carol);
        command.args([
            "--json",
            "referee",
            "--once",
            "--allow-insecure",
            "--threads",
            "1",
        ]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let refused = referee().wait_with_output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("an operator has to make"));
    let device = Folder::open(&carol).unwrap().identity().unwrap().device;
    let request = v1::SetRefereeRequest {
        device_id: device.to_vec(),
        referee: true,
    };
    coordinator
        .admin()
        .admin()
        .set_referee(request)
        .await
        .unwrap();
    let deciding = referee();

    let mut honest = start_without_end(&alice);
    let finished = honest.event("finished");
    assert_eq!(honest.event("submitted")["outcome"], "ACCEPTED_VERIFYING");
    let step = damage_one_step(start_without_end(&bob), &bob).await;
    let mut wrong = start_without_end(&bob);
    assert_ne!(wrong.event("finished")["digest"], finished["digest"]);
    assert_eq!(wrong.event("submitted")["outcome"], "ACCEPTED_VERIFYING");

    let said = deciding.wait_with_output().unwrap();
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    let text = String::from_utf8_lossy(&said.stdout);
    let verdict: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&verdict["step"], &verdict["settled"]),
        (&step.into(), &true.into())
    );
    let (step_seconds, hop_seconds) = (
        verdict["seconds"].as_f64().unwrap(),
        finished["seconds"].as_f64().unwrap(),
    );
    println!("arbitration: {step_seconds:.3} s for the step, {hop_seconds:.3} s for the hop");
    assert!(
        step_seconds < hop_seconds / 3.0,
        "{step_seconds} of {hop_seconds}"
    );
    let status = coordinator.status(&chain).await;
    let hop = &status.hops[0];
    assert_eq!(status.chain.unwrap().state(), ChainState::Completed);
    assert_eq!(hop.method(), v1::VerificationMethod::Referee);
    assert_eq!(
        hex::encode(&hop.digest),
        finished["digest"].as_str().unwrap()
    );
    assert_eq!(hop.verified_by, ["alice"]);
    assert_eq!(hop.attempts, 2, "no third attempt was needed");
    for mut running in [honest, wrong] {
        running.child.kill().unwrap();
        running.child.wait().unwrap();
    }
}
