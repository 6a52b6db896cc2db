//! Telling other replicas that events were appended, and hearing of theirs.
//!
//! The events table is the truth. A notification is a hint and may be lost; a look at the table every few seconds
//! makes up for it. Notifications are sent between transactions and gathered, because one inside a transaction makes
//! every commit of the whole server wait for the one before.

use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::types::Uuid;
use sqlx::{PgPool, query, query_scalar};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::store::types::Result;

const CHANNEL: &str = "cipherhop_events";
const TOKENS: &str = "cipherhop_tokens";
/// Pause between two notifications of one replica.
const GATHER: Duration = Duration::from_millis(20);
/// Time between two looks at the table.
const POLL: Duration = Duration::from_secs(5);
/// Pause before a broken connection is made again.
const AGAIN: Duration = Duration::from_secs(1);

/// Whom to tell of what others did.
#[derive(Clone)]
pub(in crate::store) struct Told {
    /// Newest event.
    pub changes: watch::Sender<u64>,
    /// Counts moments after which there may be work.
    pub openings: watch::Sender<u64>,
    /// Counts revocations of tokens.
    pub revocations: watch::Sender<u64>,
}

/// What this process has to tell: its newest event, and how often there may have been work since the start.
#[derive(Clone, Copy, Default)]
struct Own {
    newest: u64,
    openings: u64,
}

/// What a notification says: the newest event's number, this word where there may be work, and who says it. Replicas of
/// an older version say the number alone.
const OPEN: &str = "open";

pub(super) struct News {
    own: watch::Sender<Own>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl News {
    pub async fn start(pool: &PgPool, others: Told) -> Result<Self> {
        let newest = newest(pool).await?;
        others.changes.send_modify(|last| *last = newest);
        let (own, told) = watch::channel(Own::default());
        let name = Uuid::new_v4();
        let stop = CancellationToken::new();
        let telling = tell(pool.clone(), told, name);
        let hearing = hear(pool.clone(), others, name);
        let token = stop.clone();
        tokio::spawn(async move {
            token
                .run_until_cancelled(async { tokio::join!(telling, hearing) })
                .await
        });
        let _guard = stop.clone().drop_guard();
        Ok(Self { own, stop, _guard })
    }

    pub fn tell(&self, newest: u64, opens: bool) {
        self.own.send_modify(|own| {
            own.newest = newest.max(own.newest);
            own.openings += u64::from(opens);
        });
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

async fn tell(pool: PgPool, mut own: watch::Receiver<Own>, name: Uuid) {
    let mut told = 0;
    while own.changed().await.is_ok() {
        let Own { newest, openings } = *own.borrow_and_update();
        let opens = if openings > told { OPEN } else { "-" };
        told = openings;
        let notify = query("SELECT pg_notify($1, $2)")
            .bind(CHANNEL)
            .bind(format!("{newest} {opens} {name}"));
        if let Err(error) = notify.execute(&pool).await {
            tracing::warn!(%error, "other replicas were not told of new events; they look themselves");
        }
        tokio::time::sleep(GATHER).await;
    }
}

/// Tells every replica that a token was revoked. One that does not hear of it believes what it remembers of tokens a
/// moment longer.
pub(super) async fn tell_of_tokens(pool: &PgPool) {
    let notify = query("SELECT pg_notify($1, '')").bind(TOKENS);
    if let Err(error) = notify.execute(pool).await {
        tracing::warn!(%error, "other replicas were not told that a token was revoked; they look themselves");
    }
}

async fn hear(pool: PgPool, told: Told, name: Uuid) {
    loop {
        if let Err(error) = listen(&pool, &told, name).await {
            tracing::warn!(%error, "cannot hear of other replicas' events; trying again");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(pool: &PgPool, told: &Told, name: Uuid) -> Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen_all([CHANNEL, TOKENS]).await?;
    told.revocations.send_modify(|round| *round += 1);
    // What came while nobody listened.
    let mut heard = 0;
    loop {
        let now = newest(pool).await?;
        if now != heard {
            heard = now;
            told.changes.send_modify(|last| *last = now.max(*last));
            told.openings.send_modify(|count| *count += 1);
        }
        while let Ok(news) = tokio::time::timeout(POLL, listener.recv()).await {
            let news = news?;
            if news.channel() == TOKENS {
                told.revocations.send_modify(|round| *round += 1);
                continue;
            }
            let mut words = news.payload().split(' ');
            let sequence: u64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
            let opens = words.next().is_none_or(|word| word == OPEN);
            if words.next() == Some(name.to_string().as_str()) {
                continue;
            }
            told.changes.send_modify(|last| *last = sequence.max(*last));
            if opens {
                told.openings.send_modify(|count| *count += 1);
            }
        }
    }
}
