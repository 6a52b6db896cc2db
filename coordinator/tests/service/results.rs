//! Results: agreement, disagreement, malformed bytes, the archive.

use std::time::Duration;

use cipherhop_proto::client::TransferPolicy;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{Digest, Reason};

use crate::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn two_accounts_bring_a_chain_to_completed() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let chain = new_chain("demo", 3);
    let id = chain.create(&owner).await;
    owner
        .chain()
        .create_chain(chain.request.clone())
        .await
        .expect("creating is idempotent");
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let given = ada.acquire(0).await.unwrap();
    assert_eq!(
        (given.hop, given.insecure, given.parameter_set.as_str()),
        (0, true, SET)
    );
    // Every blob of the assignment can be fetched, and is what it says.
    let dir = tempfile::tempdir().unwrap();
    for blob in &given.blobs {
        let path = dir.path().join(hex::encode(&blob.digest));
        let attempt = attempt_ref(&given);
        let policy = TransferPolicy::default();
        cipherhop_proto::client::download(
            &ada.connection,
            blob,
            &path,
            Some(&attempt),
            &policy,
            &|_| (),
        )
        .await
        .unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().len(), blob.size);
    }
    assert_eq!(
        given.blobs.len(),
        5,
        "program, weights, manifest, key, input"
    );
    complete(&ada, &bob, 3).await;
    let state = status(&owner, &id).await;
    let chain = state.chain.unwrap();
    assert_eq!((chain.state(), chain.head), (v1::ChainState::Completed, 3));
    for hop in &state.hops {
        assert_eq!(
            (hop.state(), hop.method()),
            (v1::HopState::Verified, v1::VerificationMethod::Quorum)
        );
        assert_eq!(hop.digest, Digest::of(&output(hop.hop)).to_vec());
        assert_eq!(hop.verified_by, ["ada", "bob"]);
    }
    // The key holder reads the last output; the archive is in the form of sha256sum.
    let request = v1::GetResultsRequest {
        chain_id: id.clone(),
    };
    let results = owner
        .chain()
        .get_results(request)
        .await
        .unwrap()
        .into_inner()
        .results;
    let last = results[2].output.clone().unwrap();
    let path = dir.path().join("result");
    cipherhop_proto::client::download(
        &owner,
        &last,
        &path,
        None,
        &TransferPolicy::default(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(std::fs::read(path).unwrap(), output(2));
    assert_eq!(
        results[1].input,
        results[0]
            .output
            .clone()
            .map(|b| v1::BlobRef { role: 5, ..b })
    );
    let request = v1::ExportArchiveRequest { chain_id: id };
    let manifest = owner
        .chain()
        .export_archive(request)
        .await
        .unwrap()
        .into_inner()
        .manifest;
    let lines: Vec<String> = (0..3)
        .map(|h| format!("{}  hop-{h:03}.ct\n", Digest::of(&output(h))))
        .collect();
    assert_eq!(manifest, lines.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_submit_with_another_digest_is_refused_and_a_repeated_one_is_a_duplicate() {
    let server = Server::start().await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let ada = server.volunteer("ada").await;
    let given = ada.acquire(0).await.unwrap();
    assert_eq!(
        ada.hand_in(&given, &output(0)).await.unwrap(),
        Outcome::AcceptedVerifying
    );
    assert_eq!(
        ada.hand_in(&given, &output(0)).await.unwrap(),
        Outcome::Duplicate
    );
    assert_eq!(
        reason(ada.hand_in(&given, &output(9)).await),
        Reason::SubmitConflict
    );
    let state = status(&ada.connection, &id).await;
    assert_eq!(
        (state.chain.unwrap().head, state.hops[0].results_waiting),
        (0, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_outputs_have_their_own_reasons_and_never_advance_the_chain() {
    let mut config = quick_config();
    config.leases.mismatch_budget = 100;
    let server = Server::start_with(config).await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let good = output(0);
    let prime = cipherhop_ckks::Params::by_name(SET).unwrap().q[0];
    let mut residue = good.clone();
    residue[44..52].copy_from_slice(&prime.to_le_bytes());
    let mut foreign = good.clone();
    foreign[12] ^= 1;
    let mut scale = good.clone();
    scale[9] = cipherhop_ckks::ScaleId::EvalMod as u8;
    let mut magic = good.clone();
    magic[0] = b'X';
    let faults = [
        (residue, Reason::OutputResidueRange),
        (foreign, Reason::OutputWrongParameters),
        (scale, Reason::OutputWrongShape),
        (magic, Reason::OutputMalformed),
    ];
    for (number, (bytes, expected)) in faults.into_iter().enumerate() {
        let volunteer = server.volunteer(&format!("account {number}")).await;
        let given = volunteer.acquire(2).await.unwrap();
        assert_eq!(reason(volunteer.hand_in(&given, &bytes).await), expected);
    }
    // Claims whose size is not the chain's are refused before anything is sent; a corrected one is taken.
    let ada = server.volunteer("ada").await;
    let given = ada.acquire(2).await.unwrap();
    for bytes in [&good[..good.len() - 8], &ciphertext(SET, LEVEL - 1, 5)] {
        assert_eq!(
            reason(ada.hand_in(&given, bytes).await),
            Reason::OutputWrongSize
        );
    }
    assert_eq!(
        ada.hand_in(&given, &good).await.unwrap(),
        Outcome::AcceptedVerifying
    );
    let state = status(&ada.connection, &id).await;
    assert_eq!(
        (state.chain.unwrap().head, state.hops[0].state()),
        (0, v1::HopState::Verifying)
    );
    // One flipped residue: well-formed, so it counts as a result, and disagrees.
    let mut flipped = good.clone();
    flipped[44] ^= 1;
    let bob = server.volunteer("bob").await;
    let given = bob.acquire(2).await.unwrap();
    assert_eq!(
        bob.hand_in(&given, &flipped).await.unwrap(),
        Outcome::AcceptedVerifying,
        "I9: a 1-1 tie is no vote"
    );
    assert_eq!(status(&ada.connection, &id).await.chain.unwrap().head, 0);
    let eve = server.volunteer("eve").await;
    let given = eve.acquire(2).await.unwrap();
    assert_eq!(
        eve.hand_in(&given, &good).await.unwrap(),
        Outcome::AcceptedMatched
    );
    let state = status(&ada.connection, &id).await;
    assert_eq!(
        (state.chain.unwrap().head, state.hops[0].verified_by.clone()),
        (1, vec!["ada".into(), "eve".into()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_an_archived_digest_is_not_shown_before_the_hop_is_verified() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let mut chain = new_chain("demo", 2);
    let archived = Digest::of(&output(0));
    chain.request.hops[0].archived_digest = archived.to_vec();
    let id = chain.create(&owner).await;
    let manifest = format!("{}  hop-001.ct\n", Digest::of(&output(1)));
    let import = v1::ImportArchiveRequest {
        chain_id: id.clone(),
        manifest,
    };
    let imported = owner
        .chain()
        .import_archive(import.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!((imported.imported, imported.already_known), (1, 0));
    let imported = owner
        .chain()
        .import_archive(import)
        .await
        .unwrap()
        .into_inner();
    assert_eq!((imported.imported, imported.already_known), (0, 1));
    let bad = v1::ImportArchiveRequest {
        chain_id: id.clone(),
        manifest: "zz  hop-001.ct\n".into(),
    };
    assert_eq!(
        reason(owner.chain().import_archive(bad).await),
        Reason::ArchiveFormat
    );
    let other = v1::ImportArchiveRequest {
        chain_id: id.clone(),
        manifest: format!("{archived}  hop-001.ct\n"),
    };
    assert_eq!(
        reason(owner.chain().import_archive(other).await),
        Reason::ArchiveConflict
    );

    let ada = server.volunteer("ada").await;
    let given = ada.acquire(0).await.unwrap();
    let wrong = ada.hand_in(&given, &output(7)).await.unwrap();
    assert_eq!(wrong, Outcome::AcceptedMismatched);
    let observer = server.connect(&server.token(TokenRole::Observer, "eve").await);
    let seen = everything_shown(&observer, &owner, &id).await;
    assert!(seen.contains("archived: true"), "{seen}");
    for secret in [archived, Digest::of(&output(1)), Digest::of(&output(7))] {
        assert!(
            !seen.contains(&format!("{:?}", secret.as_bytes())),
            "an unverified digest was shown"
        );
        assert!(
            !seen.contains(&secret.to_string()),
            "an unverified digest was shown"
        );
    }
    // One equal result verifies, and then the digest is public.
    let bob = server.volunteer("bob").await;
    let given = bob.acquire(5).await.unwrap();
    assert_eq!(
        bob.hand_in(&given, &output(0)).await.unwrap(),
        Outcome::AcceptedMatched
    );
    let seen = everything_shown(&observer, &owner, &id).await;
    assert!(seen.contains(&format!("{:?}", archived.as_bytes())));
    assert!(!seen.contains(&Digest::of(&output(1)).to_string()));
    let state = status(&observer, &id).await;
    assert_eq!(state.hops[0].method(), v1::VerificationMethod::Archive);
}

/// Debug text of every answer an observer and the owner can get about a chain.
async fn everything_shown(
    observer: &cipherhop_proto::client::Connection,
    owner: &cipherhop_proto::client::Connection,
    id: &[u8],
) -> String {
    let chain_id = id.to_vec();
    let mut text = format!("{:?}", status(observer, id).await);
    let export = v1::ExportArchiveRequest {
        chain_id: chain_id.clone(),
    };
    text += &format!(
        "{:?}",
        observer
            .chain()
            .export_archive(export)
            .await
            .unwrap()
            .into_inner()
    );
    let results = v1::GetResultsRequest {
        chain_id: chain_id.clone(),
    };
    text += &format!(
        "{:?}",
        owner
            .chain()
            .get_results(results)
            .await
            .unwrap()
            .into_inner()
    );
    let watch = v1::WatchChainRequest {
        chain_id,
        after_sequence: 0,
    };
    let mut events = observer
        .chain()
        .watch_chain(watch)
        .await
        .unwrap()
        .into_inner();
    while let Ok(event) = tokio::time::timeout(Duration::from_millis(300), events.message()).await {
        text += &format!("{event:?}");
    }
    text
}
