//! Telling other replicas that events were appended, and hearing of theirs.
//!
//! The events table is the truth. A notification is a hint and may be lost; a look at the table every few seconds
//! makes up for it. Notifications are sent between transactions and gathered, because one inside a transaction makes
//! every commit of the whole server wait for the one before.

use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{PgPool, query, query_scalar};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::store::types::Result;

const CHANNEL: &str = "cipherhop_events";
/// Pause between two notifications of one replica.
const GATHER: Duration = Duration::from_millis(20);
/// Time between two looks at the table.
const POLL: Duration = Duration::from_secs(5);
/// Pause before a broken connection is made again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct News {
    own: watch::Sender<u64>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl News {
    pub async fn start(pool: &PgPool, changes: watch::Sender<u64>) -> Result<Self> {
        let newest = newest(pool).await?;
        changes.send_modify(|last| *last = newest);
        let (own, told) = watch::channel(0);
        let stop = CancellationToken::new();
        let telling = tell(pool.clone(), told);
        let hearing = hear(pool.clone(), changes);
        let token = stop.clone();
        tokio::spawn(async move {
            token
                .run_until_cancelled(async { tokio::join!(telling, hearing) })
                .await
        });
        let _guard = stop.clone().drop_guard();
        Ok(Self { own, stop, _guard })
    }

    pub fn tell(&self, newest: u64) {
        self.own.send_modify(|last| *last = newest.max(*last));
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }
}

async fn newest(pool: &PgPool) -> Result<u64> {
    let sql = "SELECT COALESCE(MAX(sequence), 0) FROM events";
    let newest: i64 = query_scalar(sql).fetch_one(pool).await?;
    Ok(newest.unsigned_abs())
}

async fn tell(pool: PgPool, mut own: watch::Receiver<u64>) {
    while own.changed().await.is_ok() {
        let newest = *own.borrow_and_update();
        let notify = query("SELECT pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(newest.to_string());
        if let Err(error) = notify.execute(&pool).await {
            tracing::warn!(%error, "other replicas were not told of new events; they look themselves");
        }
        tokio::time::sleep(GATHER).await;
    }
}

async fn hear(pool: PgPool, changes: watch::Sender<u64>) {
    loop {
        if let Err(error) = listen(&pool, &changes).await {
            tracing::warn!(%error, "cannot hear of other replicas' events; trying again");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(pool: &PgPool, changes: &watch::Sender<u64>) -> Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    // What came while nobody listened.
    let mut heard = 0;
    loop {
        let now = newest(pool).await?;
        if now != heard {
            heard = now;
            changes.send_modify(|last| *last = now.max(*last));
        }
        while let Ok(news) = tokio::time::timeout(POLL, listener.recv()).await {
            let sequence: u64 = news?.payload().parse().unwrap_or(0);
            changes.send_modify(|last| *last = sequence.max(*last));
        }
    }
}
