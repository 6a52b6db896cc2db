//! The reaper's loop.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/world.rs"]
#[allow(dead_code)]
mod world;

use std::sync::Arc;
use std::time::Duration;

use cipherhop_coordinator::clock::ManualClock;
use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::tasks::reaper;
use cipherhop_proto::ChainId;
use tokio_util::sync::CancellationToken;
use world::World;

async fn wait_for(world: &World, chain: ChainId, event: &str) {
    for _ in 0..200 {
        if world.events(chain).await.contains(&event) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no {event}");
}

#[tokio::test]
async fn i8_the_reaper_ends_leases_by_the_injected_clock_and_stops_when_told() {
    let mut world = World::memory();
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    let clock = Arc::new(ManualClock::at(world.now));
    let stop = CancellationToken::new();
    let task = tokio::spawn(reaper::run(
        world.store.clone(),
        clock.clone(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        world.store.attempt(attempt.id).await.unwrap().state,
        attempt.state
    );
    clock.advance(Duration::from_secs(330));
    wait_for(&world, chain, "attempt.silent").await;
    clock.advance(Duration::from_secs(7200));
    wait_for(&world, chain, "attempt.expired").await;
    assert_eq!(
        world.store.attempt(attempt.id).await.unwrap().state,
        AttemptState::Expired
    );
    stop.cancel();
    task.await.unwrap();
}
