//! `drain` and `drain --undo` against a running coordinator.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::process::Command;

use cipherhop_proto::v1::{self, ChainState};
use common::*;

fn drain(server: &Server, args: &[&str]) -> (Option<i32>, serde_json::Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"))
        .args(["drain", "--json", "--coordinator", &server.url])
        .args(args)
        .env("CIPHERHOP_TOKEN", &server.admin)
        .env_remove("CIPHERHOP_DATA")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    (output.status.code(), value)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_leases_and_its_undo_resumes_only_what_it_paused() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let (first, other) = (new_chain("first", 2), new_chain("other", 1));
    let id = first.create(&owner).await;
    let ada = server.volunteer("ada").await;
    let given = ada.acquire(5).await.unwrap();
    let other = other.create(&owner).await;
    let pause = v1::SetChainStateRequest {
        chain_id: other.clone(),
        state: ChainState::Paused.into(),
        reason: "the key holder's wish".into(),
    };
    server.admin().admin().set_chain_state(pause).await.unwrap();

    let (code, told) = drain(&server, &[]);
    assert_eq!(
        (code, told["running"].as_u64()),
        (Some(1), Some(1)),
        "{told}"
    );
    let bob = server.volunteer("bob").await;
    assert!(bob.acquire(0).await.is_err(), "nothing new is handed out");
    ada.hand_in(&given, &output(0)).await.unwrap();
    let (code, told) = drain(&server, &["--wait", "5"]);
    assert_eq!(
        (code, told["running"].as_u64()),
        (Some(0), Some(0)),
        "{told}"
    );

    let (code, told) = drain(&server, &["--undo"]);
    assert_eq!(
        (code, told["resumed"].as_u64()),
        (Some(0), Some(1)),
        "{told}"
    );
    let state = async |id: &[u8]| status(&owner, id).await.chain.unwrap().state();
    assert_eq!(state(&id).await, ChainState::Active);
    assert_eq!(state(&other).await, ChainState::Paused);
    bob.acquire(5).await.unwrap();
}
