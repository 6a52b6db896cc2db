//! Where the keys of an S3 bucket come from. They are held by the client only and printed nowhere.

use std::path::{Path, PathBuf};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};

use super::S3Settings;

/// Environment variables that hold credentials or say where they are, as other S3 programs read them.
const VARIABLES: [(&str, Key); 9] = [
    ("AWS_ACCESS_KEY_ID", Key::AccessKeyId),
    ("AWS_SECRET_ACCESS_KEY", Key::SecretAccessKey),
    ("AWS_SESSION_TOKEN", Key::Token),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", Key::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", Key::RoleArn),
    ("AWS_ROLE_SESSION_NAME", Key::RoleSessionName),
    (
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        Key::ContainerCredentialsRelativeUri,
    ),
    (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        Key::ContainerCredentialsFullUri,
    ),
    (
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        Key::ContainerAuthorizationTokenFile,
    ),
];

/// Why there are no credentials. Holds nothing of their content.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Nothing says where they are.
    #[error(
        "there are no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, \
         or name a file with them (blobs.s3.credentials_file), or say blobs.s3.instance_role = true on a machine \
         with a role of its own"
    )]
    None,
    /// One without the other.
    #[error("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both, or neither")]
    Half,
    /// The file cannot be read.
    #[error(
        "cannot read {path} (blobs.s3.credentials_file): {source}; the coordinator's user must be able to read it"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The file lacks a key.
    #[error(
        "{path} has no {key} in its section [default]: write lines `aws_access_key_id = ...` and \
         `aws_secret_access_key = ...`"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        key: &'static str,
    },
}

/// Gives the client its credentials: the file where one is named, else the environment, else the machine's role.
pub(super) fn give(
    mut builder: AmazonS3Builder,
    settings: &S3Settings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<AmazonS3Builder, CredentialsError> {
    if let Some(path) = &settings.credentials_file {
        return from_file(builder, path);
    }
    let mut found = [false; VARIABLES.len()];
    for ((name, key), found) in VARIABLES.into_iter().zip(&mut found) {
        if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
            builder = builder.with_config(key, value);
            *found = true;
        }
    }
    let [id, secret, _, web, role, _, relative, full, token] = found;
    match () {
        () if id != secret => Err(CredentialsError::Half),
        () if id || (web && role) || relative || (full && token) => Ok(builder),
        () if settings.instance_role => Ok(builder),
        () => Err(CredentialsError::None),
    }
}

/// A file as other S3 programs keep it: `KEY = VALUE` lines under `[default]`, or under no section at all.
fn from_file(
    mut builder: AmazonS3Builder,
    path: &Path,
) -> Result<AmazonS3Builder, CredentialsError> {
    let text = std::fs::read_to_string(path).map_err(|source| CredentialsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let (mut ours, mut id, mut secret) = (true, false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            ours = section.trim_end_matches(']').trim() == "default";
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| ours) else {
            continue;
        };
        let value = value.trim();
        let key = match name.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => {
                id = true;
                Key::AccessKeyId
            }
            "aws_secret_access_key" => {
                secret = true;
                Key::SecretAccessKey
            }
            "aws_session_token" => Key::Token,
            _ => continue,
        };
        builder = builder.with_config(key, value);
    }
    let missing = |key| CredentialsError::Missing {
        path: path.to_owned(),
        key,
    };
    match (id, secret) {
        (true, true) => Ok(builder),
        (false, _) => Err(missing("aws_access_key_id")),
        (_, false) => Err(missing("aws_secret_access_key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(builder: &AmazonS3Builder) -> (Option<String>, Option<String>) {
        (
            builder.get_config_value(&Key::AccessKeyId),
            builder.get_config_value(&Key::SecretAccessKey),
        )
    }

    #[test]
    fn the_environment_must_hold_both_halves() {
        let settings = S3Settings::default();
        let with = |pairs: &'static [(&str, &str)]| {
            give(AmazonS3Builder::new(), &settings, |name| {
                let found = pairs.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| value.to_string())
            })
        };
        static BOTH: [(&str, &str); 2] = [
            ("AWS_ACCESS_KEY_ID", "me"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
        ];
        assert_eq!(
            keys(&with(&BOTH).unwrap()),
            (Some("me".into()), Some("hush".into()))
        );
        assert!(matches!(with(&BOTH[..1]), Err(CredentialsError::Half)));
        assert!(matches!(with(&BOTH[1..]), Err(CredentialsError::Half)));
        assert!(matches!(with(&[]), Err(CredentialsError::None)));
        let role = S3Settings {
            instance_role: true,
            ..S3Settings::default()
        };
        assert!(give(AmazonS3Builder::new(), &role, |_| None).is_ok());
    }

    #[test]
    fn a_file_is_read_by_its_default_section_and_no_error_shows_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let settings = S3Settings {
            credentials_file: Some(path.clone()),
            ..S3Settings::default()
        };
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            give(AmazonS3Builder::new(), &settings, |_| None)
        };
        let good = "# ours\n[other]\naws_access_key_id = no\n[default]\naws_access_key_id = me\naws_secret_access_key=a=b\n";
        assert_eq!(
            keys(&load(good).unwrap()),
            (Some("me".into()), Some("a=b".into()))
        );
        let bare = "aws_access_key_id = me\nAWS_SECRET_ACCESS_KEY = hush\n";
        assert_eq!(keys(&load(bare).unwrap()).1, Some("hush".into()));
        let error = load("[default]\naws_secret_access_key = hush\n").unwrap_err();
        assert!(matches!(
            error,
            CredentialsError::Missing {
                key: "aws_access_key_id",
                ..
            }
        ));
        assert!(!format!("{error} {error:?}").contains("hush"));
        std::fs::remove_file(&path).unwrap();
        let error = give(AmazonS3Builder::new(), &settings, |_| None).unwrap_err();
        assert!(error.to_string().contains("credentials_file"), "{error}");
    }
}
