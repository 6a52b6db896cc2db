//! Care of stored blobs: orphans, abandoned uploads, damage.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cipherhop_proto::{Digest, v1};

use crate::common::*;

const NEVER: Duration = Duration::from_secs(1 << 30);

fn place(server: &Server, digest: &Digest) -> PathBuf {
    let name = digest.to_string();
    server
        .dir
        .path()
        .join("blobs/sha256")
        .join(&name[..2])
        .join(&name[2..])
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_without_a_row_and_abandoned_uploads_are_removed_and_nothing_else() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let kept = b"somebody needs this".to_vec();
    send(&owner, &kept, v1::BlobRole::Weights, None).await;
    let orphan = Digest::of(b"nobody");
    let path = place(&server, &orphan);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, b"nobody").unwrap();
    let open = v1::OpenUploadRequest {
        blob: Some(blob_ref(b"half of it", v1::BlobRole::Weights)),
        ..Default::default()
    };
    let opened = owner
        .blob()
        .open_upload(open.clone())
        .await
        .unwrap()
        .into_inner();
    let half = v1::AppendRequest {
        upload_id: opened.upload_id,
        data: b"half ".to_vec(),
        ..Default::default()
    };
    owner
        .blob()
        .append(futures::stream::iter([half]))
        .await
        .unwrap();

    // Young things stay.
    let nothing = server.core.collect_orphans(NEVER, NEVER).await.unwrap();
    assert_eq!((nothing.blobs, nothing.uploads), (0, 0));
    assert!(path.exists());
    let found = server
        .core
        .collect_orphans(Duration::ZERO, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!((found.blobs, found.uploads), (1, 1));
    assert!(!path.exists() && place(&server, &Digest::of(&kept)).exists());
    // The sender comes back after all: from the start.
    let again = owner.blob().open_upload(open).await.unwrap().into_inner();
    assert_eq!((again.complete, again.committed), (false, 0));
    send(&owner, b"half of it", v1::BlobRole::Weights, None).await;
}

/// Fails when Finish does not hold the collector's lock from the bytes to the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i3_the_collector_never_takes_bytes_whose_row_is_being_written() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let stop = Arc::new(AtomicBool::new(false));
    let collector = tokio::spawn({
        let (core, stop) = (server.core.clone(), stop.clone());
        async move {
            let mut rounds = 0;
            while !stop.load(Ordering::SeqCst) {
                core.collect_orphans(Duration::ZERO, NEVER).await.unwrap();
                rounds += 1;
            }
            rounds
        }
    });
    let blobs: Vec<Vec<u8>> = (0..200u32)
        .map(|i| format!("blob {i}").into_bytes())
        .collect();
    for some in blobs.chunks(8) {
        let sends = some
            .iter()
            .map(|bytes| send(&owner, bytes, v1::BlobRole::Weights, None));
        futures::future::join_all(sends).await;
    }
    stop.store(true, Ordering::SeqCst);
    assert!(collector.await.unwrap() > 0);
    for bytes in &blobs {
        let digest = Digest::of(bytes);
        assert!(server.store.blob(digest).await.unwrap().is_some());
        assert!(
            place(&server, &digest).exists(),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_finds_every_blob_that_is_damaged_cut_or_gone() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let blobs: Vec<Vec<u8>> = (0..300u32)
        .map(|i| format!("blob {i}").into_bytes())
        .collect();
    for bytes in &blobs {
        send(&owner, bytes, v1::BlobRole::Weights, None).await;
    }
    let digests: Vec<Digest> = blobs.iter().map(|bytes| Digest::of(bytes)).collect();
    std::fs::write(place(&server, &digests[7]), b"blob 8").unwrap();
    std::fs::write(place(&server, &digests[8]), b"blob").unwrap();
    std::fs::remove_file(place(&server, &digests[299])).unwrap();
    assert_eq!(
        reason(owner.admin().scrub(v1::ScrubRequest {}).await),
        cipherhop_proto::Reason::RoleNotAllowed
    );
    let answers = server
        .admin()
        .admin()
        .scrub(v1::ScrubRequest {})
        .await
        .unwrap();
    let mut answers = answers.into_inner();
    let (mut damaged, mut last) = (Vec::new(), None);
    while let Some(report) = answers.message().await.unwrap() {
        if !report.damaged_digest.is_empty() {
            damaged.push((report.damaged_digest.clone(), report.problem.clone()));
        }
        last = Some(report);
    }
    let last = last.unwrap();
    let bytes: usize = blobs.iter().map(Vec::len).sum();
    // Of the cut one and the missing one nothing was read.
    let unread = blobs[8].len() + blobs[299].len();
    assert_eq!((last.blobs, last.bytes), (300, (bytes - unread) as u64));
    damaged.sort();
    let problem = |digest: &Digest| {
        let found = damaged.iter().find(|(found, _)| *found == digest.to_vec());
        found
            .map(|(_, problem)| problem.clone())
            .unwrap_or_default()
    };
    assert_eq!(damaged.len(), 3, "{damaged:?}");
    assert!(problem(&digests[7]).contains("hash to"));
    assert!(problem(&digests[8]).contains("4 bytes instead of 6"));
    assert!(problem(&digests[299]).contains("not there"));
}
