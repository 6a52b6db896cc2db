//! A byte that changes on the way, on the disk of the reader, or on that of the coordinator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cipherhop_proto::client::{Source, download, upload};
use cipherhop_proto::{CHUNK_BYTES, Digest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::*;

const MIB: usize = 24;
const SIZE: u64 = (MIB as u64) << 20;
/// Stands many times in a row in the content, so that some of them are not cut by frames.
const MARK: [u8; 16] = *b"a mark to damage";
const MARKS: usize = 64;
const MARKED_AT: usize = 10 << 20;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Up,
    Down,
}

/// A proxy that shows every piece to `see` before it goes on.
pub async fn proxy(to: String, see: impl Fn(Way, &mut [u8]) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&to).await else {
                continue;
            };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            for (way, mut from, mut to) in [
                (Way::Up, from_client, to_server),
                (Way::Down, from_server, to_client),
            ] {
                let see = see.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 17];
                    while let Ok(n @ 1..) = from.read(&mut buffer).await {
                        tokio::task::block_in_place(|| see(way, &mut buffer[..n]));
                        if to.write_all(&buffer[..n]).await.is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown().await;
                });
            }
        }
    });
    url
}

fn marked() -> Vec<u8> {
    let mut bytes = content(MIB);
    for at in 0..MARKS {
        bytes[MARKED_AT + 16 * at..][..16].copy_from_slice(&MARK);
    }
    bytes
}

/// Damages one byte of the first mark that goes that way, once. Counts the bytes that go that way.
async fn damaging(to: String, damaged_way: Way) -> (String, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let left = Arc::new(AtomicU64::new(1));
    let counter = count.clone();
    let url = proxy(to, move |way, bytes| {
        if way != damaged_way {
            return;
        }
        counter.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        if left.load(Ordering::SeqCst) > 0
            && let Some(at) = bytes.windows(16).position(|window| window == MARK)
        {
            bytes[at + 3] ^= 1;
            left.store(0, Ordering::SeqCst);
        }
    })
    .await;
    (url, count)
}

/// What one chunk takes beside the blob: itself, digests, frames.
fn at_most() -> u64 {
    SIZE + CHUNK_BYTES + (1 << 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_damaged_on_its_way_up_is_found_and_only_it_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let bytes = marked();
    let (digest, source) = (Digest::of(&bytes), dir.path().join("source"));
    std::fs::write(&source, &bytes).unwrap();
    let (url, count) = damaging(server.address.clone(), Way::Up).await;
    let connection = owner(&url, &token);
    upload(
        &connection,
        &blob(digest, SIZE),
        Source::File(&source),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(
        Digest::of(&std::fs::read(server.place(&digest)).unwrap()),
        digest
    );
    let sent = count.load(Ordering::SeqCst);
    assert!(sent > SIZE + CHUNK_BYTES, "nothing was damaged: {sent}");
    assert!(sent < at_most(), "{sent} bytes for {SIZE}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_damaged_on_its_way_down_is_found_and_only_it_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let bytes = marked();
    let (digest, source) = (Digest::of(&bytes), dir.path().join("source"));
    std::fs::write(&source, &bytes).unwrap();
    let direct = owner(&server.url(), &token);
    upload(
        &direct,
        &blob(digest, SIZE),
        Source::File(&source),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    let (url, count) = damaging(server.address.clone(), Way::Down).await;
    let (connection, to) = (owner(&url, &token), dir.path().join("copy"));
    download(
        &connection,
        &blob(digest, SIZE),
        &to,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(Digest::of(&std::fs::read(&to).unwrap()), digest);
    let fetched = count.load(Ordering::SeqCst);
    assert!(
        fetched > SIZE + CHUNK_BYTES,
        "nothing was damaged: {fetched}"
    );
    assert!(fetched < at_most(), "{fetched} bytes for {SIZE}");

    // The same for a part that lies here from an earlier run and has a wrong byte.
    let half = SIZE / 2;
    let mut wrong = bytes[..half as usize].to_vec();
    wrong[7] ^= 1;
    std::fs::remove_file(&to).unwrap();
    std::fs::write(dir.path().join("copy.part"), &wrong).unwrap();
    let before = count.load(Ordering::SeqCst);
    download(
        &connection,
        &blob(digest, SIZE),
        &to,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(Digest::of(&std::fs::read(&to).unwrap()), digest);
    let fetched = count.load(Ordering::SeqCst) - before;
    assert!(
        fetched < half + CHUNK_BYTES + (1 << 20),
        "{fetched} bytes for {half}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_damaged_on_the_coordinators_disk_never_gets_its_name_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let bytes = marked();
    let (digest, source) = (Digest::of(&bytes), dir.path().join("source"));
    std::fs::write(&source, &bytes).unwrap();
    let direct = owner(&server.url(), &token);
    upload(
        &direct,
        &blob(digest, SIZE),
        Source::File(&source),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    let mut wrong = bytes.clone();
    wrong[MARKED_AT] ^= 1;
    std::fs::write(server.place(&digest), &wrong).unwrap();
    let to = dir.path().join("copy");
    let error = download(&direct, &blob(digest, SIZE), &to, None, &policy(), &|_| ()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains(&digest.to_string()), "{error}");
    assert!(!to.exists() && !dir.path().join("copy.part").exists());
}
