//! Coordinators with their blobs in a bucket: over gRPC, as processes that are killed, several at once, backed up.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/s3.rs"]
mod s3;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cipherhop_coordinator::backup::{self, BackupError, Kept};
use cipherhop_coordinator::blobs::{BlobStore, S3Blobs, S3Settings, read_all};
use cipherhop_coordinator::doctor::{Finding, Grade, examine};
use cipherhop_coordinator::store::{open_postgres, open_sqlite};
use cipherhop_proto::client::{Backoff, Connection, Source, TransferPolicy, download, upload};
use cipherhop_proto::status::reason_of;
use cipherhop_proto::{Digest, Reason, v1};
use common::*;
use s3::{KEY_ID, S3, SECRET};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

async fn serve_on(s3: &S3, dir: TempDir) -> Server {
    let store = open_sqlite(&dir.path().join("coordinator.db"))
        .await
        .unwrap();
    Server::over(store, Arc::new(s3.open().await), quick_config(), dir).await
}

/// Content in which every MiB is another.
fn content(size: usize) -> Vec<u8> {
    (0..size as u32 / 4 + 1)
        .flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .take(size)
        .collect()
}

fn policy() -> TransferPolicy {
    TransferPolicy {
        segment_bytes: 4 << 20,
        max_stalls: 100,
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(200)),
        ..TransferPolicy::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_go_to_a_bucket_and_come_back_over_grpc() {
    let s3 = S3::start().await;
    let server = serve_on(&s3, tempfile::tempdir().unwrap()).await;
    let owner = server.owner().await;
    let place = tempfile::tempdir().unwrap();
    for size in [0, 1000, 5 * MIB, 21 * MIB + 13] {
        let bytes = content(size);
        let blob = blob_ref(&bytes, v1::BlobRole::EvaluationKey);
        let source = Source::Bytes(&bytes);
        upload(&owner, &blob, source, None, &policy(), &|_| ())
            .await
            .unwrap();
        let to = place.path().join(size.to_string());
        download(&owner, &blob, &to, None, &policy(), &|_| ())
            .await
            .unwrap();
        assert!(std::fs::read(to).unwrap() == bytes, "{size}");
    }
    let scrubbed = server
        .admin()
        .admin()
        .scrub(v1::ScrubRequest {})
        .await
        .unwrap();
    let last = last_report(scrubbed.into_inner()).await;
    assert_eq!((last.blobs, last.bytes), (4, (1000 + 26 * MIB + 13) as u64));
    // Nothing of it is on the coordinator's disk.
    assert!(!server.dir.path().join("blobs").exists());
    // Young bytes stay when the collector comes.
    let nothing = server
        .core
        .collect_orphans(Duration::ZERO, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!((nothing.blobs, nothing.uploads, nothing.strays), (0, 0, 0));
    assert_eq!(s3.files("data").len(), 4);
}

async fn last_report(mut reports: tonic::Streaming<v1::ScrubResponse>) -> v1::ScrubResponse {
    let mut last = None;
    while let Some(report) = reports.message().await.unwrap() {
        assert_eq!(report.problem, "");
        last = Some(report);
    }
    last.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_completes_and_damage_in_the_bucket_is_found() {
    let s3 = S3::start().await;
    let server = serve_on(&s3, tempfile::tempdir().unwrap()).await;
    let owner = server.owner().await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let chain = new_chain("demo", 2).create(&owner).await;
    complete(&ada, &bob, 2).await;
    let answer = status(&owner, &chain).await;
    assert_eq!(answer.chain.unwrap().state(), v1::ChainState::Completed);

    let data = server.dir.path();
    let config = write_config(data, &s3);
    let findings = examine(data, Some(&config), None).await;
    assert_eq!(grade(&findings, "bucket"), Grade::Good, "{findings:?}");
    assert_eq!(grade(&findings, "blobs"), Grade::Good, "{findings:?}");
    let victim = s3.files("data").pop().unwrap();
    let mut bytes = std::fs::read(&victim).unwrap();
    bytes.push(0);
    std::fs::write(&victim, bytes).unwrap();
    let findings = examine(data, Some(&config), None).await;
    assert_eq!(grade(&findings, "blobs"), Grade::Bad, "{findings:?}");
    std::fs::remove_file(&victim).unwrap();
    let mut reports = server
        .admin()
        .admin()
        .scrub(v1::ScrubRequest {})
        .await
        .unwrap()
        .into_inner();
    let mut problems = Vec::new();
    while let Some(report) = reports.message().await.unwrap() {
        problems.extend(Some(report.problem).filter(|p| !p.is_empty()));
    }
    assert_eq!(problems, ["its bytes are not there"]);
}

fn grade(findings: &[Finding], what: &str) -> Grade {
    let found = findings.iter().find(|f| f.what == what);
    found
        .unwrap_or_else(|| panic!("no {what} in {findings:?}"))
        .grade
}

fn write_config(folder: &Path, s3: &S3) -> PathBuf {
    let path = folder.join("config.toml");
    let settings = s3.settings();
    let text = format!(
        "[blobs]\nstore = \"s3\"\nheadroom_bytes = 0\n[blobs.s3]\nbucket = \"{}\"\nprefix = \"{}\"\nendpoint = \"{}\"\n\
         part_bytes = {}\ncredentials_file = \"{}\"\n",
        settings.bucket,
        settings.prefix,
        s3.endpoint(),
        settings.part_bytes,
        settings.credentials_file.unwrap().display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Blobs move from a folder into a bucket, and back, by backup and restore; the chain goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_holds_what_is_in_the_bucket_and_restores_into_a_folder_or_a_bucket() {
    let s3 = S3::start().await;
    let server = serve_on(&s3, tempfile::tempdir().unwrap()).await;
    let owner = server.owner().await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let chain = new_chain("demo", 2).create(&owner).await;
    let big = content(12 * MIB + 1);
    send(&owner, &big, v1::BlobRole::EvaluationKey, None).await;
    complete_from(&ada, &bob, 0, 1).await;

    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let kept = Kept::Bucket(Arc::new(s3.open().await));
    // Without the settings it is said what is missing.
    let error = backup::backup(server.dir.path(), None, &path("none"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("--config or --blobs"), "{error}");
    let made = backup::backup_of(server.dir.path(), None, &kept, &path("full"))
        .await
        .unwrap();
    let check = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "manifest.sha256"])
        .current_dir(path("full"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");

    // Into another bucket.
    let other = S3::start().await;
    let into = Kept::Bucket(Arc::new(other.open().await));
    let data = tempfile::tempdir().unwrap();
    assert_eq!(
        backup::restore_to(&path("full"), None, &into, data.path())
            .await
            .unwrap(),
        made
    );
    assert_eq!(other.files("sha256").len() as u64, made.blobs);
    assert_eq!(other.files("uploads"), [] as [PathBuf; 0]);
    let server = serve_on(&other, data).await;
    let (ada, bob) = (moved(&ada, &server), moved(&bob, &server));
    complete_from(&ada, &bob, 1, 2).await;
    assert_eq!(status(&server.admin(), &chain).await.chain.unwrap().head, 2);
    // Into a folder.
    let data = tempfile::tempdir().unwrap();
    assert_eq!(
        backup::restore(&path("full"), None, data.path())
            .await
            .unwrap(),
        made
    );
    let name = Digest::of(&big).to_string();
    let file = data
        .path()
        .join("blobs/sha256")
        .join(&name[..2])
        .join(&name[2..]);
    assert!(std::fs::read(file).unwrap() == big);

    // The database alone, for a bucket that is copied otherwise: refused where the bucket lacks something.
    let apart = Kept::Apart(Some(Arc::new(other.open().await)));
    let bare = backup::backup_of(server.dir.path(), None, &apart, &path("bare"))
        .await
        .unwrap();
    assert_eq!(bare.blobs, 0);
    let bucket = other.open().await;
    assert!(
        bucket
            .remove(Digest::of(&big), Duration::ZERO)
            .await
            .unwrap()
    );
    for kept in [&apart, &into] {
        let to = tempfile::tempdir().unwrap();
        let error = backup::backup_of(server.dir.path(), None, kept, to.path())
            .await
            .unwrap_err();
        assert!(matches!(error, BackupError::Missing(_)), "{error}");
        assert!(!to.path().join("manifest.sha256").exists());
    }
}

fn moved(volunteer: &Volunteer, server: &Server) -> Volunteer {
    Volunteer {
        connection: connect(&server.url, Some(&volunteer.token)),
        ..volunteer.clone()
    }
}

/// One stream of 1 MiB frames; the committed bytes.
async fn append(connection: &Connection, upload_id: &[u8], at: usize, bytes: &[u8]) -> u64 {
    let mut frames: Vec<v1::AppendRequest> = bytes
        .chunks(MIB)
        .map(|data| v1::AppendRequest {
            data: data.to_vec(),
            ..Default::default()
        })
        .collect();
    frames[0].upload_id = upload_id.to_vec();
    frames[0].offset = at as u64;
    let mut blobs = connection.blob();
    let answer = blobs.append(futures::stream::iter(frames)).await;
    answer.unwrap().into_inner().committed
}

/// What the client then does by itself: it finds nothing to mend and sends the whole again.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_other_bytes_is_refused_and_starts_anew() {
    let s3 = S3::start().await;
    let server = serve_on(&s3, tempfile::tempdir().unwrap()).await;
    let owner = server.owner().await;
    let bytes = content(6 * MIB + 1);
    let mut damaged = bytes.clone();
    damaged[3 * MIB] ^= 1;
    let blob = blob_ref(&bytes, v1::BlobRole::EvaluationKey);
    let open = v1::OpenUploadRequest {
        blob: Some(blob.clone()),
        ..Default::default()
    };
    let opened = owner.blob().open_upload(open.clone()).await.unwrap();
    let upload_id = opened.into_inner().upload_id;
    append(&owner, &upload_id, 0, &damaged).await;
    let finish = v1::FinishRequest {
        upload_id: upload_id.clone(),
    };
    let refused = reason(owner.blob().finish(finish).await);
    assert_eq!(refused, Reason::BlobDigestMismatch);
    let chunks = v1::ListChunksRequest {
        upload_id,
        ..Default::default()
    };
    let refused = owner.blob().list_chunks(chunks).await.err().unwrap();
    assert_eq!(reason_of(&refused), Some(Reason::UploadNotFound));
    assert_eq!((s3.objects(), s3.loose_parts()), (vec![], 0));
    let again = owner.blob().open_upload(open).await.unwrap().into_inner();
    assert_eq!((again.complete, again.committed), (false, 0));
    let source = Source::Bytes(&bytes);
    upload(&owner, &blob, source, None, &policy(), &|_| ())
        .await
        .unwrap();
    assert!(
        read_all(&s3.open().await, Digest::of(&bytes), u64::MAX)
            .await
            .unwrap()
            == bytes
    );
}

/// Two coordinators on one PostgreSQL database and one bucket: each does with the other's uploads what it would do with
/// its own.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_at_another_coordinator() {
    let Some(database) = cluster::database().await else {
        return;
    };
    let s3 = S3::start().await;
    let mut servers = Vec::new();
    for _ in 0..2 {
        let store = open_postgres(&database.url, 8).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let blobs = Arc::new(s3.open().await);
        servers.push(Server::over(store, blobs, quick_config(), dir).await);
    }
    let token = servers[0].token(v1::TokenRole::Owner, "key holder").await;
    let bytes = content(13 * MIB + 3);
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&bytes, v1::BlobRole::Weights)),
        ..Default::default()
    };
    let mut at = 0;
    for (server, end) in [(0, 6 * MIB + 1), (1, 11 * MIB), (0, bytes.len())] {
        let connection = servers[server].connect(&token);
        let opened = connection
            .blob()
            .open_upload(open.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(opened.committed, at as u64);
        let upload_id = &opened.upload_id;
        let committed = append(&connection, upload_id, at, &bytes[at..end]).await;
        assert_eq!(committed, end as u64);
        at = end;
        if at == bytes.len() {
            let there = servers[1].connect(&token);
            let upload_id = opened.upload_id;
            there
                .blob()
                .finish(v1::FinishRequest { upload_id })
                .await
                .unwrap();
        }
    }
    assert!(
        read_all(&s3.open().await, Digest::of(&bytes), u64::MAX)
            .await
            .unwrap()
            == bytes
    );
    for server in servers {
        server.store.close().await;
    }
}

/// The program, with its credentials in the environment.
struct Process {
    child: Child,
    data: PathBuf,
    url: String,
}

fn program(s3: &S3, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"));
    command.args(args).env_remove("CIPHERHOP_DATABASE_URL");
    command.env("AWS_ACCESS_KEY_ID", KEY_ID);
    command.env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.current_dir(s3.dir.path());
    command
}

impl Process {
    fn start(s3: &S3, data: &Path, config: &Path) -> Process {
        Process::at(s3, data, config, "127.0.0.1:0")
    }

    fn at(s3: &S3, data: &Path, config: &Path, listen: &str) -> Process {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(data.with_extension("log"))
            .unwrap();
        let mut child = program(
            s3,
            &["serve", "--listen", listen, "--blobs", "s3://hops/process"],
        )
        .arg("--data")
        .arg(data)
        .arg("--config")
        .arg(config)
        .env("RUST_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(url.starts_with("http"), "{line:?}");
        Process {
            child,
            data: data.to_owned(),
            url,
        }
    }

    /// SIGKILL, and up again at the same place.
    fn restart(self, s3: &S3, config: &Path) -> Process {
        let (data, url) = (self.data.clone(), self.url.clone());
        drop(self);
        Process::at(s3, &data, config, url.rsplit('/').next().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i5_i11_an_upload_goes_on_after_kill_9_and_no_log_holds_the_secret() {
    let s3 = S3::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (data, config) = (dir.path().join("data"), dir.path().join("config.toml"));
    let text = format!(
        "[blobs]\nstore = \"s3\"\n[blobs.s3]\nbucket = \"other\"\nendpoint = \"{}\"\n",
        s3.endpoint()
    );
    std::fs::write(&config, text).unwrap();
    let mut server = Process::start(&s3, &data, &config);
    let admin = std::fs::read_to_string(data.join("admin.token")).unwrap();
    let token = new_token(
        &server.url,
        admin.trim(),
        v1::TokenRole::Owner,
        "key holder",
    )
    .await;
    let bytes = Arc::new(content(48 * MIB + 5));
    let blob = blob_ref(&bytes, v1::BlobRole::EvaluationKey);
    let sender = {
        let (url, token, bytes, blob) = (
            server.url.clone(),
            token.clone(),
            bytes.clone(),
            blob.clone(),
        );
        tokio::spawn(async move {
            let connection = connect(&url, Some(&token));
            let source = Source::Bytes(&bytes);
            upload(&connection, &blob, source, None, &policy(), &|_| ()).await
        })
    };
    let root = s3.dir.path().join("hops/process");
    for kills in 1..=2 {
        // The record of the upload tells how far it is.
        let parts = move |root: &Path| {
            let uploads = std::fs::read_dir(root.join("uploads")).ok()?;
            let record = std::fs::read(uploads.flatten().next()?.path()).ok()?;
            let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
            Some(record["parts"].as_array()?.len())
        };
        for _ in 0..3000 {
            if parts(&root).is_some_and(|parts| parts >= 2 * kills) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!sender.is_finished(), "too late to break it off");
        server = server.restart(&s3, &config);
    }
    sender.await.unwrap().unwrap();
    let to = dir.path().join("copy");
    let connection = connect(&server.url, Some(&token));
    download(&connection, &blob, &to, None, &policy(), &|_| ())
        .await
        .unwrap();
    assert!(std::fs::read(&to).unwrap() == **bytes);
    assert!(!data.join("blobs").exists());
    drop(server);
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(log.contains("blobs are in a bucket") && !log.contains(SECRET));
}

/// TLS in front of the storage, with a certificate of an authority that nobody knows; its address.
async fn behind_tls(s3: &S3, tls: &Path) -> String {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let made = program(s3, &["dev-cert", "--out"])
        .arg(tls)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let chain = CertificateDer::pem_file_iter(tls.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = s3.endpoint().trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            tokio::spawn(async move {
                let mut there = tokio::net::TcpStream::connect(plain).await?;
                let mut here = acceptor.accept(socket).await?;
                tokio::io::copy_bidirectional(&mut here, &mut there).await
            });
        }
    });
    format!("https://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_behind_tls_is_trusted_by_its_authority_only() {
    let s3 = S3::start().await;
    let dir = tempfile::tempdir().unwrap();
    let tls = dir.path().join("tls");
    let settings = S3Settings {
        endpoint: Some(behind_tls(&s3, &tls).await),
        ..s3.settings()
    };
    let error = S3Blobs::open(settings.clone(), 1 << 30)
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("blobs.s3.ca_file"), "{error}");
    let trusting = S3Settings {
        ca_file: Some(tls.join("ca.pem")),
        ..settings
    };
    S3Blobs::open(trusting.clone(), 1 << 30).await.unwrap();
    for wrong in ["server.key", "nothing.pem"] {
        let ca_file = Some(tls.join(wrong));
        let settings = S3Settings {
            ca_file,
            ..trusting.clone()
        };
        let error = S3Blobs::open(settings, 1 << 30).await.err().unwrap();
        assert!(error.to_string().starts_with("blobs.s3.ca_file"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_what_to_do_about_a_bucket_it_cannot_use() {
    let s3 = S3::start().await;
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(
        &config,
        format!(
            "[blobs]\nstore = \"s3\"\n[blobs.s3]\nbucket = \"hops\"\nendpoint = \"{}\"\n",
            s3.endpoint()
        ),
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let told = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let serve = [
        "serve",
        "--data",
        data,
        "--config",
        config,
        "--listen",
        "127.0.0.1:0",
    ];
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = told(&output);
        assert!(!text.contains(SECRET), "{text}");
        (output.status.code(), text)
    };
    let (code, text) = run(program(&s3, &serve).args(["--blobs", "s3://nowhere"]));
    assert!(
        code == Some(1) && text.contains("no bucket \"nowhere\""),
        "{text}"
    );
    let (code, text) = run(program(&s3, &serve).env_remove("AWS_ACCESS_KEY_ID"));
    assert!(code == Some(3) && text.contains("set both"), "{text}");
    let (code, text) = run(program(&s3, &serve).env("AWS_SECRET_ACCESS_KEY", "guessed"));
    assert!(
        code == Some(1) && text.contains("does not accept the credentials"),
        "{text}"
    );
    let (code, text) = run(program(&s3, &serve).args(["--blobs", "hops"]));
    assert!(code == Some(3) && text.contains("s3://BUCKET"), "{text}");
    // `config check` shows the bucket and nothing secret; `doctor` has tried it.
    let (code, text) = {
        let output = program(&s3, &["config", "check", "--config", config])
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    assert!(
        code == Some(0) && text.contains("bucket = \"hops\"") && !text.contains(SECRET),
        "{text}"
    );
    let output = program(&s3, &["doctor", "--data", data, "--config", config])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("knows conditional writes"), "{text}");
}
