//! The services over a real socket, with SQLite and a local blob folder.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use cipherhop_proto::client::TransferPolicy;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{ChainId, Digest, Reason};
use common::*;

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
async fn tokens_and_roles_are_told_apart_by_reason() {
    let server = Server::start().await;
    let list = v1::ListChainsRequest {};
    let nobody = connect(&server.url, None);
    assert_eq!(
        reason(nobody.chain().list_chains(list).await),
        Reason::TokenMissing
    );
    let unknown = format!("cipherhop_admin_{}", "0".repeat(64));
    for bad in [
        "x",
        unknown.as_str(),
        &server.admin[..server.admin.len() - 1],
    ] {
        assert_eq!(
            reason(server.connect(bad).chain().list_chains(list).await),
            Reason::TokenInvalid,
            "{bad}"
        );
    }
    let observer = server.connect(&server.token(TokenRole::Observer, "eve").await);
    observer.chain().list_chains(list).await.unwrap();
    assert_eq!(
        reason(
            observer
                .admin()
                .list_devices(v1::ListDevicesRequest {})
                .await
        ),
        Reason::RoleNotAllowed
    );
    let read = v1::ReadRequest {
        digest: vec![0; 32],
        ..Default::default()
    };
    assert_eq!(
        reason(observer.blob().read(read).await.map(|_| ())),
        Reason::RoleNotAllowed
    );
    let owner = server.owner().await;
    let ada = server.volunteer("ada").await;
    assert_eq!(
        reason(owner.volunteer().acquire(ada.acquire_request(0)).await),
        Reason::RoleNotAllowed
    );
    let chain = new_chain("x", 1).request;
    assert_eq!(
        reason(ada.connection.chain().create_chain(chain.clone()).await),
        Reason::RoleNotAllowed
    );
    assert_eq!(
        reason(server.admin().chain().create_chain(chain).await),
        Reason::RoleNotAllowed
    );
    let invite = server.token(TokenRole::Invite, "ada").await;
    assert_eq!(
        reason(server.connect(&invite).chain().list_chains(list).await),
        Reason::RoleNotAllowed
    );
    let enroll = |invite: &str| v1::EnrollRequest {
        invite: invite.into(),
        display_name: "m".into(),
        nonce: vec![7; 16],
        worker_version: String::new(),
    };
    assert_eq!(
        reason(nobody.volunteer().enroll(enroll(&server.admin)).await),
        Reason::InviteInvalid
    );
    assert_eq!(
        reason(nobody.volunteer().enroll(enroll("nonsense")).await),
        Reason::InviteInvalid
    );
    // The same nonce gets the same device, with a fresh token that replaces the first.
    let first = nobody
        .volunteer()
        .enroll(enroll(&invite))
        .await
        .unwrap()
        .into_inner();
    let again = nobody
        .volunteer()
        .enroll(enroll(&invite))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.device_id, again.device_id);
    server
        .connect(&again.token)
        .chain()
        .list_chains(list)
        .await
        .unwrap();
    assert_eq!(
        reason(server.connect(&first.token).chain().list_chains(list).await),
        Reason::TokenRevoked
    );
    // Revoked.
    let request = v1::CreateTokenRequest {
        role: TokenRole::Observer.into(),
        account: "gone".into(),
    };
    let made = server
        .admin()
        .admin()
        .create_token(request)
        .await
        .unwrap()
        .into_inner();
    let request = v1::RevokeTokenRequest {
        token_id: made.token_id,
    };
    server.admin().admin().revoke_token(request).await.unwrap();
    assert_eq!(
        reason(server.connect(&made.token).chain().list_chains(list).await),
        Reason::TokenRevoked
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_stale_epochs_and_foreign_attempts_change_nothing() {
    let server = Server::start().await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let given = ada.acquire(0).await.unwrap();
    let sync = |epoch| v1::SyncRequest {
        attempt_id: given.attempt_id.clone(),
        epoch,
        phase: v1::AttemptPhase::Computing.into(),
        progress: None,
    };
    ada.connection
        .volunteer()
        .sync(sync(given.epoch))
        .await
        .unwrap();
    assert_eq!(
        reason(ada.connection.volunteer().sync(sync(given.epoch + 1)).await),
        Reason::StaleEpoch
    );
    assert_eq!(
        reason(bob.connection.volunteer().sync(sync(given.epoch)).await),
        Reason::AttemptNotYours
    );
    let (out, trace) = (output(0), trace(&given));
    let mut request = submit_request(&given, &out, &trace);
    request.epoch = given.epoch - 1;
    assert_eq!(
        reason(ada.submit(request.clone()).await),
        Reason::StaleEpoch
    );
    request.epoch = given.epoch;
    assert_eq!(
        reason(bob.submit(request.clone()).await),
        Reason::AttemptNotYours
    );
    // Blobs need a submit first, then the right epoch, owner and role.
    let open = |epoch, role: v1::BlobRole| v1::OpenUploadRequest {
        blob: Some(blob_ref(&out, role)),
        attempt_id: given.attempt_id.clone(),
        epoch,
    };
    let role = v1::BlobRole::Output;
    let mut blobs = ada.connection.blob();
    assert_eq!(
        reason(blobs.open_upload(open(given.epoch, role)).await),
        Reason::BlobNotAllowed
    );
    assert_eq!(
        ada.submit(request).await.unwrap().outcome(),
        Outcome::NeedUpload
    );
    assert_eq!(
        reason(blobs.open_upload(open(given.epoch + 1, role)).await),
        Reason::StaleEpoch
    );
    assert_eq!(
        reason(
            blobs
                .open_upload(open(given.epoch, v1::BlobRole::Weights))
                .await
        ),
        Reason::BlobNotAllowed
    );
    let foreign = bob
        .connection
        .blob()
        .open_upload(open(given.epoch, role))
        .await;
    assert_eq!(reason(foreign), Reason::AttemptNotYours);
    let mut nameless = open(given.epoch, role);
    nameless.attempt_id = Vec::new();
    assert_eq!(
        reason(blobs.open_upload(nameless).await),
        Reason::BadRequest
    );
    let opened = blobs
        .open_upload(open(given.epoch, role))
        .await
        .unwrap()
        .into_inner();
    let finish = v1::FinishRequest {
        upload_id: opened.upload_id,
    };
    assert_eq!(
        reason(bob.connection.blob().finish(finish).await),
        Reason::BlobNotAllowed
    );
    assert_eq!(status(&ada.connection, &id).await.chain.unwrap().head, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn volunteers_read_only_what_their_live_attempt_needs() {
    let server = Server::start().await;
    let chain = new_chain("demo", 2);
    chain.create(&server.owner().await).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let given = ada.acquire(0).await.unwrap();
    let read = |attempt: &[u8], digest: &[u8]| v1::ReadRequest {
        digest: digest.to_vec(),
        attempt_id: attempt.to_vec(),
        ..Default::default()
    };
    let input = Digest::of(&chain.blobs[3].0).to_vec();
    let other_weights = Digest::of(&chain.blobs[5].0).to_vec();
    let mut blobs = ada.connection.blob();
    blobs.read(read(&given.attempt_id, &input)).await.unwrap();
    assert_eq!(
        reason(
            blobs
                .read(read(&given.attempt_id, &other_weights))
                .await
                .map(|_| ())
        ),
        Reason::BlobNotAllowed
    );
    assert_eq!(
        reason(blobs.read(read(&[], &input)).await.map(|_| ())),
        Reason::BadRequest
    );
    let foreign = bob
        .connection
        .blob()
        .read(read(&given.attempt_id, &input))
        .await;
    assert_eq!(reason(foreign.map(|_| ())), Reason::AttemptNotYours);
    assert_eq!(
        reason(
            blobs
                .stat(v1::StatRequest {
                    digest: input.clone()
                })
                .await
        ),
        Reason::RoleNotAllowed
    );
    let release = v1::ReleaseRequest {
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
    };
    ada.connection.volunteer().release(release).await.unwrap();
    assert_eq!(
        reason(
            blobs
                .read(read(&given.attempt_id, &input))
                .await
                .map(|_| ())
        ),
        Reason::AttemptClosed
    );
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
async fn uploads_refuse_wrong_offsets_lies_and_truncation() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let bytes = ciphertext(SET, 3, 4);
    let total = bytes.len() as u64;
    let open = |size| v1::OpenUploadRequest {
        blob: Some(v1::BlobRef {
            size,
            ..blob_ref(&bytes, v1::BlobRole::Input)
        }),
        attempt_id: Vec::new(),
        epoch: 0,
    };
    let append = |upload_id: &[u8], offset, data: &[u8]| {
        let message = v1::AppendRequest {
            upload_id: upload_id.to_vec(),
            offset,
            data: data.to_vec(),
        };
        futures::stream::iter([message])
    };
    let mut blobs = owner.blob();
    assert_eq!(
        reason(blobs.open_upload(open(u64::MAX)).await),
        Reason::BlobTooLarge
    );
    let id = blobs
        .open_upload(open(total))
        .await
        .unwrap()
        .into_inner()
        .upload_id;
    let first = blobs
        .append(append(&id, 0, &bytes[..1000]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.committed, 1000);
    for offset in [0, 999, 1001, u64::MAX] {
        let refused = blobs.append(append(&id, offset, b"x")).await.unwrap_err();
        assert_eq!(
            cipherhop_proto::status::metadata_of(&refused)["committed"],
            "1000"
        );
        assert_eq!(reason::<()>(Err(refused)), Reason::UploadOffset);
    }
    let finish = v1::FinishRequest {
        upload_id: id.clone(),
    };
    assert_eq!(
        reason(blobs.finish(finish.clone()).await),
        Reason::BlobIncomplete
    );
    let too_long = [&bytes[1000..], b"more"].concat();
    assert_eq!(
        reason(blobs.append(append(&id, 1000, &too_long)).await),
        Reason::BlobSizeMismatch
    );
    assert_eq!(
        reason(
            blobs
                .append(append(&id, 1000, &vec![0; (1 << 20) + 1]))
                .await
        ),
        Reason::BadRequest
    );
    // Other bytes of the right length: discarded, and the upload starts again from zero.
    let lie = vec![7; bytes.len() - 1000];
    blobs.append(append(&id, 1000, &lie)).await.unwrap();
    assert_eq!(
        reason(blobs.finish(finish.clone()).await),
        Reason::BlobDigestMismatch
    );
    let opened = blobs.open_upload(open(total)).await.unwrap().into_inner();
    assert_eq!(opened.committed, 0);
    blobs
        .append(append(&opened.upload_id, 0, &bytes))
        .await
        .unwrap();
    let finish = v1::FinishRequest {
        upload_id: opened.upload_id,
    };
    blobs.finish(finish.clone()).await.unwrap();
    blobs.finish(finish).await.expect("finish is idempotent");
    assert!(
        blobs
            .open_upload(open(total))
            .await
            .unwrap()
            .into_inner()
            .complete
    );
    let stat = v1::StatRequest {
        digest: Digest::of(&bytes).to_vec(),
    };
    assert_eq!(
        blobs.stat(stat).await.unwrap().into_inner(),
        v1::StatResponse {
            complete: true,
            size: total
        }
    );
    let unknown = v1::FinishRequest {
        upload_id: vec![1; 16],
    };
    assert_eq!(reason(blobs.finish(unknown).await), Reason::UploadNotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_upload_stream_keeps_what_arrived() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let bytes = ciphertext(SET, 3, 4);
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(&bytes, v1::BlobRole::Input)),
        attempt_id: Vec::new(),
        epoch: 0,
    };
    let id = owner
        .blob()
        .open_upload(open.clone())
        .await
        .unwrap()
        .into_inner()
        .upload_id;
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let mut client = owner.blob();
    let call = tokio::spawn(async move {
        client
            .append(tokio_stream::wrappers::ReceiverStream::new(receiver))
            .await
    });
    for (number, part) in bytes[..3000].chunks(1000).enumerate() {
        let upload_id = if number == 0 { id.clone() } else { Vec::new() };
        sender
            .send(v1::AppendRequest {
                upload_id,
                offset: 0,
                data: part.to_vec(),
            })
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Opening again while the old stream hangs takes over from it.
    let opened = owner.blob().open_upload(open).await.unwrap().into_inner();
    assert_eq!(opened.committed, 3000);
    call.abort();
    let rest = v1::AppendRequest {
        upload_id: opened.upload_id.clone(),
        offset: 3000,
        data: bytes[3000..].to_vec(),
    };
    owner
        .blob()
        .append(futures::stream::iter([rest]))
        .await
        .unwrap();
    owner
        .blob()
        .finish(v1::FinishRequest {
            upload_id: opened.upload_id,
        })
        .await
        .unwrap();
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
async fn chains_with_missing_blobs_unknown_programs_or_weak_parameters_are_refused() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let chain = new_chain("demo", 1);
    let create = |request: &v1::CreateChainRequest| {
        let (owner, request) = (owner.clone(), request.clone());
        async move { owner.chain().create_chain(request).await }
    };
    assert_eq!(reason(create(&chain.request).await), Reason::BlobNotFound);
    chain.upload(&owner).await;
    let mut weak = chain.request.clone();
    weak.allow_insecure = false;
    assert_eq!(reason(create(&weak).await), Reason::InsecureNotAllowed);
    let mut unknown = chain.request.clone();
    unknown.parameter_set = "n12".into();
    assert_eq!(reason(create(&unknown).await), Reason::ParametersUnknown);
    let mut digest = chain.request.clone();
    digest.parameter_digest = vec![0; 32];
    assert_eq!(reason(create(&digest).await), Reason::ParametersUnknown);
    let program = br#"{"format":"cipherhop-program/999"}"#;
    send(&owner, program, v1::BlobRole::Program, None).await;
    let mut other = chain.request.clone();
    other.program_digest = Digest::of(program).to_vec();
    assert_eq!(reason(create(&other).await), Reason::ProgramUnknown);
    let mut garbage = chain.request.clone();
    garbage.program_digest = Digest::of(&chain.blobs[2].0).to_vec();
    assert_eq!(reason(create(&garbage).await), Reason::ProgramUnknown);
    let low = ciphertext(SET, LEVEL - 1, 1);
    send(&owner, &low, v1::BlobRole::Input, None).await;
    let mut input = chain.request.clone();
    input.input_digest = Digest::of(&low).to_vec();
    assert_eq!(reason(create(&input).await), Reason::OutputWrongSize);
    for (quorum, boundary) in [(1, chain.request.boundary_bytes), (2, 7)] {
        let mut bad = chain.request.clone();
        (bad.quorum, bad.boundary_bytes) = (quorum, boundary);
        assert_eq!(reason(create(&bad).await), Reason::BadRequest);
    }
    create(&chain.request).await.unwrap();
    let mut taken = chain.request.clone();
    taken.chain_id = ChainId::generate().to_vec();
    assert_eq!(reason(create(&taken).await), Reason::ChainExists);
    let stranger = server.connect(&server.token(TokenRole::Owner, "stranger").await);
    let results = v1::GetResultsRequest {
        chain_id: chain.request.chain_id.clone(),
    };
    assert_eq!(
        reason(stranger.chain().get_results(results).await),
        Reason::RoleNotAllowed
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_pause_resume_quarantine_and_requeue() {
    let server = Server::start().await;
    let id = new_chain("demo", 1).create(&server.owner().await).await;
    let ada = server.volunteer("ada").await;
    let admin = server.admin();
    let set = |state: v1::ChainState| {
        let request = v1::SetChainStateRequest {
            chain_id: id.clone(),
            state: state.into(),
            reason: "tea".into(),
        };
        let admin = admin.clone();
        async move {
            admin
                .admin()
                .set_chain_state(request)
                .await
                .map(|a| a.into_inner().chain.unwrap())
        }
    };
    let paused = set(v1::ChainState::Paused).await.unwrap();
    assert_eq!(
        (paused.state(), paused.state_reason.as_str()),
        (v1::ChainState::Paused, "tea")
    );
    ada.acquire(0).await.unwrap_err();
    set(v1::ChainState::Active).await.unwrap();
    let quarantine = |lift| v1::QuarantineDeviceRequest {
        device_id: ada.device.clone(),
        reason: "odd".into(),
        lift,
    };
    admin
        .admin()
        .quarantine_device(quarantine(false))
        .await
        .unwrap();
    let refused = ada
        .connection
        .volunteer()
        .acquire(ada.acquire_request(0))
        .await;
    assert_eq!(reason(refused), Reason::DeviceQuarantined);
    let devices = admin
        .admin()
        .list_devices(v1::ListDevicesRequest {})
        .await
        .unwrap()
        .into_inner()
        .devices;
    assert_eq!(
        (devices[0].state.as_str(), devices[0].account.as_str()),
        ("quarantined", "ada")
    );
    admin
        .admin()
        .quarantine_device(quarantine(true))
        .await
        .unwrap();
    let requeue = v1::RequeueHopRequest {
        chain_id: id.clone(),
        hop: 0,
        reason: String::new(),
    };
    assert_eq!(
        reason(admin.admin().requeue_hop(requeue.clone()).await),
        Reason::HopNotStuck
    );
    // Three failures in the computation make the hop Stuck, with its reason; the operator opens it again.
    for number in 0..3 {
        let volunteer = server.volunteer(&format!("account {number}")).await;
        let given = volunteer.acquire(5).await.unwrap();
        let fail = v1::FailRequest {
            attempt_id: given.attempt_id,
            epoch: given.epoch,
            kind: v1::FailKind::Compute.into(),
            detail: "step 3 \x1b[2J overflowed".into(),
        };
        volunteer.connection.volunteer().fail(fail).await.unwrap();
    }
    let state = status(&admin, &id).await;
    assert_eq!(state.hops[0].state(), v1::HopState::Stuck);
    assert!(state.hops[0].reason.contains("overflowed") && !state.hops[0].reason.contains('\x1b'));
    admin.admin().requeue_hop(requeue).await.unwrap();
    assert_eq!(
        status(&admin, &id).await.hops[0].state(),
        v1::HopState::Ready
    );
    ada.acquire(5).await.unwrap();
    assert_eq!(
        set(v1::ChainState::Cancelled).await.unwrap().state(),
        v1::ChainState::Cancelled
    );
    assert_eq!(
        reason(set(v1::ChainState::Active).await),
        Reason::ChainStateConflict
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_and_health_need_no_token() {
    let server = Server::start().await;
    let nobody = connect(&server.url, None);
    let hello = |low, high| v1::HelloRequest {
        protocol_min: low,
        protocol_max: high,
        ..Default::default()
    };
    let answer = nobody
        .volunteer()
        .hello(hello(1, 9))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.protocol, 1);
    assert!(answer.features.contains(&"cipherhop-program/1".to_owned()));
    assert_eq!(
        reason(nobody.volunteer().hello(hello(2, 9)).await),
        Reason::ProtocolUnsupported
    );
    let channel = tonic::transport::Endpoint::from_shared(server.url.clone())
        .unwrap()
        .connect_lazy();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    for service in ["", "cipherhop.v1.BlobService"] {
        let request = tonic_health::pb::HealthCheckRequest {
            service: service.into(),
        };
        assert_eq!(
            health.check(request).await.unwrap().into_inner().status,
            1,
            "{service}"
        );
    }
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
