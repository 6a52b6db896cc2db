//! The file with the key that signs the archive's rows.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cipherhop_proto::ledger::LedgerKey;
use rand::TryRng;
use rand::rngs::SysRng;
use zeroize::Zeroizing;

use crate::config::LedgerSettings;
use crate::files;

/// Name of the file in the data folder.
pub const FILE: &str = "ledger.key";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file could not be read or written.
    #[error("ledger key {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Others may read the secret.
    #[error("ledger key {0}: everybody on this machine may read it: chmod 600 {0}")]
    Readable(PathBuf),
    /// Something else is in the file.
    #[error(
        "ledger key {0}: not 64 hexadecimal digits; `openssl rand -hex 32` makes a new key, a copy of the old one is \
         better"
    )]
    Malformed(PathBuf),
    /// The operating system gave no random bytes.
    #[error("ledger key: the operating system gave no random bytes")]
    NoRandomness,
}

/// Where the key is.
pub fn path(data: &Path, settings: &LedgerSettings) -> PathBuf {
    let given = settings.key_file.clone();
    given.unwrap_or_else(|| data.join(FILE))
}

/// Reads the key; `None` where there is no file.
pub fn read(path: &Path) -> Result<Option<LedgerKey>, KeyFileError> {
    let failed = |source| KeyFileError::Io {
        path: path.to_owned(),
        source,
    };
    let about = match fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        about => about.map_err(failed)?,
    };
    // A group is allowed: secrets that are mounted into containers often have one.
    if about.permissions().mode() & 0o007 != 0 {
        return Err(KeyFileError::Readable(path.to_owned()));
    }
    let text = Zeroizing::new(fs::read_to_string(path).map_err(failed)?);
    let key = text.trim().parse();
    key.map(Some)
        .map_err(|_| KeyFileError::Malformed(path.to_owned()))
}

/// Makes a key and its file, mode 0600. An existing file is never replaced.
pub fn make(path: &Path) -> Result<LedgerKey, KeyFileError> {
    let mut secret = Zeroizing::new([0; 32]);
    SysRng
        .try_fill_bytes(&mut *secret)
        .map_err(|_| KeyFileError::NoRandomness)?;
    let key = LedgerKey::from_secret(&secret);
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = files::secret_line(folder, &key.to_secret_text())?;
        cipherhop_failpoint::at("ledger_key.rename.before");
        file.persist_noclobber(path)?;
        files::sync_folder(folder)
    };
    write().map_err(|source| KeyFileError::Io {
        path: path.to_owned(),
        source,
    })?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_again_and_its_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path(), &LedgerSettings::default());
        assert!(read(&path).unwrap().is_none());
        let made = make(&path).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().public(), made.public());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(make(&path).is_err(), "an existing key is kept");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "secret").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("64 hexadecimal") && !error.contains("secret"),
            "{error}"
        );
    }
}
