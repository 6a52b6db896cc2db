//! Rows in one SQLite file: WAL, synchronous=FULL, foreign keys, one writer.
#![allow(clippy::duplicate_mod)] // ../sql is compiled once for each backend

// One writer at a time: nothing to lock.
macro_rules! locking {
    ($lock:expr, $sql:literal) => {{
        let _ = $lock;
        $sql
    }};
}
macro_rules! skip_locked {
    ($sql:literal) => {
        $sql
    };
}
macro_rules! together {
    ($attempt:literal, $hop:literal, $event:literal) => {
        concat!($attempt, ";\n", $hop, ";\n", $event)
    };
}
// In the words of the partial index, or SQLite does not use it.
macro_rules! is_set {
    ($flag:literal) => {
        concat!($flag, " = 1")
    };
}

// The row code of both SQL backends, here over SQLite's types.
#[path = "../sql/archive.rs"]
mod archive;
#[path = "../sql/chains.rs"]
mod chains;
#[path = "../sql/people.rs"]
mod people;
#[path = "../sql/record.rs"]
mod record;
#[path = "../sql/rows.rs"]
mod rows;
#[path = "../sql/trail.rs"]
mod trail;
#[path = "../sql/tx.rs"]
mod tx;
#[path = "../sql/work.rs"]
mod work;
mod writer;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{
    SqliteArguments as Arguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions,
    SqliteRow as Row, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Sqlite as Database, SqliteConnection as Connection, SqlitePool};

use self::tx::SqlTx;
use self::writer::{Handle, Writer};
use super::tx::{Backend, Tx};
use super::types::Result;

/// Connections for readers; the writer has its own.
const READERS: u32 = 4;
/// Prepared statements a connection keeps.
const STATEMENTS: usize = 256;
/// The only writer: what two statements read in its transaction is of one moment, and one may read both.
const ONE_WRITER: bool = true;
/// How long a call waits for a connection or for SQLite's lock before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The SQLite backend.
pub(super) struct Sqlite {
    readers: SqlitePool,
    writer: Writer,
}

impl Sqlite {
    /// Opens or creates the file, migrates it, and reads the newest event's sequence number.
    pub async fn open(path: &Path) -> Result<(Self, u64)> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(PATIENCE)
            .statement_cache_capacity(STATEMENTS);
        let mut writer = options.connect().await?;
        cipherhop_failpoint::at("migrate.before");
        sqlx::migrate!("../migrations/sqlite")
            .run(&mut writer)
            .await?;
        cipherhop_failpoint::at("migrate.after");
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(PATIENCE)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options)
            .await?;
        let newest = "SELECT COALESCE(MAX(sequence), 0) FROM events";
        let newest: i64 = sqlx::query_scalar(newest).fetch_one(&readers).await?;
        let writer = Writer::new(writer);
        Ok((Self { readers, writer }, u64::try_from(newest).unwrap_or(0)))
    }
}

#[async_trait]
impl Backend for Sqlite {
    async fn read(&self) -> Result<Box<dyn Tx>> {
        let read = Handle::Read(self.readers.begin().await?);
        Ok(Box::new(SqlTx::reading(read)))
    }

    async fn look(&self) -> Result<Box<dyn Tx>> {
        let plain = Handle::Plain(self.readers.acquire().await?);
        Ok(Box::new(SqlTx::reading(plain)))
    }

    async fn write(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(SqlTx::writing(self.writer.begin().await?)))
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
