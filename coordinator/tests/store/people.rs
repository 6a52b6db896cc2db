use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::command::{Directive, Outcome, OutputCheck};
use cipherhop_coordinator::domain::trust::DeviceState;
use cipherhop_coordinator::store::{AuditStart, LedgerKeyChange, NewToken, ResultSignature, Role};
use cipherhop_proto::ledger::LedgerKey;
use cipherhop_proto::signing::{DeviceKey, ResultStatement};
use cipherhop_proto::{ChainId, Digest, Reason, TokenId};

use crate::world::{World, holder, reason};

pub async fn a_token_is_known_by_its_hash_until_it_is_revoked(world: World) {
    let made = world.token(Role::Admin, "root", "secret").await.unwrap();
    let hash = Digest::of(b"secret");
    assert_eq!(world.store.identify(hash).await.unwrap(), made);
    let again = world.token(Role::Owner, "root", "other").await.unwrap();
    assert_eq!(again.account, made.account);
    world
        .store
        .revoke_token(made.token, world.now)
        .await
        .unwrap();
    assert_eq!(
        reason(world.store.identify(hash).await),
        Reason::TokenRevoked
    );
    assert_eq!(
        reason(world.store.identify(Digest::of(b"x")).await),
        Reason::TokenInvalid
    );
    let unknown = world
        .store
        .revoke_token(TokenId::generate(), world.now)
        .await;
    assert_eq!(reason(unknown), Reason::TokenInvalid);
    assert_eq!(
        reason(world.token(Role::Volunteer, "v", "s").await),
        Reason::BadRequest
    );
    assert_eq!(
        reason(world.token(Role::Admin, "", "s").await),
        Reason::BadRequest
    );
}

pub async fn enrolling_twice_with_one_nonce_gives_one_device_and_the_newest_token(world: World) {
    world.token(Role::Invite, "alice", "invite").await.unwrap();
    let first = World::enrolment("invite", 1);
    let second = World::enrolment("invite", 1);
    let one = world.store.enroll(first.clone(), world.now).await.unwrap();
    let two = world.store.enroll(second.clone(), world.now).await.unwrap();
    assert_eq!(one.device, two.device);
    assert_eq!(world.store.devices().await.unwrap().len(), 1);
    assert_eq!(
        reason(world.store.identify(first.token_hash).await),
        Reason::TokenRevoked
    );
    assert_eq!(
        world
            .store
            .identify(second.token_hash)
            .await
            .unwrap()
            .device,
        one.device
    );
}

pub async fn only_a_living_invite_enrols(world: World) {
    let made = world.token(Role::Invite, "alice", "invite").await.unwrap();
    world.token(Role::Admin, "root", "admin").await.unwrap();
    for secret in ["admin", "unknown"] {
        let refused = world
            .store
            .enroll(World::enrolment(secret, 1), world.now)
            .await;
        assert_eq!(reason(refused), Reason::InviteInvalid);
    }
    world
        .store
        .revoke_token(made.token, world.now)
        .await
        .unwrap();
    let refused = world
        .store
        .enroll(World::enrolment("invite", 1), world.now)
        .await;
    assert_eq!(reason(refused), Reason::InviteInvalid);
}

pub async fn a_quarantined_device_gets_no_work_and_loses_its_leases(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(2).await;
    let live = world.lease(crowd[0]).await;
    let store = world.store.clone();
    let device = store
        .quarantine(crowd[0].id, false, "odd".into(), world.now)
        .await
        .unwrap();
    assert_eq!(device.state, DeviceState::Quarantined);
    assert_eq!(
        store.attempt(live.id).await.unwrap().state,
        AttemptState::Cancelled
    );
    let refused = store.acquire(world.request(crowd[0]), world.now).await;
    assert_eq!(reason(refused), Reason::DeviceQuarantined);
    let told = store.touch(holder(&live), world.now).await.unwrap();
    assert_eq!(told, Directive::Cancel(Reason::DeviceQuarantined));
    let late = world.hand_in(&live, world.claim("a")).await;
    assert_eq!(reason(late), Reason::DeviceQuarantined);

    let device = store
        .quarantine(crowd[0].id, true, "fixed".into(), world.now)
        .await
        .unwrap();
    assert_eq!(device.state, DeviceState::Probation);
    assert_eq!(device.note, "fixed");
    world.lease(crowd[0]).await;
}

pub async fn three_refuted_results_in_a_row_put_a_device_into_quarantine(mut world: World) {
    let good = Digest::of(b"good");
    world
        .archived_chain(3, &[(0, good), (1, good), (2, good)])
        .await;
    let crowd = world.crowd(2).await;
    for round in 0..3 {
        let wrong = world.lease(crowd[0]).await;
        assert_eq!(
            world.submit(&wrong, &format!("bad {round}")).await,
            Outcome::Mismatched
        );
        world.pass(crate::world::second(600));
        let right = world.lease(crowd[1]).await;
        assert_eq!(world.submit(&right, "good").await, Outcome::Matched);
    }
    let devices = world.store.devices().await.unwrap();
    let state = |id| devices.iter().find(|device| device.id == id).unwrap().state;
    assert_eq!(state(crowd[0].id), DeviceState::Quarantined);
    assert_eq!(state(crowd[1].id), DeviceState::Probation);
}

pub async fn a_device_keeps_one_key_and_its_invites_scope(world: World) {
    let (key, other) = (
        DeviceKey::from_secret(&[1; 32]).public(),
        DeviceKey::from_secret(&[2; 32]).public(),
    );
    let chain = ChainId::generate();
    let invite = NewToken {
        id: TokenId::generate(),
        hash: Digest::of(b"invite"),
        role: Role::Invite,
        account_name: "alice".into(),
    };
    let store = &world.store;
    store
        .create_scoped_token(invite, Some(chain), world.now)
        .await
        .unwrap();
    let enrol =
        |nonce, key| store.enroll_with_key(World::enrolment("invite", nonce), key, world.now);
    let one = enrol(1, Some(key)).await.unwrap();
    assert_eq!(one.scope, Some(chain));
    let device = one.device.unwrap();
    assert_eq!(store.device_key(device).await.unwrap(), Some(key));
    assert_eq!(enrol(1, Some(key)).await.unwrap().device, one.device);
    assert_eq!(
        reason(enrol(1, Some(other)).await),
        Reason::DeviceKeyInvalid
    );
    assert_eq!(reason(enrol(2, Some(key)).await), Reason::DeviceKeyInvalid);
    let keyless = enrol(3, None).await.unwrap().device.unwrap();
    assert_eq!(store.device_key(keyless).await.unwrap(), None);
    assert_eq!(store.device_keys().await.unwrap(), [(device, key)]);
    assert_eq!(store.devices().await.unwrap().len(), 2);
}

pub async fn a_signature_is_kept_with_the_submit_it_belongs_to(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(1).await;
    let live = world.lease(crowd[0]).await;
    let key = DeviceKey::from_secret(&[1; 32]);
    let claim = world.claim("a");
    let said = ResultStatement {
        chain: live.chain,
        generation: live.generation,
        hop: live.hop,
        attempt: live.id,
        output: claim.output,
        trace_root: claim.trace_root,
    };
    let signed = ResultSignature {
        attempt: live.id,
        key: key.public(),
        output: claim.output,
        trace_root: claim.trace_root,
        signature: key.sign(&said),
    };
    let store = world.store.clone();
    let mut stale = holder(&live);
    stale.epoch += 1;
    let (missing, now) = (OutputCheck::Missing, world.now);
    let refused = store
        .submit_signed(stale, claim.clone(), missing, Some(signed), now)
        .await;
    assert_eq!(reason(refused), Reason::StaleEpoch, "I4");
    assert_eq!(store.signature(live.id).await.unwrap(), None);
    store
        .submit_signed(holder(&live), claim, missing, Some(signed), now)
        .await
        .unwrap();
    assert_eq!(store.signature(live.id).await.unwrap(), Some(signed));
}

pub async fn an_audit_entry_gets_its_outcome_once(world: World) {
    let start = |target: &str| AuditStart {
        token: TokenId::generate(),
        account: "root".into(),
        action: "pause",
        target: target.into(),
        detail: "é".repeat(5000),
    };
    let store = &world.store;
    let first = store.begin_audit(start("a"), world.now).await.unwrap();
    let second = store.begin_audit(start("b"), world.now).await.unwrap();
    store.end_audit(first, "done").await.unwrap();
    assert!(store.end_audit(first, "INTERNAL").await.is_err());
    let entries = store.audit(u64::MAX, 10).await.unwrap();
    let told: Vec<_> = entries
        .iter()
        .map(|e| (e.number, e.target.as_str(), e.outcome.as_deref()))
        .collect();
    assert_eq!(told, [(second, "b", None), (first, "a", Some("done"))]);
    assert!(entries[0].detail.len() <= 1024, "text is bounded");
    assert_eq!(store.audit(second, 10).await.unwrap().len(), 1);
    assert_eq!(store.audit(u64::MAX, 1).await.unwrap().len(), 1);
}

pub async fn a_ledger_key_is_replaced_only_on_purpose(mut world: World) {
    let (a, b) = (
        LedgerKey::from_secret(&[7; 32]),
        LedgerKey::from_secret(&[8; 32]),
    );
    assert_eq!(world.store.ledger_key(), None);
    let sign = async |world: &World, key: &LedgerKey, replace| {
        let signing = world.store.sign_ledger(key.clone(), replace, world.now);
        signing.await.unwrap()
    };
    let known = a.public();
    assert_eq!(sign(&world, &a, false).await, LedgerKeyChange::First);
    assert_eq!(sign(&world, &a, false).await, LedgerKeyChange::Known);
    let refused = LedgerKeyChange::Refused { known };
    world.restart().await;
    assert_eq!(sign(&world, &b, false).await, refused);
    let ours = world.store.ledger_key();
    assert!(ours.is_none_or(|key| key == known), "{ours:?}");
    let replaced = LedgerKeyChange::Replaced { before: known };
    assert_eq!(sign(&world, &b, true).await, replaced);
    let keys = world.store.ledger_keys().await.unwrap();
    assert_eq!(keys, [known, b.public()]);
    // An old coordinator that is started again does not take the place of the new key.
    let refused = LedgerKeyChange::Refused { known: b.public() };
    assert_eq!(sign(&world, &a, false).await, refused);
}
