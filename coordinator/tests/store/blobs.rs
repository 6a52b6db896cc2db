use cipherhop_coordinator::store::{OpenedUpload, Role, UploadRecord, UploadState};
use cipherhop_proto::{Digest, Reason, UploadId};

use crate::world::{World, reason};

async fn open(world: &World, bytes: &[u8], size: u64, account: &str) -> UploadRecord {
    let token = world
        .token(Role::Owner, account, &format!("{account} {size}"))
        .await;
    let account = match token {
        Ok(identity) => identity.account,
        Err(_) => panic!("token"),
    };
    let upload = world.upload(Digest::of(bytes), size, account);
    match world.store.open_upload(upload, world.now).await.unwrap() {
        OpenedUpload::Open(record) => record,
        OpenedUpload::Complete(_) => panic!("complete already"),
    }
}

pub async fn an_upload_goes_from_reserved_to_complete_and_keeps_its_offset(world: World) {
    let upload = open(&world, b"abc", 10, "a").await;
    assert_eq!((upload.state, upload.committed), (UploadState::Reserved, 0));
    world
        .store
        .commit_upload(upload.id, 4, world.now)
        .await
        .unwrap();
    let again = world.upload(Digest::of(b"abc"), 10, upload.account);
    match world.store.open_upload(again, world.now).await.unwrap() {
        OpenedUpload::Open(record) => {
            assert_eq!((record.id, record.committed), (upload.id, 4));
            assert_eq!(record.state, UploadState::Uploading);
        }
        OpenedUpload::Complete(_) => panic!("complete already"),
    }
    let early = world.store.complete_upload(upload.id, world.now).await;
    assert_eq!(reason(early), Reason::BlobIncomplete);
    assert_eq!(world.store.blob(Digest::of(b"abc")).await.unwrap(), None);
    world
        .store
        .commit_upload(upload.id, 10, world.now)
        .await
        .unwrap();
    let blob = world
        .store
        .complete_upload(upload.id, world.now)
        .await
        .unwrap();
    assert_eq!(
        world.store.blob(Digest::of(b"abc")).await.unwrap(),
        Some(blob)
    );
    assert_eq!(
        reason(world.store.upload(upload.id).await),
        Reason::UploadNotFound
    );
    let opened = world.store.open_upload(again, world.now).await.unwrap();
    assert_eq!(opened, OpenedUpload::Complete(blob));
}

pub async fn i5_an_acknowledged_offset_never_shrinks(mut world: World) {
    let upload = open(&world, b"abc", 10, "a").await;
    world
        .store
        .commit_upload(upload.id, 6, world.now)
        .await
        .unwrap();
    world.restart().await;
    for wrong in [5, 11, u64::MAX] {
        let refused = world.store.commit_upload(upload.id, wrong, world.now).await;
        assert_eq!(reason(refused), Reason::UploadOffset);
    }
    assert_eq!(world.store.upload(upload.id).await.unwrap().committed, 6);
    world
        .store
        .restart_upload(upload.id, world.now)
        .await
        .unwrap();
    assert_eq!(world.store.uploads().await.unwrap()[0].committed, 0);
    let unknown = world
        .store
        .commit_upload(UploadId::generate(), 0, world.now)
        .await;
    assert_eq!(reason(unknown), Reason::UploadNotFound);
}

pub async fn two_accounts_upload_one_digest_apart_and_one_completion_ends_both(world: World) {
    let one = open(&world, b"abc", 10, "a").await;
    let two = open(&world, b"abc", 10, "b").await;
    assert_ne!(one.id, two.id);
    world
        .store
        .commit_upload(one.id, 10, world.now)
        .await
        .unwrap();
    assert_eq!(world.store.upload(two.id).await.unwrap().committed, 0);
    world
        .store
        .complete_upload(one.id, world.now)
        .await
        .unwrap();
    assert_eq!(
        reason(world.store.upload(two.id).await),
        Reason::UploadNotFound
    );
    assert!(world.store.uploads().await.unwrap().is_empty());
}

pub async fn completions_of_one_digest_at_once_do_not_stand_in_each_others_way(world: World) {
    let begin = std::time::Instant::now();
    for round in 0..10u8 {
        let mut uploads = Vec::new();
        let size = 10 + u64::from(round);
        for account in ["a", "b", "c", "d"] {
            let upload = open(&world, &[round], size, account).await;
            let (id, now) = (upload.id, world.now);
            world.store.commit_upload(id, size, now).await.unwrap();
            uploads.push(upload);
        }
        let completed = uploads.iter().map(|upload| {
            let (store, id, now) = (world.store.clone(), upload.id, world.now);
            tokio::spawn(async move { store.complete_upload(id, now).await })
        });
        for done in futures::future::join_all(completed).await {
            // One that another completed before it began is gone.
            if let Err(refused) = done.unwrap() {
                assert_eq!(reason::<()>(Err(refused)), Reason::UploadNotFound);
            }
        }
        assert!(world.store.blob(uploads[0].digest).await.unwrap().is_some());
        assert!(world.store.uploads().await.unwrap().is_empty());
    }
    // A deadlock is noticed after a second.
    assert!(begin.elapsed().as_secs() < 8, "{:?}", begin.elapsed());
}

pub async fn a_lying_size_is_refused(world: World) {
    let upload = open(&world, b"abc", 10, "a").await;
    let lie = world.upload(upload.digest, 11, upload.account);
    let refused = world.store.open_upload(lie, world.now).await;
    assert_eq!(reason(refused), Reason::BlobSizeMismatch);
    world
        .store
        .commit_upload(upload.id, 10, world.now)
        .await
        .unwrap();
    world
        .store
        .complete_upload(upload.id, world.now)
        .await
        .unwrap();
    let refused = world.store.open_upload(lie, world.now).await;
    assert_eq!(reason(refused), Reason::BlobSizeMismatch);
}
