//! How fast one blob goes up and down between two processes over loopback, and what memory both need.
//!
//! `cargo run --release -p cipherhop-coordinator --example blob_stream -- --mib 1024 [--folder DIR] [--sparse]`
//!
//! Starts the coordinator's program (built beside this one) in a folder of its own. Upload: from a file to the moment
//! the coordinator has published the blob, every commit and the publication with fsync. Download: from there to a
//! durable file whose digest was checked. Prints one JSON object; rates are in 10^6 bytes per second.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use cipherhop_proto::client::{
    BearerToken, ConnectOptions, Connection, Source, TransferPolicy, download, upload,
};
use cipherhop_proto::{Hasher, v1};
use clap::Parser;
use serde_json::json;

#[derive(Parser)]
struct Args {
    /// Size of the blob, MiB.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Where all files go; on a real disk the fsyncs count.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The source is a file without content: needs no disk for itself.
    #[arg(long)]
    sparse: bool,
    /// Tries; the best of each direction is reported.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(data: &Path) -> Server {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().join("../cipherhop-coordinator");
    let mut child = Command::new(&program)
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}; build the coordinator first", program.display()));
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let url = line.trim().rsplit(' ').next().unwrap().to_owned();
    Server { child, url }
}

fn connect(url: &str, token: &str) -> Connection {
    Connection::lazy(&ConnectOptions {
        url: url.to_owned(),
        token: Some(BearerToken::new(token)),
        ca: None,
        allow_plaintext: false,
    })
    .unwrap()
}

/// A field of /proc/PID/status, KiB.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Processor seconds of a process so far.
fn processor(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|t| t.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

/// Content that no layer can shorten, other in every round.
fn source(path: &Path, bytes: u64, sparse: bool, round: u64) -> v1::BlobRef {
    let mut file = std::fs::File::create(path).unwrap();
    if sparse {
        file.set_len(bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &round.to_le_bytes(), 0).unwrap();
    } else {
        let mut state = round + 1;
        let mut frame = vec![0u8; 1 << 20];
        for _ in 0..bytes >> 20 {
            for word in frame.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            file.write_all(&frame).unwrap();
        }
    }
    file.sync_all().unwrap();
    let mut hash = Hasher::new();
    let mut file = std::fs::File::open(path).unwrap();
    let mut frame = vec![0; 1 << 20];
    loop {
        match file.read(&mut frame).unwrap() {
            0 => break,
            n => hash.update(&frame[..n]),
        }
    }
    v1::BlobRef {
        digest: hash.finish().to_vec(),
        size: bytes,
        role: v1::BlobRole::EvaluationKey.into(),
        name: String::new(),
    }
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let folder = match &args.folder {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let data = folder.path().join("data");
    let server = serve(&data);
    let admin = std::fs::read_to_string(data.join("admin.token")).unwrap();
    let request = v1::CreateTokenRequest {
        role: v1::TokenRole::Owner.into(),
        account: "key holder".into(),
        ..Default::default()
    };
    let created = connect(&server.url, admin.trim())
        .admin()
        .create_token(request)
        .await;
    let owner = connect(&server.url, &created.unwrap().into_inner().token);
    let (here, there) = (std::process::id(), server.child.id());
    let bytes = args.mib << 20;
    let (from, to) = (folder.path().join("source"), folder.path().join("copy"));
    let policy = TransferPolicy::default();
    let idle = (memory(here, "VmRSS"), memory(there, "VmRSS"));
    let (mut up, mut down) = (f64::MAX, f64::MAX);
    let (mut up_cpu, mut down_cpu) = ([0.0; 2], [0.0; 2]);
    let cpu = || [processor(here), processor(there)];
    for round in 0..args.rounds {
        let blob = source(&from, bytes, args.sparse, round as u64);
        let (start, before) = (Instant::now(), cpu());
        upload(&owner, &blob, Source::File(&from), None, &policy, &|_| ())
            .await
            .unwrap();
        let seconds = start.elapsed().as_secs_f64();
        if seconds < up {
            (up, up_cpu) = (seconds, [cpu()[0] - before[0], cpu()[1] - before[1]]);
        }
        std::fs::remove_file(&from).unwrap();
        let (start, before) = (Instant::now(), cpu());
        download(&owner, &blob, &to, None, &policy, &|_| ())
            .await
            .unwrap();
        let seconds = start.elapsed().as_secs_f64();
        if seconds < down {
            (down, down_cpu) = (seconds, [cpu()[0] - before[0], cpu()[1] - before[1]]);
        }
        std::fs::remove_file(&to).unwrap();
        let digest = v1::BlobRef { ..blob }.digest;
        let name: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        std::fs::remove_file(data.join("blobs/sha256").join(&name[..2]).join(&name[2..])).unwrap();
    }
    let rate = |seconds: f64| (bytes as f64 / 1e6 / seconds).round();
    let above = |pid, idle| memory(pid, "VmHWM").saturating_sub(idle) >> 10;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let report = json!({
        "bytes": bytes,
        "up_mb_per_second": rate(up),
        "down_mb_per_second": rate(down),
        "up_cpu_seconds_client_server": up_cpu,
        "down_cpu_seconds_client_server": down_cpu,
        "client_mib_above_idle": above(here, idle.0),
        "server_mib_above_idle": above(there, idle.1),
        "load": load.split_whitespace().next().unwrap_or_default(),
    });
    println!("{report}");
}
