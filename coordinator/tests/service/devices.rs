//! Device keys, tokens for one chain, rate limits and the audit log.

use cipherhop_proto::client::Connection;
use cipherhop_proto::signing::{
    DeviceKey, EnrolmentStatement, PublicKey, ResultStatement, Signature,
};
use cipherhop_proto::status::retry_after_of;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{AttemptId, ChainId, Digest, Nonce, Reason};

use crate::common::*;

fn enrolment(invite: &str, key: &DeviceKey) -> v1::EnrollRequest {
    let nonce = Nonce::generate();
    let statement = EnrolmentStatement {
        nonce,
        invite: Digest::of(invite.as_bytes()),
    };
    v1::EnrollRequest {
        invite: invite.into(),
        display_name: "ada's machine".into(),
        nonce: nonce.to_vec(),
        public_key: key.public().as_bytes().to_vec(),
        key_signature: key.sign(&statement).to_vec(),
        ..Default::default()
    }
}

async fn enroll(
    server: &Server,
    request: v1::EnrollRequest,
) -> Result<v1::EnrollResponse, tonic::Status> {
    let stranger = connect(&server.url, None);
    Ok(stranger.volunteer().enroll(request).await?.into_inner())
}

async fn signing_volunteer(server: &Server, account: &str, key: &DeviceKey) -> Volunteer {
    let invite = server.token(TokenRole::Invite, account).await;
    let answer = enroll(server, enrolment(&invite, key)).await.unwrap();
    Volunteer {
        connection: server.connect(&answer.token),
        token: answer.token,
        device: answer.device_id,
    }
}

/// What a device says with a submit of this assignment.
fn statement(given: &v1::Assignment, submit: &v1::SubmitRequest) -> ResultStatement {
    ResultStatement {
        chain: ChainId::from_slice(&given.chain_id).unwrap(),
        generation: given.generation,
        hop: given.hop,
        attempt: AttemptId::from_slice(&given.attempt_id).unwrap(),
        output: Digest::from_slice(&submit.output_digest).unwrap(),
        trace_root: Digest::from_slice(&submit.trace_root).unwrap(),
    }
}

async fn send_results(ada: &Volunteer, given: &v1::Assignment, output: &[u8], trace: &[u8]) {
    let attempt = attempt_ref(given);
    send(
        &ada.connection,
        output,
        v1::BlobRole::Output,
        Some(&attempt),
    )
    .await;
    send(&ada.connection, trace, v1::BlobRole::Trace, Some(&attempt)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_a_key_signs_its_results_and_the_signature_is_kept() {
    let server = Server::start().await;
    let (key, stranger) = (
        DeviceKey::from_secret(&[1; 32]),
        DeviceKey::from_secret(&[2; 32]),
    );
    let ada = signing_volunteer(&server, "ada", &key).await;
    new_chain("demo", 1).create(&server.owner().await).await;
    let given = ada.acquire(0).await.unwrap();
    let (out, trace) = (output(0), trace(&given));
    let submit = submit_request(&given, &out, &trace);
    let said = statement(&given, &submit);
    let with = |signature: Vec<u8>| v1::SubmitRequest {
        signature,
        ..submit.clone()
    };
    assert_eq!(
        reason(ada.submit(submit.clone()).await),
        Reason::SignatureMissing
    );
    assert_eq!(
        reason(ada.submit(with(vec![0; 63])).await),
        Reason::BadRequest
    );
    let other_hop = ResultStatement { hop: 1, ..said };
    let other_root = ResultStatement {
        trace_root: Digest::of(b"another root"),
        ..said
    };
    for wrong in [
        stranger.sign(&said),
        key.sign(&other_hop),
        key.sign(&other_root),
    ] {
        assert_eq!(
            reason(ada.submit(with(wrong.to_vec())).await),
            Reason::SignatureInvalid
        );
    }
    // None of these was recorded: the attempt is open for the right one.
    let signature = key.sign(&said);
    let request = with(signature.to_vec());
    assert_eq!(
        ada.submit(request.clone()).await.unwrap().outcome(),
        Outcome::NeedUpload
    );
    send_results(&ada, &given, &out, &trace).await;
    assert_eq!(
        ada.submit(request).await.unwrap().outcome(),
        Outcome::AcceptedVerifying
    );
    let kept = server.store.signature(said.attempt).await.unwrap().unwrap();
    assert_eq!((kept.key, kept.signature), (key.public(), signature));
    assert!(kept.key.verify(&said, &kept.signature));

    // A worker that has no key works on beside it.
    let bob = server.volunteer("bob").await;
    let given = bob.acquire(0).await.unwrap();
    assert_eq!(
        bob.hand_in(&given, &out).await.unwrap(),
        Outcome::AcceptedMatched
    );
    let request = v1::ListDevicesRequest {};
    let listed = server.admin().admin().list_devices(request).await.unwrap();
    let mut keys: Vec<_> = listed
        .into_inner()
        .devices
        .into_iter()
        .map(|d| d.public_key)
        .collect();
    keys.sort();
    assert_eq!(keys, [vec![], key.public().as_bytes().to_vec()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_proven_at_enrolment_and_belongs_to_one_device() {
    let server = Server::start().await;
    let key = DeviceKey::from_secret(&[1; 32]);
    let invite = server.token(TokenRole::Invite, "ada").await;
    let good = enrolment(&invite, &key);
    let first = enroll(&server, good.clone()).await.unwrap();
    let again = enroll(&server, good.clone()).await.unwrap();
    assert_eq!(
        first.device_id, again.device_id,
        "a repeat is no second device"
    );

    let unproven = v1::EnrollRequest {
        key_signature: DeviceKey::from_secret(&[9; 32])
            .sign(&EnrolmentStatement {
                nonce: Nonce::from_slice(&good.nonce).unwrap(),
                invite: Digest::of(invite.as_bytes()),
            })
            .to_vec(),
        ..good.clone()
    };
    let of_another_nonce = v1::EnrollRequest {
        nonce: Nonce::generate().to_vec(),
        ..good.clone()
    };
    let mut neutral = vec![0; 32];
    neutral[0] = 1;
    let weak = v1::EnrollRequest {
        public_key: neutral,
        ..good.clone()
    };
    let taken = enrolment(&server.token(TokenRole::Invite, "bob").await, &key);
    let second_key = v1::EnrollRequest {
        nonce: good.nonce.clone(),
        ..{
            let other = DeviceKey::from_secret(&[3; 32]);
            let said = EnrolmentStatement {
                nonce: Nonce::from_slice(&good.nonce).unwrap(),
                invite: Digest::of(invite.as_bytes()),
            };
            v1::EnrollRequest {
                public_key: other.public().as_bytes().to_vec(),
                key_signature: other.sign(&said).to_vec(),
                ..good.clone()
            }
        }
    };
    for bad in [unproven, of_another_nonce, weak, taken, second_key] {
        assert_eq!(reason(enroll(&server, bad).await), Reason::DeviceKeyInvalid);
    }
    // The refused enrolments revoked nothing.
    let ada = server.connect(&again.token);
    ada.chain()
        .list_chains(v1::ListChainsRequest {})
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_ask_for_keys_of_every_device() {
    let mut config = quick_config();
    config.volunteers.require_device_keys = true;
    let server = Server::start_with(config).await;
    let invite = server.token(TokenRole::Invite, "ada").await;
    let keyless = v1::EnrollRequest {
        invite,
        display_name: "ada".into(),
        nonce: Nonce::generate().to_vec(),
        ..Default::default()
    };
    assert_eq!(
        reason(enroll(&server, keyless).await),
        Reason::SignatureMissing
    );
    signing_volunteer(&server, "bob", &DeviceKey::from_secret(&[1; 32])).await;
}

async fn scoped(server: &Server, role: TokenRole, account: &str, chain: &[u8]) -> String {
    let request = v1::CreateTokenRequest {
        role: role.into(),
        account: account.into(),
        chain_id: chain.to_vec(),
    };
    let made = server.admin().admin().create_token(request).await;
    made.unwrap().into_inner().token
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_chain_is_of_no_use_for_another() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let (ours, theirs) = (new_chain("ours", 1), new_chain("theirs", 1));
    let (a, b) = (ours.create(&owner).await, theirs.create(&owner).await);

    let invite = scoped(&server, TokenRole::Invite, "ada", &b).await;
    let key = DeviceKey::from_secret(&[1; 32]);
    let answer = enroll(&server, enrolment(&invite, &key)).await.unwrap();
    let ada = Volunteer {
        connection: server.connect(&answer.token),
        token: answer.token,
        device: answer.device_id,
    };
    let elsewhere = v1::AcquireRequest {
        chain_id: a.clone(),
        ..ada.acquire_request(0)
    };
    assert_eq!(
        reason(ada.connection.volunteer().acquire(elsewhere).await),
        Reason::TokenScope
    );
    let reopen = v1::ReopenRequest {
        chain_id: a.clone(),
        hop: 0,
        reason: "please".into(),
    };
    assert_eq!(
        reason(ada.connection.volunteer().reopen(reopen).await),
        Reason::TokenScope
    );
    let given = ada.acquire(0).await.unwrap();
    assert_eq!(given.chain_id, b, "any chain means the one it is for");

    for role in [TokenRole::Observer, TokenRole::Owner] {
        let token = scoped(&server, role, "key holder", &b).await;
        let eve = server.connect(&token);
        let list = eve.chain().list_chains(v1::ListChainsRequest {}).await;
        let listed: Vec<_> = list.unwrap().into_inner().chains;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].chain_id, b);
        status(&eve, &b).await;
        everything_of_a_is_refused(&eve, &a).await;
    }
    let token = scoped(&server, TokenRole::Owner, "key holder", &b).await;
    let holder = server.connect(&token);
    let results = v1::GetResultsRequest {
        chain_id: a.clone(),
    };
    assert_eq!(
        reason(holder.chain().get_results(results).await),
        Reason::TokenScope
    );
    let read = |digest: Vec<u8>| v1::ReadRequest {
        digest,
        ..Default::default()
    };
    let weights = ours.request.hops[0].weights_digest.clone();
    assert_eq!(
        reason(holder.blob().read(read(weights)).await.map(|_| ())),
        Reason::TokenScope
    );
    let input = theirs.request.input_digest.clone();
    holder.blob().read(read(input)).await.unwrap();

    let everywhere = v1::CreateTokenRequest {
        role: TokenRole::Admin.into(),
        account: "root".into(),
        chain_id: b,
    };
    assert_eq!(
        reason(server.admin().admin().create_token(everywhere).await),
        Reason::BadRequest
    );
}

async fn everything_of_a_is_refused(eve: &Connection, a: &[u8]) {
    let by_name = v1::GetChainRequest {
        chain_id: Vec::new(),
        name: "ours".into(),
    };
    let export = v1::ExportArchiveRequest {
        chain_id: a.to_vec(),
    };
    let watch = v1::WatchChainRequest {
        chain_id: a.to_vec(),
        after_sequence: 0,
    };
    assert_eq!(
        reason(eve.chain().get_chain(by_name).await),
        Reason::TokenScope
    );
    assert_eq!(
        reason(eve.chain().export_archive(export).await),
        Reason::TokenScope
    );
    assert_eq!(
        reason(eve.chain().watch_chain(watch).await.map(|_| ())),
        Reason::TokenScope
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limits_never_touch_finished_work() {
    let mut config = quick_config();
    config.limits.calls_per_second = 1;
    config.limits.calls_burst = 4;
    let server = Server::start_with(config).await;
    let owner = server.owner().await;
    let ada = server.volunteer("ada").await;
    new_chain("demo", 1).create(&owner).await;
    let given = ada.acquire(0).await.unwrap();
    let refused = loop {
        match ada
            .connection
            .volunteer()
            .acquire(ada.acquire_request(0))
            .await
        {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    assert!(retry_after_of(&refused).is_some_and(|wait| !wait.is_zero()));
    assert_eq!(reason::<()>(Err(refused)), Reason::RateLimited);
    let list = v1::ListChainsRequest {};
    assert_eq!(
        reason(ada.connection.chain().list_chains(list).await),
        Reason::RateLimited
    );

    let (out, trace) = (output(0), trace(&given));
    let submit = submit_request(&given, &out, &trace);
    let sync = v1::SyncRequest {
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
        phase: v1::AttemptPhase::Uploading.into(),
        progress: None,
    };
    for _ in 0..50 {
        assert_eq!(
            ada.submit(submit.clone()).await.unwrap().outcome(),
            Outcome::NeedUpload
        );
        ada.connection.volunteer().sync(sync.clone()).await.unwrap();
        let open = v1::OpenUploadRequest {
            blob: Some(blob_ref(&out, v1::BlobRole::Output)),
            attempt_id: given.attempt_id.clone(),
            epoch: given.epoch,
        };
        ada.connection.blob().open_upload(open).await.unwrap();
    }
    send_results(&ada, &given, &out, &trace).await;
    assert_eq!(
        ada.submit(submit.clone()).await.unwrap().outcome(),
        Outcome::AcceptedVerifying
    );
    for _ in 0..50 {
        assert_eq!(
            ada.submit(submit.clone()).await.unwrap().outcome(),
            Outcome::Duplicate
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operators_do_is_on_record_done_or_refused() {
    let server = Server::start().await;
    let owner = server.token(TokenRole::Owner, "key holder").await;
    let id = new_chain("demo", 1).create(&server.connect(&owner)).await;
    let ada = server.volunteer("ada").await;
    let connection = server.admin();
    let mut admin = connection.admin();
    let requeue = v1::RequeueHopRequest {
        chain_id: id.clone(),
        hop: 7,
        reason: "a guess".into(),
    };
    assert_eq!(
        reason(admin.requeue_hop(requeue).await),
        Reason::HopNotFound
    );
    let pause = v1::SetChainStateRequest {
        chain_id: id.clone(),
        state: v1::ChainState::Paused.into(),
        reason: "tea".into(),
    };
    admin.set_chain_state(pause).await.unwrap();
    let quarantine = v1::QuarantineDeviceRequest {
        device_id: ada.device.clone(),
        reason: "odd".into(),
        lift: false,
    };
    admin.quarantine_device(quarantine).await.unwrap();
    let referee = v1::SetRefereeRequest {
        device_id: ada.device.clone(),
        referee: true,
    };
    admin.set_referee(referee).await.unwrap();
    // The key holder decides on the own chain, and that is on record too.
    let holder = server.connect(&owner);
    let drop = v1::DropArchivedRequest {
        chain_id: id.clone(),
        hop: 0,
        reason: "none there".into(),
    };
    let refused = holder.chain().drop_archived(drop).await;
    assert_eq!(reason(refused), Reason::ChainStateConflict);
    let invalidate = v1::InvalidateHopRequest {
        chain_id: id.clone(),
        hop: 0,
        reason: "not verified".into(),
    };
    let refused = holder.chain().invalidate_hop(invalidate).await;
    assert_eq!(reason(refused), Reason::ChainStateConflict);

    let list = |before, limit| v1::ListAuditRequest { before, limit };
    let entries = admin
        .list_audit(list(0, 0))
        .await
        .unwrap()
        .into_inner()
        .entries;
    let told: Vec<_> = entries
        .iter()
        .map(|e| (e.action.as_str(), e.outcome.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("invalidate_hop", "CHAIN_STATE_CONFLICT"),
            ("drop_archived", "CHAIN_STATE_CONFLICT"),
            ("set_referee", "done"),
            ("quarantine_device", "done"),
            ("set_chain_state", "done"),
            ("requeue_hop", "HOP_NOT_FOUND"),
            ("create_token", "done"),
            ("create_token", "done"),
        ]
    );
    assert!(entries[4].detail.contains("tea"));
    let accounts: Vec<_> = entries.iter().map(|e| e.account.as_str()).collect();
    assert_eq!(accounts[..2], ["key holder"; 2]);
    assert_eq!(accounts[2..], ["admin"; 6]);
    let secret = owner.rsplit('_').next().unwrap();
    assert!(
        entries.iter().all(|e| !format!("{e:?}").contains(secret)),
        "I11"
    );
    let page = admin.list_audit(list(entries[1].number, 2)).await.unwrap();
    let page = page.into_inner().entries;
    // their ages differ by the time between the calls
    let told = |e: &v1::AuditEntry| (e.number, e.action.clone(), e.target.clone());
    let page: Vec<_> = page.iter().map(told).collect();
    assert_eq!(page, entries[2..4].iter().map(told).collect::<Vec<_>>());
    assert_eq!(
        reason(holder.admin().list_audit(list(0, 0)).await),
        Reason::RoleNotAllowed
    );
}

#[test]
fn keys_and_signatures_of_the_wire_have_their_lengths() {
    assert!(PublicKey::from_slice(&[0; 31]).is_err());
    assert!(Signature::try_from(&[0u8; 65][..]).is_err());
}
