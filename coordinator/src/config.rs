//! The configuration file (TOML). Every key has a default; unknown keys are refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::database::DatabaseUrl;
use crate::domain::chain::Policy;
use crate::domain::trust::ProbeOdds;

mod blobs;

pub use blobs::{BlobPlace, BlobSettings};

/// Everything `serve` can be told in a file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Polling and the self-test.
    pub volunteers: Volunteers,
    /// Leases and retries of chains created from now on.
    pub leases: Leases,
    /// The database.
    pub database: DatabaseSettings,
    /// Blob storage.
    pub blobs: BlobSettings,
    /// The gRPC server.
    pub server: Server,
    /// How often a caller may call.
    pub limits: Limits,
    /// The signatures of the archive.
    pub ledger: LedgerSettings,
}

/// How volunteers are treated.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Volunteers {
    /// Suggested time between two Sync calls, seconds.
    pub sync_seconds: u32,
    /// Golden digests of the self-test that are let in (hexadecimal); empty: every one.
    pub golden_digests: Vec<String>,
    /// Take only devices that sign their results.
    pub require_device_keys: bool,
    /// Share of known-answer hops in the work of devices that are not trusted yet, in thousandths.
    pub probe_fresh_permille: u32,
    /// The same for trusted devices.
    pub probe_trusted_permille: u32,
}

impl Default for Volunteers {
    fn default() -> Self {
        let odds = ProbeOdds::default();
        Volunteers {
            sync_seconds: 30,
            golden_digests: Vec::new(),
            require_device_keys: false,
            probe_fresh_permille: odds.fresh_permille,
            probe_trusted_permille: odds.trusted_permille,
        }
    }
}

/// Leases and retries. A chain keeps the values it was created with.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leases {
    /// A lease not renewed for so long counts as silent after the grace, seconds.
    pub soft_seconds: u64,
    /// Extra time before a silent lease opens the hop for another attempt, seconds.
    pub grace_seconds: u64,
    /// Shortest hard deadline, seconds.
    pub deadline_floor_seconds: u64,
    /// Computation failures at which a hop is stuck.
    pub compute_budget: u32,
    /// Disconnects, expiries and full machines at which a hop is stuck.
    pub disconnect_budget: u32,
    /// Mismatching or malformed results at which a hop is stuck.
    pub mismatch_budget: u32,
    /// Wait after the first failure of a row, milliseconds; doubles per failure, with jitter.
    pub backoff_base_millis: u64,
    /// Longest wait after a failure, seconds.
    pub backoff_cap_seconds: u64,
}

impl Default for Leases {
    fn default() -> Self {
        let policy = Policy::default();
        Leases {
            soft_seconds: policy.soft_lease.as_secs(),
            grace_seconds: policy.grace.as_secs(),
            deadline_floor_seconds: policy.deadline_floor.as_secs(),
            compute_budget: policy.compute_budget,
            disconnect_budget: policy.disconnect_budget,
            mismatch_budget: policy.mismatch_budget,
            backoff_base_millis: policy.backoff_base.as_millis() as u64,
            backoff_cap_seconds: policy.backoff_cap.as_secs(),
        }
    }
}

impl Leases {
    /// Policy of a new chain that asks for this quorum.
    pub fn policy(&self, quorum: u32) -> Policy {
        Policy {
            quorum,
            soft_lease: Duration::from_secs(self.soft_seconds),
            grace: Duration::from_secs(self.grace_seconds),
            deadline_floor: Duration::from_secs(self.deadline_floor_seconds),
            compute_budget: self.compute_budget,
            disconnect_budget: self.disconnect_budget,
            mismatch_budget: self.mismatch_budget,
            backoff_base: Duration::from_millis(self.backoff_base_millis),
            backoff_cap: Duration::from_secs(self.backoff_cap_seconds),
        }
    }
}

/// The database.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseSettings {
    /// PostgreSQL database, postgres://USER@HOST/DATABASE; without it SQLite in the data folder. A password is better
    /// kept in the environment (PGPASSWORD) or a passfile. A direct connection, no pooler: locks belong to sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<DatabaseUrl>,
    /// Most connections to PostgreSQL, beside two that the process keeps for itself.
    pub connections: u32,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        DatabaseSettings {
            url: None,
            connections: 16,
        }
    }
}

/// The gRPC server.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Time for open calls to end at shutdown, seconds.
    pub shutdown_seconds: u64,
    /// Time between keep-alive pings on an idle connection, seconds.
    pub keepalive_seconds: u64,
    /// The server's certificate (PEM, its issuers after it); without it the server speaks plaintext.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Allow plaintext on an address that is not loopback, for example behind a proxy that speaks TLS.
    pub allow_plaintext: bool,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            shutdown_seconds: 5,
            keepalive_seconds: 20,
            tls_certificate: None,
            tls_key: None,
            allow_plaintext: false,
        }
    }
}

/// Rate limits. Finished work is never limited. 0 calls per second: no limit.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Calls of one token in the long run: looking, administration, asking for work.
    pub calls_per_second: u32,
    /// Calls of one token at once, after a pause.
    pub calls_burst: u32,
    /// Calls without a good token (Hello, Enroll, wrong tokens) from one address in the long run.
    pub unknown_per_second: u32,
    /// Calls without a good token from one address at once, after a pause.
    pub unknown_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            calls_per_second: 50,
            calls_burst: 500,
            unknown_per_second: 5,
            unknown_burst: 100,
        }
    }
}

/// The signatures of the archive.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgerSettings {
    /// File with the secret key (64 hexadecimal digits) that signs the archive's rows; without it ledger.key in the data
    /// folder, which `serve` makes. Coordinators that share a database need the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot work.
    #[error("{key}: {problem}")]
    Value {
        /// Key in dotted form.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
}

impl Config {
    /// Defaults where `path` is `None`.
    pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
        Config::load_with(path, None)
    }

    /// The same with the place of the blobs (s3://BUCKET/PREFIX) from elsewhere.
    pub fn load_with(path: Option<&Path>, blobs: Option<&str>) -> Result<Config, ConfigError> {
        let mut config = match path {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
                    path: path.to_owned(),
                    source,
                })?;
                toml::from_str(&text).map_err(|e| ConfigError::Syntax {
                    path: path.to_owned(),
                    source: Box::new(e),
                })?
            }
        };
        if let Some(place) = blobs {
            config.blobs.set_place(place)?;
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            (
                "volunteers.sync_seconds",
                u64::from(self.volunteers.sync_seconds),
            ),
            ("leases.soft_seconds", self.leases.soft_seconds),
            (
                "leases.deadline_floor_seconds",
                self.leases.deadline_floor_seconds,
            ),
            ("leases.compute_budget", self.leases.compute_budget.into()),
            (
                "leases.disconnect_budget",
                self.leases.disconnect_budget.into(),
            ),
            ("leases.mismatch_budget", self.leases.mismatch_budget.into()),
            ("blobs.max_blob_bytes", self.blobs.max_blob_bytes),
            ("blobs.max_trace_bytes", self.blobs.max_trace_bytes),
            ("blobs.commit_every_bytes", self.blobs.commit_every_bytes),
            ("blobs.idle_seconds", self.blobs.idle_seconds),
            ("blobs.orphan_seconds", self.blobs.orphan_seconds),
            (
                "blobs.abandoned_upload_seconds",
                self.blobs.abandoned_upload_seconds,
            ),
            ("database.connections", self.database.connections.into()),
            ("limits.calls_burst", self.limits.calls_burst.into()),
            ("limits.unknown_burst", self.limits.unknown_burst.into()),
            ("server.keepalive_seconds", self.server.keepalive_seconds),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(ConfigError::Value {
                    key,
                    problem: "must be above 0".into(),
                });
            }
        }
        for (key, value) in [
            (
                "volunteers.probe_fresh_permille",
                self.volunteers.probe_fresh_permille,
            ),
            (
                "volunteers.probe_trusted_permille",
                self.volunteers.probe_trusted_permille,
            ),
        ] {
            if value > 500 {
                return Err(ConfigError::Value {
                    key,
                    problem: "must be at most 500: half of the work".into(),
                });
            }
        }
        self.blobs.check_place()?;
        if self.server.tls_certificate.is_some() != self.server.tls_key.is_some() {
            return Err(ConfigError::Value {
                key: "server.tls_certificate",
                problem: "server.tls_certificate and server.tls_key go together".into(),
            });
        }
        for digest in &self.volunteers.golden_digests {
            digest
                .parse::<cipherhop_proto::Digest>()
                .map_err(|e| ConfigError::Value {
                    key: "volunteers.golden_digests",
                    problem: format!("{digest:?}: {e}"),
                })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::load(Some(file.path()))
    }

    #[test]
    fn printed_defaults_load_again() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(load(&text).unwrap(), Config::default());
        assert_eq!(load("").unwrap(), Config::default());
    }

    #[test]
    fn a_bucket_can_come_from_the_file_or_the_command_line() {
        let text = "[blobs]\nstore = 's3'\n[blobs.s3]\nbucket = 'hops'\nregion = 'eu-west-1'";
        let mut config = load(text).unwrap();
        assert_eq!(config.blobs.bucket().unwrap().bucket, "hops");
        assert_eq!(load(&toml::to_string(&config).unwrap()).unwrap(), config);
        config.blobs.set_place("s3://other/prefix").unwrap();
        let s3 = config.blobs.bucket().unwrap();
        assert_eq!(
            (s3.place().as_str(), s3.region.as_deref()),
            ("s3://other/prefix", Some("eu-west-1"))
        );
        let bare = Config::load_with(None, Some("s3://hops")).unwrap();
        assert_eq!(bare.blobs.bucket().unwrap().bucket, "hops");
        assert!(Config::load_with(None, Some("hops")).is_err());
        assert_eq!(Config::default().blobs.bucket(), None);
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_named() {
        assert!(
            load("[blobs]\nquotta_bytes = 1")
                .unwrap_err()
                .to_string()
                .contains("quotta_bytes")
        );
        assert!(
            load("[blobs]\nidle_seconds = 0")
                .unwrap_err()
                .to_string()
                .contains("blobs.idle_seconds")
        );
        assert!(
            load("[volunteers]\ngolden_digests = ['ab']")
                .unwrap_err()
                .to_string()
                .contains("golden_digests")
        );
        assert!(
            load("[server]\ntls_key = 'server.key'")
                .unwrap_err()
                .to_string()
                .contains("tls_certificate")
        );
        for (text, key) in [
            ("[blobs]\nstore = 's3'", "blobs.s3.bucket"),
            ("[blobs.s3]\nbucket = 'hops'", "blobs.store"),
            (
                "[blobs]\nstore = 's3'\nquota_bytes = 1\n[blobs.s3]\nbucket = 'hops'",
                "blobs.quota_bytes",
            ),
            (
                "[blobs]\nstore = 's3'\n[blobs.s3]\nbucket = 'hops'\nendpoint = 'http://minio:9000'",
                "allow_http",
            ),
            (
                "[blobs]\nstore = 's3'\n[blobs.s3]\nsecret_access_key = 'x'",
                "secret_access_key",
            ),
            ("[blobs]\nstore = 'tape'", "tape"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        let missing = Config::load(Some(Path::new("/nonexistent.toml"))).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent.toml"));
    }
}
