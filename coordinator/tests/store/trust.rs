//! Trust: passing alone, known-answer hops, doubt, new generations, wrong archives.

use cipherhop_coordinator::domain::chain::ChainState;
use cipherhop_coordinator::domain::command::Outcome;
use cipherhop_coordinator::domain::hop::{HopState, Method};
use cipherhop_coordinator::domain::ledger;
use cipherhop_coordinator::domain::trust::DeviceState;
use cipherhop_proto::{Digest, Reason};

use crate::world::{Device, World, reason, second};

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

/// Ten accepted results in a row, with `helper` as the second account.
async fn trusted(world: &mut World, device: Device, helper: Device) {
    let chain = world.archived_chain(10, &[]).await;
    for hop in 0..10 {
        let (a, b) = (world.lease(device).await, world.lease(helper).await);
        world.submit(&a, &format!("t{hop}")).await;
        assert_eq!(world.submit(&b, &format!("t{hop}")).await, Outcome::Matched);
    }
    let chain = world.store.chain(chain).await.unwrap();
    assert_eq!(chain.state, ChainState::Completed);
    assert_eq!(standing(world, device).await.0, DeviceState::Trusted);
}

async fn standing(world: &World, device: Device) -> (DeviceState, u32) {
    let devices = world.store.devices().await.unwrap();
    let row = devices.iter().find(|row| row.id == device.id).unwrap();
    (row.state, row.consecutive_valid)
}

/// A chain of that many hops under a name of its own.
async fn another_chain(world: &mut World, hops: u32) -> cipherhop_proto::ChainId {
    let mut chain = world.new_chain("another", hops, &[]);
    world.prepare(&mut chain).await;
    let id = chain.id;
    world.store.create_chain(chain, world.now).await.unwrap();
    id
}

/// Hops the trusted device passed alone, of a chain of `hops` that is finished then; `output(hop)` by everybody.
async fn run_as_trusted(
    world: &World,
    chain: cipherhop_proto::ChainId,
    hops: u32,
    device: Device,
    helper: Device,
) -> Vec<u32> {
    let mut alone = Vec::new();
    for hop in 0..hops {
        let attempt = world.lease(device).await;
        assert_eq!(attempt.hop, hop);
        assert_eq!(
            world.ask(helper).await,
            Err(Reason::NoOpenHop),
            "nobody beside it"
        );
        let output = format!("alone {hop}");
        if world.submit(&attempt, &output).await == Outcome::Matched {
            alone.push(hop);
            let view = world.hop(chain, hop).await;
            assert_eq!(view.accepted.unwrap().method, Method::Trusted);
        } else {
            let second = world.lease(helper).await;
            assert_eq!(world.submit(&second, &output).await, Outcome::Matched);
        }
    }
    alone
}

pub async fn a_trusted_device_mostly_passes_alone_and_one_mismatch_ends_that(mut world: World) {
    let crowd = world.crowd(4).await;
    trusted(&mut world, crowd[0], crowd[1]).await;
    let chain = another_chain(&mut world, 41).await;
    let alone = run_as_trusted(&world, chain, 40, crowd[0], crowd[1]).await;
    // Each with probability 1 - 1/CV, CV from 10 to 50: 38 expected, fewer than 30 in no million runs.
    assert!(alone.len() >= 30, "{alone:?}");
    let archive = world.store.archive(chain).await.unwrap();
    ledger::verify(&archive).unwrap();
    let methods: Vec<Method> = archive.iter().map(|row| row.method).collect();
    assert!(methods.contains(&Method::Trusted));

    world
        .store
        .import_archive(chain, vec![(40, digest("right"))], world.now)
        .await
        .unwrap();
    let wrong = world.lease(crowd[0]).await;
    assert_eq!(world.submit(&wrong, "wrong").await, Outcome::Mismatched);
    assert_eq!(
        standing(&world, crowd[0]).await,
        (DeviceState::Probation, 0)
    );
}

pub async fn what_a_device_passed_alone_is_run_again_when_it_loses_its_trust(mut world: World) {
    let crowd = world.crowd(4).await;
    trusted(&mut world, crowd[0], crowd[1]).await;
    let chain = another_chain(&mut world, 8).await;
    let alone = run_as_trusted(&world, chain, 8, crowd[0], crowd[1]).await;
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Completed
    );
    world
        .store
        .quarantine(crowd[0].id, false, "suspicious".into(), world.now)
        .await
        .unwrap();
    world.restart().await;
    assert_eq!(
        world
            .events(chain)
            .await
            .iter()
            .filter(|kind| **kind == "hop.doubted")
            .count(),
        alone.len()
    );
    // The helper may confirm: it had no part in these hops. The doubted account may not.
    for hop in &alone {
        let again = world.lease(crowd[1]).await;
        assert_eq!(again.hop, *hop);
        assert!(
            world.hop(chain, *hop).await.running.is_empty(),
            "not for everybody to see"
        );
        assert_eq!(
            world.submit(&again, &format!("alone {hop}")).await,
            Outcome::Matched
        );
    }
    assert_eq!(world.ask(crowd[2]).await, Err(Reason::NoOpenHop));
    assert_eq!(world.store.chain(chain).await.unwrap().generation, 0);
}

pub async fn a_refuted_recheck_begins_a_new_generation(mut world: World) {
    let crowd = world.crowd(4).await;
    trusted(&mut world, crowd[0], crowd[1]).await;
    let chain = another_chain(&mut world, 12).await;
    let alone = run_as_trusted(&world, chain, 8, crowd[0], crowd[1]).await;
    let wrong = alone[0];
    let old = world.lease(crowd[2]).await;
    world
        .store
        .quarantine(crowd[0].id, false, "suspicious".into(), world.now)
        .await
        .unwrap();
    let a = world.lease(crowd[1]).await;
    assert_eq!(world.submit(&a, "really").await, Outcome::Verifying);
    let b = world.lease(crowd[3]).await;
    assert_eq!((a.hop, b.hop), (wrong, wrong));
    assert_eq!(world.submit(&b, "really").await, Outcome::Matched);
    world.restart().await;
    let forked = world.store.chain(chain).await.unwrap();
    assert_eq!((forked.generation, forked.head), (1, wrong + 1));
    assert_eq!(forked.state, ChainState::Active);
    // What came before is taken over, what comes after begins anew on the right input.
    let results = world.store.results(chain).await.unwrap();
    assert_eq!(results[wrong as usize].output, Some(digest("really")));
    assert_eq!(results[wrong as usize + 1].input, Some(digest("really")));
    assert!(results[wrong as usize + 2].input.is_none());
    let archive = world.store.archive(chain).await.unwrap();
    ledger::verify(&archive).unwrap();
    assert_eq!(
        archive.iter().filter(|row| row.generation == 1).count(),
        wrong as usize + 1
    );
    // A lease of the old generation is over, and its result is told so.
    assert_eq!(world.submit(&old, "late").await, Outcome::HopClosed);
    let next = world.lease(crowd[2]).await;
    assert_eq!((next.hop, next.generation), (wrong + 1, 1));
}

pub async fn known_answer_hops_look_like_work_and_tell_honest_devices_from_others(
    mut world: World,
) {
    let crowd = world.crowd(5).await;
    let chain = another_chain(&mut world, 2).await;
    for device in &crowd[..2] {
        let attempt = world.lease(*device).await;
        world.submit(&attempt, "known").await;
    }
    let mut request = world.request(crowd[2]);
    request.probes.fresh_permille = 1000;
    let work = world.acquire(world.request(crowd[4])).await.unwrap();
    let probe = world.acquire(request).await.unwrap();
    assert_eq!((work.attempt.hop, probe.attempt.hop), (1, 0));
    assert_eq!(probe.chain, work.chain);
    assert_eq!(probe.attempt.hard_deadline, work.attempt.hard_deadline);
    assert_eq!(probe.blobs.len(), work.blobs.len());
    let events = world.events(chain).await.len();
    assert_eq!(
        world.submit(&probe.attempt, "known").await,
        Outcome::Matched
    );
    assert_eq!(world.events(chain).await.len(), events, "nobody is told");
    assert_eq!(
        standing(&world, crowd[2]).await,
        (DeviceState::Probation, 1)
    );
    assert_eq!(world.store.credits(crowd[2].account).await.unwrap(), 1);
    // The digest is public; the trace proves that the hop was computed.
    let mut request = world.request(crowd[3]);
    request.probes.fresh_permille = 1000;
    let copied = world.acquire(request).await.unwrap().attempt;
    let mut claim = world.claim("known");
    claim.trace_root = digest("made up");
    let said = world.hand_in(&copied, claim).await.unwrap().outcome;
    assert_eq!(said, Outcome::Mismatched);
    assert_eq!(
        standing(&world, crowd[3]).await,
        (DeviceState::Probation, 0)
    );
    assert_eq!(world.store.credits(crowd[3].account).await.unwrap(), 0);
}

pub async fn a_dropped_archived_digest_lets_the_refuted_accounts_decide(mut world: World) {
    let chain = world.archived_chain(2, &[(0, digest("wrong"))]).await;
    let crowd = world.crowd(3).await;
    for device in &crowd {
        world.pass(second(600));
        let attempt = world.lease(*device).await;
        assert_eq!(world.submit(&attempt, "right").await, Outcome::Mismatched);
    }
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.state, HopState::Stuck(Reason::ArchiveSuspect));
    let drop = |hop| {
        let (store, now) = (world.store.clone(), world.now);
        async move { store.drop_archived(chain, hop, "typo".into(), now).await }
    };
    assert_eq!(reason(drop(1).await), Reason::ChainStateConflict);
    assert_eq!(drop(0).await.unwrap(), HopState::Verified);
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.accepted.unwrap().digest, digest("right"));
    assert_eq!(hop.accepted.unwrap().method, Method::Quorum);
    for device in &crowd {
        assert_eq!(world.store.credits(device.account).await.unwrap(), 1);
        assert_eq!(standing(&world, *device).await.1, 1);
    }
    assert_eq!(reason(drop(0).await), Reason::ChainStateConflict);
}

pub async fn an_operator_invalidates_a_verified_hop(mut world: World) {
    let chain = world.chain(2).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    world.submit(&a, "x").await;
    world.submit(&b, "x").await;
    let invalidate = |hop| {
        let (store, now) = (world.store.clone(), world.now);
        async move {
            store
                .invalidate(chain, hop, "numeric verdict".into(), now)
                .await
        }
    };
    assert_eq!(reason(invalidate(1).await), Reason::ChainStateConflict);
    let forked = invalidate(0).await.unwrap();
    assert_eq!((forked.generation, forked.head), (1, 0));
    assert_eq!(world.submit(&a, "x").await, Outcome::HopClosed);
    let again = world.lease(crowd[0]).await;
    assert_eq!((again.hop, again.generation), (0, 1));
}

pub async fn i9_a_referee_refutes_one_result_and_leaves_the_other_standing(mut world: World) {
    let chain = world.chain(2).await;
    let crowd = world.crowd(4).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert!(world.store.disputes().await.unwrap().is_empty());
    world.submit(&a, "right").await;
    assert_eq!(world.submit(&b, "wrong").await, Outcome::Verifying);
    world.restart().await;
    let disputes = world.store.disputes().await.unwrap();
    assert_eq!(disputes.len(), 1);
    let ids: Vec<_> = disputes[0].attempts.iter().map(|a| a.id).collect();
    assert_eq!((disputes[0].hop, ids), (0, vec![a.id, b.id]));
    // Nobody else is asked while a referee is at it.
    world.pass(second(600));
    let mut third = world.request(crowd[2]);
    third.held = vec![chain];
    assert_eq!(
        world.acquire(third).await.map(drop),
        Err(Reason::HopBackingOff)
    );
    let convict = |guilty: Vec<_>, upheld| {
        let (store, now) = (world.store.clone(), world.now);
        let guilty = guilty.into_iter().collect();
        async move {
            store
                .convict(chain, 0, 0, guilty, upheld, now)
                .await
                .unwrap()
        }
    };
    assert!(convict(vec![b.id], Some(a.id)).await);
    assert!(!convict(vec![b.id], Some(a.id)).await, "settled before");
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.accepted.unwrap().digest, digest("right"));
    assert_eq!(hop.accepted.unwrap().method, Method::Referee);
    assert_eq!(hop.verified_by, ["volunteer 0"]);
    assert_eq!(standing(&world, crowd[0]).await.1, 1);
    assert_eq!(standing(&world, crowd[1]).await.1, 0);
    assert_eq!(world.store.credits(crowd[1].account).await.unwrap(), 0);

    // Both wrong: the hop is open again.
    let (c, d) = (world.lease(crowd[2]).await, world.lease(crowd[3]).await);
    world.submit(&c, "x").await;
    world.submit(&d, "y").await;
    let (store, now) = (world.store.clone(), world.now);
    let guilty = [c.id, d.id].into_iter().collect();
    assert!(store.convict(chain, 0, 1, guilty, None, now).await.unwrap());
    let hop = world.hop(chain, 1).await;
    assert_eq!((hop.state, hop.results_waiting), (HopState::Ready, 0));
}
