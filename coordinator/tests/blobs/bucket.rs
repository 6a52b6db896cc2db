//! What only a bucket has: other replicas, a storage that dies at any request, settings that are wrong.

use std::sync::Arc;
use std::time::Duration;

use cipherhop_coordinator::blobs::{
    BlobError, BlobStore, Opened, S3Blobs, S3Error, S3Settings, UploadKey, read_all,
};

use crate::s3::{S3, SECRET};
use crate::site::{id, pattern, put, send};

const MIB: usize = 1 << 20;

/// The coordinator's whole path of one upload, in two streams.
async fn whole(store: Arc<S3Blobs>, id: UploadKey, bytes: Vec<u8>) {
    let mut at = match store.open_upload(id, bytes.len() as u64).await.unwrap() {
        Opened::Complete(_) => return,
        Opened::Resume(at) => at as usize,
    };
    for end in [bytes.len() * 3 / 5, bytes.len()] {
        if end > at {
            assert_eq!(
                send(&*store, id, at as u64, &bytes[at..end]).await,
                end as u64
            );
            at = end;
        }
    }
    store.finish(id).await.unwrap();
}

/// I3, I5: coordinator and storage die together at each request in turn, carried out or not. What was acknowledged is
/// there, the upload ends well from another replica, and nothing but the blob is left.
async fn at_every_request(size: usize) {
    let time = std::time::Instant::now();
    let mut s3 = S3::start().await;
    let bytes = pattern(size);
    let mut tries = 0;
    for at in 0.. {
        for carried_out in [false, true] {
            let mut content = bytes.clone();
            content[0] = at as u8;
            content[1] = u8::from(carried_out);
            let id = id(1, &content);
            // A coordinator of its own runtime, so that nothing of it lives on.
            let coordinator = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let settings = s3.settings();
            let opened = coordinator.spawn(async { S3Blobs::open(settings, 64 << 30).await });
            let store = Arc::new(opened.await.unwrap().unwrap());
            s3.die_after(at, carried_out);
            let upload = coordinator.spawn(whole(store, id, content.clone()));
            let ended = tokio::select! {
                done = upload => { done.unwrap(); true }
                () = s3.died() => false,
            };
            coordinator.shutdown_background();
            s3.restart().await;
            tries += 1;
            let store = Arc::new(s3.open().await);
            whole(store.clone(), id, content.clone()).await;
            let read = read_all(&*store, id.digest, u64::MAX).await.unwrap();
            assert!(read == content, "request {at}");
            // What the dead left is found by time.
            s3.an_hour_passes("uploads");
            for idle in store.abandoned(Duration::ZERO).await.unwrap() {
                store.discard(idle).await.unwrap();
            }
            store.sweep(Duration::ZERO).await.unwrap();
            assert!(read_all(&*store, id.digest, u64::MAX).await.unwrap() == content);
            let name = id.digest.to_string();
            let of_it: Vec<String> = s3
                .objects()
                .into_iter()
                .filter(|o| o.contains(&name[2..]))
                .collect();
            assert_eq!(
                (of_it.len(), s3.loose_parts()),
                (2, 0),
                "request {at}, {carried_out}: {of_it:?}"
            );
            if ended {
                assert!(tries > 10, "only {tries} requests were tried");
                println!("{tries} deaths in {:?}", time.elapsed());
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i5_a_small_upload_survives_a_death_at_every_request() {
    at_every_request(3000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i5_an_upload_in_parts_survives_a_death_at_every_request() {
    at_every_request(5 * MIB + 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_over_a_restart_of_the_storage() {
    let mut s3 = S3::start().await;
    let store = s3.open().await;
    let bytes = pattern(16 * MIB + 1);
    let id = id(1, &bytes);
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    let mut appender = store.append(id, 0).await.unwrap();
    for frame in bytes[..7 * MIB].chunks(MIB) {
        appender.write(frame.to_vec()).await.unwrap();
    }
    s3.restart().await;
    // The same stream goes on: the client tries again.
    for frame in bytes[7 * MIB..].chunks(MIB) {
        appender.write(frame.to_vec()).await.unwrap();
    }
    assert_eq!(appender.commit().await.unwrap(), bytes.len() as u64);
    s3.restart().await;
    store.finish(id).await.unwrap();
    assert!(read_all(&store, id.digest, u64::MAX).await.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_at_another_replica_is_cut_off_and_cannot_spoil_the_new_one() {
    let s3 = S3::start().await;
    let (here, there) = (s3.open().await, s3.open().await);
    let bytes = pattern(12 * MIB);
    let id = id(1, &bytes);
    here.open_upload(id, bytes.len() as u64).await.unwrap();
    let mut old = here.append(id, 0).await.unwrap();
    old.write(bytes[..6 * MIB].to_vec()).await.unwrap();
    assert_eq!(old.commit().await.unwrap(), 6 * MIB as u64);
    let opened = there.open_upload(id, bytes.len() as u64).await.unwrap();
    assert_eq!(opened, Opened::Resume(6 * MIB as u64));
    old.write(vec![0xff; MIB]).await.unwrap();
    assert!(matches!(old.commit().await, Err(BlobError::TakenOver)));
    send(&there, id, 6 * MIB as u64, &bytes[6 * MIB..]).await;
    // Finish may come to yet another one.
    here.finish(id).await.unwrap();
    assert!(read_all(&there, id.digest, u64::MAX).await.unwrap() == bytes);
}

/// Replica A collects what replica B counts on again: A finds it used.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_blob_that_is_counted_on_again_is_not_removed_for_its_age() {
    let s3 = S3::start().await;
    let (here, there) = (s3.open().await, s3.open().await);
    let bytes = pattern(100);
    let id = id(1, &bytes);
    put(&here, id, &bytes).await;
    s3.an_hour_passes("sha256");
    let orphan = Duration::from_secs(600);
    let listed = here.list(id.digest.as_bytes()[0]).await.unwrap();
    assert!(listed[0].age >= orphan);
    assert_eq!(
        there.open_upload(id, 100).await.unwrap(),
        Opened::Complete(100)
    );
    assert!(!here.remove(id.digest, orphan).await.unwrap());
    assert_eq!(read_all(&there, id.digest, 100).await.unwrap(), bytes);
    // Nobody came: it goes.
    s3.an_hour_passes("sha256");
    assert!(here.remove(id.digest, orphan).await.unwrap());
    assert_eq!(s3.objects(), [] as [String; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_the_storage_damaged_or_lost_are_never_published() {
    let s3 = S3::start().await;
    let store = s3.open().await;
    let bytes = pattern(11 * MIB);
    let id = id(1, &bytes);
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    send(&store, id, 0, &bytes).await;
    // A part changes on the storage's disk.
    let parts = std::fs::read_dir(s3.dir.path()).unwrap();
    let part = parts
        .map(|f| f.unwrap().path())
        .find(|f| f.to_str().unwrap().ends_with(".part-2"))
        .unwrap();
    let mut content = std::fs::read(&part).unwrap();
    content[77] ^= 1;
    std::fs::write(&part, content).unwrap();
    let error = store.finish(id).await.unwrap_err();
    assert!(matches!(error, BlobError::DigestMismatch { .. }), "{error}");
    assert_eq!(store.stat(id.digest).await.unwrap(), None);
    assert_eq!((s3.objects(), s3.loose_parts()), (vec![], 0));

    // A tail is lost.
    let small = pattern(2000);
    let id = crate::site::id(1, &small);
    store.open_upload(id, 2000).await.unwrap();
    send(&store, id, 0, &small).await;
    std::fs::remove_file(s3.files("data").pop().unwrap()).unwrap();
    let error = store.finish(id).await.unwrap_err();
    assert!(
        matches!(error, BlobError::Truncated { committed: 0, .. }),
        "{error}"
    );
    put(&store, id, &small).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_are_told_with_what_to_do_and_without_the_secret() {
    let mut s3 = S3::start().await;
    let told = async |settings: S3Settings, words: &str| {
        let error = S3Blobs::open(settings, 1 << 30).await.err().unwrap();
        let text = format!("{error} {error:?}");
        assert!(error.to_string().contains(words), "{text}");
        assert!(
            !text.contains(SECRET) && !text.contains("Signature="),
            "{text}"
        );
        error
    };
    let bucket = "nowhere".to_owned();
    told(
        S3Settings {
            bucket,
            ..s3.settings()
        },
        "there is no bucket \"nowhere\"",
    )
    .await;
    let file = s3.dir.path().join("wrong");
    let wrong = |id: &str, secret: &str| {
        let text = format!("aws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, text).unwrap();
        S3Settings {
            credentials_file: Some(file.clone()),
            ..s3.settings()
        }
    };
    told(
        wrong(crate::s3::KEY_ID, "guessed"),
        "does not accept the credentials",
    )
    .await;
    told(wrong("somebody", SECRET), "does not accept the credentials").await;
    let missing = Some(s3.dir.path().join("missing"));
    let settings = S3Settings {
        credentials_file: missing,
        ..s3.settings()
    };
    let error = told(settings, "blobs.s3.credentials_file").await;
    assert!(matches!(error, S3Error::Credentials(_)));
    s3.stop().await;
    told(s3.settings(), "cannot be reached").await;
}

/// A caller that gives up must not make the work begin again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_finish_goes_on_when_its_caller_gives_up() {
    let s3 = S3::start().await;
    let store = Arc::new(s3.open().await);
    let bytes = pattern(30 * MIB);
    let id = id(1, &bytes);
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    send(&*store, id, 0, &bytes).await;
    let before = s3.requests();
    let finish = tokio::spawn({
        let store = store.clone();
        async move { store.finish(id).await }
    });
    while s3.requests() < before + 2 {
        tokio::task::yield_now().await;
    }
    finish.abort();
    let _ = finish.await;
    for _ in 0..2000 {
        if store.stat(id.digest).await.unwrap().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        store.stat(id.digest).await.unwrap(),
        Some(bytes.len() as u64)
    );
    assert_eq!(store.finish(id).await.unwrap(), bytes.len() as u64);
}

/// Without conditions two replicas could both believe to be the writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_ignores_conditions_is_refused_and_nothing_stays_in_it() {
    let s3 = S3::start_forgetful().await;
    let error = S3Blobs::open(s3.settings(), 1 << 30).await.err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("If-None-Match") && text.contains("MinIO"),
        "{text}"
    );
    assert_eq!(s3.objects(), [] as [String; 0]);
}
