//! The real program on a real hop of the tiny model: killed with -9 in the middle, it goes on from its checkpoint and
//! gives the same bytes as a worker that was left alone. The evaluation keys are pseudo-random, so no secret key is
//! needed: the plaintext is noise, the bytes are those of the circuit.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "../hop/tests/support/chain.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use cipherhop_ckks::{Ciphertext, EvalKey, Params, ScaleId, ciphertext_size};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::keys::{KEYS_FORMAT, KeyEntry, KeyManifest};
use cipherhop_proto::client::Connection;
use cipherhop_proto::{ChainId, Digest, v1};
use common::{Coordinator, until, upload_all, worker};
use serde_json::Value;
use v1::{BlobRole, ChainState, HopState};

const SET: &str = "n10-INSECURE";

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

/// The first layer of the tiny Llama as a chain of one hop.
async fn create_tiny_chain(owner: &Connection) -> Vec<u8> {
    let params = Params::by_name(SET).unwrap();
    let chain = support::chain("tiny-llama", 1);
    let (packs, _) = chain.packs(&[65]);
    let program = chain.program(&params, 1, &packs).unwrap();
    let engine = Engine::new(params.clone()).unwrap();
    let level = params.boot_out_level();
    let mut blobs = Vec::new();
    let mut manifest = KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(params.digest()),
        keys: Vec::new(),
    };
    for spec in program.key_specs().unwrap() {
        let bytes = EvalKey::pseudorandom(&engine.ctx, spec, &[1; 32])
            .unwrap()
            .to_bytes(&engine.ctx);
        manifest.keys.push(KeyEntry {
            id: spec.id.to_string(),
            limbs: spec.limbs,
            digest: Digest::of(&bytes).to_string(),
            size: bytes.len() as u64,
        });
        blobs.push((bytes, BlobRole::EvaluationKey));
    }
    manifest.keys.sort_by(|a, b| a.id.cmp(&b.id));
    let key_digests = blobs
        .iter()
        .map(|(bytes, _)| Digest::of(bytes).to_vec())
        .collect();
    let input = Ciphertext::pseudorandom(&engine.ctx, level, ScaleId::Message, &[2; 32]).unwrap();
    let (program, manifest) = (program.to_bytes().unwrap(), manifest.to_bytes());
    let input = input.to_bytes(&engine.ctx);
    let request = v1::CreateChainRequest {
        chain_id: ChainId::generate().to_vec(),
        name: "tiny".into(),
        program_digest: Digest::of(&program).to_vec(),
        parameter_set: SET.into(),
        parameter_digest: params.digest().to_vec(),
        key_manifest_digest: Digest::of(&manifest).to_vec(),
        key_digests,
        input_digest: Digest::of(&input).to_vec(),
        hops: vec![v1::HopInputs {
            hop: 0,
            weights_digest: Digest::of(&packs[0]).to_vec(),
            archived_digest: Vec::new(),
        }],
        quorum: 2,
        allow_insecure: true,
        boundary_level: level as u32,
        boundary_bytes: ciphertext_size(&params, level) as u64,
        worker_memory_bytes: 1 << 20,
    };
    blobs.push((program, BlobRole::Program));
    blobs.push((manifest, BlobRole::KeyManifest));
    blobs.push((packs[0].clone(), BlobRole::Weights));
    blobs.push((input, BlobRole::Input));
    upload_all(owner, &blobs).await;
    owner.chain().create_chain(request.clone()).await.unwrap();
    request.chain_id
}

struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// `run --once --json` on a data folder.
fn start(data: &Path) -> Running {
    let mut child = worker(data)
        .args([
            "--json",
            "run",
            "--once",
            "--allow-insecure",
            "--threads",
            "1",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Running { child, lines }
}

impl Running {
    /// The next event of a kind.
    fn event(&mut self, kind: &str) -> Value {
        for line in self.lines.by_ref() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if event["event"] == kind {
                return event;
            }
            assert_ne!(event["event"], "error", "{event}");
        }
        panic!("ended before {kind}");
    }

    /// Process ids of the computing process.
    fn children(&self) -> Vec<i32> {
        let id = self.child.id();
        let mut found = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{id}/task")).unwrap() {
            let text =
                std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            found.extend(
                text.split_whitespace()
                    .map(|pid| pid.parse::<i32>().unwrap()),
            );
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_a_hop_goes_on_from_its_checkpoint_with_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_tiny_chain(&coordinator.owner().await).await;
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
