//! A download that is broken off goes on where it stopped: what is on disk is not sent again.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cipherhop_proto::client::{
    BearerToken, ConnectOptions, Connection, Source, TransferPolicy, download, upload,
};
use cipherhop_proto::{Digest, v1};
use common::{Coordinator, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const SIZE: usize = 24 << 20;

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

/// Forwards connections, counts the bytes that come back and lets them through slowly.
async fn counting_proxy(to: String) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&to).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 17];
                while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
                    counter.fetch_add(n as u64, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    if to_client.write_all(&buffer[..n]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_broken_off_in_the_middle_fetches_only_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let token = coordinator.token(v1::TokenRole::Owner, "key holder").await;
    let bytes: Vec<u8> = (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let digest = Digest::of(&bytes);
    let blob = v1::BlobRef {
        digest: digest.to_vec(),
        size: SIZE as u64,
        role: v1::BlobRole::EvaluationKey.into(),
        name: String::new(),
    };
    let policy = TransferPolicy::default();
    let owner = coordinator.connect(Some(&token));
    upload(&owner, &blob, Source::Bytes(&bytes), None, &policy, &|_| ())
        .await
        .unwrap();

    let address = coordinator.url().trim_start_matches("http://").to_owned();
    let (url, count) = counting_proxy(address).await;
    let connect = || {
        Connection::lazy(&ConnectOptions {
            url: url.clone(),
            token: Some(BearerToken::new(&token)),
            ca: None,
            allow_plaintext: false,
        })
        .unwrap()
    };
    let dest = dir.path().join("key");
    let part = dir.path().join("key.part");
    let length = || std::fs::metadata(&part).map_or(0, |m| m.len());

    let (connection, to, wanted) = (connect(), dest.clone(), blob.clone());
    let first = tokio::spawn(async move {
        let policy = TransferPolicy::default();
        download(&connection, &wanted, &to, None, &policy, &|_| ()).await
    });
    until("half of it is here", async || length() > SIZE as u64 / 2).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let had = length();
    assert!(had < SIZE as u64, "broken off too late");
    let before = count.load(Ordering::SeqCst);
    assert!(!dest.exists());

    let begun_at = AtomicU64::new(u64::MAX);
    let progress = |at: u64| {
        begun_at.fetch_min(at, Ordering::SeqCst);
    };
    download(&connect(), &blob, &dest, None, &policy, &progress)
        .await
        .unwrap();
    assert_eq!(Digest::of(&std::fs::read(&dest).unwrap()), digest);
    assert!(begun_at.load(Ordering::SeqCst) >= had);
    let fetched = count.load(Ordering::SeqCst) - before;
    // Frames and headers, and what of the first stream was under way.
    let rest = SIZE as u64 - had;
    assert!(fetched < rest + (4 << 20), "{fetched} bytes for {rest}");
    assert!(!part.exists());

    // A part with a wrong byte is thrown away as a whole and fetched again.
    let mut wrong = bytes[..SIZE / 4].to_vec();
    wrong[7] ^= 1;
    std::fs::remove_file(&dest).unwrap();
    std::fs::write(&part, &wrong).unwrap();
    download(&connect(), &blob, &dest, None, &policy, &|_| ())
        .await
        .unwrap();
    assert_eq!(Digest::of(&std::fs::read(&dest).unwrap()), digest);
}
