//! Gigabytes: offsets past 4 GiB and memory that does not grow with the blob. Sparse sources; what arrives takes as
//! much disk as the blob.

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use cipherhop_proto::client::{Source, TransferPolicy, download, upload};
use cipherhop_proto::{Digest, Hasher};

use crate::*;

/// 8 GiB, or what CIPHERHOP_BIG_GIB says.
fn size() -> u64 {
    let gib = std::env::var("CIPHERHOP_BIG_GIB")
        .ok()
        .and_then(|text| text.parse().ok());
    gib.unwrap_or(8) << 30
}

/// A file without content but for a few bytes at its end and past 4 GiB.
fn sparse(path: &Path, size: u64) -> Digest {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"behind 4 GiB", (4 << 30) + 5).unwrap();
    file.write_all_at(b"end", size - 3).unwrap();
    hash(path)
}

fn hash(path: &Path) -> Digest {
    let mut file = std::fs::File::open(path).unwrap();
    let (mut hash, mut buffer) = (Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return hash.finish(),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Resident memory that is no file: the kernel takes pages of files back when it likes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.split_whitespace()
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// The most above idle, of the coordinator and of this process.
struct Watch {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<[u64; 2]>,
}

impl Watch {
    fn start(server: u32) -> Watch {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = stop.clone();
        let thread = std::thread::spawn(move || {
            let pids = [server, std::process::id()];
            let idle = pids.map(resident);
            let mut most = [0; 2];
            while !flag.load(std::sync::atomic::Ordering::SeqCst) {
                for (i, pid) in pids.into_iter().enumerate() {
                    most[i] = resident(pid).saturating_sub(idle[i]).max(most[i]);
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            most
        });
        Watch { stop, thread }
    }

    fn end(self, what: &str) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        let [server, client] = self.thread.join().unwrap().map(|bytes| bytes >> 20);
        println!("{what}: coordinator {server} MiB, client {client} MiB above idle");
        assert!(
            server <= 64 && client <= 64,
            "{what}: {server} and {client} MiB above idle"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes 8 GiB; minutes"]
async fn an_upload_of_8_gib_resumes_past_4_gib_and_takes_64_mib_of_memory_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let (source, size) = (dir.path().join("source"), size());
    let digest = sparse(&source, size);
    let policy = TransferPolicy {
        segment_bytes: 32 << 20,
        ..policy()
    };
    let send = |url: String| {
        let (token, source, policy) = (token.clone(), source.clone(), policy.clone());
        tokio::spawn(async move {
            let connection = owner(&url, &token);
            let source = Source::File(&source);
            upload(
                &connection,
                &blob(digest, size),
                source,
                None,
                &policy,
                &|_| (),
            )
            .await
        })
    };
    let watch = Watch::start(server.id());
    let sender = send(server.url());
    while server.arrived() < (4 << 30) + (100 << 20) {
        assert!(!sender.is_finished(), "{:?}", sender.await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watch.end("first 4 GiB up");
    server = server.restart();
    let watch = Watch::start(server.id());
    sender.abort();
    let had = server.arrived();
    assert!(had > 4 << 30);
    send(server.url()).await.unwrap().unwrap();
    watch.end("the rest up");
    assert_eq!(
        std::fs::metadata(server.place(&digest)).unwrap().len(),
        size
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes 8 GiB; minutes"]
async fn a_download_of_8_gib_resumes_past_4_gib_and_takes_64_mib_of_memory_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let size = size();
    // The source goes where the coordinator keeps it; opening its upload finds it there.
    let source = dir.path().join("source");
    let digest = sparse(&source, size);
    let place = server.place(&digest);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::rename(&source, &place).unwrap();
    let request = v1::OpenUploadRequest {
        blob: Some(blob(digest, size)),
        ..Default::default()
    };
    let opened = owner(&server.url(), &token)
        .blob()
        .open_upload(request)
        .await
        .unwrap();
    assert!(opened.into_inner().complete);
    let (to, part) = (dir.path().join("copy"), dir.path().join("copy.part"));
    let fetch = |url: String| {
        let (token, to) = (token.clone(), to.clone());
        tokio::spawn(async move {
            let connection = owner(&url, &token);
            download(
                &connection,
                &blob(digest, size),
                &to,
                None,
                &policy(),
                &|_| (),
            )
            .await
        })
    };
    let watch = Watch::start(server.id());
    let reader = fetch(server.url());
    while std::fs::metadata(&part).map_or(0, |meta| meta.len()) < (4 << 30) + (100 << 20) {
        assert!(!reader.is_finished(), "{:?}", reader.await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watch.end("first 4 GiB down");
    server = server.restart();
    reader.abort();
    let watch = Watch::start(server.id());
    fetch(server.url()).await.unwrap().unwrap();
    watch.end("the rest down");
    assert_eq!(hash(&to), digest);
}
