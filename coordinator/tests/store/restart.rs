use std::collections::HashSet;

use cipherhop_coordinator::domain::attempt::{AttemptState, FailKind, Phase, Progress};
use cipherhop_coordinator::domain::command::{Outcome, OutputCheck};
use cipherhop_coordinator::domain::hop::HopState;
use cipherhop_coordinator::store::{Acquired, open_sqlite};
use cipherhop_proto::{Digest, Reason};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection, raw_sql};

use crate::world::{World, holder, reason, second};

pub async fn i5_everything_acknowledged_is_there_after_a_restart(mut world: World) {
    let chain = world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(2).await;
    let done = world.lease(crowd[0]).await;
    let claim = world.claim("x");
    let store = world.store.clone();
    store
        .submit(holder(&done), claim, OutputCheck::Missing, world.now)
        .await
        .unwrap();
    world.restart().await;
    assert_eq!(
        world.store.attempt(done.id).await.unwrap().claim,
        Some(world.claim("x"))
    );
    world.submit(&done, "x").await;
    let running = world.lease(crowd[1]).await;
    let progress = Progress {
        steps_done: 7,
        steps_total: 45,
        step: "lay/attention".into(),
        compute: second(90),
        eta: Some((second(100), second(200))),
    };
    let store = world.store.clone();
    store
        .sync(holder(&running), Phase::Computing, progress, world.now)
        .await
        .unwrap();
    let seen = |store: std::sync::Arc<dyn cipherhop_coordinator::store::Store>| async move {
        let status = store.status(chain).await.unwrap();
        let archive = store.archive(chain).await.unwrap();
        let results = store.results(chain).await.unwrap();
        let devices = store.devices().await.unwrap();
        let events = store.events(chain, 0, 100).await.unwrap();
        let attempts = (
            store.attempt(done.id).await.unwrap(),
            store.attempt(running.id).await.unwrap(),
        );
        (status, archive, results, devices, events, attempts)
    };
    let before = seen(world.store.clone()).await;
    world.restart().await;
    assert_eq!(seen(world.store.clone()).await, before);
    assert_eq!(before.0.chain.head, 1);
}

pub async fn i3_a_transaction_that_fails_leaves_nothing(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(2).await;
    let first = world.lease(crowd[0]).await;
    // An id that is taken: whatever the backend says, nothing of the second lease may stay.
    let mut twice = world.request(crowd[1]);
    twice.attempt = first.id;
    let before = world.store.status(chain).await.unwrap();
    let answer = world.store.acquire(twice, world.now).await;
    assert!(answer.is_err());
    world.restart().await;
    assert_eq!(world.store.status(chain).await.unwrap(), before);
    assert_eq!(world.store.attempt(first.id).await.unwrap(), first);
    world.lease(crowd[1]).await;
}

pub async fn events_are_written_with_the_change_they_tell_of(mut world: World) {
    let chain = world.archived_chain(1, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    assert_eq!(world.submit(&attempt, "x").await, Outcome::Matched);
    world.restart().await;
    assert_eq!(
        world.events(chain).await,
        [
            "chain.created",
            "hop.ready",
            "attempt.leased",
            "attempt.submitted",
            "hop.verified",
            "chain.completed"
        ]
    );
    let status = world.store.status(chain).await.unwrap();
    assert_eq!(status.hops[0].state, HopState::Verified);
    let last = world
        .store
        .events(chain, 0, 100)
        .await
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!(status.sequence, last.sequence);
}

/// What no version of this program writes.
const BROKEN: [&str; 16] = [
    "UPDATE chains SET head = 0",
    "UPDATE chains SET state = 'Stuck', note = ''",
    "UPDATE chains SET state = 'Completed'",
    "UPDATE hops SET state = 'Stuck' WHERE hop = 1",
    "UPDATE hops SET output = NULL, method = NULL WHERE hop = 0",
    "UPDATE hops SET output = ZERO, method = 'Quorum', state = 'Verified' WHERE hop = 1",
    "UPDATE hops SET input = ZERO WHERE hop = 1",
    "UPDATE attempts SET result = NULL",
    "UPDATE attempts SET state = 'Odd'",
    "UPDATE attempts SET ended_us = NULL",
    "DELETE FROM blobs WHERE digest IN (SELECT output FROM hops)",
    "UPDATE archive SET digest = ZERO",
    "DELETE FROM archive_attempts",
    "DELETE FROM archive",
    "INSERT INTO archive SELECT chain_id, 9, generation, hop, digest, method, at_us, previous,
        hash FROM archive",
    "INSERT INTO credits SELECT attempt_id, account_id, 0 FROM credits",
];

async fn one_verified_hop(world: &mut World) {
    world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    world.submit(&attempt, "x").await;
    world.store.close().await;
}

pub async fn sqlite_refuses_broken_rows() {
    let mut world = World::sqlite().await;
    one_verified_hop(&mut world).await;
    let path = world.dir.as_ref().unwrap().path().join("c.sqlite");
    let url = format!("sqlite://{}", path.display());
    let mut db = SqliteConnection::connect(&url).await.unwrap();
    raw_sql("PRAGMA foreign_keys = ON")
        .execute(&mut db)
        .await
        .unwrap();
    for broken in BROKEN {
        let sql = AssertSqlSafe(broken.replace("ZERO", "zeroblob(32)"));
        let done = raw_sql(sql).execute(&mut db).await;
        assert!(done.is_err(), "taken: {broken}");
    }
}

pub async fn postgres_refuses_broken_rows() {
    let Some(mut world) = World::postgres().await else {
        return;
    };
    one_verified_hop(&mut world).await;
    let url = &world.database.as_ref().unwrap().url;
    let mut db = PgConnection::connect(url).await.unwrap();
    for broken in BROKEN {
        let sql = AssertSqlSafe(broken.replace("ZERO", "decode(repeat('00', 32), 'hex')"));
        let done = raw_sql(sql).execute(&mut db).await;
        let code = done
            .err()
            .and_then(|e| Some(e.as_database_error()?.code()?.into_owned()));
        // Class 23: a constraint, and not a mistake in the statement.
        assert!(code.is_some_and(|code| code.starts_with("23")), "{broken}");
    }
}

pub async fn migrating_twice_changes_nothing() {
    let mut world = World::sqlite().await;
    world.chain(1).await;
    let path = world.dir.as_ref().unwrap().path().join("c.sqlite");
    world.restart().await;
    let second = open_sqlite(&path).await.unwrap();
    assert_eq!(
        second.chains().await.unwrap(),
        world.store.chains().await.unwrap()
    );
}

pub async fn many_claims_at_once_hand_no_hop_to_two_who_should_not_have_it(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(24).await;
    let mut claims = tokio::task::JoinSet::new();
    for device in crowd {
        let (store, now) = (world.store.clone(), world.now);
        let request = world.request(device);
        claims.spawn(async move { store.acquire(request, now).await.unwrap() });
    }
    let mut winners = HashSet::new();
    while let Some(claim) = claims.join_next().await {
        match claim.unwrap() {
            Acquired::Assigned(assignment) => {
                assert!(winners.insert(assignment.attempt.account));
            }
            Acquired::NoWork(refusal) => assert_eq!(refusal.reason, Reason::NoOpenHop),
        }
    }
    assert_eq!(winners.len(), 2);
    let running = world.hop(chain, 0).await.running;
    assert!(
        running
            .iter()
            .all(|run| run.state == AttemptState::Live(Phase::Leased))
    );
    let held = holder(&world.store.attempt(running[0].attempt).await.unwrap());
    let other = cipherhop_coordinator::domain::command::Holder { epoch: 99, ..held };
    assert_eq!(
        reason(world.store.touch(other, world.now).await),
        Reason::StaleEpoch
    );
}

/// PostgreSQL takes no NUL in text; nobody shall break a call with one.
pub async fn text_with_a_nul_is_kept_without_it(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    let store = world.store.clone();
    let detail = "bad\0byte".to_owned();
    store
        .fail(holder(&attempt), FailKind::Compute, detail, world.now)
        .await
        .unwrap();
    let failure = world.hop(chain, 0).await.last_failure.unwrap();
    assert!(failure.detail.starts_with("bad") && failure.detail.ends_with("byte"));
    assert_eq!(
        reason(world.store.chain_by_name("no\0name").await),
        Reason::ChainNotFound
    );
}
