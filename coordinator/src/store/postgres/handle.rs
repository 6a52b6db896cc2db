//! A connection with or without a transaction around it.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};

use crate::store::types::Result;

/// What the row code runs on.
pub(super) enum Handle {
    /// Each statement sees a moment of its own.
    Plain(PoolConnection<Postgres>),
    /// Rolled back when dropped.
    Whole(Transaction<'static, Postgres>),
}

impl Handle {
    pub async fn commit(self) -> Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Whole(transaction) => Ok(transaction.commit().await?),
        }
    }
}

impl Deref for Handle {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Whole(transaction) => transaction,
        }
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Plain(connection) => connection,
            Self::Whole(transaction) => transaction,
        }
    }
}
