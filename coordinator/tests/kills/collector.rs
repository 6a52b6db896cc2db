//! The collector killed in the middle of its work: what belongs to a row stays, and the next round takes the rest.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cipherhop_coordinator::store::open_sqlite;
use cipherhop_proto::Digest;
use cipherhop_proto::client::ClientError;
use cipherhop_proto::v1::{BlobRole, OpenUploadRequest, TokenRole};

use crate::common::{blob_ref, connect, new_token, send};
use crate::points::COLLECTOR;
use crate::process::{Death, Place};
use crate::{PATIENCE, die, ready};

const ORPHANS: u8 = 3;

/// Where complete bytes of a digest lie.
fn place_of(place: &Place, bytes: &[u8]) -> PathBuf {
    let name = Digest::of(bytes).to_string();
    let (shard, rest) = name.split_at(2);
    place.data.join("blobs/sha256").join(shard).join(rest)
}

fn uploads(place: &Place) -> usize {
    let folder = std::fs::read_dir(place.data.join("blobs/uploads"));
    folder.map_or(0, |entries| {
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(".part"))
            .count()
    })
}

fn make_orphan(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Unfinished, as of somebody who gave up.
async fn open(place: &Place, token: &str, number: u8) -> Result<(), ClientError> {
    let bytes = [number; 5000];
    let request = OpenUploadRequest {
        blob: Some(blob_ref(&bytes, BlobRole::Weights)),
        ..Default::default()
    };
    let connection = connect(&place.url(), Some(token));
    connection.blob().open_upload(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_i5_the_collector_killed_anywhere_takes_nothing_that_has_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let mut place = Place::new(dir.path(), None);
    let mut child = ready(&mut place).await;
    let admin = std::fs::read_to_string(place.data.join("admin.token")).unwrap();
    let admin = admin.trim();
    let owner = new_token(&place.url(), admin, TokenRole::Owner, "key holder").await;
    let kept: Vec<Vec<u8>> = (0..4u8).map(|n| vec![100 + n; 3000]).collect();
    for bytes in &kept {
        let connection = connect(&place.url(), Some(&owner));
        send(&connection, bytes, BlobRole::Weights, None).await;
    }
    for number in 0..2 {
        open(&place, &owner, number).await.unwrap();
    }
    child.kill().await.unwrap();
    let orphans: Vec<Vec<u8>> = (0..ORPHANS).map(|n| vec![200 + n; 3000]).collect();
    for bytes in &orphans {
        make_orphan(&place_of(&place, bytes), bytes);
    }
    // From now on everything without a row is an orphan after a second, and an upload given up after two.
    let config = place.data.with_file_name("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let quick = "[blobs]\norphan_seconds = 1\nabandoned_upload_seconds = 2\n";
    std::fs::write(&config, text.replace("[blobs]\n", quick)).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    for point in COLLECTOR {
        die(&mut place, &Death::At(point, 1)).await;
        for bytes in &kept {
            let path = place_of(&place, bytes);
            assert_eq!(std::fs::read(path).unwrap(), *bytes, "killed at {point}");
        }
    }
    let mut child = ready(&mut place).await;
    let begin = Instant::now();
    let left = |place: &Place| {
        let orphans = orphans
            .iter()
            .filter(|bytes| place_of(place, bytes).exists());
        orphans.count() + uploads(place)
    };
    while left(&place) > 0 {
        assert!(
            begin.elapsed() < PATIENCE,
            "{} are never collected",
            left(&place)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child.kill().await.unwrap();
    let store = open_sqlite(&place.data.join("coordinator.db"))
        .await
        .unwrap();
    for bytes in &kept {
        let row = store.blob(Digest::of(bytes)).await.unwrap();
        assert_eq!(row.unwrap().size, 3000);
        assert_eq!(std::fs::read(place_of(&place, bytes)).unwrap(), *bytes);
    }
    store.close().await;
}
