//! The section `[blobs]`: where blobs are kept, and limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::blobs::{LocalLimits, S3Error, S3Settings};

/// Where blobs are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlobPlace {
    /// The data folder of one coordinator.
    #[default]
    Local,
    /// A bucket, which several coordinators may share.
    S3,
}

/// Blob storage.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlobSettings {
    /// "local": blobs/ in the data folder; "s3": the bucket of `[blobs.s3]`.
    pub store: BlobPlace,
    /// Disk space left to others, bytes.
    pub headroom_bytes: u64,
    /// Most that blobs may take, bytes; 0 means no limit. Local files only.
    pub quota_bytes: u64,
    /// Largest single blob, bytes.
    pub max_blob_bytes: u64,
    /// Largest trace of one attempt, bytes.
    pub max_trace_bytes: u64,
    /// Bytes an upload may be ahead of its last fsync.
    pub commit_every_bytes: u64,
    /// A blob stream without a byte for so long is ended, seconds.
    pub idle_seconds: u64,
    /// Bytes under a digest that no row speaks of, left by a crash, are removed after so long, seconds.
    pub orphan_seconds: u64,
    /// An upload that nobody goes on with is given up after so long, seconds.
    pub abandoned_upload_seconds: u64,
    /// The bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Settings>,
}

impl Default for BlobSettings {
    fn default() -> Self {
        let limits = LocalLimits::default();
        BlobSettings {
            store: BlobPlace::Local,
            headroom_bytes: limits.headroom_bytes,
            quota_bytes: 0,
            max_blob_bytes: limits.max_blob_bytes,
            max_trace_bytes: 16 << 20,
            commit_every_bytes: 16 << 20,
            idle_seconds: 60,
            orphan_seconds: 24 * 3600,
            abandoned_upload_seconds: 7 * 24 * 3600,
            s3: None,
        }
    }
}

impl BlobSettings {
    /// Limits of the local blob folder.
    pub fn local_limits(&self) -> LocalLimits {
        LocalLimits {
            headroom_bytes: self.headroom_bytes,
            quota_bytes: (self.quota_bytes > 0).then_some(self.quota_bytes),
            max_blob_bytes: self.max_blob_bytes,
        }
    }

    /// The bucket, where blobs are kept in one.
    pub fn bucket(&self) -> Option<&S3Settings> {
        self.s3.as_ref().filter(|_| self.store == BlobPlace::S3)
    }

    /// Takes s3://BUCKET/PREFIX from a command line; endpoint, region and the rest stay as they are.
    pub fn set_place(&mut self, place: &str) -> Result<(), ConfigError> {
        let s3 = self.s3.get_or_insert_default();
        s3.set_place(place).map_err(of_s3)?;
        self.store = BlobPlace::S3;
        self.check_place()
    }

    pub(super) fn check_place(&self) -> Result<(), ConfigError> {
        let wrong = |key, problem: &str| ConfigError::Value {
            key,
            problem: problem.into(),
        };
        match (self.store, &self.s3) {
            (BlobPlace::Local, None) => Ok(()),
            (BlobPlace::Local, Some(_)) => Err(wrong(
                "blobs.store",
                "there is a section [blobs.s3], but store is not \"s3\": say store = \"s3\" in [blobs], or remove the \
                 section",
            )),
            (BlobPlace::S3, None) => Err(wrong(
                "blobs.s3.bucket",
                "store is \"s3\": name the bucket in a section [blobs.s3]",
            )),
            (BlobPlace::S3, Some(_)) if self.quota_bytes > 0 => Err(wrong(
                "blobs.quota_bytes",
                "a bucket has no quota of ours: set it at the storage, and leave this out",
            )),
            (BlobPlace::S3, Some(s3)) => s3.check().map_err(of_s3),
        }
    }

    /// Idle time-out of blob streams.
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }
}

fn of_s3(error: S3Error) -> ConfigError {
    match error {
        S3Error::Setting { key, problem } => ConfigError::Value { key, problem },
        other => ConfigError::Value {
            key: "blobs.s3",
            problem: other.to_string(),
        },
    }
}
