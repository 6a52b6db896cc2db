//! Two coordinators over one PostgreSQL database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cipherhop_coordinator::clock::ManualClock;
use cipherhop_coordinator::store::{Acquired, Duty, Role, Store, open_postgres};
use cipherhop_coordinator::tasks::reaper;
use cipherhop_proto::{Digest, Reason};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::{World, reason, second};

async fn pair() -> Option<(World, Arc<dyn Store>)> {
    let world = World::postgres().await?;
    let url = &world.database.as_ref().unwrap().url;
    let other = open_postgres(url, 8).await.unwrap();
    Some((world, other))
}

/// Each replica remembers tokens for a moment; a revocation ends that everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_revoked_at_one_replica_is_refused_by_the_other_at_once() {
    let Some((world, other)) = pair().await else {
        return;
    };
    let made = world.token(Role::Observer, "eve", "secret").await.unwrap();
    let hash = Digest::of(b"secret");
    assert_eq!(other.identify(hash).await.unwrap(), made);
    let revoked = world.store.revoke_token(made.token, world.now);
    revoked.await.unwrap();
    let start = Instant::now();
    while other.identify(hash).await.is_ok() {
        // Without the news it would go on for as long as a token is remembered, a second.
        assert!(start.elapsed() < Duration::from_millis(800));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        reason(other.identify(hash).await),
        Reason::TokenRevoked,
        "and so it stays"
    );
}

/// I1, I4: whoever claims where, a hop goes to at most quorum accounts and every lease has its own epoch.
#[tokio::test(flavor = "multi_thread")]
async fn i4_claims_at_two_replicas_hand_no_hop_to_two_who_should_not_have_it() {
    let Some((mut world, other)) = pair().await else {
        return;
    };
    const CHAINS: usize = 6;
    for number in 0..CHAINS {
        let mut new = world.new_chain(&format!("chain {number}"), 2, &[]);
        world.prepare(&mut new).await;
        world.store.create_chain(new, world.now).await.unwrap();
    }
    let crowd = world.crowd(24).await;
    let mut claims = JoinSet::new();
    for (number, device) in crowd.into_iter().enumerate() {
        let store = if number % 2 == 0 {
            world.store.clone()
        } else {
            other.clone()
        };
        let (request, now) = (world.request(device), world.now);
        claims.spawn(async move { store.acquire(request, now).await.unwrap() });
    }
    let mut accounts: HashMap<_, HashSet<_>> = HashMap::new();
    let mut epochs = HashSet::new();
    while let Some(claim) = claims.join_next().await {
        if let Acquired::Assigned(given) = claim.unwrap() {
            let (attempt, hop) = (&given.attempt, (given.attempt.chain, given.attempt.hop));
            assert_eq!(attempt.hop, 0);
            assert!(accounts.entry(hop).or_default().insert(attempt.account));
            assert!(epochs.insert((hop, attempt.epoch)));
        }
    }
    assert!(accounts.values().all(|accounts| accounts.len() <= 2));
    // Nobody was refused while there was work: whoever got nothing may ask again.
    let given: usize = accounts.values().map(HashSet::len).sum();
    assert!(given >= CHAINS, "only {given} hops were handed out");
}

/// One device asks both replicas with one nonce at once.
#[tokio::test(flavor = "multi_thread")]
async fn one_nonce_at_two_replicas_gives_one_attempt() {
    let Some((mut world, other)) = pair().await else {
        return;
    };
    world.chain(1).await;
    let mut second = world.new_chain("another", 1, &[]);
    world.prepare(&mut second).await;
    world.store.create_chain(second, world.now).await.unwrap();
    for device in world.crowd(4).await {
        let request = world.request(device);
        let (here, there) = (
            request.clone(),
            cipherhop_coordinator::store::AcquireRequest {
                attempt: cipherhop_proto::AttemptId::generate(),
                ..request
            },
        );
        let (a, b) = tokio::join!(
            world.store.acquire(here, world.now),
            other.acquire(there, world.now)
        );
        match (a.unwrap(), b.unwrap()) {
            (Acquired::Assigned(a), Acquired::Assigned(b)) => {
                assert_eq!(a.attempt.id, b.attempt.id)
            }
            (Acquired::NoWork(_), Acquired::NoWork(_)) => {}
            (Acquired::Assigned(given), Acquired::NoWork(_))
            | (Acquired::NoWork(_), Acquired::Assigned(given)) => {
                // The one that got nothing finds the attempt when it asks again.
                let mut again = world.request(device);
                again.nonce = given.attempt.nonce;
                assert_eq!(
                    world.acquire(again).await.unwrap().attempt.id,
                    given.attempt.id
                );
            }
        }
    }
}

#[tokio::test]
async fn a_change_at_one_replica_wakes_those_who_wait_at_the_other() {
    let Some((mut world, other)) = pair().await else {
        return;
    };
    let mut changes = other.changes();
    changes.borrow_and_update();
    world.chain(1).await;
    tokio::time::timeout(Duration::from_secs(4), changes.changed())
        .await
        .expect("a notification comes before the poll")
        .unwrap();
}

#[tokio::test]
async fn one_replica_has_a_duty_and_another_takes_over_when_it_ends() {
    let Some((world, other)) = pair().await else {
        return;
    };
    assert!(world.store.leads(Duty::Reaper).await.unwrap());
    assert!(!other.leads(Duty::Reaper).await.unwrap());
    assert!(other.leads(Duty::LocalBlobs).await.unwrap());
    assert!(world.store.leads(Duty::Reaper).await.unwrap());
    world.store.close().await;
    for _ in 0..100 {
        if other.leads(Duty::Reaper).await.unwrap() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody took over");
}

/// I8: the leases of a replica that is gone end all the same.
#[tokio::test]
async fn i8_the_leases_of_a_dead_replica_are_reaped_by_the_other() {
    let Some((mut world, other)) = pair().await else {
        return;
    };
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    assert!(world.store.leads(Duty::Reaper).await.unwrap());
    world.store.close().await;
    let clock = Arc::new(ManualClock::at(world.now.plus(second(400))));
    let stop = CancellationToken::new();
    let task = tokio::spawn(reaper::run(other.clone(), clock, stop.clone()));
    for _ in 0..200 {
        let events = other.events(chain, 0, 100).await.unwrap();
        if events
            .iter()
            .any(|event| event.event.kind.as_str() == "attempt.silent")
        {
            assert!(other.attempt(attempt.id).await.unwrap().silent);
            stop.cancel();
            return task.await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the lease was never silent");
}
