//! Backups made while the coordinator works, and coordinators restored from them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cipherhop_coordinator::backup::{self, BackupError};
use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::store::{Store, open_postgres, open_sqlite};
use cipherhop_proto::v1;
use common::cluster::Database;
use common::*;
use tempfile::TempDir;

const HOPS: u32 = 3;

/// A coordinator on a restored folder; `None`: SQLite in it.
async fn serve_restored(dir: TempDir, database: Option<&Database>) -> Server {
    let config = quick_config();
    let store: Arc<dyn Store> = match database {
        Some(database) => open_postgres(&database.url, 4).await.unwrap(),
        None => open_sqlite(&dir.path().join("coordinator.db"))
            .await
            .unwrap(),
    };
    let blobs = LocalBlobs::open(&dir.path().join("blobs"), config.blobs.local_limits()).unwrap();
    Server::over(store, Arc::new(blobs), config, dir).await
}

fn reconnected(volunteer: &Volunteer, server: &Server) -> Volunteer {
    Volunteer {
        connection: connect(&server.url, Some(&volunteer.token)),
        ..volunteer.clone()
    }
}

async fn one_hop(a: &Volunteer, b: &Volunteer, hop: u32) {
    for volunteer in [a, b] {
        let given = volunteer.acquire(5).await.unwrap();
        assert_eq!(given.hop, hop);
        volunteer.hand_in(&given, &output(hop)).await.unwrap();
    }
}

fn head(answer: &v1::GetChainResponse) -> u32 {
    answer.chain.as_ref().unwrap().head
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all
}

/// I3, I5: what was acknowledged before a backup began is in it, although others write all the time, and the chain
/// goes on from it.
#[tokio::test(flavor = "multi_thread")]
async fn i5_a_chain_goes_on_from_a_backup_made_while_others_wrote() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let chain = new_chain("demo", HOPS).create(&owner).await;
    one_hop(&ada, &bob, 0).await;

    let busy = {
        let owner = owner.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let bytes = format!("something else, number {number}").repeat(2000);
                send(&owner, bytes.as_bytes(), v1::BlobRole::Weights, None).await;
            }
        })
    };
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("backup");
    let made = backup::backup(server.dir.path(), None, &to).await.unwrap();
    busy.abort();
    // After the backup: the restored coordinator does not know of it.
    one_hop(&ada, &bob, 1).await;
    assert_eq!(head(&status(&owner, &chain).await), 2);

    let check = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "manifest.sha256"])
        .current_dir(&to)
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
    let again = backup::backup(server.dir.path(), None, &to).await;
    assert!(matches!(again, Err(BackupError::NotEmpty(_))), "{again:?}");
    for file in files(&to) {
        let text = std::fs::read(&file).unwrap();
        let found = text
            .windows(20)
            .any(|w| w == &server.admin.as_bytes()[..20]);
        assert!(!found, "a token in {}", file.display());
    }

    let data = tempfile::tempdir().unwrap();
    let restored = backup::restore(&to, None, data.path()).await.unwrap();
    assert_eq!(restored, made);
    assert!(made.blobs > 6, "{made:?}");
    let server = serve_restored(data, None).await;
    let owner = server.admin();
    assert_eq!(head(&status(&owner, &chain).await), 1);
    let (ada, bob) = (reconnected(&ada, &server), reconnected(&bob, &server));
    for hop in 1..HOPS {
        one_hop(&ada, &bob, hop).await;
    }
    assert_eq!(head(&status(&owner, &chain).await), HOPS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_unfinished_backup_is_not_restored() {
    let server = Server::start().await;
    new_chain("demo", 1).create(&server.owner().await).await;
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("backup");
    backup::backup(server.dir.path(), None, &to).await.unwrap();
    let restore = async |folder: &str| {
        let data = place.path().join(folder);
        backup::restore(&to, None, &data).await
    };

    let blob = files(&to.join("blobs")).pop().unwrap();
    let good = std::fs::read(&blob).unwrap();
    std::fs::write(&blob, b"other bytes").unwrap();
    let error = restore("a").await.unwrap_err();
    assert!(
        matches!(&error, BackupError::Damaged(path) if *path == blob),
        "{error}"
    );
    std::fs::write(&blob, good).unwrap();

    let manifest = to.join("manifest.sha256");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("  blobs/", "  ../blobs/")).unwrap();
    let error = restore("b").await.unwrap_err();
    assert!(
        matches!(error, BackupError::Manifest { line: 2 }),
        "{error}"
    );
    assert!(!place.path().join("b").exists());
    std::fs::remove_file(&manifest).unwrap();
    let error = restore("c").await.unwrap_err();
    assert!(error.to_string().contains("did not finish"), "{error}");

    // A blob that the database knows and the folder has lost: no manifest, so no backup.
    let lost = files(&server.dir.path().join("blobs/sha256"))
        .pop()
        .unwrap();
    std::fs::remove_file(lost).unwrap();
    let to = place.path().join("second");
    let error = backup::backup(server.dir.path(), None, &to)
        .await
        .unwrap_err();
    assert!(matches!(error, BackupError::Missing(_)), "{error}");
    assert!(!to.join("manifest.sha256").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_database_is_backed_up_and_restored() {
    let Some(database) = cluster::database().await else {
        return;
    };
    let empty = cluster::empty_database().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = serve_restored(dir, Some(&database)).await;
    let owner = server.owner().await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let chain = new_chain("demo", HOPS).create(&owner).await;
    one_hop(&ada, &bob, 0).await;

    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("backup");
    let url = database.url.parse().unwrap();
    let made = backup::backup(server.dir.path(), Some(&url), &to)
        .await
        .unwrap();
    one_hop(&ada, &bob, 1).await;

    let data = place.path().join("data");
    let error = backup::restore(&to, None, &data).await.unwrap_err();
    assert!(error.to_string().contains("--database"), "{error}");
    let error = backup::restore(&to, Some(&url), &data).await.unwrap_err();
    assert!(matches!(error, BackupError::DatabaseNotEmpty(_)), "{error}");

    let url = empty.url.parse().unwrap();
    let data = tempfile::tempdir().unwrap();
    assert_eq!(
        backup::restore(&to, Some(&url), data.path()).await.unwrap(),
        made
    );
    let server = serve_restored(data, Some(&empty)).await;
    assert_eq!(head(&status(&server.admin(), &chain).await), 1);
    let (ada, bob) = (reconnected(&ada, &server), reconnected(&bob, &server));
    one_hop(&ada, &bob, 1).await;
    server.store.close().await;
}

#[test]
fn the_commands_say_what_they_did_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"));
        let command = command.args(args).current_dir(dir.path());
        command
            .env_remove("CIPHERHOP_DATABASE_URL")
            .output()
            .unwrap()
    };
    let output = run(&["backup", "--data", "nowhere", "--to", "backup"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("give the data folder that `serve` uses"),
        "{text}"
    );
    let output = run(&["restore", "--from", "backup", "--data", "data", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        value["error"].as_str().unwrap().contains("no backup"),
        "{value}"
    );
}
