//! The one writer of a SQLite file.
//!
//! Each transaction is a savepoint. While others wait for their turn the changes stay together, and one COMMIT, hence
//! one fsync, makes all of them durable; nobody hears of a commit before that (I5). Later ones of such a group see the
//! changes of earlier ones, and all of them stand or fall together.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Sqlite, SqliteConnection, Transaction, raw_sql};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard, oneshot};

use crate::store::types::{Result, StoreError};

/// Most transactions that share a COMMIT.
const MOST: usize = 32;

/// The writing connection, whose lock is the turn; none after the end.
#[derive(Clone)]
pub(super) struct Writer {
    connection: Arc<Mutex<Option<SqliteConnection>>>,
    group: Arc<std::sync::Mutex<Group>>,
}

/// The transactions that will share the next COMMIT.
#[derive(Default)]
struct Group {
    /// How many wait for their turn.
    waiting: usize,
    /// A transaction is open.
    open: bool,
    /// One who gave up left a savepoint.
    torn: bool,
    /// One who finished left a savepoint: its release goes with the next statement.
    kept: bool,
    /// The newest savepoint's name. They take turns, so that nobody takes back what the one before wrote.
    second: bool,
    /// Told when their changes are durable, or lost.
    unheard: Vec<oneshot::Sender<bool>>,
}

async fn run(connection: &mut SqliteConnection, sql: &'static str) -> Result<()> {
    raw_sql(sql).execute(connection).await?;
    Ok(())
}

/// Counts one who waits.
struct Waiting<'a> {
    writer: &'a Writer,
    got: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.writer.group(|group| group.waiting -= 1);
        if !self.got {
            self.writer.settle();
        }
    }
}

impl Writer {
    pub fn new(connection: SqliteConnection) -> Self {
        Self {
            connection: Arc::new(Mutex::new(Some(connection))),
            group: Arc::default(),
        }
    }

    fn group<T>(&self, work: impl FnOnce(&mut Group) -> T) -> T {
        work(&mut self.group.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the turn.
    pub async fn begin(&self) -> Result<Handle> {
        self.group(|group| group.waiting += 1);
        let mut waiting = Waiting {
            writer: self,
            got: false,
        };
        let turn = self.connection.clone().lock_owned().await;
        waiting.got = true;
        drop(waiting);
        let connection = OwnedMutexGuard::try_map(turn, Option::as_mut);
        let mut write = Write {
            connection: connection.map_err(|_| sqlx::Error::PoolClosed)?,
            writer: self.clone(),
            state: State::Idle,
        };
        self.mend(&mut write.connection).await;
        // From here on a caller that goes away leaves something behind.
        write.state = State::Working;
        let begin = self.group(|group| {
            let open = std::mem::replace(&mut group.open, true);
            let kept = std::mem::take(&mut group.kept);
            group.second = !group.second;
            match (open, kept, group.second) {
                (false, _, false) => "BEGIN IMMEDIATE; SAVEPOINT one",
                (false, _, true) => "BEGIN IMMEDIATE; SAVEPOINT two",
                (true, false, false) => "SAVEPOINT one",
                (true, false, true) => "SAVEPOINT two",
                (true, true, false) => "RELEASE two; SAVEPOINT one",
                (true, true, true) => "RELEASE one; SAVEPOINT two",
            }
        });
        run(&mut write.connection, begin).await?;
        Ok(Handle::Write(write))
    }

    /// The group is over.
    fn tell(&self, durable: bool) {
        let unheard = self.group(|group| {
            group.open = false;
            group.kept = false;
            std::mem::take(&mut group.unheard)
        });
        for one in unheard {
            // One who went away need not know.
            let _ = one.send(durable);
        }
    }

    /// Takes back what one who gave up had written.
    async fn mend(&self, connection: &mut SqliteConnection) {
        let (torn, second) = self.group(|group| (std::mem::take(&mut group.torn), group.second));
        if !torn {
            return;
        }
        let undo = match second {
            false => "ROLLBACK TO one; RELEASE one",
            true => "ROLLBACK TO two; RELEASE two",
        };
        if run(connection, undo).await.is_err() {
            // There was none: SQLite ends the whole transaction for some failures, a full disk among them.
            let _ = run(connection, "ROLLBACK").await;
            self.tell(false);
        }
    }

    async fn flush(&self, connection: &mut SqliteConnection) -> Result<()> {
        if !self.group(|group| group.open) {
            return Ok(());
        }
        let (kept, second) = self.group(|group| (std::mem::take(&mut group.kept), group.second));
        let commit = match (kept, second) {
            (false, _) => "COMMIT",
            (true, false) => "RELEASE one; COMMIT",
            (true, true) => "RELEASE two; COMMIT",
        };
        let done = run(connection, commit).await;
        if done.is_err() {
            // Some failures have rolled back already.
            let _ = run(connection, "ROLLBACK").await;
        }
        self.tell(done.is_ok());
        done
    }

    /// Somebody left without finishing: nobody else's changes shall wait for that.
    fn settle(&self) {
        let writer = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let mut turn = writer.connection.lock().await;
                let Some(connection) = turn.as_mut() else {
                    return;
                };
                writer.mend(connection).await;
                if writer.group(|group| group.waiting) == 0
                    && let Err(error) = writer.flush(connection).await
                {
                    tracing::error!(%error, "a shared commit failed");
                }
            });
        }
    }

    /// Makes durable what was finished and closes the file.
    pub async fn close(&self) {
        let mut turn = self.connection.lock().await;
        let Some(mut connection) = turn.take() else {
            return;
        };
        self.mend(&mut connection).await;
        if let Err(error) = self.flush(&mut connection).await {
            tracing::error!(%error, "the last commit failed");
        }
        if let Err(error) = connection.close().await {
            tracing::warn!(%error, "the database was not closed well");
        }
    }
}

#[derive(PartialEq)]
enum State {
    /// Nothing was begun.
    Idle,
    Working,
    Done,
}

/// One writing transaction.
pub(super) struct Write {
    connection: OwnedMappedMutexGuard<Option<SqliteConnection>, SqliteConnection>,
    writer: Writer,
    state: State,
}

impl Write {
    /// Waits until it is durable.
    async fn finish(mut self) -> Result<()> {
        self.state = State::Done;
        let (tell, heard) = oneshot::channel();
        let last = self.writer.group(|group| {
            group.kept = true;
            group.unheard.push(tell);
            group.waiting == 0 || group.unheard.len() >= MOST
        });
        if last {
            // In a task of its own: a caller that goes away must not stop in the middle of a shared commit.
            let flush = async move { self.writer.clone().flush(&mut self.connection).await };
            return match tokio::spawn(flush).await {
                Ok(done) => done,
                Err(error) => Err(StoreError::Damaged(format!(
                    "a commit ended early: {error}"
                ))),
            };
        }
        drop(self);
        match heard.await {
            Ok(true) => Ok(()),
            _ => Err(sqlx::Error::Protocol("the shared commit failed".into()).into()),
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if self.state == State::Working {
            self.writer.group(|group| group.torn = true);
        }
        if self.state != State::Done {
            self.writer.settle();
        }
    }
}

/// What the row code runs on.
pub(super) enum Handle {
    /// Each statement sees a moment of its own.
    Plain(PoolConnection<Sqlite>),
    /// Sees one moment.
    Read(Transaction<'static, Sqlite>),
    /// Has its turn.
    Write(Write),
}

impl Handle {
    pub async fn commit(self) -> Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Read(read) => Ok(read.commit().await?),
            Self::Write(write) => write.finish().await,
        }
    }
}

impl Deref for Handle {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Read(read) => read,
            Self::Write(write) => &write.connection,
        }
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Read(read) => read,
            Self::Write(write) => &mut write.connection,
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, query, query_scalar};

    use super::*;

    struct Place {
        writer: Writer,
        reader: SqliteConnection,
        _dir: tempfile::TempDir,
    }

    impl Place {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let options = SqliteConnectOptions::new()
                .filename(dir.path().join("t.db"))
                .create_if_missing(true)
                .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
            let mut first = options.connect().await.unwrap();
            run(&mut first, "CREATE TABLE t (n INTEGER)").await.unwrap();
            Self {
                writer: Writer::new(first),
                reader: options.connect().await.unwrap(),
                _dir: dir,
            }
        }

        /// Starts to wait for the turn.
        async fn line_up(&self) -> tokio::task::JoinHandle<Result<Handle>> {
            let before = self.writer.group(|group| group.waiting);
            let writer = self.writer.clone();
            let next = tokio::spawn(async move { writer.begin().await });
            while self.writer.group(|group| group.waiting) == before {
                tokio::task::yield_now().await;
            }
            next
        }

        async fn durable(&mut self) -> Vec<i64> {
            let all = query_scalar("SELECT n FROM t ORDER BY n");
            all.fetch_all(&mut self.reader).await.unwrap()
        }
    }

    async fn put(handle: &mut Handle, n: i64) {
        let row = query("INSERT INTO t VALUES ($1)").bind(n);
        row.execute(&mut **handle).await.unwrap();
    }

    #[tokio::test]
    async fn i5_who_shares_a_commit_hears_after_it_and_who_gives_up_leaves_nothing() {
        let mut place = Place::new().await;
        let mut first = place.writer.begin().await.unwrap();
        put(&mut first, 1).await;
        let second = place.line_up().await;
        let first = tokio::spawn(first.commit());
        let mut second = second.await.unwrap().unwrap();
        put(&mut second, 2).await;
        assert!(!first.is_finished());
        assert!(place.durable().await.is_empty());
        let third = place.line_up().await;
        drop(second);
        let mut third = third.await.unwrap().unwrap();
        put(&mut third, 3).await;
        assert!(!first.is_finished());
        third.commit().await.unwrap();
        first.await.unwrap().unwrap();
        assert_eq!(place.durable().await, [1, 3]);
        // The last one gives up: nobody is left to commit for the one before it.
        let mut first = place.writer.begin().await.unwrap();
        put(&mut first, 4).await;
        let second = place.line_up().await;
        let first = tokio::spawn(first.commit());
        let mut second = second.await.unwrap().unwrap();
        put(&mut second, 5).await;
        drop(second);
        first.await.unwrap().unwrap();
        assert_eq!(place.durable().await, [1, 3, 4]);
        // So does one who had only lined up.
        let mut first = place.writer.begin().await.unwrap();
        put(&mut first, 6).await;
        let second = place.line_up().await;
        let first = tokio::spawn(first.commit());
        second.abort();
        drop(second.await);
        first.await.unwrap().unwrap();
        assert_eq!(place.durable().await, [1, 3, 4, 6]);
    }

    #[tokio::test]
    async fn i5_a_lost_group_is_told_to_all_of_it_and_the_next_one_works() {
        let mut place = Place::new().await;
        let mut first = place.writer.begin().await.unwrap();
        put(&mut first, 1).await;
        let second = place.line_up().await;
        let first = tokio::spawn(first.commit());
        let mut second = second.await.unwrap().unwrap();
        // As SQLite does when the disk is full.
        run(&mut second, "ROLLBACK").await.unwrap();
        drop(second);
        assert!(first.await.unwrap().is_err());
        let mut next = place.writer.begin().await.unwrap();
        put(&mut next, 2).await;
        next.commit().await.unwrap();
        assert_eq!(place.durable().await, [2]);
        place.writer.close().await;
        assert!(place.writer.begin().await.is_err());
    }
}
