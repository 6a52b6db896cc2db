//! Rows in PostgreSQL, for several coordinators at once.
//!
//! A writing transaction runs READ COMMITTED and locks the chain it decides on; each later statement sees what the
//! chain's last writer committed. Events of one chain are numbered under its lock, so their order is the order in
//! which they become visible. Reading transactions see one moment (REPEATABLE READ); a look has none around it.
#![allow(clippy::duplicate_mod)] // ../sql is compiled once for each backend

// Held until the transaction ends; rows that only refer to the locked one do not wait.
macro_rules! locking {
    ($lock:expr, $sql:literal) => {
        match $lock {
            true => concat!($sql, " FOR NO KEY UPDATE"),
            false => $sql,
        }
    };
}
macro_rules! skip_locked {
    ($sql:literal) => {
        concat!($sql, " FOR NO KEY UPDATE SKIP LOCKED")
    };
}
macro_rules! together {
    ($attempt:literal, $hop:literal, $event:literal) => {
        concat!(
            "WITH attempt AS (",
            $attempt,
            "), hop AS (",
            $hop,
            ") ",
            $event
        )
    };
}
macro_rules! is_set {
    ($flag:literal) => {
        $flag
    };
}

mod duties;
mod handle;
mod news;

// The row code of both SQL backends, here over PostgreSQL's types.
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

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgArguments as Arguments, PgConnectOptions, PgPoolOptions, PgRow as Row};
use sqlx::{Connection as _, PgConnection as Connection, PgPool, Postgres as Database};

use self::duties::Duties;
use self::handle::Handle;
use self::news::News;
pub(super) use self::news::Told;
use self::tx::SqlTx;
use super::tx::{Backend, Tx};
use super::types::{Duty, Result};

/// Others write: a row read by the statement that waits for a lock may be older than the lock.
const ONE_WRITER: bool = false;
/// How long a call waits for a connection before it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// Prepared statements a connection keeps.
const STATEMENTS: usize = 256;
/// A connection that lay idle for so long is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(5);

/// The PostgreSQL backend.
pub(super) struct Pg {
    pool: PgPool,
    duties: Duties,
    news: News,
}

impl Pg {
    /// Connects, migrates, and follows what other replicas do in `told`.
    pub async fn open(url: &str, connections: u32, told: Told) -> Result<Self> {
        let options = options(url)?;
        let pool = PgPoolOptions::new()
            .max_connections(connections.max(2))
            .acquire_timeout(PATIENCE)
            .test_before_acquire(false)
            .before_acquire(|connection, about| {
                Box::pin(async move {
                    Ok(about.idle_for < TRUSTED_IDLE || connection.ping().await.is_ok())
                })
            })
            .connect_with(options.clone())
            .await?;
        // Replicas that start together take turns here.
        cipherhop_failpoint::at("migrate.before");
        sqlx::migrate!("../migrations/postgres").run(&pool).await?;
        cipherhop_failpoint::at("migrate.after");
        Ok(Self {
            news: News::start(&pool, told).await?,
            duties: Duties::new(options),
            pool,
        })
    }
}

fn options(url: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.application_name("cipherhop-coordinator");
    Ok(options.statement_cache_capacity(STATEMENTS).options([
        // An acknowledged change survives a crash of the server (I5), whatever its configuration says.
        ("synchronous_commit", "on"),
        ("lock_timeout", "15s"),
        ("statement_timeout", "30s"),
        ("idle_in_transaction_session_timeout", "60s"),
    ]))
}

#[async_trait]
impl Backend for Pg {
    async fn read(&self) -> Result<Box<dyn Tx>> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let read = Handle::Whole(self.pool.begin_with(begin).await?);
        Ok(Box::new(SqlTx::reading(read)))
    }

    async fn look(&self) -> Result<Box<dyn Tx>> {
        let plain = Handle::Plain(self.pool.acquire().await?);
        Ok(Box::new(SqlTx::reading(plain)))
    }

    async fn write(&self) -> Result<Box<dyn Tx>> {
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
        let write = Handle::Whole(self.pool.begin_with(begin).await?);
        Ok(Box::new(SqlTx::writing(write)))
    }

    fn committed(&self, newest: u64, opens: bool) {
        self.news.tell(newest, opens);
    }

    async fn revoked(&self) {
        news::tell_of_tokens(&self.pool).await;
    }

    async fn leads(&self, duty: Duty) -> Result<bool> {
        self.duties.lead(duty).await
    }

    async fn close(&self) {
        self.news.stop();
        self.duties.give_up().await;
        self.pool.close().await;
    }
}
