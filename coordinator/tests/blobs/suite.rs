//! What every blob store promises.

use std::time::Duration;

use cipherhop_coordinator::blobs::{BlobError, Opened, UploadKey, read_all};
use cipherhop_proto::Digest;
use futures::TryStreamExt as _;

use crate::site::{Site, id, pattern, put, send};

/// Runs each test on both stores.
macro_rules! on_both {
    ($($name:ident,)*) => {
        mod local {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::site::Site::local()).await;
            })*
        }
        mod s3 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::site::Site::s3().await).await;
            })*
        }
    };
}

on_both! {
    a_blob_comes_back_whole_and_by_range,
    an_upload_goes_on_from_its_durable_offset_after_a_restart,
    wrong_offset_names_the_committed_one,
    lies_about_size_and_content_are_refused,
    one_sender_cannot_spoil_the_upload_of_another,
    a_newer_stream_takes_over_and_keeps_what_arrived,
    odd_sizes_around_parts_and_frames_come_back_whole,
    an_upload_broken_off_at_any_place_goes_on_there,
    what_a_checkpoint_or_commit_told_is_there_after_a_restart,
    two_senders_of_one_digest_finish_at_once,
    a_removed_blob_is_gone_and_can_be_sent_again,
    an_upload_that_was_given_up_starts_from_zero,
}

pub async fn a_blob_comes_back_whole_and_by_range(site: Site) {
    let store = site.open().await;
    let bytes = pattern(3 << 20);
    let id = id(1, &bytes);
    assert_eq!(
        store.open_upload(id, bytes.len() as u64).await.unwrap(),
        Opened::Resume(0)
    );
    assert_eq!(send(&*store, id, 0, &bytes).await, bytes.len() as u64);
    assert_eq!(
        store.stat(id.digest).await.unwrap(),
        None,
        "not visible before finish"
    );
    assert_eq!(store.finish(id).await.unwrap(), bytes.len() as u64);
    assert_eq!(
        store.finish(id).await.unwrap(),
        bytes.len() as u64,
        "finish is idempotent"
    );
    assert_eq!(
        store.open_upload(id, bytes.len() as u64).await.unwrap(),
        Opened::Complete(bytes.len() as u64)
    );
    assert_eq!(read_all(&*store, id.digest, u64::MAX).await.unwrap(), bytes);
    let reader = store.read(id.digest, 1_000_001, 1_500_000).await.unwrap();
    let part: Vec<Vec<u8>> = reader.frames.try_collect().await.unwrap();
    assert!(part.iter().all(|f| f.len() <= 1 << 20));
    assert_eq!(part.concat(), bytes[1_000_001..2_500_001]);
    assert!(matches!(
        store.read(id.digest, 4 << 20, 0).await,
        Err(BlobError::OutOfRange { .. })
    ));
    assert!(matches!(
        store.read(Digest::of(b"other"), 0, 0).await,
        Err(BlobError::NotFound(_))
    ));
    assert!(matches!(
        read_all(&*store, id.digest, 10).await,
        Err(BlobError::TooLarge { .. })
    ));
}

pub async fn an_upload_goes_on_from_its_durable_offset_after_a_restart(site: Site) {
    let bytes = pattern(10_000);
    let id = id(1, &bytes);
    {
        let store = site.open().await;
        store.open_upload(id, 10_000).await.unwrap();
        send(&*store, id, 0, &bytes[..4000]).await;
        let mut appender = store.append(id, 4000).await.unwrap();
        appender.write(bytes[4000..5000].to_vec()).await.unwrap(); // never committed
    }
    let store = site.open().await;
    assert_eq!(store.committed(id).await.unwrap(), 4000);
    assert_eq!(
        store.open_upload(id, 10_000).await.unwrap(),
        Opened::Resume(4000)
    );
    send(&*store, id, 4000, &bytes[4000..]).await;
    store.finish(id).await.unwrap();
    assert_eq!(read_all(&*store, id.digest, u64::MAX).await.unwrap(), bytes);
}

pub async fn wrong_offset_names_the_committed_one(site: Site) {
    let store = site.open().await;
    let bytes = pattern(100);
    let id = id(1, &bytes);
    assert!(matches!(
        store.append(id, 0).await.err(),
        Some(BlobError::NoUpload(_))
    ));
    store.open_upload(id, 100).await.unwrap();
    send(&*store, id, 0, &bytes[..40]).await;
    for offset in [0, 39, 41, u64::MAX] {
        let error = store.append(id, offset).await.err().unwrap();
        assert!(
            matches!(error, BlobError::WrongOffset { committed: 40, .. }),
            "{error}"
        );
    }
}

pub async fn lies_about_size_and_content_are_refused(site: Site) {
    let store = site.open().await;
    let bytes = pattern(100);
    let id = id(1, &bytes);
    store.open_upload(id, 60).await.unwrap();
    let mut appender = store.append(id, 0).await.unwrap();
    appender.write(bytes[..50].to_vec()).await.unwrap();
    let error = appender.write(bytes[50..].to_vec()).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::TooLong {
                declared: 60,
                got: 100
            }
        ),
        "{error}"
    );
    drop(appender);
    // Truncated: the sender stops early.
    store.open_upload(id, 60).await.unwrap();
    send(&*store, id, 0, &bytes[..50]).await;
    let error = store.finish(id).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::Truncated {
                declared: 60,
                committed: 50
            }
        ),
        "{error}"
    );
    // All declared bytes there, but not the bytes of the digest.
    send(&*store, id, 50, &bytes[50..60]).await;
    let error = store.finish(id).await.unwrap_err();
    assert!(matches!(error, BlobError::DigestMismatch { .. }), "{error}");
    assert_eq!(store.stat(id.digest).await.unwrap(), None);
    // A corrected upload starts from zero and works.
    assert_eq!(store.open_upload(id, 100).await.unwrap(), Opened::Resume(0));
    send(&*store, id, 0, &bytes).await;
    store.finish(id).await.unwrap();
    let error = store.open_upload(id, 99).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::SizeConflict {
                before: 100,
                now: 99,
                ..
            }
        ),
        "{error}"
    );
    // A huge declared size allocates nothing and is refused.
    let error = store
        .open_upload(
            UploadKey {
                digest: Digest::of(b"x"),
                ..id
            },
            u64::MAX,
        )
        .await
        .unwrap_err();
    assert!(matches!(error, BlobError::TooLarge { .. }), "{error}");
}

pub async fn one_sender_cannot_spoil_the_upload_of_another(site: Site) {
    let store = site.open().await;
    let bytes = pattern(100);
    let (bad, good) = (id(1, &bytes), id(2, &bytes));
    store.open_upload(bad, 100).await.unwrap();
    store.open_upload(good, 100).await.unwrap();
    send(&*store, bad, 0, &[7; 100]).await;
    send(&*store, good, 0, &bytes).await;
    assert!(store.finish(bad).await.is_err());
    store.finish(good).await.unwrap();
    assert_eq!(read_all(&*store, good.digest, 100).await.unwrap(), bytes);
}

pub async fn a_newer_stream_takes_over_and_keeps_what_arrived(site: Site) {
    let store = site.open().await;
    let bytes = pattern(100);
    let id = id(1, &bytes);
    store.open_upload(id, 100).await.unwrap();
    let mut old = store.append(id, 0).await.unwrap();
    old.write(bytes[..30].to_vec()).await.unwrap();
    assert_eq!(
        store.open_upload(id, 100).await.unwrap(),
        Opened::Resume(30)
    );
    assert!(matches!(
        old.write(vec![9; 10]).await,
        Err(BlobError::TakenOver)
    ));
    assert!(matches!(old.commit().await, Err(BlobError::TakenOver)));
    send(&*store, id, 30, &bytes[30..]).await;
    store.finish(id).await.unwrap();
}

const MIB: usize = 1 << 20;

pub async fn odd_sizes_around_parts_and_frames_come_back_whole(site: Site) {
    let store = site.open().await;
    for size in [
        0,
        1,
        MIB - 1,
        5 * MIB,
        5 * MIB + 1,
        8 * MIB + 3,
        10 * MIB,
        17 * MIB + 11,
    ] {
        let bytes = pattern(size);
        let id = id(1, &bytes);
        put(&*store, id, &bytes).await;
        assert_eq!(store.stat(id.digest).await.unwrap(), Some(size as u64));
        assert_eq!(
            read_all(&*store, id.digest, u64::MAX).await.unwrap(),
            bytes,
            "{size}"
        );
        for (from, length) in [
            (0, size / 2),
            (size / 3, size / 3),
            (size.saturating_sub(1), 1),
            (size, 0),
        ] {
            if from + length > size {
                continue;
            }
            let reader = store
                .read(id.digest, from as u64, length as u64)
                .await
                .unwrap();
            let part: Vec<Vec<u8>> = reader.frames.try_collect().await.unwrap();
            let end = if length == 0 { size } else { from + length };
            assert_eq!(part.concat(), bytes[from..end], "{size}: {from}+{length}");
        }
    }
}

pub async fn an_upload_broken_off_at_any_place_goes_on_there(site: Site) {
    let bytes = pattern(12 * MIB + 7);
    let id = id(1, &bytes);
    let size = bytes.len() as u64;
    let mut at = 0_usize;
    // Pieces shorter and longer than a part, with a restart after each.
    for piece in [1, 100, MIB, 4 * MIB, 5 * MIB, MIB + 1, 3, usize::MAX] {
        let store = site.open().await;
        assert_eq!(
            store.open_upload(id, size).await.unwrap(),
            Opened::Resume(at as u64)
        );
        let end = at.saturating_add(piece).min(bytes.len());
        assert_eq!(
            send(&*store, id, at as u64, &bytes[at..end]).await,
            end as u64
        );
        at = end;
    }
    let store = site.open().await;
    assert_eq!(store.finish(id).await.unwrap(), size);
    assert_eq!(read_all(&*store, id.digest, size).await.unwrap(), bytes);
}

/// I5, on the level of the store.
pub async fn what_a_checkpoint_or_commit_told_is_there_after_a_restart(site: Site) {
    let bytes = pattern(23 * MIB);
    let id = id(1, &bytes);
    let store = site.open().await;
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    let mut appender = store.append(id, 0).await.unwrap();
    let mut told = 0;
    for frame in bytes[..21 * MIB].chunks(MIB) {
        appender.write(frame.to_vec()).await.unwrap();
        let now = appender.checkpoint().await.unwrap();
        assert!(now >= told, "{now} after {told}");
        told = now;
        assert!(site.open().await.committed(id).await.unwrap() >= told);
    }
    assert!(
        told > 0,
        "nothing became durable in the middle of the stream"
    );
    // The coordinator dies: no commit.
    std::mem::forget(appender);
    let store = site.open().await;
    let Opened::Resume(at) = store.open_upload(id, bytes.len() as u64).await.unwrap() else {
        panic!("not complete")
    };
    assert!(at >= told, "{at} of {told}");
    send(&*store, id, at, &bytes[at as usize..]).await;
    store.finish(id).await.unwrap();
    assert_eq!(read_all(&*store, id.digest, u64::MAX).await.unwrap(), bytes);
}

pub async fn two_senders_of_one_digest_finish_at_once(site: Site) {
    for size in [100, 6 * MIB + 1] {
        let bytes = pattern(size);
        let store = site.open().await;
        let both = [id(1, &bytes), id(2, &bytes)];
        for id in both {
            store.open_upload(id, size as u64).await.unwrap();
            send(&*store, id, 0, &bytes).await;
        }
        let (a, b) = tokio::join!(store.finish(both[0]), store.finish(both[1]));
        assert_eq!((a.unwrap(), b.unwrap()), (size as u64, size as u64));
        assert_eq!(
            read_all(&*store, both[0].digest, u64::MAX).await.unwrap(),
            bytes
        );
        assert_eq!(store.abandoned(Duration::ZERO).await.unwrap(), []);
        if let Site::S3(s3) = &site {
            let name = both[0].digest.to_string();
            let data = s3.files(&format!("data/{}/{}", &name[..2], &name[2..]));
            assert_eq!(data.len(), 1, "the bytes of the second stay: {data:?}");
        }
    }
}

pub async fn a_removed_blob_is_gone_and_can_be_sent_again(site: Site) {
    let store = site.open().await;
    let (bytes, other) = (pattern(6 * MIB), pattern(5));
    let (id, kept) = (id(1, &bytes), id(1, &other));
    put(&*store, id, &bytes).await;
    put(&*store, kept, &other).await;
    let listed = store.list(id.digest.as_bytes()[0]).await.unwrap();
    assert!(listed.iter().any(|stored| stored.digest == id.digest));
    assert!(
        listed
            .iter()
            .all(|stored| stored.age < Duration::from_secs(60))
    );
    // Read before and after, also by one who remembers where it was.
    let elsewhere = site.open().await;
    read_all(&*elsewhere, id.digest, u64::MAX).await.unwrap();
    assert!(store.remove(id.digest, Duration::ZERO).await.unwrap());
    for store in [&store, &elsewhere] {
        assert_eq!(store.stat(id.digest).await.unwrap(), None);
        assert!(matches!(
            store.read(id.digest, 0, 0).await.err(),
            Some(BlobError::NotFound(_))
        ));
    }
    assert!(matches!(
        store.remove(id.digest, Duration::ZERO).await,
        Err(BlobError::NotFound(_))
    ));
    assert_eq!(
        store.open_upload(id, bytes.len() as u64).await.unwrap(),
        Opened::Resume(0)
    );
    put(&*store, id, &bytes).await;
    for store in [&store, &elsewhere] {
        assert_eq!(
            read_all(&**store, id.digest, u64::MAX).await.unwrap(),
            bytes
        );
    }
    assert_eq!(
        read_all(&*store, kept.digest, u64::MAX).await.unwrap(),
        other
    );
}

pub async fn an_upload_that_was_given_up_starts_from_zero(site: Site) {
    let store = site.open().await;
    let bytes = pattern(11 * MIB + 1);
    let id = id(1, &bytes);
    store.open_upload(id, bytes.len() as u64).await.unwrap();
    send(&*store, id, 0, &bytes[..10 * MIB + 1]).await;
    let never = Duration::from_secs(1 << 30);
    assert_eq!(store.abandoned(never).await.unwrap(), []);
    assert_eq!(store.abandoned(Duration::ZERO).await.unwrap(), [id]);
    store.discard(id).await.unwrap();
    store.discard(id).await.unwrap();
    assert_eq!(store.abandoned(Duration::ZERO).await.unwrap(), []);
    assert_eq!(store.committed(id).await.unwrap(), 0);
    assert!(matches!(
        store.append(id, 0).await.err(),
        Some(BlobError::NoUpload(_))
    ));
    if let Site::S3(s3) = &site {
        assert_eq!(
            (s3.objects(), s3.loose_parts()),
            (vec![], 0),
            "bytes of it stay"
        );
    }
    put(&*store, id, &bytes).await;
}
