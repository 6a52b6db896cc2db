//! A whole chain from keys to next token against the real coordinator; the hops are computed by `archive build`.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use cipherhop_coordinator::{
    auth::Token,
    blobs::LocalBlobs,
    clock::{Clock, SystemClock},
    config::Config,
    service::{Core, serve},
    store::{NewToken, Role, open_sqlite},
};
use cipherhop_proto::{
    Digest, Nonce, TokenId,
    client::{AttemptRef, BearerToken, ConnectOptions, Connection, Source, TransferPolicy, upload},
    ledger::LedgerKey,
    v1::{self, acquire_response::Answer, submit_response::Outcome},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

struct Coordinator {
    url: String,
    admin: String,
    stop: CancellationToken,
}

async fn coordinator(dir: &Path) -> Coordinator {
    std::fs::create_dir_all(dir).unwrap();
    let mut config = Config::default();
    // the hops come in order, without a known-answer hop in between
    config.volunteers.probe_fresh_permille = 0;
    config.volunteers.probe_trusted_permille = 0;
    config.blobs.headroom_bytes = 0;
    let store = open_sqlite(&dir.join("coordinator.db")).await.unwrap();
    let blobs = LocalBlobs::open(&dir.join("blobs"), config.blobs.local_limits()).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let token = Token::generate(Role::Admin).unwrap();
    let new = NewToken {
        id: TokenId::generate(),
        hash: token.hash(),
        role: Role::Admin,
        account_name: "admin".into(),
    };
    store.create_token(new, clock.now()).await.unwrap();
    let key = LedgerKey::from_secret(&[7; 32]);
    store.sign_ledger(key, false, clock.now()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let core = Core::new(store, Arc::new(blobs), clock, config, stop.clone());
    tokio::spawn(async move { serve(core, listener).await.unwrap() });
    Coordinator {
        url,
        admin: token.reveal().to_string(),
        stop,
    }
}

impl Coordinator {
    fn connect(&self, token: Option<&str>) -> Connection {
        let token = token.map(BearerToken::new);
        Connection::lazy(&ConnectOptions {
            url: self.url.clone(),
            token,
            ca: None,
            allow_plaintext: false,
        })
        .unwrap()
    }

    async fn token(&self, role: v1::TokenRole, account: &str) -> String {
        let request = v1::CreateTokenRequest {
            role: role.into(),
            account: account.into(),
            ..Default::default()
        };
        self.connect(Some(&self.admin))
            .admin()
            .create_token(request)
            .await
            .unwrap()
            .into_inner()
            .token
    }

    async fn volunteer(&self, name: &str) -> Connection {
        let invite = self.token(v1::TokenRole::Invite, name).await;
        let request = v1::EnrollRequest {
            invite,
            display_name: name.into(),
            nonce: Nonce::generate().to_vec(),
            worker_version: "test".into(),
            ..Default::default()
        };
        let token = self
            .connect(None)
            .volunteer()
            .enroll(request)
            .await
            .unwrap()
            .into_inner()
            .token;
        self.connect(Some(&token))
    }
}

/// Takes the open hop and hands in `output`.
async fn hand_in(volunteer: &Connection, hop: u32, output: &[u8]) -> Outcome {
    let able = v1::Capabilities {
        memory_bytes: 1 << 40,
        disk_bytes: 1 << 40,
        threads: 1,
        isa: "test".into(),
        program_formats: vec!["cipherhop-program/1".into()],
        golden_digest: vec![0; 32],
    };
    let request = v1::AcquireRequest {
        nonce: Nonce::generate().to_vec(),
        capabilities: Some(able),
        wait_seconds: 5,
        ..Default::default()
    };
    let answer = volunteer
        .volunteer()
        .acquire(request)
        .await
        .unwrap()
        .into_inner()
        .answer;
    let Some(Answer::Assignment(given)) = answer else {
        panic!("no work: {answer:?}")
    };
    assert_eq!(given.hop, hop);
    let trace = format!("{{\"hop\":{hop}}}\n").into_bytes();
    let submit = v1::SubmitRequest {
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
        output_digest: Digest::of(output).to_vec(),
        output_size: output.len() as u64,
        trace_root: Digest::of(b"root").to_vec(),
        trace_digest: Digest::of(&trace).to_vec(),
        trace_size: trace.len() as u64,
        compute_seconds: 1.0,
        ..Default::default()
    };
    let first = volunteer
        .volunteer()
        .submit(submit.clone())
        .await
        .unwrap()
        .into_inner();
    for needed in &first.need_upload {
        let (bytes, role) = if needed.digest == submit.output_digest {
            (output, v1::BlobRole::Output)
        } else {
            (&trace[..], v1::BlobRole::Trace)
        };
        let blob = v1::BlobRef {
            digest: needed.digest.clone(),
            size: bytes.len() as u64,
            role: role.into(),
            name: String::new(),
        };
        let attempt = AttemptRef {
            attempt_id: given.attempt_id.clone(),
            epoch: given.epoch,
        };
        upload(
            volunteer,
            &blob,
            Source::Bytes(bytes),
            Some(&attempt),
            &TransferPolicy::default(),
            &|_| (),
        )
        .await
        .unwrap();
    }
    match first.outcome() {
        Outcome::NeedUpload => volunteer
            .volunteer()
            .submit(submit)
            .await
            .unwrap()
            .into_inner()
            .outcome(),
        other => other,
    }
}

/// Exit code and JSON of the program.
async fn owner(dir: &Path, args: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-owner"));
    command.arg("--json").args(args).current_dir(dir);
    let out = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let value = text
        .lines()
        .last()
        .map_or(Value::Null, |l| serde_json::from_str(l).unwrap());
    (out.status.code().unwrap(), value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_runs_from_keys_to_the_right_next_token_with_an_archive() {
    let temp = tempfile::tempdir().unwrap();
    let dir: PathBuf = temp.path().into();
    let server = coordinator(&dir.join("coordinator")).await;
    std::fs::write(
        dir.join("token"),
        server.token(v1::TokenRole::Owner, "key holder").await,
    )
    .unwrap();
    let run = async |args: &str| owner(&dir, &args.split(' ').collect::<Vec<_>>()).await;

    assert_eq!(
        run("keygen --params n11-INSECURE --allow-insecure --out keys")
            .await
            .0,
        0
    );
    assert_eq!(
        run("model calibrate tiny-llama --tokens 2 --windows 200 --out c.json")
            .await
            .0,
        0
    );
    let create = format!(
        "chain create --coordinator {} --token-file token --keys keys --model tiny-llama --calibration c.json --prompt ab --name t --allow-insecure --out chain",
        server.url
    );
    let (code, made) = run(&create).await;
    assert_eq!(code, 0, "{made}");
    let (code, again) = run(&create).await;
    assert_eq!(
        (code, &again["chain_id"]),
        (0, &made["chain_id"]),
        "the same command goes on with the same chain"
    );
    let other = create.replace("--prompt ab", "--prompt ba");
    assert_eq!(
        run(&other).await.0,
        1,
        "another prompt needs another folder"
    );
    let (code, value) = run("chain result --chain chain").await;
    assert_eq!((code, value["verified"].as_u64()), (5, Some(0)), "{value}");
    assert_eq!(run("hop check --chain chain --hop 0").await.0, 5);

    // The key holder computes two hops and gives the coordinator their digests.
    let (code, built) =
        run("archive build --chain chain --hops 0-1 --out archive --threads 2").await;
    assert_eq!((code, built["hops"].as_u64()), (0, Some(2)), "{built}");
    let (code, value) =
        run("archive import --chain chain --manifest archive/manifest.sha256").await;
    assert_eq!((code, value["imported"].as_u64()), (0, Some(2)), "{value}");
    // The last hop has no archived digest; built on the first two.
    assert_eq!(
        run("archive build --chain chain --hops 2 --out archive")
            .await
            .0,
        0
    );
    let output = |hop: u32| std::fs::read(dir.join(format!("archive/hop-{hop:03}.ct"))).unwrap();

    let (alice, bob) = (
        server.volunteer("alice").await,
        server.volunteer("bob").await,
    );
    assert_eq!(
        hand_in(&alice, 0, &output(0)).await,
        Outcome::AcceptedMatched,
        "one result that equals the archive is enough"
    );
    assert_eq!(
        hand_in(&bob, 1, &output(0)).await,
        Outcome::AcceptedMismatched,
        "another hop's output is not this one's"
    );
    assert_eq!(
        hand_in(&alice, 1, &output(1)).await,
        Outcome::AcceptedMatched
    );
    assert_eq!(
        hand_in(&alice, 2, &output(2)).await,
        Outcome::AcceptedVerifying,
        "without an archive two accounts must agree"
    );
    assert_eq!(hand_in(&bob, 2, &output(2)).await, Outcome::AcceptedMatched);

    let (code, value) = run("chain wait --chain chain --timeout 30").await;
    assert_eq!((code, value["verified"].as_u64()), (0, Some(3)), "{value}");
    let (code, value) = run("chain result --chain chain --publish").await;
    assert_eq!(code, 0, "{value}");
    assert_eq!(value["next_token_id"], value["expected_token_id"]);
    assert_eq!(value["expected_token_id"], made["expected_token_id"]);
    assert!(
        value["worst_rel_rms"].as_f64().unwrap() < 1e-3
            && value["worst_max_err_over_f"].as_f64().unwrap() < 1e-4,
        "{value}"
    );
    let (code, value) = run("hop check --chain chain --hop 2").await;
    assert_eq!((code, value["within"].as_bool()), (0, Some(true)));
    let (code, value) = run("archive export --chain chain --out exported.sha256").await;
    assert_eq!((code, value["hops"].as_u64()), (0, Some(3)));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(read("exported.sha256"), read("archive/manifest.sha256"));

    // The archive is signed with the key that the coordinator had when the chain was made.
    let key = LedgerKey::from_secret(&[7; 32]).public().to_string();
    assert_eq!(value["ledger_key"], key);
    let (code, value) = run("chain verify --chain chain").await;
    assert_eq!(code, 0, "{value}");
    assert_eq!(
        (&value["rows"], &value["signers"][&key]),
        (&3.into(), &3.into())
    );
    let stranger = LedgerKey::from_secret(&[8; 32]).public().to_string();
    let folder = read("chain/chain.json");
    std::fs::write(
        dir.join("chain/chain.json"),
        folder.replace(&key, &stranger),
    )
    .unwrap();
    let (code, value) = run("chain verify --chain chain").await;
    assert_eq!((code, &value["accepted"]), (4, &false.into()), "{value}");
    assert!(
        value["problems"][0]
            .as_str()
            .unwrap()
            .contains("--trust-key"),
        "{value}"
    );
    let trust = format!("chain verify --chain chain --trust-key {key}");
    assert_eq!(run(&trust).await.0, 0);
    assert_eq!(run("chain verify --chain chain").await.0, 0);
    // A coordinator that gives another output than the one its archive names, and one whose archive was rewritten.
    let path = dir.join("coordinator/coordinator.db");
    let mut db = <sqlx::SqliteConnection as sqlx::Connection>::connect(path.to_str().unwrap())
        .await
        .unwrap();
    let rewrite = "DROP TRIGGER archive_rows_never_change; UPDATE archive SET at_us = at_us + 1 WHERE hop = 1";
    sqlx::raw_sql(rewrite).execute(&mut db).await.unwrap();
    let (code, value) = run("chain verify --chain chain").await;
    assert_eq!(code, 1, "{value}");
    let error = value["error"].as_str().unwrap();
    assert!(
        error.contains("tampered") && error.contains("position 1"),
        "{error}"
    );

    // A ciphertext of hop 0 is not hop 1's: the error figures say so.
    let (code, value) = run("hop check --chain chain --hop 1 --file archive/hop-000.ct").await;
    assert_eq!(
        (code, value["within"].as_bool()),
        (4, Some(false)),
        "{value}"
    );
    server.stop.cancel();
}
