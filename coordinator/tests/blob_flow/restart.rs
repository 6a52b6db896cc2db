//! Either side goes away in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cipherhop_proto::Digest;
use cipherhop_proto::client::{Source, download, upload};

use crate::*;

const MIB: usize = 64;
const SIZE: u64 = (MIB as u64) << 20;

/// A proxy that lets bytes through at a pace, so that there is a middle to break off in. Counts them.
async fn slow(to: String) -> (String, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let url = damage::proxy(to, {
        let count = count.clone();
        move |_, bytes: &mut [u8]| {
            count.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_micros(bytes.len() as u64 / 100));
        }
    })
    .await;
    (url, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn i5_an_upload_goes_on_after_kill_9_of_the_coordinator_and_after_a_restart_of_the_sender() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let bytes = content(MIB);
    let (digest, source) = (Digest::of(&bytes), dir.path().join("source"));
    std::fs::write(&source, &bytes).unwrap();
    let (url, count) = slow(server.address.clone()).await;

    // The coordinator dies while the sender lives on.
    let send = |url: String| {
        let (token, source) = (token.clone(), source.clone());
        tokio::spawn(async move {
            let connection = owner(&url, &token);
            let source = Source::File(&source);
            upload(
                &connection,
                &blob(digest, SIZE),
                source,
                None,
                &policy(),
                &|_| (),
            )
            .await
        })
    };
    let sender = send(url.clone());
    until("a quarter arrived", || server.arrived() > SIZE / 4).await;
    server = server.restart();
    until("half arrived", || server.arrived() > SIZE / 2).await;
    // Now the sender dies; another one takes over.
    sender.abort();
    assert!(sender.await.unwrap_err().is_cancelled());
    let had = server.arrived();
    assert!(had < SIZE, "broken off too late");
    let before = count.load(Ordering::SeqCst);
    send(url).await.unwrap().unwrap();
    let sent = count.load(Ordering::SeqCst) - before;
    // What the last, unacknowledged segment had brought may go again.
    assert!(
        sent < SIZE - had + (8 << 20),
        "{sent} bytes for {}",
        SIZE - had
    );
    // Everything once, and after each break at most one segment and what was under way again.
    let all = count.load(Ordering::SeqCst);
    assert!(all < SIZE + (32 << 20), "{all} bytes for {SIZE}");
    assert_eq!(
        Digest::of(&std::fs::read(server.place(&digest)).unwrap()),
        digest
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_after_kill_9_of_the_coordinator_and_after_a_restart_of_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Process::start(&dir.path().join("data"));
    let token = server.owner_token().await;
    let bytes = content(MIB);
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
    let (url, count) = slow(server.address.clone()).await;
    let to = dir.path().join("copy");
    let part = dir.path().join("copy.part");
    let length = || std::fs::metadata(&part).map_or(0, |meta| meta.len());
    let fetch = || {
        let (url, token, to) = (url.clone(), token.clone(), to.clone());
        tokio::spawn(async move {
            let connection = owner(&url, &token);
            download(
                &connection,
                &blob(digest, SIZE),
                &to,
                None,
                &policy(),
                &|_| (),
            )
            .await
        })
    };
    let reader = fetch();
    until("a quarter is here", || length() > SIZE / 4).await;
    server = server.restart();
    until("half is here", || length() > SIZE / 2).await;
    reader.abort();
    assert!(reader.await.unwrap_err().is_cancelled());
    let had = length();
    assert!(had < SIZE, "broken off too late");
    let before = count.load(Ordering::SeqCst);
    fetch().await.unwrap().unwrap();
    let fetched = count.load(Ordering::SeqCst) - before;
    assert!(
        fetched < SIZE - had + (20 << 20),
        "{fetched} bytes for {}",
        SIZE - had
    );
    assert_eq!(Digest::of(&std::fs::read(&to).unwrap()), digest);
    drop(server);
}
