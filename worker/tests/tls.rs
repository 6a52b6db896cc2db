//! The worker's program over TLS: `--ca` is given once, at `enroll`.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::config::Config;
use cipherhop_coordinator::service::{Core, serve};
use cipherhop_coordinator::store::{NewToken, Role, open_memory};
use cipherhop_coordinator::tls::{DevCertificate, ServerCertificate};
use cipherhop_proto::TokenId;
use cipherhop_worker::error::{EXIT_IDENTITY, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE};
use tokio_util::sync::CancellationToken;

async fn worker(data: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-worker"));
    command.arg("--data").arg(data).args(args);
    let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn enroll_over_tls_keeps_the_authority_and_explains_a_certificate_it_does_not_accept() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let valid = Duration::from_secs(24 * 3600);
    let made = DevCertificate::make(&["localhost".into()], SystemTime::now(), valid).unwrap();
    for (name, text) in [
        ("ca.pem", &made.ca),
        ("server.pem", &made.certificate),
        ("server.key", &made.key),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let certificate =
        ServerCertificate::load(&dir.join("server.pem"), &dir.join("server.key")).unwrap();
    let (store, config) = (open_memory(), Config::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let invite = Token::generate(Role::Invite).unwrap();
    let new = NewToken {
        id: TokenId::generate(),
        hash: invite.hash(),
        role: Role::Invite,
        account_name: "ada".into(),
    };
    store.create_token(new, clock.now()).await.unwrap();
    let blobs = LocalBlobs::open(&dir.join("blobs"), config.blobs.local_limits()).unwrap();
    let stop = CancellationToken::new();
    let core = Core::new(store, Arc::new(blobs), clock, config, stop.clone()).with_tls(certificate);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { serve(core, listener).await.unwrap() });

    let data = dir.join("worker");
    let url = format!("https://localhost:{port}");
    let ca = dir.join("ca.pem");
    let enroll = ["enroll", "--name", "ada's", "--invite", invite.reveal()];
    let (code, text) = worker(&data, &[&enroll[..], &["--coordinator", &url]].concat()).await;
    assert_eq!(code, Some(EXIT_UNREACHABLE.into()), "{text}");
    assert!(
        text.contains("CN=localhost") && text.contains("clock says") && text.contains("--ca FILE"),
        "{text}"
    );
    let remote = ["--coordinator", "http://192.0.2.1:7070"];
    let (code, text) = worker(&data, &[&enroll[..], &remote].concat()).await;
    assert_eq!(code, Some(EXIT_USAGE.into()), "{text}");
    let with_ca = ["--coordinator", &url, "--ca", ca.to_str().unwrap()];
    let (code, text) = worker(&data, &[&enroll[..], &with_ca].concat()).await;
    assert_eq!(code, Some(EXIT_OK.into()), "{text}");
    assert!(!text.contains(invite.reveal()), "I11");
    let (code, text) = worker(&data, &["status"]).await;
    assert_eq!(code, Some(EXIT_OK.into()), "{text}");
    assert!(!text.contains("not accepted"), "{text}");

    // a second enrolment is refused, but scripts may ask for one wherever it changes nothing
    let again = [&enroll[..], &with_ca].concat();
    let (code, text) = worker(&data, &again).await;
    assert_eq!(code, Some(EXIT_IDENTITY.into()), "{text}");
    let (code, text) = worker(&data, &[&again[..], &["--if-needed"]].concat()).await;
    assert_eq!(code, Some(EXIT_OK.into()), "{text}");
    let elsewhere = ["--coordinator", "https://192.0.2.1:7070", "--if-needed"];
    let (code, text) = worker(&data, &[&enroll[..], &elsewhere].concat()).await;
    assert_eq!(code, Some(EXIT_IDENTITY.into()), "{text}");
    stop.cancel();
}
