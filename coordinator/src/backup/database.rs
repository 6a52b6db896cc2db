//! The database of one moment, while others write to it.

use std::path::Path;
use std::process::Stdio;

use cipherhop_proto::Digest;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::process::Command;

use super::{BackupError, Result};
use crate::database::DatabaseUrl;

const COMPLETE: &str = "SELECT digest FROM blobs WHERE state = 'Complete' ORDER BY digest";

fn digests(rows: Vec<Vec<u8>>) -> Result<Vec<Digest>> {
    rows.into_iter()
        .map(|row| match row.try_into() {
            Ok(bytes) => Ok(Digest::from_bytes(bytes)),
            Err(_) => Err(sqlx::Error::Decode("a digest that is not 32 bytes".into()).into()),
        })
        .collect()
}

/// Copies a SQLite database into a new file; the complete blobs it knows.
pub(super) async fn copy_sqlite(from: &Path, to: &Path) -> Result<Vec<Digest>> {
    let mut source = SqliteConnectOptions::new()
        .filename(from)
        .busy_timeout(std::time::Duration::from_secs(30))
        .connect()
        .await?;
    sqlx::query("VACUUM INTO ?")
        .bind(to.to_string_lossy())
        .execute(&mut source)
        .await?;
    source.close().await?;
    let mut copy = SqliteConnectOptions::new()
        .filename(to)
        .read_only(true)
        .connect()
        .await?;
    let rows = sqlx::query_scalar(COMPLETE).fetch_all(&mut copy).await?;
    copy.close().await?;
    digests(rows)
}

/// Writes what pg_dump makes of the database; the complete blobs it knows at that very moment.
pub(super) async fn dump(url: &DatabaseUrl, to: &Path) -> Result<Vec<Digest>> {
    let mut connection = connect(url).await?;
    let mut moment = connection
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let snapshot: String = sqlx::query_scalar("SELECT pg_export_snapshot()")
        .fetch_one(&mut *moment)
        .await?;
    let rows = sqlx::query_scalar(COMPLETE).fetch_all(&mut *moment).await?;
    let mut command = program("pg_dump", url);
    command
        .args(["--format=custom", "--no-owner", "--no-privileges"])
        .arg(format!("--snapshot={snapshot}"))
        .arg(format!("--file={}", to.display()));
    run("pg_dump", command).await?;
    moment.rollback().await?;
    connection.close().await?;
    digests(rows)
}

/// Refuses a database that has tables.
pub(super) async fn check_empty(url: &DatabaseUrl) -> Result<()> {
    let mut connection = connect(url).await?;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()";
    let tables: i64 = sqlx::query_scalar(tables)
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    match tables {
        0 => Ok(()),
        _ => Err(BackupError::DatabaseNotEmpty(url.to_string())),
    }
}

/// Fills the database, all or nothing.
pub(super) async fn undump(url: &DatabaseUrl, from: &Path) -> Result<()> {
    let mut command = program("pg_restore", url);
    command
        .args([
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
            "--single-transaction",
        ])
        .arg(from);
    run("pg_restore", command).await
}

async fn connect(url: &DatabaseUrl) -> Result<PgConnection> {
    let options: PgConnectOptions = url.reveal().parse()?;
    Ok(options
        .application_name("cipherhop-backup")
        .connect()
        .await?)
}

/// The password goes through the environment: arguments can be read by everybody on the machine.
fn program(name: &str, url: &DatabaseUrl) -> Command {
    let (address, password) = url.without_password();
    let mut command = Command::new(name);
    command.arg(format!("--dbname={address}"));
    if let Some(password) = password {
        command.env("PGPASSWORD", password);
    }
    command
}

async fn run(program: &'static str, mut command: Command) -> Result<()> {
    let failed = |message: String| BackupError::Program { program, message };
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                failed("it is not installed; install PostgreSQL's client programs".into())
            }
            _ => failed(e.to_string()),
        })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}
