//! Devices that failed, are too slow, or come back after a restart.

use cipherhop_coordinator::domain::attempt::{Attempt, AttemptState, FailKind};
use cipherhop_coordinator::domain::chain::{ChainState, Policy};
use cipherhop_coordinator::domain::command::Outcome;
use cipherhop_coordinator::domain::reconcile::{Fate, Held};
use cipherhop_coordinator::store::Acquired;
use cipherhop_proto::{AttemptId, Digest, Reason};

use crate::world::{Device, World, holder, second};

pub async fn two_lone_volunteers_do_not_wait_for_each_other_for_ever(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert_eq!(world.submit(&a, "x").await, Outcome::Verifying);
    let words = "power cut".to_owned();
    world
        .store
        .fail(holder(&b), FailKind::Disconnect, words, world.now)
        .await
        .unwrap();
    world.pass(second(600));
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::DeviceFailedLast));
    let Acquired::NoWork(refusal) = world
        .store
        .acquire(world.request(crowd[1]), world.now)
        .await
        .unwrap()
    else {
        panic!("given out too early");
    };
    let wait = refusal.retry_after.unwrap();
    assert!(wait > second(0) && wait <= second(300), "{wait:?}");
    world.pass(wait);
    let again = world.lease(crowd[1]).await;
    assert_eq!(world.submit(&again, "x").await, Outcome::Matched);
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Completed
    );
}

pub async fn a_device_too_slow_for_the_deadline_is_told_before_it_claims(mut world: World) {
    let mut chain = world.new_chain("slow", 3, &[]);
    for (hop, given) in chain.hops.iter_mut().enumerate() {
        given.archived = Some(Digest::of(format!("out {hop}").as_bytes()));
    }
    chain.policy.deadline_floor = second(1000);
    world.prepare(&mut chain).await;
    world.store.create_chain(chain, world.now).await.unwrap();
    let crowd = world.crowd(2).await;
    let first = world.lease(crowd[0]).await;
    world.pass(second(100));
    world.submit(&first, "out 0").await;
    // Ten times as slow as the other is just in time; what expired took longer than it was given.
    let slow = world.lease(crowd[1]).await;
    world.pass(second(2000));
    world.store.reap(world.now).await.unwrap();
    let state = world.store.attempt(slow.id).await.unwrap().state;
    assert_eq!(state, AttemptState::Expired);
    world.pass(second(10));
    let next = world.lease(crowd[0]).await;
    world.pass(second(100));
    world.submit(&next, "out 1").await;
    world.restart().await;
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::DeviceTooSlow));
    // The measure is not for ever: four deadlines, or a chain whose others are gone would starve.
    world.pass(second(3500));
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::DeviceTooSlow));
    world.pass(second(1000));
    world.lease(crowd[1]).await;
}

pub async fn a_restarted_worker_and_the_coordinator_compare_what_they_hold(mut world: World) {
    let chain = world.chain(2).await;
    let crowd = world.crowd(3).await;
    let held = |attempt: &Attempt, finished| Held {
        holder: holder(attempt),
        finished,
    };
    let reconcile = |world: &World, device: Device, known: Vec<Held>| {
        let (store, now) = (world.store.clone(), world.now);
        async move { store.reconcile(device.id, known, now).await.unwrap() }
    };
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    world.pass(second(200));
    let answer = reconcile(&world, crowd[0], vec![held(&a, false)]).await;
    assert_eq!(answer.fates, [Fate::Continue]);
    assert!(answer.lost.is_empty());
    let renewed = world.store.attempt(a.id).await.unwrap();
    assert_eq!(renewed.soft_expiry, world.now.plus(second(300)), "renewed");
    assert_eq!(
        reconcile(&world, crowd[0], vec![held(&a, true)])
            .await
            .fates,
        [Fate::Submit]
    );
    // Its folder is gone: the lease is sent again.
    let answer = reconcile(&world, crowd[0], Vec::new()).await;
    assert_eq!(answer.lost.len(), 1);
    assert_eq!(
        (answer.lost[0].attempt.id, answer.lost[0].attempt.epoch),
        (a.id, a.epoch)
    );
    // Another epoch, device or coordinator: nothing is thrown away.
    let mut stale = held(&a, true);
    stale.holder.epoch += 1;
    let mut unknown = held(&a, true);
    unknown.holder.attempt = AttemptId::generate();
    let answer = reconcile(&world, crowd[0], vec![stale, unknown]).await;
    assert_eq!(
        answer.fates,
        [
            Fate::Keep(Reason::StaleEpoch),
            Fate::Keep(Reason::AttemptNotFound)
        ]
    );
    // Past the deadline an unfinished one is dropped and a finished one judged.
    world.pass(Policy::default().deadline_floor);
    world.store.reap(world.now).await.unwrap();
    let answer = reconcile(&world, crowd[1], vec![held(&b, false)]).await;
    assert_eq!(answer.fates, [Fate::Drop(Reason::DeadlinePassed)]);
    let answer = reconcile(&world, crowd[1], vec![held(&b, true)]).await;
    assert_eq!(answer.fates, [Fate::Submit]);
    world.submit(&a, "x").await;
    assert_eq!(world.submit(&b, "x").await, Outcome::Matched);
    let answer = reconcile(&world, crowd[1], vec![held(&b, true)]).await;
    assert_eq!(answer.fates, [Fate::Drop(Reason::HopVerified)]);
    world
        .store
        .invalidate(chain, 0, "wrong".into(), world.now)
        .await
        .unwrap();
    let answer = reconcile(&world, crowd[1], vec![held(&b, true)]).await;
    assert_eq!(answer.fates, [Fate::Drop(Reason::HopClosed)]);
}
