use std::time::Duration;

use cipherhop_coordinator::domain::attempt::{AttemptState, FailKind, Phase, Progress};
use cipherhop_coordinator::domain::chain::{ChainState, Policy};
use cipherhop_coordinator::domain::command::{Directive, Holder, Outcome, OutputCheck};
use cipherhop_coordinator::domain::hop::HopState;
use cipherhop_proto::{AttemptId, ChainId, Digest, Nonce, Reason};

use crate::world::{Device, GIB, World, holder, reason, second};

pub async fn acquiring_with_one_nonce_gives_one_attempt(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(1).await;
    let request = world.request(crowd[0]);
    let first = world.acquire(request.clone()).await.unwrap();
    world.restart().await;
    let mut again = request;
    again.attempt = AttemptId::generate();
    let second = world.acquire(again.clone()).await.unwrap();
    assert_eq!(first.attempt.id, second.attempt.id);
    assert_eq!(first.attempt.epoch, second.attempt.epoch);
    assert_eq!(first.blobs, second.blobs);
    assert_eq!(first.blobs.len(), 6);
    world
        .store
        .release(holder(&first.attempt), world.now)
        .await
        .unwrap();
    let third = world.acquire(again).await.unwrap();
    assert_eq!(third.attempt.state, AttemptState::Abandoned);
}

pub async fn a_device_without_memory_gets_its_live_attempt_again(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(1).await;
    let first = world.lease(crowd[0]).await;
    let again = world.lease(crowd[0]).await;
    assert_eq!(first.id, again.id);
}

pub async fn quorum_two_goes_to_two_accounts_in_parallel_and_to_no_third(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(3).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert!(a.id != b.id && a.epoch < b.epoch);
    assert_eq!(world.ask(crowd[2]).await, Err(Reason::NoOpenHop));
    assert_eq!(world.hop(chain, 0).await.running.len(), 2);
    assert_eq!(
        world.hop(chain, 0).await.running[0].volunteer,
        "volunteer 0"
    );
}

pub async fn one_account_never_gets_a_hop_twice_even_with_two_devices(mut world: World) {
    world.chain(1).await;
    let one = world.device("alice", 1).await;
    let two = world.device("alice", 2).await;
    let attempt = world.lease(one).await;
    assert_eq!(world.ask(two).await, Err(Reason::AccountAlreadyOnHop));
    world.submit(&attempt, "x").await;
    assert_eq!(world.ask(two).await, Err(Reason::AccountAlreadyOnHop));
    assert_eq!(world.ask(one).await, Err(Reason::AccountAlreadyOnHop));
}

pub async fn hard_filters_name_what_lacks(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let mut small = world.request(crowd[0]);
    small.memory_bytes = GIB - 1;
    assert_eq!(
        world.acquire(small).await.unwrap_err(),
        Reason::NotEnoughMemory
    );
    let mut full = world.request(crowd[0]);
    full.disk_bytes = 9000;
    assert_eq!(
        world.acquire(full.clone()).await.unwrap_err(),
        Reason::NotEnoughDisk
    );
    full.cached = vec![
        Digest::of(b"program"),
        Digest::of(b"relin"),
        Digest::of(b"input"),
    ];
    full.cached.push(Digest::of(b"unknown"));
    world.acquire(full).await.unwrap();
    let mut unknown = world.request(crowd[0]);
    unknown.chain = Some(ChainId::generate());
    assert_eq!(
        reason(world.store.acquire(unknown, world.now).await),
        Reason::ChainNotFound
    );
    assert_eq!(world.hop(chain, 0).await.attempts, 1);
}

pub async fn a_wanted_range_is_kept(mut world: World) {
    world.archived_chain(3, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(1).await;
    let mut later = world.request(crowd[0]);
    later.hops = Some(1..=2);
    assert_eq!(
        world.acquire(later.clone()).await.unwrap_err(),
        Reason::NoOpenHop
    );
    let attempt = world.lease(crowd[0]).await;
    world.submit(&attempt, "x").await;
    let mut earlier = world.request(crowd[0]);
    earlier.hops = Some(0..=0);
    assert_eq!(
        world.acquire(earlier).await.unwrap_err(),
        Reason::HopVerified
    );
    assert_eq!(world.acquire(later).await.unwrap().attempt.hop, 1);
}

pub async fn i4_a_stale_epoch_changes_nothing(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    let before = world.store.status(chain).await.unwrap();
    world.pass(second(10));
    for epoch in [0, attempt.epoch + 1] {
        let stale = Holder {
            epoch,
            ..holder(&attempt)
        };
        let now = world.now;
        let store = world.store.clone();
        let progress = Progress::default();
        let claim = world.claim("x");
        assert_eq!(
            reason(store.sync(stale, Phase::Computing, progress, now).await),
            Reason::StaleEpoch
        );
        assert_eq!(reason(store.touch(stale, now).await), Reason::StaleEpoch);
        let submitted = store.submit(stale, claim, OutputCheck::Sound, now).await;
        assert_eq!(reason(submitted), Reason::StaleEpoch);
        let failed = store
            .fail(stale, FailKind::Compute, String::new(), now)
            .await;
        assert_eq!(reason(failed), Reason::StaleEpoch);
        assert_eq!(reason(store.release(stale, now).await), Reason::StaleEpoch);
    }
    assert_eq!(world.store.status(chain).await.unwrap(), before);
    assert_eq!(world.store.attempt(attempt.id).await.unwrap(), attempt);
}

pub async fn another_device_cannot_speak_for_an_attempt(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    let thief = Holder {
        device: crowd[1].id,
        ..holder(&attempt)
    };
    assert_eq!(
        reason(world.store.release(thief, world.now).await),
        Reason::AttemptNotYours
    );
    let nobody = Holder {
        attempt: AttemptId::generate(),
        ..holder(&attempt)
    };
    assert_eq!(
        reason(world.store.touch(nobody, world.now).await),
        Reason::AttemptNotFound
    );
}

pub async fn a_silent_lease_opens_the_hop_and_may_still_win(mut world: World) {
    let chain = world.archived_chain(1, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(3).await;
    let slow = world.lease(crowd[0]).await;
    world.pass(second(200));
    let progress = Progress {
        steps_done: 3,
        steps_total: 45,
        ..Progress::default()
    };
    world
        .store
        .sync(holder(&slow), Phase::Computing, progress.clone(), world.now)
        .await
        .unwrap();
    assert_eq!(world.hop(chain, 0).await.running[0].progress, progress);
    world.pass(second(5 * 60 + 29));
    assert_eq!(world.store.reap(world.now).await.unwrap().silent, 0);
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::NoOpenHop));
    world.pass(second(1));
    assert_eq!(world.store.reap(world.now).await.unwrap().silent, 1);
    assert_eq!(world.store.reap(world.now).await.unwrap().silent, 0);
    let fast = world.lease(crowd[1]).await;
    assert_eq!(world.ask(crowd[2]).await, Err(Reason::NoOpenHop));
    assert_eq!(world.submit(&slow, "x").await, Outcome::Matched);
    let told = world.store.touch(holder(&fast), world.now).await.unwrap();
    assert_eq!(told, Directive::Cancel(Reason::HopVerified));
}

pub async fn a_passed_deadline_ends_the_attempt_and_its_late_result_still_counts(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(2).await;
    let (slow, other) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    assert_eq!(world.submit(&other, "x").await, Outcome::Verifying);
    world.pass(Policy::default().deadline_floor);
    let report = world.store.reap(world.now).await.unwrap();
    assert_eq!((report.expired, report.next_wake), (1, None));
    assert_eq!(
        world.store.attempt(slow.id).await.unwrap().state,
        AttemptState::Expired
    );
    let told = world.store.touch(holder(&slow), world.now).await.unwrap();
    assert_eq!(told, Directive::Cancel(Reason::DeadlinePassed));
    assert_eq!(world.hop(chain, 0).await.state, HopState::Verifying);
    assert_eq!(world.submit(&slow, "x").await, Outcome::Matched);
    assert_eq!(
        world.store.attempt(slow.id).await.unwrap().state,
        AttemptState::LateValid
    );
    assert_eq!(world.store.credits(crowd[0].account).await.unwrap(), 1);
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Completed
    );
}

pub async fn i8_every_live_lease_is_due_some_time_and_the_reaper_knows_when(mut world: World) {
    world.chain(1).await;
    let crowd = world.crowd(2).await;
    assert_eq!(world.store.reap(world.now).await.unwrap().next_wake, None);
    let first = world.lease(crowd[0]).await;
    world.pass(second(7));
    world.lease(crowd[1]).await;
    let mut looks = 0;
    loop {
        let report = world.store.reap(world.now).await.unwrap();
        let Some(wake) = report.next_wake else { break };
        assert!(wake > world.now, "a wake-up in the past");
        world.now = wake;
        looks += 1;
    }
    assert_eq!(looks, 4);
    assert_eq!(
        world.store.attempt(first.id).await.unwrap().state,
        AttemptState::Expired
    );
}

pub async fn a_device_that_failed_is_not_the_next_one(mut world: World) {
    world.archived_chain(1, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(2).await;
    fail(&mut world, crowd[0]).await;
    assert_eq!(world.ask(crowd[0]).await, Err(Reason::DeviceFailedLast));
    let other = world.lease(crowd[1]).await;
    world
        .store
        .release(holder(&other), world.now)
        .await
        .unwrap();
    world.lease(crowd[0]).await;
}

/// Leases the open hop to the device, fails it, and waits out the back-off.
async fn fail(world: &mut World, device: Device) -> HopState {
    let attempt = world.lease(device).await;
    let detail = "illegal instruction".to_owned();
    let holder = holder(&attempt);
    let state = world
        .store
        .fail(holder, FailKind::Compute, detail, world.now)
        .await
        .unwrap();
    let again = world
        .store
        .fail(holder, FailKind::Compute, String::new(), world.now)
        .await;
    assert_eq!(again.unwrap(), state);
    world.pass(second(600));
    state
}

async fn stuck(world: &mut World, crowd: &[Device]) {
    for round in 0..3 {
        fail(world, crowd[round % 2]).await;
    }
}

pub async fn the_compute_budget_makes_the_hop_stuck_with_a_reason(mut world: World) {
    let chain = world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(3).await;
    stuck(&mut world, &crowd).await;
    world.restart().await;
    let hop = world.hop(chain, 0).await;
    assert_eq!(hop.state, HopState::Stuck(Reason::ComputeBudget));
    let failure = hop.last_failure.unwrap();
    assert_eq!(failure.reason, Reason::AttemptFailedCompute);
    assert_eq!(failure.detail, "illegal instruction");
    let state = world.store.chain(chain).await.unwrap().state;
    assert_eq!(state, ChainState::Stuck(Reason::ComputeBudget));
    assert_eq!(world.ask(crowd[2]).await, Err(Reason::NoOpenHop));
    assert!(
        world
            .events(chain)
            .await
            .ends_with(&["attempt.failed", "hop.stuck", "chain.stuck"])
    );
}

pub async fn requeue_opens_a_stuck_hop_and_keeps_the_reason(mut world: World) {
    let chain = world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(2).await;
    let now = world.now;
    let refused = world.store.requeue(chain, 0, String::new(), now).await;
    assert_eq!(reason(refused), Reason::HopNotStuck);
    stuck(&mut world, &crowd).await;
    let opened = world
        .store
        .requeue(chain, 0, "new build".into(), world.now)
        .await
        .unwrap();
    assert_eq!(
        (opened.hop_state, opened.was),
        (HopState::Ready, Some(Reason::ComputeBudget))
    );
    let hop = world.hop(chain, 0).await;
    assert_eq!(
        hop.last_failure.unwrap().reason,
        Reason::AttemptFailedCompute
    );
    assert_eq!(
        world.store.chain(chain).await.unwrap().state,
        ChainState::Active
    );
    let attempt = world.lease(crowd[0]).await;
    assert_eq!(world.submit(&attempt, "x").await, Outcome::Matched);
}

pub async fn volunteers_reopen_a_few_times_then_only_the_operator(mut world: World) {
    let chain = world.archived_chain(1, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(2).await;
    for _ in 0..3 {
        fail(&mut world, crowd[0]).await;
        assert_eq!(world.ask(crowd[0]).await, Err(Reason::DeviceFailedLast));
        let opened = world
            .store
            .reopen(chain, 0, "fixed".into(), world.now)
            .await
            .unwrap();
        assert_eq!(opened.was, Some(Reason::AttemptFailedCompute));
    }
    fail(&mut world, crowd[0]).await;
    let refused = world.store.reopen(chain, 0, String::new(), world.now).await;
    assert_eq!(reason(refused), Reason::OperatorOnly);
    world
        .store
        .requeue(chain, 0, String::new(), world.now)
        .await
        .unwrap();
}

pub async fn release_gives_the_hop_back_unharmed(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    world
        .store
        .release(holder(&attempt), world.now)
        .await
        .unwrap();
    world
        .store
        .release(holder(&attempt), world.now)
        .await
        .unwrap();
    let hop = world.hop(chain, 0).await;
    assert_eq!((hop.state, hop.last_failure), (HopState::Ready, None));
    let failed = world
        .store
        .fail(holder(&attempt), FailKind::Disk, String::new(), world.now)
        .await;
    assert_eq!(reason(failed), Reason::AttemptClosed);
    let next = world.lease(crowd[0]).await;
    assert_eq!(next.epoch, attempt.epoch + 1);
}

pub async fn a_hop_that_failed_waits_before_it_is_handed_out(mut world: World) {
    world.archived_chain(1, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(2).await;
    let attempt = world.lease(crowd[0]).await;
    let detail = String::new();
    world
        .store
        .fail(holder(&attempt), FailKind::Disconnect, detail, world.now)
        .await
        .unwrap();
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::HopBackingOff));
    world.pass(Duration::from_secs(2));
    let mut request = world.request(crowd[1]);
    request.nonce = Nonce::from_bytes([9; 16]);
    world.acquire(request).await.unwrap();
}

pub async fn hops_that_usually_take_long_get_a_later_deadline(mut world: World) {
    world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(1).await;
    let first = world.lease(crowd[0]).await;
    let floor = Policy::default().deadline_floor;
    assert_eq!(first.hard_deadline.since(first.leased), floor);
    world.pass(floor - second(1));
    world.submit(&first, "x").await;
    let next = world.lease(crowd[0]).await;
    assert_eq!(
        next.hard_deadline.since(next.leased),
        (floor - second(1)) * 4
    );
}
