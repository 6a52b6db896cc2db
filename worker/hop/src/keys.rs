//! Evaluation keys as files named by their digest, listed in a manifest.

use std::path::PathBuf;
use std::sync::Arc;

use cipherhop_ckks::{CkksError, Context, EvalKey, KeyId, KeySource};
use serde::{Deserialize, Serialize};

use crate::error::HopError;

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
    /// `cipherhop-keys/1`.
    pub format: String,
    /// Digest of the parameter set, lower-case hex.
    pub params_digest: String,
    /// Sorted by id text.
    pub keys: Vec<KeyEntry>,
}

impl KeyManifest {
    /// Strict parse.
    pub fn parse(_bytes: &[u8]) -> Result<KeyManifest, HopError> {
        Err(HopError::Internal(
            "key manifests are not implemented yet".into(),
        ))
    }

    /// Canonical JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Keys in a folder, one file per key named by its digest (lower-case hex), loaded when first used.
pub struct DirKeys {}

impl DirKeys {
    /// Checks that every listed file is there; reads none of them yet.
    pub fn open(
        _ctx: Arc<Context>,
        _dir: PathBuf,
        _manifest: KeyManifest,
    ) -> Result<DirKeys, HopError> {
        Err(HopError::Internal(
            "key folders are not implemented yet".into(),
        ))
    }
}

impl KeySource for DirKeys {
    fn key(&self, id: KeyId) -> Result<Arc<EvalKey>, CkksError> {
        Err(CkksError::MissingKey(id))
    }
}
