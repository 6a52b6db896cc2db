//! TLS: certificates of our own, what a failed handshake says, and plaintext on loopback only.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::service::{Core, serve};
use cipherhop_coordinator::store::open_memory;
use cipherhop_coordinator::tls::{DevCertificate, ServerCertificate};
use cipherhop_proto::Retry;
use cipherhop_proto::client::{ClientError, ConnectOptions, Connection, TlsFailure, unary};
use cipherhop_proto::v1::HelloRequest;
use tokio_util::sync::CancellationToken;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cipherhop-coordinator");
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A coordinator in this process whose certificate is for `host`, valid from `from` for ten days; its port, and the
/// file of its authority.
async fn server(dir: &Path, host: &str, from: SystemTime) -> (u16, PathBuf) {
    let made = DevCertificate::make(&[host.into()], from, 10 * DAY).unwrap();
    let path = |name: &str| dir.join(name);
    std::fs::write(path("ca.pem"), made.ca).unwrap();
    std::fs::write(path("server.pem"), made.certificate).unwrap();
    std::fs::write(path("server.key"), made.key).unwrap();
    let certificate = ServerCertificate::load(&path("server.pem"), &path("server.key")).unwrap();
    let config = common::quick_config();
    let blobs = LocalBlobs::open(&path("blobs"), config.blobs.local_limits()).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let core = Core::new(
        open_memory(),
        Arc::new(blobs),
        clock,
        config,
        CancellationToken::new(),
    )
    .with_tls(certificate);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { serve(core, listener).await.unwrap() });
    (port, path("ca.pem"))
}

async fn hello(url: String, ca: Option<PathBuf>) -> Result<(), ClientError> {
    let connection = Connection::lazy(&ConnectOptions {
        url,
        token: None,
        ca,
        allow_plaintext: false,
    })?;
    let request = HelloRequest {
        protocol_min: 1,
        protocol_max: 1,
        ..Default::default()
    };
    unary(
        Duration::from_secs(10),
        connection.volunteer().hello(request),
    )
    .await
    .map(|_| ())
}

fn failure(answer: Result<(), ClientError>) -> TlsFailure {
    match answer {
        Err(ref error @ ClientError::Tls(ref failure)) => {
            assert_eq!(
                error.retry(),
                Retry::BackOff,
                "a worker finds back by itself"
            );
            *failure.clone()
        }
        other => panic!("no TLS failure: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_handshake_names_certificate_validity_and_clock_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let now = SystemTime::now();
    let (good, ca) = server(&folder("good"), "localhost", now - DAY).await;
    let at = |port: u16| format!("https://localhost:{port}");
    hello(at(good), Some(ca.clone())).await.unwrap();

    let unknown = failure(hello(at(good), None).await);
    assert!(unknown.problem.contains("issuer is not trusted"));
    assert!(unknown.advice.contains("--ca FILE"));
    assert!(unknown.issuer.contains("cipherhop development authority"));

    let (expired, ca) = server(&folder("expired"), "localhost", now - 40 * DAY).await;
    let told = failure(hello(at(expired), Some(ca)).await);
    assert!(told.problem.contains("expired"), "{told}");
    let text = told.to_string();
    for part in [
        "CN=localhost",
        "valid from",
        &told.not_after,
        "this machine's clock says",
        &told.clock,
        "renew",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_ne!(told.not_after, told.clock);
    assert!(told.clock.contains("20"), "a date: {}", told.clock);

    let (early, ca) = server(&folder("early"), "localhost", now + DAY).await;
    let told = failure(hello(at(early), Some(ca)).await);
    assert!(told.problem.contains("not valid yet") && told.advice.contains("clock"));

    let (other, ca) = server(&folder("other"), "hops.example.org", now - DAY).await;
    let told = failure(hello(at(other), Some(ca)).await);
    assert_eq!(told.names, ["hops.example.org"]);
    assert!(told.problem.contains("other names"), "{told}");

    // Another authority of the same name is not this one.
    let (first, _) = server(&folder("first"), "localhost", now - DAY).await;
    let (_, second_ca) = server(&folder("second"), "localhost", now - DAY).await;
    let told = failure(hello(at(first), Some(second_ca)).await);
    assert!(told.to_string().contains("--ca"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_scheme_and_useless_authorities_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let (port, ca) = server(dir.path(), "localhost", SystemTime::now() - DAY).await;
    let told = hello(format!("http://localhost:{port}"), None)
        .await
        .unwrap_err()
        .to_string();
    assert!(told.contains("https://"), "{told}");
    let plain = common::Server::start().await;
    let url = plain.url.replace("http://", "https://");
    let told = hello(url, Some(ca)).await.unwrap_err().to_string();
    assert!(told.contains("does not speak TLS"), "{told}");

    let junk = dir.path().join("junk.pem");
    std::fs::write(&junk, "hello").unwrap();
    for bad in [junk, dir.path().join("nothing.pem")] {
        let name = bad.file_name().unwrap().to_str().unwrap().to_owned();
        let told = hello(format!("https://localhost:{port}"), Some(bad))
            .await
            .unwrap_err();
        assert_eq!(told.retry(), Retry::AfterChange);
        assert!(told.to_string().contains(&name), "{told}");
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

/// A coordinator with the certificate in a folder, and its first line, which names its address.
fn serving(data: &Path, listen: &str, tls: &Path) -> (Process, String) {
    let mut child = Process(
        Command::new(PROGRAM)
            .args(["serve", "--listen", listen, "--data"])
            .arg(data)
            .arg("--tls-cert")
            .arg(tls.join("server.pem"))
            .arg("--tls-key")
            .arg(tls.join("server.key"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(child.0.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    (child, line)
}

#[test]
fn serve_with_a_certificate_of_dev_cert_and_admin_commands_with_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let (tls, data) = (dir.path().join("tls"), dir.path().join("data"));
    let (tls_dir, data_dir) = (tls.to_str().unwrap(), data.to_str().unwrap());
    let made = command(&["dev-cert", "--out", tls_dir]);
    assert!(made.status.success(), "{made:?}");
    let again = command(&["dev-cert", "--out", tls_dir]);
    assert_eq!(again.status.code(), Some(1), "nothing is overwritten");
    use std::os::unix::fs::PermissionsExt as _;
    let key = std::fs::metadata(tls.join("server.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);

    let file = |name: &str| tls.join(name).to_str().unwrap().to_owned();
    let (key, ca) = (file("server.key"), file("ca.pem"));
    // Every address of the machine: with a certificate that needs no leave.
    let (_child, line) = serving(data_dir.as_ref(), "0.0.0.0:0", &tls);
    let port = line.trim().rsplit(':').next().unwrap();
    assert!(line.contains("https://"), "{line}");
    let url = format!("https://127.0.0.1:{port}");
    let list = ["chain", "list", "--data", data_dir, "--coordinator", &url];
    let listed = command(&[&list[..], &["--ca", &ca]].concat());
    assert!(listed.status.success(), "{listed:?}");
    let refused = command(&list);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(4));
    assert!(
        told.contains("CN=localhost") && told.contains("--ca"),
        "{told}"
    );

    let mismatch = command(&[
        "serve",
        "--data",
        data_dir,
        "--tls-cert",
        &ca,
        "--tls-key",
        &key,
    ]);
    assert_eq!(mismatch.status.code(), Some(3), "{mismatch:?}");
    assert!(
        String::from_utf8(mismatch.stderr)
            .unwrap()
            .contains("made together")
    );
    let remote = command(&[
        "chain",
        "list",
        "--data",
        data_dir,
        "--coordinator",
        "http://192.0.2.1:7070",
    ]);
    assert_eq!(
        remote.status.code(),
        Some(2),
        "no plaintext to other machines"
    );
    assert!(
        String::from_utf8(remote.stderr)
            .unwrap()
            .contains("https://")
    );
}

/// The files are replaced and the process is told: new connections see the new certificate, nothing restarts.
#[test]
fn a_renewed_certificate_is_taken_up_at_sighup_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let out = dir.path().join(name);
        let made = command(&["dev-cert", "--out", out.to_str().unwrap()]);
        assert!(made.status.success(), "{made:?}");
        out
    };
    let (first, second, tls) = (made("first"), made("second"), dir.path().join("tls"));
    std::fs::create_dir(&tls).unwrap();
    let install = |from: &Path| {
        for name in ["server.pem", "server.key"] {
            std::fs::copy(from.join(name), tls.join(name)).unwrap();
        }
    };
    install(&first);
    let data = dir.path().join("data");
    let (mut child, line) = serving(&data, "127.0.0.1:0", &tls);
    let url = line.trim().rsplit(' ').next().unwrap();
    let trusts = |authority: &Path| {
        let ca = authority.join("ca.pem");
        let (data, ca) = (data.to_str().unwrap(), ca.to_str().unwrap());
        let list = [
            "chain",
            "list",
            "--data",
            data,
            "--coordinator",
            url,
            "--ca",
            ca,
        ];
        command(&list).status.success()
    };
    assert!(trusts(&first) && !trusts(&second));
    let process = nix::unistd::Pid::from_raw(child.0.id() as i32);
    let hang_up = || nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGHUP).unwrap();
    install(&second);
    assert!(trusts(&first), "not before it is told");
    hang_up();
    let begin = std::time::Instant::now();
    while !trusts(&second) {
        assert!(begin.elapsed() < Duration::from_secs(30), "never taken up");
    }
    assert!(!trusts(&first));
    std::fs::write(tls.join("server.pem"), "half a file").unwrap();
    hang_up();
    std::thread::sleep(Duration::from_millis(500));
    assert!(trusts(&second), "the one before it stays");
    assert!(child.0.try_wait().unwrap().is_none());
}
