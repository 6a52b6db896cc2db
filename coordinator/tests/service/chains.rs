//! Chains that are refused, and what operators do.

use cipherhop_proto::v1::{self, TokenRole};
use cipherhop_proto::{ChainId, Digest, Reason};

use crate::common::*;

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
