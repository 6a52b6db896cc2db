//! Waiting: watches, long polls, shutdown.

use std::time::{Duration, Instant};

use cipherhop_proto::v1;
use cipherhop_proto::{ChainId, Reason};

use crate::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_resumes_after_a_sequence_and_follows_live() {
    let server = Server::start().await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let watch = |after_sequence| {
        let connection = ada.connection.clone();
        let request = v1::WatchChainRequest {
            chain_id: id.clone(),
            after_sequence,
        };
        async move {
            connection
                .chain()
                .watch_chain(request)
                .await
                .unwrap()
                .into_inner()
        }
    };
    let mut live = watch(0).await;
    complete(&ada, &bob, 1).await;
    let mut seen = Vec::new();
    while seen
        .last()
        .is_none_or(|(_, kind)| kind != "chain.completed")
    {
        let event = tokio::time::timeout(Duration::from_secs(5), live.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if event.kind != "hop.progress" {
            seen.push((event.sequence, event.kind));
        }
    }
    assert!(
        seen.windows(2).all(|w| w[0].0 < w[1].0),
        "sequences grow: {seen:?}"
    );
    assert_eq!(seen[0].1, "chain.created");
    assert!(seen.iter().any(|(_, kind)| kind == "hop.verified"));
    for start in [0, 1, seen.len() - 2] {
        let mut replay = watch(seen[start].0).await;
        for expected in &seen[start + 1..] {
            let event = replay.message().await.unwrap().unwrap();
            assert_eq!(&(event.sequence, event.kind), expected);
        }
    }
    let unknown = v1::WatchChainRequest {
        chain_id: ChainId::generate().to_vec(),
        after_sequence: 0,
    };
    assert_eq!(
        reason(
            ada.connection
                .chain()
                .watch_chain(unknown)
                .await
                .map(|_| ())
        ),
        Reason::ChainNotFound
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_wakes_up_when_a_hop_opens() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let ada = server.volunteer("ada").await;
    assert_eq!(
        ada.acquire(0).await.unwrap_err().reason,
        Reason::NoOpenHop.as_str()
    );
    let waiting = tokio::spawn({
        let ada = ada.clone();
        async move { (ada.acquire(20).await, Instant::now()) }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    new_chain("demo", 1).create(&owner).await;
    let created = Instant::now();
    let (given, at) = waiting.await.unwrap();
    assert_eq!(given.unwrap().hop, 0);
    assert!(
        at.saturating_duration_since(created) < Duration::from_millis(900),
        "woken, not polled"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_nonce_gets_the_same_attempt() {
    let server = Server::start().await;
    new_chain("demo", 2).create(&server.owner().await).await;
    let ada = server.volunteer("ada").await;
    let request = ada.acquire_request(0);
    let first = ada
        .connection
        .volunteer()
        .acquire(request.clone())
        .await
        .unwrap()
        .into_inner();
    let again = ada
        .connection
        .volunteer()
        .acquire(request)
        .await
        .unwrap()
        .into_inner();
    let id = |a: v1::AcquireResponse| match a.answer.unwrap() {
        v1::acquire_response::Answer::Assignment(given) => (given.attempt_id, given.epoch),
        other => panic!("{other:?}"),
    };
    assert_eq!(id(first), id(again));
    let mut unable = ada.acquire_request(0);
    unable.capabilities.as_mut().unwrap().program_formats = vec!["other/1".into()];
    assert_eq!(
        reason(ada.connection.volunteer().acquire(unable).await),
        Reason::ProgramUnknown
    );
    let mut nonce = ada.acquire_request(0);
    nonce.nonce = vec![1];
    assert_eq!(
        reason(ada.connection.volunteer().acquire(nonce).await),
        Reason::BadRequest
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_long_polls_and_watches_in_time() {
    let server = Server::start().await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let given = ada.acquire(0).await.unwrap();
    ada.hand_in(&given, &output(0)).await.unwrap();
    let watch = v1::WatchChainRequest {
        chain_id: id,
        after_sequence: 0,
    };
    let _watch = bob.connection.chain().watch_chain(watch).await.unwrap();
    let poll = tokio::spawn(async move { ada.acquire(30).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    server.shutdown.cancel();
    server.task.await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(6));
    assert_eq!(
        poll.await.unwrap().unwrap_err().reason,
        Reason::Draining.as_str()
    );
}
