//! The program itself: kill -9 and go on, locks, shutdown, admin commands, no secret in its log.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{Digest, Reason};
use common::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cipherhop-coordinator");

struct Process {
    child: Child,
    url: String,
    admin: String,
}

impl Process {
    fn start(data: &Path) -> Process {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env("RUST_LOG", "trace")
            .stdout(Stdio::piped())
            .stderr(
                std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(data.with_extension("log"))
                    .unwrap(),
            )
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .trim()
            .strip_prefix("cipherhop-coordinator listening on ")
            .expect("ready line")
            .to_owned();
        let admin = std::fs::read_to_string(data.join("admin.token"))
            .unwrap()
            .trim()
            .to_owned();
        Process { child, url, admin }
    }

    /// SIGKILL: nothing is flushed, no handler runs.
    fn kill_9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

fn json(args: &[&str]) -> (i32, serde_json::Value) {
    let output = command(args);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"));
    (output.status.code().unwrap(), value)
}

#[tokio::test(flavor = "multi_thread")]
async fn i5_acknowledged_bytes_and_submits_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Process::start(&data);
    let owner_token = new_token(&server.url, &server.admin, TokenRole::Owner, "key holder").await;
    let mut ada = Volunteer::enroll(&server.url, &server.admin, "ada").await;
    let mut bob = Volunteer::enroll(&server.url, &server.admin, "bob").await;
    let owner = connect(&server.url, Some(&owner_token));
    let chain = new_chain("demo", 2);
    let id = chain.create(&owner).await;

    // Ada submits the digest and sends a part of the output; the server dies between two Appends.
    let given = ada.acquire(0).await.unwrap();
    let (out, trace_bytes) = (output(0), trace(&given));
    let request = submit_request(&given, &out, &trace_bytes);
    assert_eq!(
        ada.submit(request.clone()).await.unwrap().outcome(),
        Outcome::NeedUpload
    );
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&out, v1::BlobRole::Output)),
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
    };
    let opened = ada
        .connection
        .blob()
        .open_upload(open.clone())
        .await
        .unwrap()
        .into_inner();
    let half = out.len() / 2;
    let append = |upload_id: &[u8], from: usize, to: usize| {
        futures::stream::iter([v1::AppendRequest {
            upload_id: upload_id.to_vec(),
            offset: from as u64,
            data: out[from..to].to_vec(),
            ..Default::default()
        }])
    };
    let answer = ada
        .connection
        .blob()
        .append(append(&opened.upload_id, 0, half))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.committed, half as u64);
    server.kill_9();

    let server = Process::start(&data);
    ada.connection = connect(&server.url, Some(&ada.token));
    bob.connection = connect(&server.url, Some(&bob.token));
    let again = ada.submit(request.clone()).await.unwrap();
    let committed: u64 = again.need_upload.iter().map(|n| n.committed).max().unwrap();
    assert_eq!(committed, half as u64, "acknowledged bytes are there");
    let opened = ada
        .connection
        .blob()
        .open_upload(open)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(opened.committed, half as u64);
    ada.connection
        .blob()
        .append(append(&opened.upload_id, half, out.len()))
        .await
        .unwrap();
    ada.connection
        .blob()
        .finish(v1::FinishRequest {
            upload_id: opened.upload_id,
        })
        .await
        .unwrap();
    send(
        &ada.connection,
        &trace_bytes,
        v1::BlobRole::Trace,
        Some(&attempt_ref(&given)),
    )
    .await;
    assert_eq!(
        ada.submit(request.clone()).await.unwrap().outcome(),
        Outcome::AcceptedVerifying
    );
    server.kill_9();

    // The accepted submit is there, the other account completes the hop, and the chain goes on.
    let server = Process::start(&data);
    ada.connection = connect(&server.url, Some(&ada.token));
    bob.connection = connect(&server.url, Some(&bob.token));
    assert_eq!(
        ada.submit(request).await.unwrap().outcome(),
        Outcome::Duplicate
    );
    let given = bob.acquire(0).await.unwrap();
    assert_eq!(
        bob.hand_in(&given, &out).await.unwrap(),
        Outcome::AcceptedMatched
    );
    server.kill_9();

    let server = Process::start(&data);
    let owner = connect(&server.url, Some(&owner_token));
    let state = status(&owner, &id).await;
    assert_eq!(
        (state.chain.unwrap().head, state.hops[0].digest.clone()),
        (1, Digest::of(&out).to_vec())
    );
    ada.connection = connect(&server.url, Some(&ada.token));
    bob.connection = connect(&server.url, Some(&bob.token));
    for (volunteer, expected) in [
        (&bob, Outcome::AcceptedVerifying),
        (&ada, Outcome::AcceptedMatched),
    ] {
        let given = volunteer.acquire(5).await.unwrap();
        assert_eq!(given.hop, 1);
        assert_eq!(
            volunteer.hand_in(&given, &output(1)).await.unwrap(),
            expected
        );
    }
    assert_eq!(
        status(&owner, &id).await.chain.unwrap().state(),
        v1::ChainState::Completed
    );

    // I11: whatever happened, no token is in the log.
    server.kill_9();
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(log.contains("a chain was created"), "the log is there");
    for role in ["invite", "volunteer", "owner", "admin", "observer"] {
        assert!(
            !log.contains(&format!("cipherhop_{role}_")),
            "a token is in the log"
        );
    }
    for token in [&owner_token, &ada.token, &bob.token] {
        let secret = token.rsplit('_').next().unwrap();
        assert!(!log.contains(secret), "a token's secret is in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_commands_print_json_and_say_by_exit_code_how_it_went() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Process::start(&data);
    let mode = std::fs::metadata(data.join("admin.token"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let folder = data.to_str().unwrap();
    let at = ["--coordinator", &server.url, "--data", folder, "--json"];
    let run = |args: &[&str]| json(&[args, &at].concat());

    let (code, made) = run(&[
        "token",
        "create",
        "--role",
        "owner",
        "--account",
        "key holder",
    ]);
    assert_eq!(code, 0);
    let owner_token = made["token"].as_str().unwrap().to_owned();
    let owner = connect(&server.url, Some(&owner_token));
    let id = new_chain("demo", 1).create(&owner).await;
    let (_, list) = run(&["chain", "list"]);
    assert_eq!(list["chains"][0]["name"], "demo");
    assert_eq!(list["chains"][0]["insecure"], true);
    let (_, shown) = run(&["chain", "show", "demo"]);
    assert_eq!(shown["hops"][0]["state"], "ready");
    let uuid = list["chains"][0]["chain_id"].as_str().unwrap();
    assert_eq!(
        run(&["chain", "pause", uuid, "--reason", "tea"]).1["chains"][0]["state_reason"],
        "tea"
    );
    assert_eq!(
        run(&["chain", "resume", "demo"]).1["chains"][0]["state"],
        "active"
    );
    let ada = Volunteer::enroll(&server.url, &server.admin, "ada").await;
    let device = run(&["device", "list"]).1["devices"][0]["device_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(run(&["device", "quarantine", &device]).0, 0);
    assert_eq!(
        run(&["device", "list"]).1["devices"][0]["state"],
        "quarantined"
    );
    assert_eq!(run(&["device", "unquarantine", &device]).0, 0);
    ada.acquire(0).await.unwrap();
    assert_eq!(
        run(&["chain", "cancel", "demo"]).1["chains"][0]["state"],
        "cancelled"
    );
    assert_eq!(
        status(&owner, &id).await.chain.unwrap().state(),
        v1::ChainState::Cancelled
    );

    let (code, refused) = run(&["hop", "requeue", "demo", "7"]);
    assert_eq!(
        (code, refused["reason"].as_str()),
        (6, Some(Reason::HopNotFound.as_str()))
    );
    assert!(refused["advice"].is_string());
    let (code, refused) = run(&["chain", "show", "nothing"]);
    assert_eq!(
        (code, refused["reason"].as_str()),
        (6, Some(Reason::ChainNotFound.as_str()))
    );
    let (code, refused) = json(&[
        "device",
        "list",
        "--coordinator",
        &server.url,
        "--token",
        &owner_token,
        "--json",
    ]);
    assert_eq!(
        (code, refused["reason"].as_str()),
        (5, Some(Reason::RoleNotAllowed.as_str()))
    );
    assert_eq!(
        run(&["token", "revoke", made["token_id"].as_str().unwrap()]).0,
        0
    );
    let (code, refused) = json(&[
        "chain",
        "list",
        "--coordinator",
        &server.url,
        "--token",
        &owner_token,
        "--json",
    ]);
    assert_eq!(
        (code, refused["reason"].as_str()),
        (5, Some(Reason::TokenRevoked.as_str()))
    );
    let (code, _) = json(&[
        "chain",
        "list",
        "--coordinator",
        "http://127.0.0.1:9",
        "--data",
        folder,
        "--json",
    ]);
    assert_eq!(code, 4);
    let (code, _) = json(&[
        "chain",
        "list",
        "--coordinator",
        &server.url,
        "--data",
        "/nonexistent",
        "--json",
    ]);
    assert_eq!(code, 5);
    assert_eq!(command(&["chain", "frobnicate"]).status.code(), Some(2));
    let text = command(&[
        "chain",
        "list",
        "--coordinator",
        &server.url,
        "--data",
        folder,
    ]);
    assert!(
        String::from_utf8(text.stdout)
            .unwrap()
            .contains("cancelled")
    );

    // A second coordinator on the same folder is refused.
    let second = command(&["serve", "--data", folder, "--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(7), "{second:?}");
}

#[test]
fn settings_are_checked_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "[leases]\nsoft_seconds = 7\n").unwrap();
    let (code, config) = json(&["config", "check", "--config", path, "--json"]);
    assert_eq!(
        (code, config["leases"]["soft_seconds"].as_u64()),
        (0, Some(7))
    );
    let printed = command(&["config", "check"]);
    assert!(
        String::from_utf8(printed.stdout)
            .unwrap()
            .contains("[blobs]")
    );
    std::fs::write(&file, "[leases]\nsoft_secnods = 7\n").unwrap();
    let (code, error) = json(&["config", "check", "--config", path, "--json"]);
    assert_eq!(code, 3);
    assert!(error["error"].as_str().unwrap().contains("soft_secnods"));
    let open = command(&[
        "serve",
        "--data",
        dir.path().to_str().unwrap(),
        "--listen",
        "0.0.0.0:0",
    ]);
    assert_eq!(open.status.code(), Some(3));
    assert!(
        String::from_utf8(open.stderr)
            .unwrap()
            .contains("--insecure-bind")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains_and_ends_within_its_time_limit() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Process::start(&data);
    let ada = Volunteer::enroll(&server.url, &server.admin, "ada").await;
    let poll = tokio::spawn(async move { ada.acquire(30).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let asked = Instant::now();
    server.terminate();
    let code = tokio::task::spawn_blocking(move || {
        let status = server.child.wait().unwrap();
        let mut rest = String::new();
        server
            .child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut rest)
            .unwrap();
        (status.code(), rest)
    })
    .await
    .unwrap();
    assert_eq!(
        code,
        (Some(0), String::new()),
        "one line on standard output, exit code 0"
    );
    assert!(asked.elapsed() < Duration::from_secs(6));
    assert_eq!(
        poll.await.unwrap().unwrap_err().reason,
        Reason::Draining.as_str()
    );
}
