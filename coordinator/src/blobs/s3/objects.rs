//! Single objects in the bucket: records that change on a condition, sizes, removal.

use std::time::{Duration, SystemTime};

use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::BlobError;
use super::{Inner, connect};

/// A record and the version that a change of it must name.
pub(super) struct Found<T> {
    pub record: T,
    pub version: UpdateVersion,
    pub age: Duration,
}

/// What became of a write on a condition.
pub(super) enum Written {
    Done(UpdateVersion),
    /// Somebody else was quicker.
    Lost,
}

/// How long ago an object was written, by this machine's clock; zero for a moment to come.
pub(super) fn age(meta: &ObjectMeta) -> Duration {
    let since = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
        .saturating_sub(Duration::from_millis(since))
}

impl Inner {
    /// A failure of the storage in words.
    pub fn failed(&self, action: &'static str) -> impl Fn(Error) -> BlobError {
        move |error| BlobError::Remote {
            action,
            problem: connect::explain(&error, &self.settings),
        }
    }

    /// Reads a record; `None` where there is none. One that is not in our form counts as none and can be replaced.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &Path,
        action: &'static str,
    ) -> Result<(Option<Found<T>>, Option<UpdateVersion>), BlobError> {
        let got = match self.client.get(path).await {
            Ok(got) => got,
            Err(Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => {
                return Ok((None, None));
            }
            Err(e) => return Err(self.failed(action)(e)),
        };
        let meta = got.meta.clone();
        let version = UpdateVersion {
            e_tag: meta.e_tag.clone(),
            version: meta.version.clone(),
        };
        let bytes = got.bytes().await.map_err(self.failed(action))?;
        match serde_json::from_slice(&bytes) {
            Ok(record) => {
                let found = Found {
                    record,
                    version: version.clone(),
                    age: age(&meta),
                };
                Ok((Some(found), Some(version)))
            }
            Err(error) => {
                tracing::warn!(%path, %error, "a record in the bucket is not readable; it is taken as absent");
                Ok((None, Some(version)))
            }
        }
    }

    /// Writes a record: a new one, or over the version named.
    pub async fn put<T: Serialize>(
        &self,
        path: &Path,
        record: &T,
        over: Option<UpdateVersion>,
        action: &'static str,
    ) -> Result<Written, BlobError> {
        let mode = over.map_or(PutMode::Create, PutMode::Update);
        let bytes = serde_json::to_vec(record).map_err(|e| BlobError::Io {
            action,
            source: e.into(),
        })?;
        match self.client.put_opts(path, bytes.into(), mode.into()).await {
            Ok(done) => Ok(Written::Done(done.into())),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Written::Lost),
            Err(e) => Err(self.failed(action)(e)),
        }
    }

    pub async fn size_at(&self, path: &Path) -> Result<Option<u64>, BlobError> {
        match self.client.head(path).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed("look up a blob")(e)),
        }
    }

    /// Removes an object; one that is gone is no failure.
    pub async fn delete(&self, path: &Path) -> Result<(), BlobError> {
        match self.client.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.failed("remove an object")(e)),
        }
    }

    /// Removes what is left of something; what stays is found by the next sweep.
    pub async fn tidy(&self, path: &Path) {
        if let Err(error) = self.delete(path).await {
            tracing::warn!(%path, %error, "an object that nobody needs stays for now");
        }
    }
}
