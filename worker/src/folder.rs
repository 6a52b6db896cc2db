//! The data folder: identity, journal, cache, work folders and spool of one worker.

use std::path::{Path, PathBuf};

use cipherhop_proto::client::{BearerToken, ConnectOptions};
use cipherhop_proto::signing::DeviceKey;
use cipherhop_proto::{AccountId, AttemptId, DeviceId, Nonce};
use rand::TryRng as _;
use serde::{Deserialize, Serialize};

use crate::durable::{make_folder, write_atomic};
use crate::error::WorkerError;

/// Who this worker is and whom it works for; the token lies in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Address of the coordinator.
    pub coordinator: String,
    /// Name shown to observers.
    pub name: String,
    /// Given by the coordinator.
    pub device: DeviceId,
    /// The volunteer's account.
    pub account: AccountId,
    /// A PEM file with an extra certificate authority.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// `http://` to another machine is allowed.
    #[serde(default)]
    pub allow_plaintext: bool,
}

/// An enrolment that was begun; sent again with the same nonce it gives the same device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingEnrolment {
    /// Address of the coordinator.
    pub coordinator: String,
    /// Name shown to observers.
    pub name: String,
    /// The request's nonce.
    pub nonce: Nonce,
}

/// Paths below the data folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// Held for as long as this process is the folder's worker.
#[derive(Debug)]
pub struct FolderLock {
    _file: std::fs::File,
}

impl Folder {
    /// Opens or makes the folder, readable by its owner only.
    pub fn open(root: &Path) -> Result<Folder, WorkerError> {
        if !root.exists() {
            make_folder(root)?;
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o700))
                .map_err(WorkerError::file(root))?;
        }
        let folder = Folder {
            root: root.to_owned(),
        };
        for path in [
            folder.cache(),
            folder.works(),
            folder.spools(),
            folder.inbox(),
        ] {
            make_folder(&path)?;
        }
        Ok(folder)
    }

    /// The default place: `$XDG_DATA_HOME/cipherhop-worker` or `~/.local/share/cipherhop-worker`.
    pub fn default_root() -> PathBuf {
        let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
        std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(home)
            .unwrap_or_else(|| PathBuf::from("."))
            .join("cipherhop-worker")
    }

    /// Takes the folder for this process. The lock ends with the process, however that ends.
    pub fn lock(&self) -> Result<FolderLock, WorkerError> {
        // `status` holds the lock for a moment to see whether it is free.
        for _ in 0..5 {
            if let Some(lock) = lock_file(&self.root.join("worker.lock"))? {
                return Ok(lock);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Err(WorkerError::FolderBusy(self.root.clone()))
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The journal's file.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// Measured step times.
    pub fn timings(&self) -> PathBuf {
        self.root.join("timings.json")
    }

    /// The self-test's last result.
    pub fn golden(&self) -> PathBuf {
        self.root.join("golden.json")
    }

    /// Blobs by digest.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// Requests of other processes to the running worker.
    pub fn inbox(&self) -> PathBuf {
        self.root.join("inbox")
    }

    /// There while a person has paused the worker.
    pub fn paused(&self) -> PathBuf {
        self.root.join("paused")
    }

    /// There when a person asked the running worker to end, until it has noticed.
    pub fn quit(&self) -> PathBuf {
        self.root.join("quit")
    }

    /// Checkpoints of one attempt.
    pub fn work(&self, attempt: AttemptId) -> PathBuf {
        self.works().join(attempt.to_string())
    }

    /// Finished results of one attempt.
    pub fn spool(&self, attempt: AttemptId) -> PathBuf {
        self.spools().join(attempt.to_string())
    }

    /// All work folders.
    pub fn works(&self) -> PathBuf {
        self.root.join("work")
    }

    /// All finished results.
    pub fn spools(&self) -> PathBuf {
        self.root.join("spool")
    }

    /// The identity, or [`WorkerError::NotEnrolled`].
    pub fn identity(&self) -> Result<Identity, WorkerError> {
        let path = self.identity_path();
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(WorkerError::NotEnrolled(self.root.clone()))
            }
            Err(error) => Err(WorkerError::file(&path)(error)),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| WorkerError::Damaged {
                path,
                problem: e.to_string(),
            }),
        }
    }

    /// Keeps the token (0600) and then the identity, so that an identity never lacks its token.
    pub fn save_identity(&self, identity: &Identity, token: &str) -> Result<(), WorkerError> {
        write_atomic(&self.token_path(), token.as_bytes(), true)?;
        write_atomic(&self.identity_path(), &to_json(identity), true)?;
        match std::fs::remove_file(self.pending_path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(WorkerError::file(&self.pending_path())(error))
            }
            _ => Ok(()),
        }
    }

    /// How to connect as this device.
    pub fn connect_options(&self, identity: &Identity) -> Result<ConnectOptions, WorkerError> {
        let path = self.token_path();
        let text = std::fs::read_to_string(&path).map_err(WorkerError::file(&path))?;
        Ok(ConnectOptions {
            url: identity.coordinator.clone(),
            token: Some(BearerToken::new(&text)),
            ca: identity.ca.clone(),
            allow_plaintext: identity.allow_plaintext,
        })
    }

    /// The key this device signs its results with; `None` when it enrolled with a version that had none.
    pub fn device_key(&self) -> Result<Option<DeviceKey>, WorkerError> {
        let path = self.key_path();
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(WorkerError::file(&path)(error)),
            Ok(text) => {
                let text = zeroize::Zeroizing::new(text);
                text.parse().map(Some).map_err(|_| WorkerError::Damaged {
                    path,
                    problem: "not a device key; put the file back, or enrol in a new folder".into(),
                })
            }
        }
    }

    /// The key for an enrolment: the one kept from a broken try, or a new one, kept now.
    pub fn enrolment_key(&self) -> Result<DeviceKey, WorkerError> {
        if let Some(key) = self.device_key()? {
            return Ok(key);
        }
        let mut secret = zeroize::Zeroizing::new([0; 32]);
        rand::rngs::SysRng
            .try_fill_bytes(&mut *secret)
            .map_err(|_| {
                WorkerError::Request("the operating system gave no random bytes".into())
            })?;
        let key = DeviceKey::from_secret(&secret);
        write_atomic(&self.key_path(), key.to_secret_text().as_bytes(), true)?;
        Ok(key)
    }

    /// The nonce of an enrolment with this coordinator and name: the one kept from a broken try, or a new one, kept now.
    pub fn enrolment_nonce(&self, coordinator: &str, name: &str) -> Result<Nonce, WorkerError> {
        let path = self.pending_path();
        if let Ok(bytes) = std::fs::read(&path)
            && let Ok(pending) = serde_json::from_slice::<PendingEnrolment>(&bytes)
            && pending.coordinator == coordinator
            && pending.name == name
        {
            return Ok(pending.nonce);
        }
        let pending = PendingEnrolment {
            coordinator: coordinator.to_owned(),
            name: name.to_owned(),
            nonce: Nonce::from_bytes(rand::random()),
        };
        write_atomic(&path, &to_json(&pending), true)?;
        Ok(pending.nonce)
    }

    fn identity_path(&self) -> PathBuf {
        self.root.join("identity.json")
    }

    fn token_path(&self) -> PathBuf {
        self.root.join("token")
    }

    fn key_path(&self) -> PathBuf {
        self.root.join("device.key")
    }

    fn pending_path(&self) -> PathBuf {
        self.root.join("enrolment.json")
    }
}

/// Locks a file exclusively without waiting; `None` when somebody else holds it.
pub fn lock_file(path: &Path) -> Result<Option<FolderLock>, WorkerError> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(WorkerError::file(path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(FolderLock { _file: file })),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(WorkerError::file(path)(error)),
    }
}

/// Plain types of ours always serialise; an empty file would be noticed when read.
pub fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn one_worker_per_folder_and_a_token_only_its_owner_reads() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(&dir.path().join("data")).unwrap();
        let held = folder.lock().unwrap();
        assert!(matches!(folder.lock(), Err(WorkerError::FolderBusy(_))));
        drop(held);
        folder.lock().unwrap();
        assert!(matches!(
            folder.identity(),
            Err(WorkerError::NotEnrolled(_))
        ));
        let identity = Identity {
            coordinator: "http://127.0.0.1:1".into(),
            name: "alice".into(),
            device: DeviceId::generate(),
            account: AccountId::generate(),
            ca: None,
            allow_plaintext: false,
        };
        let nonce = folder
            .enrolment_nonce("http://127.0.0.1:1", "alice")
            .unwrap();
        assert_eq!(
            folder
                .enrolment_nonce("http://127.0.0.1:1", "alice")
                .unwrap(),
            nonce
        );
        assert_ne!(
            folder.enrolment_nonce("http://127.0.0.1:1", "bob").unwrap(),
            nonce
        );
        let key = folder.enrolment_key().unwrap();
        assert_eq!(folder.enrolment_key().unwrap().public(), key.public());
        let mode = std::fs::metadata(dir.path().join("data/device.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        folder.save_identity(&identity, "secret").unwrap();
        assert_eq!(folder.identity().unwrap(), identity);
        let mode = std::fs::metadata(dir.path().join("data/token"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            !String::from_utf8(std::fs::read(dir.path().join("data/identity.json")).unwrap())
                .unwrap()
                .contains("secret")
        );
    }
}
