//! Which replica does what all of them could do. A duty is an advisory lock of a connection kept for nothing else:
//! when the process or the connection dies, PostgreSQL frees the lock and another replica takes over.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, query_scalar};
use tokio::sync::Mutex;

use crate::store::types::{Duty, Result};

/// First half of the locks' keys: "ciph" in ASCII. The second half is the duty.
const FAMILY: i32 = 0x6369_7068;

pub(super) struct Duties {
    options: PgConnectOptions,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    connection: Option<PgConnection>,
    duties: Vec<Duty>,
}

fn key(duty: Duty) -> i32 {
    match duty {
        Duty::Reaper => 1,
        Duty::LocalBlobs => 2,
    }
}

impl Duties {
    pub fn new(options: PgConnectOptions) -> Self {
        Self {
            options,
            held: Mutex::default(),
        }
    }

    /// Takes the duty if nobody has it. True as long as this process has it.
    pub async fn lead(&self, duty: Duty) -> Result<bool> {
        let mut held = self.held.lock().await;
        let answer = ask(&mut held, &self.options, duty).await;
        if answer.is_err() {
            // The locks went with the connection.
            *held = Held::default();
        }
        answer
    }

    /// Leaves every duty to others.
    pub async fn give_up(&self) {
        let held = std::mem::take(&mut *self.held.lock().await);
        if let Some(connection) = held.connection {
            // The locks are free whether the server hears the good-bye or only sees the socket close.
            let _ = connection.close().await;
        }
    }
}

async fn ask(held: &mut Held, options: &PgConnectOptions, duty: Duty) -> Result<bool> {
    let connection = match &mut held.connection {
        Some(connection) => connection,
        none => none.insert(options.connect().await?),
    };
    if held.duties.contains(&duty) {
        connection.ping().await?;
        return Ok(true);
    }
    let sql = "SELECT pg_try_advisory_lock($1, $2)";
    let lock = query_scalar(sql).bind(FAMILY).bind(key(duty));
    let taken: bool = lock.fetch_one(connection).await?;
    if taken {
        tracing::info!(?duty, "this replica takes over");
        held.duties.push(duty);
    }
    Ok(taken)
}
