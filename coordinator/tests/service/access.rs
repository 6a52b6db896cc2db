//! Who may call what: tokens, roles, epochs, attempts.

use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{Digest, Reason};

use crate::common::*;

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
        ..Default::default()
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
        ..Default::default()
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
async fn a_machine_that_computes_other_bytes_gets_no_work_where_the_operator_lists_golden_digests()
{
    let mut config = quick_config();
    config.volunteers.golden_digests = vec![Digest::of(b"golden").to_string()];
    let server = Server::start_with(config).await;
    new_chain("demo", 1).create(&server.owner().await).await;
    let ada = server.volunteer("ada").await;
    let mut request = ada.acquire_request(0);
    assert_eq!(
        reason(ada.connection.volunteer().acquire(request.clone()).await),
        Reason::SelfTestFailed
    );
    request.capabilities.as_mut().unwrap().golden_digest = Digest::of(b"golden").to_vec();
    ada.connection.volunteer().acquire(request).await.unwrap();
}
