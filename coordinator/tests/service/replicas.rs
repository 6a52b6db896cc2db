//! Two coordinators over one PostgreSQL database, each with its own socket.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::store::open_postgres;
use cipherhop_proto::v1::{self, submit_response::Outcome};

use crate::common::cluster::{self, Database};
use crate::common::*;

struct Pair {
    here: Server,
    there: Server,
    _database: Database,
}

async fn pair() -> Option<Pair> {
    let database = cluster::database().await?;
    let dir = tempfile::tempdir().unwrap();
    let config = quick_config();
    let blobs = LocalBlobs::open(&dir.path().join("blobs"), config.blobs.local_limits()).unwrap();
    let store = open_postgres(&database.url, 8).await.unwrap();
    let here = Server::over(store, Arc::new(blobs.clone()), config.clone(), dir).await;
    let store = open_postgres(&database.url, 8).await.unwrap();
    let empty = tempfile::tempdir().unwrap();
    let there = Server::over(store, Arc::new(blobs), config, empty).await;
    Some(Pair {
        here,
        there,
        _database: database,
    })
}

impl Pair {
    async fn volunteers(&self, count: usize) -> Vec<Volunteer> {
        let mut all = Vec::new();
        for number in 0..count {
            let mut volunteer = self.here.volunteer(&format!("account {number}")).await;
            if number % 2 == 1 {
                volunteer.connection = connect(&self.there.url, Some(&volunteer.token));
            }
            all.push(volunteer);
        }
        all
    }
}

/// I1, I4: claims at both replicas at once; each hop goes to as many accounts as the quorum asks for and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i4_claims_at_two_replicas_are_never_handed_out_twice() {
    let Some(pair) = pair().await else { return };
    let owner = pair.here.owner().await;
    const CHAINS: usize = 8;
    for number in 0..CHAINS {
        new_chain(&format!("chain {number}"), 1)
            .create(&owner)
            .await;
    }
    let volunteers = pair.volunteers(24).await;
    let mut claims = tokio::task::JoinSet::new();
    for (number, volunteer) in volunteers.into_iter().enumerate() {
        claims.spawn(async move { (number, volunteer.acquire(3).await) });
    }
    let mut given: HashMap<Vec<u8>, HashSet<usize>> = HashMap::new();
    let mut epochs = HashSet::new();
    while let Some(claim) = claims.join_next().await {
        let (account, answer) = claim.unwrap();
        if let Ok(given_hop) = answer {
            assert!(
                given
                    .entry(given_hop.chain_id.clone())
                    .or_default()
                    .insert(account)
            );
            assert!(epochs.insert((given_hop.chain_id, given_hop.epoch)));
        }
    }
    assert_eq!(given.len(), CHAINS);
    for accounts in given.values() {
        assert_eq!(
            accounts.len(),
            2,
            "a quorum of two accounts, whichever replica they ask"
        );
    }
}

/// A chain runs to its end with one volunteer at each replica; the one that waits is woken by the other's submit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_chain_completes_over_two_replicas() {
    let Some(pair) = pair().await else { return };
    let owner = pair.here.owner().await;
    let id = new_chain("demo", 3).create(&owner).await;
    let both = pair.volunteers(2).await;
    complete(&both[0], &both[1], 3).await;
    let seen = connect(&pair.there.url, Some(&pair.there.admin));
    let chain = status(&seen, &id).await.chain.unwrap();
    assert_eq!(chain.state(), v1::ChainState::Completed);
    // A replica that goes away takes nothing with it.
    pair.there.shutdown.cancel();
    let chain = status(&owner, &id).await.chain.unwrap();
    assert_eq!(chain.head, 3);
}

/// Replicas are replaced one after the other while two volunteers hold leases: none is lost, and nobody starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i5_a_rolling_restart_loses_no_lease() {
    let Some(pair) = pair().await else { return };
    let Pair {
        here,
        there,
        _database: database,
    } = pair;
    let owner = here.owner().await;
    let id = new_chain("demo", 1).create(&owner).await;
    let moved = |volunteer: &Volunteer, server: &Server| Volunteer {
        connection: connect(&server.url, Some(&volunteer.token)),
        ..volunteer.clone()
    };
    let ada = here.volunteer("ada").await;
    let bob = moved(&here.volunteer("bob").await, &there);
    let (first, second) = (ada.acquire(5).await.unwrap(), bob.acquire(5).await.unwrap());

    here.shutdown.cancel();
    here.task.await.unwrap();
    here.store.close().await;
    let ada = moved(&ada, &there);
    let outcome = ada.hand_in(&first, &output(0)).await.unwrap();
    assert_eq!(outcome, Outcome::AcceptedVerifying);

    let config = quick_config();
    let blobs = here.dir.path().join("blobs");
    let blobs = LocalBlobs::open(&blobs, config.blobs.local_limits()).unwrap();
    let store = open_postgres(&database.url, 8).await.unwrap();
    let again = Server::over(store, Arc::new(blobs), config, here.dir).await;
    there.shutdown.cancel();
    there.task.await.unwrap();
    there.store.close().await;
    let bob = moved(&bob, &again);
    let outcome = bob.hand_in(&second, &output(0)).await.unwrap();
    assert_eq!(outcome, Outcome::AcceptedMatched);
    let seen = status(&again.admin(), &id).await;
    assert_eq!(seen.chain.unwrap().state(), v1::ChainState::Completed);
    assert_eq!(seen.hops[0].attempts, 2);
}
