//! The connection to a bucket: settings, client, a first look, and errors in words.

use std::path::PathBuf;
use std::time::Duration;

use futures::TryStreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload, RetryConfig,
};
use serde::{Deserialize, Serialize};

use super::credentials::{self, CredentialsError};
use super::records::{Layout, uuid};

/// Smallest part that S3 takes, but for the last one, bytes.
pub const SMALLEST_PART: u64 = 5 << 20;
/// Largest part that is held in memory, bytes.
pub const LARGEST_PART: u64 = 512 << 20;

/// The bucket that blobs are kept in. Credentials are no part of it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Settings {
    /// The bucket, which must exist.
    pub bucket: String,
    /// Beginning of all names in the bucket, so that it may hold other things too.
    pub prefix: String,
    /// Address of the storage, https://HOST; without it the one of AWS for the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region, as signatures have it; without it AWS_REGION, then us-east-1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Allow http:// to another machine: whoever can read the network can then read all blobs.
    pub allow_http: bool,
    /// A PEM file with a certificate authority to trust beside the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// File with aws_access_key_id and aws_secret_access_key; without it the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Without other credentials ask the cloud's metadata service for the role of this machine.
    pub instance_role: bool,
    /// Part of a multipart upload, bytes. Each stream that uploads keeps up to three in memory.
    pub part_bytes: u64,
}

impl Default for S3Settings {
    fn default() -> Self {
        S3Settings {
            bucket: String::new(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            allow_http: false,
            ca_file: None,
            credentials_file: None,
            instance_role: false,
            part_bytes: 8 << 20,
        }
    }
}

/// Why a bucket cannot be used, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// No credentials.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A setting is wrong.
    #[error("{key}: {problem}")]
    Setting {
        /// Key in dotted form.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The storage did not do what was asked.
    #[error("{0}")]
    Storage(String),
}

fn setting(key: &'static str, problem: impl Into<String>) -> S3Error {
    let problem = problem.into();
    S3Error::Setting { key, problem }
}

impl S3Settings {
    /// Bucket and prefix as s3://BUCKET/PREFIX, as `--blobs` takes it.
    pub fn set_place(&mut self, place: &str) -> Result<(), S3Error> {
        let wrong = || setting("--blobs", "give s3://BUCKET or s3://BUCKET/PREFIX");
        let rest = place.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong());
        }
        (self.bucket, self.prefix) = (bucket.to_owned(), prefix.to_owned());
        self.check()
    }

    /// The place for people: s3://BUCKET/PREFIX.
    pub fn place(&self) -> String {
        let place = format!("s3://{}/{}", self.bucket, self.prefix.trim_matches('/'));
        place.trim_end_matches('/').to_owned()
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), S3Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if self.bucket.is_empty() || !self.bucket.chars().all(plain) {
            return Err(setting(
                "blobs.s3.bucket",
                "name the bucket (letters, digits, dots and hyphens), for example bucket = \"hops\"",
            ));
        }
        let names = self.prefix.trim_matches('/').split('/');
        if !self.prefix.is_empty()
            && !names
                .into_iter()
                .all(|n| !n.is_empty() && n.chars().all(plain))
        {
            return Err(setting(
                "blobs.s3.prefix",
                "letters, digits, dots, hyphens and underscores, with / between names",
            ));
        }
        if !(SMALLEST_PART..=LARGEST_PART).contains(&self.part_bytes) {
            return Err(setting(
                "blobs.s3.part_bytes",
                format!("must be from {SMALLEST_PART} (what S3 takes) to {LARGEST_PART}"),
            ));
        }
        let Some(endpoint) = &self.endpoint else {
            return Ok(());
        };
        let url = url::Url::parse(endpoint).ok().filter(url::Url::has_host);
        let Some(url) = url.filter(|u| ["http", "https"].contains(&u.scheme())) else {
            return Err(setting(
                "blobs.s3.endpoint",
                "not an address like https://s3.example.org",
            ));
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(setting(
                "blobs.s3.endpoint",
                "credentials do not belong into the address; put them into the environment or blobs.s3.credentials_file",
            ));
        }
        if url.scheme() == "http" && !self.allow_http && !loopback(&url) {
            return Err(setting(
                "blobs.s3.endpoint",
                "over http:// everybody on the network can read blobs; give https://, or say blobs.s3.allow_http = true",
            ));
        }
        Ok(())
    }
}

fn loopback(url: &url::Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// A client for the bucket. Nothing is asked of the storage yet.
pub(super) fn client(settings: &S3Settings) -> Result<AmazonS3, S3Error> {
    settings.check()?;
    // The client takes the process's provider; ours is ring. Set before: kept.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let variable = |name: &str| std::env::var(name).ok();
    let region = settings
        .region
        .clone()
        .or_else(|| variable("AWS_REGION"))
        .or_else(|| variable("AWS_DEFAULT_REGION"))
        .unwrap_or_else(|| "us-east-1".into());
    let mut options = ClientOptions::new()
        .with_allow_http(true) // checked above, with better words
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout(Duration::from_secs(120));
    if let Some(path) = &settings.ca_file {
        let wrong = |e: &dyn std::fmt::Display| {
            setting("blobs.s3.ca_file", format!("{}: {e}", path.display()))
        };
        let pem = std::fs::read(path).map_err(|e| wrong(&e))?;
        let authorities = Certificate::from_pem_bundle(&pem).map_err(|e| wrong(&words(&e)))?;
        if authorities.is_empty() {
            return Err(wrong(&"no certificate in it; it must be a PEM file"));
        }
        for authority in authorities {
            options = options.with_root_certificate(authority);
        }
    }
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&settings.bucket)
        .with_region(region)
        .with_client_options(options)
        .with_disable_bulk_delete(true) // one at a time is all we do, and every storage knows it
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(5),
                base: 2.0,
            },
            max_retries: 5,
            retry_timeout: Duration::from_secs(60),
        });
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let builder = credentials::give(builder, settings, variable)?;
    builder
        .build()
        .map_err(|e| S3Error::Storage(format!("the S3 client cannot be made: {}", words(&e))))
}

/// Asks for what a coordinator needs: write, read, conditional writes, list, delete. Leaves nothing behind.
pub(super) async fn probe(
    client: &AmazonS3,
    layout: &Layout,
    settings: &S3Settings,
) -> Result<(), S3Error> {
    let path = layout.at(&format!("probe/{}", uuid()));
    let body = || PutPayload::from_static(b"cipherhop");
    let explained = |e: Error| S3Error::Storage(explain(&e, settings));
    // A list names a missing bucket more plainly than a write does.
    let parent = layout.at("probe");
    client
        .list(Some(&parent))
        .try_next()
        .await
        .map_err(explained)?;
    let put = client.put_opts(&path, body(), PutMode::Create.into()).await;
    let result = async {
        let version = put.map_err(explained)?;
        let again = client.put_opts(&path, body(), PutMode::Create.into()).await;
        let stale = PutMode::Update(object_store::UpdateVersion {
            e_tag: Some("\"00000000000000000000000000000000\"".into()),
            version: None,
        });
        let changed = client
            .put_opts(&path, PutPayload::from_static(b"x"), stale.into())
            .await;
        if again.is_ok() || changed.is_ok() {
            return Err(S3Error::Storage(format!(
                "the storage at {} ignores the conditions If-None-Match and If-Match, without which two coordinators \
                 could overwrite each other's uploads; use a storage that has conditional writes (AWS S3, R2 and \
                 MinIO do)",
                settings.place()
            )));
        }
        let next = PutMode::Update(version.into());
        client
            .put_opts(&path, body(), next.into())
            .await
            .map_err(explained)?;
        let read = client.get(&path).await.map_err(explained)?;
        let read = read.bytes().await.map_err(explained)?;
        if read.as_ref() != b"cipherhop" {
            return Err(S3Error::Storage(
                "the storage gave back other bytes than were written".into(),
            ));
        }
        Ok(())
    }
    .await;
    let removed = client.delete(&path).await.map_err(explained);
    result.and(removed)
}

/// A failure of the storage and what to do about it.
pub(super) fn explain(error: &Error, settings: &S3Settings) -> String {
    let text = error.to_string();
    let endpoint = settings.endpoint.as_deref().unwrap_or("AWS");
    let has = |code: &str| text.contains(code);
    let advice = if has("NoSuchBucket") {
        format!(
            "there is no bucket {:?} at {endpoint}: make it, or correct blobs.s3.bucket or blobs.s3.endpoint",
            settings.bucket
        )
    } else if has("InvalidAccessKeyId") || has("SignatureDoesNotMatch") || has("NotSignedUp") {
        "the storage does not accept the credentials: compare AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or \
         blobs.s3.credentials_file) with those of the bucket; a wrong region or clock looks the same"
            .to_owned()
    } else if has("ExpiredToken") || has("InvalidToken") {
        "the session token of the credentials is not valid any more: get new ones".to_owned()
    } else if has("RequestTimeTooSkewed") {
        "this machine's clock is wrong: run a time service".to_owned()
    } else if words(error).contains("certificate") {
        format!(
            "the certificate of {endpoint} is not trusted: give its authority as blobs.s3.ca_file, and look at this \
             machine's clock"
        )
    } else if has("169.254.169.254") {
        "the machine's metadata service gives no role: leave blobs.s3.instance_role out and give credentials"
            .to_owned()
    } else if has("PermanentRedirect")
        || has("AuthorizationHeaderMalformed")
        || has("incorrectly configured region")
    {
        "the bucket is in another region: set blobs.s3.region".to_owned()
    } else {
        match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => format!(
                "the credentials may not do this in {}: they need to get, put, list and delete objects and to abort \
                 multipart uploads",
                settings.place()
            ),
            Error::NotFound { .. } => format!(
                "not found at {endpoint}: is blobs.s3.bucket ({:?}) right?",
                settings.bucket
            ),
            _ => format!(
                "{endpoint} cannot be reached or failed: is it up, is blobs.s3.endpoint right?"
            ),
        }
    };
    format!("{advice} ({})", words(error))
}

/// The storage's own words, short: what S3 says in its XML, or the innermost cause. Requests and their signatures stay
/// out of it.
pub(super) fn words(error: &Error) -> String {
    let text = error.to_string();
    let field = |name: &str| {
        let begin = text.split(&format!("<{name}>")).nth(1)?;
        begin.split('<').next().map(str::to_owned)
    };
    if let Some(code) = field("Code") {
        return match field("Message").filter(|m| !m.is_empty()) {
            Some(message) => format!("{code}: {message}"),
            None => code,
        };
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = cause.to_string();
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> S3Settings {
        S3Settings {
            bucket: "hops".into(),
            ..S3Settings::default()
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let bad = |key: &str, change: &dyn Fn(&mut S3Settings)| {
            let mut settings = settings();
            change(&mut settings);
            let error = settings.check().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        settings().check().unwrap();
        bad("blobs.s3.bucket", &|s| s.bucket = String::new());
        bad("blobs.s3.bucket", &|s| s.bucket = "a/b".into());
        bad("blobs.s3.prefix", &|s| s.prefix = "a//b".into());
        bad("blobs.s3.prefix", &|s| s.prefix = "a b".into());
        bad("blobs.s3.part_bytes", &|s| s.part_bytes = 1 << 20);
        for endpoint in [
            "s3.example.org",
            "ftp://x",
            "http://s3.example.org",
            "https://me:hush@x",
        ] {
            bad("blobs.s3.endpoint", &|s| s.endpoint = Some(endpoint.into()));
        }
        for endpoint in [
            "http://127.0.0.1:9000",
            "http://localhost:1",
            "https://s3.example.org",
        ] {
            let endpoint = Some(endpoint.into());
            S3Settings {
                endpoint,
                ..settings()
            }
            .check()
            .unwrap();
        }
        let allowed = S3Settings {
            endpoint: Some("http://minio:9000".into()),
            allow_http: true,
            ..settings()
        };
        allowed.check().unwrap();
    }

    #[test]
    fn a_place_names_bucket_and_prefix() {
        let mut s = settings();
        s.set_place("s3://other/a/b/").unwrap();
        assert_eq!((s.bucket.as_str(), s.prefix.as_str()), ("other", "a/b/"));
        assert_eq!(s.place(), "s3://other/a/b");
        s.set_place("s3://other").unwrap();
        assert_eq!(s.place(), "s3://other");
        assert!(s.set_place("/var/blobs").is_err() && s.set_place("s3://").is_err());
    }
}
