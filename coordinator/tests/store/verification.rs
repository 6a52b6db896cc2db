use cipherhop_coordinator::domain::attempt::{Attempt, AttemptState};
use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::command::{Outcome, OutputCheck};
use cipherhop_coordinator::domain::hop::{HopState, Method};
use cipherhop_coordinator::domain::ledger;
use cipherhop_coordinator::domain::trust::DeviceState;
use cipherhop_proto::ledger::{BrokenLedger, LedgerKey};
use cipherhop_proto::{Digest, Reason};

use crate::world::{Device, OUTPUT_BYTES, World, holder, reason, second};

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

pub async fn two_equal_results_verify_the_hop_and_open_the_next(mut world: World) {
    let chain = world.chain(2).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert_eq!(world.submit(&a, "x").await, Outcome::Verifying);
    let hop = world.hop(chain, 0).await;
    assert_eq!((hop.state, hop.results_waiting), (HopState::Running, 1));
    assert_eq!(world.submit(&b, "x").await, Outcome::Matched);
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.state, HopState::Verified);
    assert_eq!(hop.accepted.unwrap().method, Method::Quorum);
    assert_eq!(hop.verified_by, ["volunteer 0", "volunteer 1"]);
    let results = world.store.results(chain).await.unwrap();
    assert_eq!(results[0].output, Some(digest("x")));
    assert_eq!(results[1].input, Some(digest("x")));
    let next = world.acquire(world.request(crowd[0])).await.unwrap();
    assert_eq!(next.attempt.hop, 1);
    assert!(next.blobs.iter().any(|blob| blob.digest == digest("x")));
}

pub async fn i9_a_tie_waits_for_a_third_account(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(4).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert_eq!(world.submit(&a, "x").await, Outcome::Verifying);
    assert_eq!(world.submit(&b, "y").await, Outcome::Verifying);
    let hop = world.hop(chain, 0).await;
    assert_eq!((hop.state, hop.results_waiting), (HopState::Verifying, 2));
    for known in &crowd[..2] {
        assert_eq!(world.ask(*known).await, Err(Reason::AccountAlreadyOnHop));
    }
    world.pass(second(600));
    let third = world.lease(crowd[2]).await;
    assert_eq!(world.ask(crowd[3]).await, Err(Reason::NoOpenHop));
    assert_eq!(world.submit(&third, "y").await, Outcome::Matched);
    let state = |id| {
        let store = world.store.clone();
        async move { store.attempt(id).await.unwrap().state }
    };
    assert_eq!(state(a.id).await, AttemptState::Mismatched);
    assert_eq!(state(b.id).await, AttemptState::Matched);
    assert_eq!(world.store.credits(crowd[0].account).await.unwrap(), 0);
    let seconds = world.store.credit_seconds(crowd[0].account).await;
    assert_eq!(seconds.unwrap(), 0.0, "a refuted result gives no time");
    assert_eq!(world.submit(&a, "x").await, Outcome::Mismatched);
}

pub async fn i6_credit_comes_once_per_attempt(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    world.submit(&a, "x").await;
    assert_eq!(world.submit(&a, "x").await, Outcome::Duplicate);
    world.submit(&b, "x").await;
    world.restart().await;
    for attempt in [&a, &b, &a] {
        assert_eq!(world.submit(attempt, "x").await, Outcome::Duplicate);
    }
    for device in crowd {
        assert_eq!(world.store.credits(device.account).await.unwrap(), 1);
        let seconds = world.store.credit_seconds(device.account).await;
        assert_eq!(seconds.unwrap(), 60.0, "what its one valid result took");
    }
}

pub async fn a_second_submit_with_another_digest_is_refused(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    world.submit(&attempt, "x").await;
    let other = world.hand_in(&attempt, world.claim("y")).await;
    assert_eq!(reason(other), Reason::SubmitConflict);
    let second = world.lease(crowd[1]).await;
    let claim = world.claim("y");
    let store = world.store.clone();
    store
        .submit(holder(&second), claim, OutputCheck::Missing, world.now)
        .await
        .unwrap();
    let other = world.hand_in(&second, world.claim("x")).await;
    assert_eq!(reason(other), Reason::SubmitConflict);
    assert_eq!(world.submit(&second, "y").await, Outcome::Verifying);
}

pub async fn a_submit_without_stored_bytes_asks_for_them(mut world: World) {
    let chain = world.archived_chain(1, &[(0, digest("x"))]).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    let claim = world.claim("x");
    let store = world.store.clone();
    // The check says Sound, the rows say otherwise (I3).
    for check in [OutputCheck::Missing, OutputCheck::Sound] {
        let said = store
            .submit(holder(&attempt), claim.clone(), check, world.now)
            .await
            .unwrap();
        assert_eq!(
            (said.outcome, said.hop_state),
            (Outcome::NeedUpload, HopState::Running)
        );
    }
    assert_eq!(world.hop(chain, 0).await.state, HopState::Running);
    world.blob(claim.output, OUTPUT_BYTES).await;
    let said = store
        .submit(holder(&attempt), claim, OutputCheck::Sound, world.now)
        .await
        .unwrap();
    assert_eq!(said.outcome, Outcome::NeedUpload);
    assert_eq!(world.submit(&attempt, "x").await, Outcome::Matched);
}

pub async fn a_malformed_output_is_refuted_with_its_reason(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    let check = OutputCheck::Malformed(Reason::OutputResidueRange);
    let store = world.store.clone();
    for _ in 0..2 {
        let said = store
            .submit(holder(&attempt), world.claim("x"), check, world.now)
            .await
            .unwrap();
        assert_eq!(said.outcome, Outcome::Malformed(Reason::OutputResidueRange));
    }
    let ended = store.attempt(attempt.id).await.unwrap();
    assert_eq!(ended.state, AttemptState::Mismatched);
    assert_eq!(ended.reason, Some(Reason::OutputResidueRange));
    let hop = world.hop(chain, 0).await;
    assert_eq!((hop.state, hop.results_waiting), (HopState::Ready, 0));
    let devices = store.devices().await.unwrap();
    let device = devices
        .iter()
        .find(|device| device.id == crowd[0].id)
        .unwrap();
    assert_eq!(
        (device.state, device.consecutive_invalid),
        (DeviceState::Probation, 1)
    );
}

pub async fn a_size_that_is_not_the_chains_is_refused(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    let mut claim = world.claim("x");
    claim.output_size -= 1;
    let said = world
        .store
        .submit(holder(&attempt), claim, OutputCheck::Missing, world.now)
        .await;
    assert_eq!(reason(said), Reason::OutputWrongSize);
    let mut claim = world.claim("x");
    claim.trace_size = u64::MAX;
    let said = world
        .store
        .submit(holder(&attempt), claim, OutputCheck::Missing, world.now)
        .await;
    assert_eq!(reason(said), Reason::BlobTooLarge);
    let unchanged = world.store.attempt(attempt.id).await.unwrap();
    assert_eq!((unchanged.state, unchanged.claim), (attempt.state, None));
}

pub async fn one_result_equal_to_the_archive_verifies_the_hop(mut world: World) {
    let chain = world.archived_chain(1, &[(0, digest("x"))]).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::NoOpenHop));
    assert_eq!(world.submit(&attempt, "x").await, Outcome::Matched);
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.accepted.unwrap().method, Method::Archive);
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Completed
    );
}

pub async fn a_result_against_the_archive_reopens_the_hop_and_lowers_trust(mut world: World) {
    let chain = world.archived_chain(1, &[(0, digest("x"))]).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    assert_eq!(world.submit(&attempt, "y").await, Outcome::Mismatched);
    let hop = world.hop(chain, 0).await;
    assert_eq!((hop.state, hop.accepted), (HopState::Ready, None));
    assert_eq!(world.store.chain(chain).await.unwrap().head, 0);
    let devices = world.store.devices().await.unwrap();
    let device = devices
        .iter()
        .find(|device| device.id == crowd[0].id)
        .unwrap();
    assert_eq!(device.consecutive_invalid, 1);
    world.pass(second(60));
    assert_eq!(world.ask(crowd[0]).await, Err(Reason::DeviceFailedLast));
    let attempt = world.lease(crowd[1]).await;
    assert_eq!(world.submit(&attempt, "x").await, Outcome::Matched);
}

async fn disagree(world: &mut World, device: Device, output: &str) -> Attempt {
    world.pass(second(600));
    let attempt = world.lease(device).await;
    world.submit(&attempt, output).await;
    attempt
}

pub async fn three_accounts_against_the_archive_make_it_suspect(mut world: World) {
    let chain = world.archived_chain(1, &[(0, digest("x"))]).await;
    let crowd = world.crowd(4).await;
    disagree(&mut world, crowd[0], "y").await;
    // The same account again does not count twice.
    disagree(&mut world, crowd[1], "y").await;
    disagree(&mut world, crowd[0], "y").await;
    assert_eq!(world.hop(chain, 0).await.state, HopState::Ready);
    disagree(&mut world, crowd[2], "y").await;
    assert_eq!(
        world.hop(chain, 0).await.state,
        HopState::Stuck(Reason::ArchiveSuspect)
    );
    assert_eq!(world.hop(chain, 0).await.accepted, None);
    let refused = world.store.reopen(chain, 0, String::new(), world.now).await;
    assert_eq!(reason(refused), Reason::OperatorOnly);
    let opened = world
        .store
        .requeue(chain, 0, String::new(), world.now)
        .await
        .unwrap();
    assert_eq!(opened.was, Some(Reason::ArchiveSuspect));
    disagree(&mut world, crowd[3], "x").await;
    assert_eq!(world.hop(chain, 0).await.state, HopState::Verified);
}

pub async fn i10_too_many_disagreements_make_the_hop_stuck_with_a_reason(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(7).await;
    for (number, device) in crowd[..6].iter().enumerate() {
        disagree(&mut world, *device, &format!("result {number}")).await;
    }
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.state, HopState::Stuck(Reason::QuorumDisagrees));
    assert_eq!(hop.stuck, Some(Reason::QuorumDisagrees));
    let refused = world.store.reopen(chain, 0, String::new(), world.now).await;
    assert_eq!(reason(refused), Reason::OperatorOnly);
    world
        .store
        .requeue(chain, 0, String::new(), world.now)
        .await
        .unwrap();
    assert_eq!(world.hop(chain, 0).await.results_waiting, 0);
    disagree(&mut world, crowd[0], "x").await;
    disagree(&mut world, crowd[6], "x").await;
    assert_eq!(world.hop(chain, 0).await.state, HopState::Verified);
}

pub async fn a_late_result_after_verification_is_unneeded_or_wrong(mut world: World) {
    world.archived_chain(2, &[(0, digest("x"))]).await;
    let crowd = world.crowd(4).await;
    let first = world.lease(crowd[0]).await;
    world.pass(second(600));
    let second_one = world.lease(crowd[1]).await;
    let claim = world.claim("x");
    let store = world.store.clone();
    store
        .submit(holder(&second_one), claim, OutputCheck::Missing, world.now)
        .await
        .unwrap();
    world.pass(second(600));
    let third = world.lease(crowd[2]).await;
    assert_eq!(world.submit(&third, "x").await, Outcome::Matched);
    let before = store.devices().await.unwrap();
    // Claimed before the hop was verified: the work is proven.
    assert_eq!(world.submit(&second_one, "x").await, Outcome::LateUnneeded);
    assert_eq!(store.credits(crowd[1].account).await.unwrap(), 1);
    assert_eq!(world.submit(&first, "y").await, Outcome::Mismatched);
    assert_eq!(world.submit(&first, "y").await, Outcome::Mismatched);
    assert_eq!(
        store.attempt(first.id).await.unwrap().state,
        AttemptState::LateMismatched
    );
    let after = store.devices().await.unwrap();
    let invalid = |devices: &[cipherhop_coordinator::domain::trust::Device]| {
        devices
            .iter()
            .find(|device| device.id == crowd[0].id)
            .unwrap()
            .consecutive_invalid
    };
    assert_eq!(invalid(&after), invalid(&before) + 1);
}

pub async fn i1_i2_a_chain_runs_to_its_end_with_one_archive_row_per_hop(mut world: World) {
    let hops = 5;
    let chain = world.archived_chain(hops, &[(2, digest("out 2"))]).await;
    let crowd = world.crowd(2).await;
    let mut head = 0;
    let key = LedgerKey::from_secret(&[7; 32]);
    for hop in 0..hops {
        world.restart().await;
        if hop > 0 {
            // The first row is of a coordinator that did not sign yet.
            let signing = world.store.sign_ledger(key.clone(), false, world.now);
            signing.await.unwrap();
        }
        let mut outcome = Outcome::Verifying;
        for device in &crowd {
            if outcome == Outcome::Matched {
                break;
            }
            let attempt = world.lease(*device).await;
            assert_eq!(attempt.hop, hop);
            world.pass(second(60));
            outcome = world.submit(&attempt, &format!("out {hop}")).await;
            let now = world.store.chain(chain).await.unwrap().head;
            assert!(now >= head);
            head = now;
        }
        assert_eq!(outcome, Outcome::Matched);
    }
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Completed
    );
    let archive = world.store.archive(chain).await.unwrap();
    assert_eq!(archive.len(), hops as usize);
    let checked = ledger::verify(&archive).unwrap();
    assert_eq!((checked.rows(), checked.unsigned()), (5, 1));
    assert_eq!(checked.signers(), [(key.public(), 4)]);
    for (hop, row) in (0..).zip(&archive) {
        assert_eq!((row.hop, row.digest), (hop, digest(&format!("out {hop}"))));
        assert_eq!(row.attempts.len(), if hop == 2 { 1 } else { 2 });
    }
    let mut forged = archive.clone();
    forged[1].digest = digest("forged");
    let broken = BrokenLedger::Chain { position: 1 };
    assert_eq!(ledger::verify(&forged).unwrap_err(), broken);
    assert_eq!(
        *world.events(chain).await.last().unwrap(),
        "chain.completed"
    );
    assert_eq!(world.ask(crowd[0]).await, Err(Reason::NoOpenHop));
}

pub async fn importing_the_digest_judges_waiting_results(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    world.submit(&a, "x").await;
    world.submit(&b, "y").await;
    world
        .store
        .import_archive(chain, vec![(0, digest("y"))], world.now)
        .await
        .unwrap();
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.accepted.unwrap().digest, digest("y"));
    assert_eq!(
        world.store.attempt(a.id).await.unwrap().state,
        AttemptState::Mismatched
    );
    assert_eq!(
        world.store.attempt(b.id).await.unwrap().state,
        AttemptState::Matched
    );
}
