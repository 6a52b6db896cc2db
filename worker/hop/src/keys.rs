//! Evaluation keys as files named by their digest, listed in a manifest.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use cipherhop_ckks::{CkksError, Context, EvalKey, KeyId, KeySource, KeySpec, key_size};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::HopError;

/// Value of [`KeyManifest::format`].
pub const KEYS_FORMAT: &str = "cipherhop-keys/1";

const MAX_BYTES: usize = 4 << 20;

/// One key file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// Key id in its text form, for example `rot-17`.
    pub id: String,
    /// Limbs the key covers.
    pub limbs: usize,
    /// SHA-256 of the file, lower-case hex.
    pub digest: String,
    /// Size of the file in bytes.
    pub size: u64,
}

/// All evaluation keys of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyManifest {
    /// [`KEYS_FORMAT`].
    pub format: String,
    /// Digest of the parameter set, lower-case hex.
    pub params_digest: String,
    /// Sorted by id text, each id once.
    pub keys: Vec<KeyEntry>,
}

fn refused(what: impl Into<String>) -> HopError {
    HopError::BadInput(format!("key manifest: {}", what.into()))
}

impl KeyManifest {
    /// Reads and checks a manifest.
    pub fn parse(bytes: &[u8]) -> Result<KeyManifest, HopError> {
        if bytes.len() > MAX_BYTES {
            return Err(refused("too large"));
        }
        let manifest: KeyManifest =
            serde_json::from_slice(bytes).map_err(|e| refused(e.to_string()))?;
        if manifest.format != KEYS_FORMAT {
            return Err(refused(format!("format '{}'", manifest.format)));
        }
        let sorted = manifest.keys.windows(2).all(|w| w[0].id < w[1].id);
        let digest =
            |d: &str| d.len() == 64 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !sorted
            || !digest(&manifest.params_digest)
            || !manifest.keys.iter().all(|k| digest(&k.digest))
        {
            return Err(refused("not in canonical form"));
        }
        for key in &manifest.keys {
            key.id.parse::<KeyId>()?;
        }
        Ok(manifest)
    }

    /// Canonical JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Checks that every key of `specs` is there with enough limbs.
    pub fn covers(&self, specs: &[KeySpec]) -> Result<(), HopError> {
        let have: HashMap<&str, usize> =
            self.keys.iter().map(|k| (k.id.as_str(), k.limbs)).collect();
        for spec in specs {
            let id = spec.id.to_string();
            match have.get(id.as_str()) {
                None => return Err(CkksError::MissingKey(spec.id).into()),
                Some(&have) if have < spec.limbs => {
                    let (id, need) = (spec.id, spec.limbs);
                    return Err(CkksError::KeyTooSmall { id, have, need }.into());
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Keys in a folder, one file per key named by its digest (lower-case hex), loaded when first used and then kept.
pub struct DirKeys {
    ctx: Arc<Context>,
    files: HashMap<KeyId, (PathBuf, KeyEntry)>,
    loaded: Mutex<HashMap<KeyId, Arc<EvalKey>>>,
}

impl DirKeys {
    /// Checks that every listed file is there with the right size; reads none of them yet.
    pub fn open(
        ctx: Arc<Context>,
        dir: PathBuf,
        manifest: KeyManifest,
    ) -> Result<DirKeys, HopError> {
        if hex::encode(ctx.params_digest()) != manifest.params_digest {
            return Err(refused("made under another parameter set"));
        }
        let mut files = HashMap::new();
        for key in manifest.keys {
            let id: KeyId = key.id.parse()?;
            let spec = KeySpec {
                id,
                limbs: key.limbs,
            };
            spec.check(&ctx)?;
            let path = dir.join(&key.digest);
            let what = || format!("key {} at {}", key.id, path.display());
            let size = fs::metadata(&path)
                .map_err(|source| HopError::Io {
                    what: what(),
                    source,
                })?
                .len();
            if size != key.size || size != key_size(ctx.params(), spec) as u64 {
                return Err(HopError::BadInput(format!("{}: {size} bytes", what())));
            }
            files.insert(id, (path, key));
        }
        Ok(DirKeys {
            ctx,
            files,
            loaded: Mutex::default(),
        })
    }
}

impl DirKeys {
    fn loaded(&self) -> MutexGuard<'_, HashMap<KeyId, Arc<EvalKey>>> {
        match self.loaded.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

impl KeySource for DirKeys {
    fn key(&self, id: KeyId) -> Result<Arc<EvalKey>, CkksError> {
        if let Some(key) = self.loaded().get(&id) {
            return Ok(key.clone());
        }
        // Loaded without the lock: reading a key runs parallel loops whose tasks may ask for keys themselves.
        let (path, entry) = self.files.get(&id).ok_or(CkksError::MissingKey(id))?;
        let bytes = fs::read(path).map_err(|_| CkksError::MissingKey(id))?;
        if hex::encode(Sha256::digest(&bytes)) != entry.digest {
            return Err(CkksError::BadHeader("digest of the key file"));
        }
        let key = EvalKey::from_bytes(&self.ctx, &bytes)?;
        if key.id() != id || key.limbs() != entry.limbs {
            return Err(CkksError::BadHeader("key id"));
        }
        Ok(self.loaded().entry(id).or_insert(Arc::new(key)).clone())
    }
}
