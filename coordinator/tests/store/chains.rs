use cipherhop_coordinator::domain::attempt::AttemptState;
use cipherhop_coordinator::domain::chain::{ChainChange, ChainState};
use cipherhop_coordinator::domain::command::{Directive, Outcome};
use cipherhop_coordinator::domain::hop::HopState;
use cipherhop_coordinator::domain::view::Accuracy;
use cipherhop_coordinator::store::Imported;
use cipherhop_proto::{ChainId, Digest, Reason};

use crate::world::{OUTPUT_BYTES, World, holder, reason};

pub async fn creating_the_same_chain_again_changes_nothing(mut world: World) {
    let mut new = world.new_chain("c", 3, &[(1, Digest::of(b"one"))]);
    world.prepare(&mut new).await;
    let made = world
        .store
        .create_chain(new.clone(), world.now)
        .await
        .unwrap();
    world.pass(crate::world::second(9));
    assert_eq!(
        world
            .store
            .create_chain(new.clone(), world.now)
            .await
            .unwrap(),
        made
    );
    assert_eq!(
        world.store.chains().await.unwrap(),
        std::slice::from_ref(&made)
    );
    assert_eq!(world.store.chain_by_name("c").await.unwrap(), made);
    let states: Vec<_> = world
        .store
        .status(new.id)
        .await
        .unwrap()
        .hops
        .iter()
        .map(|hop| hop.state)
        .collect();
    assert_eq!(
        states,
        [HopState::Ready, HopState::Blocked, HopState::Blocked]
    );
    assert_eq!(
        reason(world.store.chain(ChainId::generate()).await),
        Reason::ChainNotFound
    );
}

pub async fn another_chain_under_a_known_id_or_name_is_refused(mut world: World) {
    let mut new = world.new_chain("c", 3, &[]);
    world.prepare(&mut new).await;
    world
        .store
        .create_chain(new.clone(), world.now)
        .await
        .unwrap();
    let mut other = new.clone();
    other.hops.pop();
    let refused = world.store.create_chain(other.clone(), world.now).await;
    assert_eq!(reason(refused), Reason::ChainExists);
    other.id = ChainId::generate();
    let refused = world.store.create_chain(other, world.now).await;
    assert_eq!(reason(refused), Reason::ChainExists);
}

pub async fn i3_a_chain_with_a_missing_blob_is_refused(mut world: World) {
    let mut new = world.new_chain("c", 2, &[]);
    world.prepare(&mut new).await;
    let mut broken = new.clone();
    broken.keys.push(Digest::of(b"never uploaded"));
    let refused = world.store.create_chain(broken, world.now).await;
    assert_eq!(reason(refused), Reason::BlobNotFound);
    assert!(world.store.chains().await.unwrap().is_empty());
    let mut broken = new;
    broken.spec.boundary_bytes = OUTPUT_BYTES + 1;
    let refused = world.store.create_chain(broken, world.now).await;
    assert_eq!(reason(refused), Reason::BlobSizeMismatch);
}

pub async fn a_chain_with_impossible_numbers_is_refused(mut world: World) {
    let mut new = world.new_chain("c", 2, &[]);
    world.prepare(&mut new).await;
    let mut cases = vec![new.clone(); 4];
    cases[0].hops.clear();
    cases[1].policy.quorum = 1;
    cases[2].name = "x".repeat(129);
    cases[3].spec.boundary_bytes = 0;
    for case in cases {
        let refused = world.store.create_chain(case, world.now).await;
        assert_eq!(reason(refused), Reason::BadRequest);
    }
}

pub async fn pause_stops_new_leases_and_resume_hands_out_again(mut world: World) {
    let chain = world.chain(1).await;
    let crowd = world.crowd(1).await;
    let pause = ChainChange::Pause("dinner".into());
    let paused = world
        .store
        .change_chain(chain, pause, world.now)
        .await
        .unwrap();
    assert_eq!(paused.state, ChainState::Paused("dinner".into()));
    assert_eq!(world.ask(crowd[0]).await, Err(Reason::NoOpenHop));
    let mut named = world.request(crowd[0]);
    named.chain = Some(chain);
    assert_eq!(world.acquire(named).await.unwrap_err(), Reason::ChainPaused);
    world.restart().await;
    let resumed = world
        .store
        .change_chain(chain, ChainChange::Resume, world.now)
        .await
        .unwrap();
    assert_eq!(resumed.state, ChainState::Active);
    world.lease(crowd[0]).await;
}

pub async fn finished_work_is_taken_while_paused(mut world: World) {
    let chain = world.chain(2).await;
    let crowd = world.crowd(2).await;
    let (a, b) = (world.lease(crowd[0]).await, world.lease(crowd[1]).await);
    let pause = ChainChange::Pause(String::new());
    world
        .store
        .change_chain(chain, pause, world.now)
        .await
        .unwrap();
    assert_eq!(
        world.store.touch(holder(&a), world.now).await.unwrap(),
        Directive::Continue
    );
    assert_eq!(world.submit(&a, "x").await, Outcome::Verifying);
    assert_eq!(world.submit(&b, "x").await, Outcome::Matched);
    assert_eq!(world.store.chain(chain).await.unwrap().head, 1);
    assert_eq!(world.ask(crowd[0]).await, Err(Reason::NoOpenHop));
}

pub async fn cancel_ends_every_open_hop_and_attempt(mut world: World) {
    let chain = world.chain(3).await;
    let crowd = world.crowd(2).await;
    let live = world.lease(crowd[0]).await;
    let cancel = ChainChange::Cancel("enough".into());
    world
        .store
        .change_chain(chain, cancel.clone(), world.now)
        .await
        .unwrap();
    world
        .store
        .change_chain(chain, cancel, world.now)
        .await
        .unwrap();
    let status = world.store.status(chain).await.unwrap();
    assert!(
        status
            .hops
            .iter()
            .all(|hop| hop.state == HopState::Cancelled)
    );
    assert_eq!(
        world.store.attempt(live.id).await.unwrap().state,
        AttemptState::Cancelled
    );
    let told = world.store.touch(holder(&live), world.now).await.unwrap();
    assert_eq!(told, Directive::Cancel(Reason::ChainCancelled));
    assert_eq!(world.submit(&live, "x").await, Outcome::HopClosed);
    let refused = world
        .store
        .change_chain(chain, ChainChange::Resume, world.now)
        .await;
    assert_eq!(reason(refused), Reason::ChainStateConflict);
    assert_eq!(world.ask(crowd[1]).await, Err(Reason::NoOpenHop));
}

pub async fn watching_resumes_from_a_sequence_number(mut world: World) {
    let chain = world.chain(1).await;
    let mut changes = world.store.changes();
    changes.mark_unchanged();
    let seen = world.store.status(chain).await.unwrap().sequence;
    let crowd = world.crowd(1).await;
    world.lease(crowd[0]).await;
    assert!(changes.has_changed().unwrap());
    world.restart().await;
    let new = world.store.events(chain, seen, 10).await.unwrap();
    assert_eq!(new.len(), 1);
    assert_eq!(new[0].event.kind.as_str(), "attempt.leased");
    assert!(new[0].sequence > seen);
    assert_eq!(*world.store.changes().borrow(), new[0].sequence);
    assert!(
        world
            .store
            .events(chain, new[0].sequence, 10)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(world.store.events(chain, 0, 1).await.unwrap().len(), 1);
    assert_eq!(
        world.events(chain).await,
        ["chain.created", "hop.ready", "attempt.leased"]
    );
}

pub async fn accuracy_is_kept_for_verified_hops_only(mut world: World) {
    let chain = world.archived_chain(2, &[(0, Digest::of(b"x"))]).await;
    let figures = |hop| Accuracy {
        hop,
        max_err_over_f: 1e-4,
        worst_rel_rms: 2e-4,
    };
    let early = world
        .store
        .publish_accuracy(chain, vec![figures(0)], world.now)
        .await;
    assert_eq!(reason(early), Reason::ChainStateConflict);
    let crowd = world.crowd(1).await;
    let attempt = world.lease(crowd[0]).await;
    world.submit(&attempt, "x").await;
    world
        .store
        .publish_accuracy(chain, vec![figures(0)], world.now)
        .await
        .unwrap();
    world
        .store
        .publish_accuracy(chain, vec![figures(0)], world.now)
        .await
        .unwrap();
    assert_eq!(world.hop(chain, 0).await.accuracy, Some(figures(0)));
    let beyond = world
        .store
        .publish_accuracy(chain, vec![figures(2)], world.now)
        .await;
    assert_eq!(reason(beyond), Reason::HopNotFound);
    let nan = Accuracy {
        hop: 0,
        max_err_over_f: f64::NAN,
        worst_rel_rms: 0.0,
    };
    let refused = world
        .store
        .publish_accuracy(chain, vec![nan], world.now)
        .await;
    assert_eq!(reason(refused), Reason::BadRequest);
}

pub async fn an_import_of_the_archive_is_all_or_nothing(mut world: World) {
    let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
    let chain = world.archived_chain(3, &[(1, one)]).await;
    let store = world.store.clone();
    let refused = store
        .import_archive(chain, vec![(0, one), (1, two)], world.now)
        .await;
    assert_eq!(reason(refused), Reason::ArchiveConflict);
    assert!(!world.hop(chain, 0).await.archived);
    let done = store
        .import_archive(chain, vec![(0, one), (1, one)], world.now)
        .await
        .unwrap();
    assert_eq!(
        done,
        Imported {
            imported: 1,
            already_known: 1
        }
    );
    assert!(world.hop(chain, 0).await.archived);
    let beyond = store.import_archive(chain, vec![(3, one)], world.now).await;
    assert_eq!(reason(beyond), Reason::HopNotFound);
}

/// Everything readable, as text.
async fn readable(world: &World, chain: ChainId) -> String {
    let status = world.store.status(chain).await.unwrap();
    let results = world.store.results(chain).await.unwrap();
    let events = world.store.events(chain, 0, 1000).await.unwrap();
    let archive = world.store.archive(chain).await.unwrap();
    format!("{status:?} {results:?} {events:?} {archive:?}")
}

pub async fn i7_no_view_holds_an_archived_or_waiting_digest(mut world: World) {
    let archived = Digest::of(b"archived");
    let chain = world.archived_chain(2, &[(1, archived)]).await;
    let crowd = world.crowd(3).await;
    let first = world.request(crowd[0]);
    let assignment = world.acquire(first).await.unwrap();
    assert!(!format!("{assignment:?}").contains(&archived.to_string()));
    world.submit(&assignment.attempt, "waiting").await;
    let waiting = Digest::of(b"waiting").to_string();
    let text = readable(&world, chain).await;
    assert!(!text.contains(&waiting) && !text.contains(&archived.to_string()));
    let second = world.lease(crowd[1]).await;
    world.submit(&second, "waiting").await;
    assert!(readable(&world, chain).await.contains(&waiting));
    let third = world.lease(crowd[2]).await;
    world.submit(&third, "wrong").await;
    assert!(
        !readable(&world, chain)
            .await
            .contains(&archived.to_string())
    );
    world.pass(crate::world::second(60));
    let fourth = world.lease(crowd[0]).await;
    assert_eq!(world.submit(&fourth, "archived").await, Outcome::Matched);
    assert!(
        readable(&world, chain)
            .await
            .contains(&archived.to_string())
    );
}
