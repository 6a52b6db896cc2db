//! Which database `serve` opens, and what must hold when several processes share one.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use tokio_util::sync::CancellationToken;

use crate::store::{self, Duty, Store, StoreError};

/// Address of a PostgreSQL database. Printed without its password.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(String);

/// Text that is no address of a PostgreSQL database. Says nothing of the text, which may hold a password.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an address like postgres://USER@HOST/DATABASE")]
pub struct BadDatabaseUrl;

impl FromStr for DatabaseUrl {
    type Err = BadDatabaseUrl;

    fn from_str(text: &str) -> Result<Self, BadDatabaseUrl> {
        let scheme = text.starts_with("postgres://") || text.starts_with("postgresql://");
        let valid = scheme && text.parse::<sqlx::postgres::PgConnectOptions>().is_ok();
        valid.then(|| Self(text.to_owned())).ok_or(BadDatabaseUrl)
    }
}

impl DatabaseUrl {
    /// The address with its password.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The address as others may see it, and the password apart.
    pub(crate) fn without_password(&self) -> (String, Option<String>) {
        let Ok(mut url) = url::Url::parse(&self.0) else {
            return (self.to_string(), None);
        };
        let user = url.password().map(|p| {
            percent_encoding::percent_decode_str(p)
                .decode_utf8_lossy()
                .into_owned()
        });
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let (secret, rest): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(name, _)| name == "password");
        // a URL with a user has a host, so this cannot fail
        let _ = url.set_password(None);
        url.set_query(None);
        if !rest.is_empty() {
            url.query_pairs_mut().extend_pairs(rest);
        }
        let named = secret.into_iter().next_back().map(|(_, value)| value);
        (url.into(), named.or(user))
    }
}

impl TryFrom<String> for DatabaseUrl {
    type Error = BadDatabaseUrl;

    fn try_from(text: String) -> Result<Self, BadDatabaseUrl> {
        text.parse()
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        // A password may also stand among the parameters.
        let place = rest.split('?').next().unwrap_or_default();
        match place.rsplit_once('@') {
            Some((user, host)) => {
                let user = user.split(':').next().unwrap_or_default();
                write!(f, "{scheme}://{user}@{host}")
            }
            None => write!(f, "{scheme}://{place}"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How long a process that keeps blobs in its own folder waits for one that just ended.
const SUCCESSION: Duration = Duration::from_secs(10);
/// Time between two looks whether this process is still the only one.
const LOOK: Duration = Duration::from_secs(5);

/// Opens the database: SQLite in the data folder, or PostgreSQL.
pub async fn open(
    url: Option<&DatabaseUrl>,
    connections: u32,
    data: &Path,
) -> Result<Arc<dyn Store>, StoreError> {
    match url {
        Some(url) => store::open_postgres(&url.0, connections).await,
        None => store::open_sqlite(&data.join("coordinator.db")).await,
    }
}

/// Takes the right to keep blobs in a folder of this process alone; false when another process has it.
pub async fn claim_local_blobs(store: &dyn Store) -> Result<bool, StoreError> {
    let start = tokio::time::Instant::now();
    while !store.leads(Duty::LocalBlobs).await? {
        if start.elapsed() > SUCCESSION {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(true)
}

/// Ends the process when another one took that right, after a lost connection.
pub async fn keep_local_blobs(store: Arc<dyn Store>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(LOOK))
        .await
        .is_some()
    {
        if let Ok(false) = store.leads(Duty::LocalBlobs).await {
            tracing::error!(
                "another coordinator with blobs in a folder of its own took over this database; stopping"
            );
            stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i11_a_password_is_never_printed() {
        for (text, shown) in [
            (
                "postgres://ann:secret@db.example/hops",
                "postgres://ann@db.example/hops",
            ),
            (
                "postgresql://ann:s%40ret@db:5433/hops?sslmode=require",
                "postgresql://ann@db:5433/hops",
            ),
            (
                "postgres://db/hops?user=ann&password=secret",
                "postgres://db/hops",
            ),
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            assert_eq!(serde_json::to_value(&url).unwrap(), shown);
        }
        for (text, address, password) in [
            (
                "postgres://ann:s%40ret@db:5433/hops?sslmode=require",
                "postgres://ann@db:5433/hops?sslmode=require",
                Some("s@ret"),
            ),
            (
                "postgres://db/hops?user=ann&password=secret",
                "postgres://db/hops?user=ann",
                Some("secret"),
            ),
            ("postgres://ann@db/hops", "postgres://ann@db/hops", None),
        ] {
            let url: DatabaseUrl = text.parse().unwrap();
            let (seen, secret) = url.without_password();
            assert_eq!((seen.as_str(), secret.as_deref()), (address, password));
        }
        for text in ["", "hops.db", "mysql://a@b/c", "postgres://a:secret@[b/c"] {
            let error = text.parse::<DatabaseUrl>().unwrap_err();
            assert!(!error.to_string().contains("secret"));
        }
    }
}
