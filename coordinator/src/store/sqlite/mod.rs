//! Rows in one SQLite file: WAL, synchronous=FULL, foreign keys, one writer.

mod archive;
mod chains;
mod people;
mod rows;
mod tx;
mod work;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use self::tx::SqliteTx;
use super::tx::{Backend, Tx};
use super::types::Result;

/// Connections for readers; the writer has its own.
const READERS: u32 = 4;
/// How long a call waits for a connection or for SQLite's lock before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The SQLite backend.
pub(super) struct Sqlite {
    readers: SqlitePool,
    writer: SqlitePool,
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
            .busy_timeout(PATIENCE);
        let pool = |connections| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(PATIENCE)
                .idle_timeout(None)
                .max_lifetime(None)
        };
        let writer = pool(1).connect_with(options.clone()).await?;
        sqlx::migrate!("../migrations/sqlite").run(&writer).await?;
        let readers = pool(READERS).connect_with(options).await?;
        let newest = "SELECT COALESCE(MAX(sequence), 0) FROM events";
        let newest: i64 = sqlx::query_scalar(newest).fetch_one(&readers).await?;
        Ok((Self { readers, writer }, u64::try_from(newest).unwrap_or(0)))
    }
}

#[async_trait]
impl Backend for Sqlite {
    async fn read(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(SqliteTx::new(self.readers.begin().await?)))
    }

    async fn write(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(SqliteTx::new(
            self.writer.begin_with("BEGIN IMMEDIATE").await?,
        )))
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}
