//! A disk that is full.

use std::io::Write as _;

use cipherhop_proto::client::{Source, upload};
use cipherhop_proto::{Digest, Reason};

use crate::*;

const MIB: usize = 48;
const SIZE: u64 = (MIB as u64) << 20;

/// The coordinator on a disk of its own, in memory, that nobody else sees; `None` where this is not allowed.
fn on_small_disk(data: &Path, config: &Path) -> Option<Process> {
    std::fs::create_dir(data).unwrap();
    let script = "mount -t tmpfs -o size=96m tmpfs \"$1\" && exec \"$0\" serve --listen 127.0.0.1:0 \
                  --data \"$1\" --config \"$2\"";
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            script,
            env!("CARGO_BIN_EXE_cipherhop-coordinator"),
        ])
        .args([data, config])
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line.is_empty() {
        let _ = child.wait();
        return None;
    }
    let address = line.trim().rsplit('/').next().unwrap().to_owned();
    // Its own view of the file system.
    let seen = format!("/proc/{}/root{}", child.id(), data.display());
    Some(Process {
        child,
        data: seen.into(),
        address,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_gives_a_clear_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(
        &config,
        "[blobs]\nheadroom_bytes = 0\ncommit_every_bytes = 1048576\n",
    )
    .unwrap();
    let Some(server) = on_small_disk(&dir.path().join("data"), &config) else {
        eprintln!("not tested: mounting a small disk is not allowed here");
        return;
    };
    let token = server.owner_token().await;
    let bytes = content(MIB);
    let (digest, source) = (Digest::of(&bytes), dir.path().join("source"));
    std::fs::write(&source, &bytes).unwrap();
    let connection = owner(&server.url(), &token);
    let filler = server.data.join("filler");
    let policy = TransferPolicy {
        segment_bytes: 4 << 20,
        max_stalls: 0,
        ..policy()
    };
    // Somebody else fills the disk as soon as the first bytes are durable.
    let fill = |at: u64| {
        if at >= 8 << 20 && !filler.exists() {
            let mut file = std::fs::File::create(&filler).unwrap();
            let block = vec![1; 1 << 20];
            while file.write_all(&block).is_ok() {}
        }
    };
    let this = blob(digest, SIZE);
    let send = |progress| {
        upload(
            &connection,
            &this,
            Source::File(&source),
            None,
            &policy,
            progress,
        )
    };
    let error = send(&fill).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DiskFull), "{error}");
    assert!(error.advice().is_some());
    let text = error.to_string();
    assert!(text.contains("disk") || text.contains("room"), "{text}");
    // While it is full nothing new is begun, with the same words.
    let error = send(&|_| ()).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DiskFull), "{error}");

    std::fs::remove_file(&filler).unwrap();
    let begun = std::sync::atomic::AtomicU64::new(u64::MAX);
    let first = |at: u64| {
        begun.fetch_min(at, std::sync::atomic::Ordering::SeqCst);
    };
    send(&first).await.unwrap();
    assert!(
        begun.into_inner() >= 8 << 20,
        "acknowledged bytes were lost"
    );
    assert_eq!(
        Digest::of(&std::fs::read(server.place(&digest)).unwrap()),
        digest
    );
}
