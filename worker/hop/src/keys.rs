//! Evaluation keys as files named by their digest, listed in a manifest.

use std::collections::HashMap;

use cipherhop_ckks::{CkksError, KeyId, KeySpec};
use serde::{Deserialize, Serialize};

use crate::error::HopError;

pub use crate::key_store::{DirKeys, KeyUse};

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

pub(crate) fn refused(what: impl Into<String>) -> HopError {
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

    /// The keys and the limbs they cover.
    pub fn specs(&self) -> Result<Vec<KeySpec>, HopError> {
        let spec = |k: &KeyEntry| {
            let (id, limbs) = (k.id.parse()?, k.limbs);
            Ok(KeySpec { id, limbs })
        };
        self.keys.iter().map(spec).collect()
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
