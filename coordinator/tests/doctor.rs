//! `doctor` on sound and on damaged coordinators.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use cipherhop_coordinator::database::DatabaseUrl;
use cipherhop_coordinator::doctor::{Finding, Grade, examine};
use cipherhop_coordinator::domain::time::Timestamp;
use cipherhop_coordinator::ledger_key;
use cipherhop_proto::Digest;
use cipherhop_proto::ledger::LedgerKey;
use common::*;

fn grade(findings: &[Finding], what: &str) -> Grade {
    let found = findings.iter().find(|f| f.what == what);
    found
        .unwrap_or_else(|| panic!("no {what} in {findings:?}"))
        .grade
}

fn private(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_and_nothing_else() {
    let server = Server::start().await;
    let owner = server.owner().await;
    new_chain("demo", 2).create(&owner).await;
    let data = server.dir.path();
    private(data);
    let findings = examine(data, None, None).await;
    let worst = findings.iter().map(|f| f.grade).max().unwrap();
    // serve, not this test's server, writes an admin token
    assert_eq!(worst, Grade::Warning, "{findings:?}");
    assert_eq!(grade(&findings, "admin token"), Grade::Warning);
    for what in [
        "configuration",
        "data folder",
        "disk",
        "database",
        "schema",
        "blobs",
        "chains",
        "devices",
        "ledger",
        "ledger key",
    ] {
        assert_eq!(grade(&findings, what), Grade::Good, "{what}");
    }

    std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(data.join("admin.token"), "x").unwrap();
    std::fs::set_permissions(
        data.join("admin.token"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let config = data.join("config.toml");
    std::fs::write(&config, "[blobs]\nheadroom_bytes = 9000000000000000000\n").unwrap();
    let shard = std::fs::read_dir(data.join("blobs/sha256"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let blob = std::fs::read_dir(shard.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let bytes = std::fs::read(&blob).unwrap();
    std::fs::write(&blob, &bytes[..bytes.len() - 1]).unwrap();
    let findings = examine(data, Some(&config), None).await;
    assert_eq!(grade(&findings, "data folder"), Grade::Warning);
    assert_eq!(grade(&findings, "admin token"), Grade::Bad);
    assert_eq!(grade(&findings, "disk"), Grade::Bad);
    assert_eq!(grade(&findings, "blobs"), Grade::Bad);
    assert_eq!(grade(&findings, "database"), Grade::Good);
    std::fs::write(&config, "[blob]\n").unwrap();
    let findings = examine(data, Some(&config), None).await;
    assert_eq!(grade(&findings, "configuration"), Grade::Bad);
}

/// Rewritten rows, whole new ledgers by somebody without the key, and lost keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_archive_and_a_lost_ledger_key_are_found() {
    let server = Server::start().await;
    let data = server.dir.path();
    let key = ledger_key::make(&data.join("ledger.key")).unwrap();
    let now = Timestamp::from_micros(1_790_000_000_000_000);
    server
        .store
        .sign_ledger(key.clone(), false, now)
        .await
        .unwrap();
    let owner = server.owner().await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    new_chain("demo", 2).create(&owner).await;
    for volunteer in [&ada, &bob] {
        let given = volunteer.acquire(5).await.unwrap();
        volunteer.hand_in(&given, &output(0)).await.unwrap();
    }
    let findings = examine(data, None, None).await;
    let ledger = findings.iter().find(|f| f.what == "ledger").unwrap();
    assert_eq!(ledger.grade, Grade::Good, "{findings:?}");
    let said = format!("1 signed with {}", key.public());
    assert!(ledger.text.contains(&said), "{}", ledger.text);
    assert_eq!(grade(&findings, "ledger key"), Grade::Good);

    std::fs::remove_file(data.join("ledger.key")).unwrap();
    let findings = examine(data, None, None).await;
    assert_eq!(grade(&findings, "ledger key"), Grade::Warning);
    ledger_key::make(&data.join("ledger.key")).unwrap();
    let findings = examine(data, None, None).await;
    assert_eq!(
        grade(&findings, "ledger key"),
        Grade::Warning,
        "another key"
    );

    let url = format!("sqlite://{}", data.join("coordinator.db").display());
    let mut db = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    // A forged row with a right hash and a signature, but of a key that no coordinator had.
    let hash: Vec<u8> = sqlx::query_scalar("SELECT hash FROM archive")
        .fetch_one(&mut db)
        .await
        .unwrap();
    let stranger = LedgerKey::from_secret(&[9; 32]).seal(Digest::from_slice(&hash).unwrap());
    sqlx::raw_sql("DROP TRIGGER archive_rows_never_change")
        .execute(&mut db)
        .await
        .unwrap();
    let forge = "UPDATE archive SET signer = $1, signature = $2";
    sqlx::query(forge)
        .bind(stranger.signer.as_bytes().to_vec())
        .bind(stranger.signature.to_vec())
        .execute(&mut db)
        .await
        .unwrap();
    let findings = examine(data, None, None).await;
    assert_eq!(grade(&findings, "ledger"), Grade::Bad);
    for change in [
        "UPDATE archive SET signature = zeroblob(64)",
        "UPDATE archive SET signer = NULL, signature = NULL, hop = 1",
        "UPDATE archive SET digest = (SELECT digest FROM blobs WHERE digest <> archive.digest)",
    ] {
        sqlx::query(change).execute(&mut db).await.unwrap();
        let findings = examine(data, None, None).await;
        assert_eq!(grade(&findings, "ledger"), Grade::Bad, "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_a_newer_program_is_bad() {
    let server = Server::start().await;
    let path = server.dir.path().join("coordinator.db");
    let url = format!("sqlite://{}", path.display());
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url)
        .await
        .unwrap();
    let newer =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9000, 'of tomorrow', 1, x'00', 0)";
    sqlx::query(newer).execute(&mut connection).await.unwrap();
    let findings = examine(server.dir.path(), None, None).await;
    assert_eq!(grade(&findings, "schema"), Grade::Bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_is_looked_at_and_its_password_not_told() {
    let Some(database) = cluster::database().await else {
        return;
    };
    let empty = cluster::empty_database().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    private(dir.path());
    let url: DatabaseUrl = database.url.parse().unwrap();
    let findings = examine(dir.path(), None, Some(&url)).await;
    for what in ["database", "clock", "schema", "chains"] {
        assert_eq!(grade(&findings, what), Grade::Good, "{findings:?}");
    }
    let url: DatabaseUrl = empty.url.parse().unwrap();
    let findings = examine(dir.path(), None, Some(&url)).await;
    assert_eq!(grade(&findings, "schema"), Grade::Warning, "{findings:?}");
    let url: DatabaseUrl = "postgres://ann:secret@127.0.0.1:1/hops".parse().unwrap();
    let findings = examine(dir.path(), None, Some(&url)).await;
    assert_eq!(grade(&findings, "database"), Grade::Bad);
    assert!(!format!("{findings:?}").contains("secret"));
}

#[test]
fn the_exit_code_tells() {
    let dir = tempfile::tempdir().unwrap();
    let run = |data: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"));
        let command = command
            .args(["doctor", "--json", "--data", data])
            .current_dir(dir.path());
        command
            .env_remove("CIPHERHOP_DATABASE_URL")
            .output()
            .unwrap()
    };
    assert_eq!(run("nowhere").status.code(), Some(1));
    std::fs::create_dir(dir.path().join("new")).unwrap();
    private(&dir.path().join("new"));
    let output = run("new");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["findings"].as_array().unwrap().len() >= 4);
}
