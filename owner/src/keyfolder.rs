//! The folder that holds a secret key.
//!
//! Evaluation keys are not stored: each is made again from the secret key and a seed file when it is needed, byte for byte
//! the same, so an interrupted upload goes on where it stopped and a second chain finds its keys already uploaded.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use cipherhop_ckks::{KeySpec, Params};
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha20Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    files::{private_folder, read_bounded, write_private},
    secret::SecretKey,
};

const FORMAT: &str = "cipherhop-owner-key/1";

/// Public facts about a key folder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    format: String,
    parameter_set: String,
    parameter_digest: String,
}

/// Digest and size of an evaluation key made before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownKey {
    /// SHA-256, hex.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// An opened key folder.
#[derive(Debug)]
pub struct KeyFolder {
    dir: PathBuf,
    /// Parameter set of the key.
    pub params: Params,
}

impl KeyFolder {
    /// Makes a folder with a new secret key; refuses one that already holds a key.
    pub fn create(dir: &Path, params: Params) -> anyhow::Result<Self> {
        private_folder(dir)?;
        if dir.join("secret.key").exists() {
            bail!("{} already holds a secret key", dir.display());
        }
        let mut rng = system_rng()?;
        SecretKey::generate(&params, &mut rng).save(&dir.join("secret.key"))?;
        let mut seed = Zeroizing::new([0u8; 32]);
        rng.fill_bytes(&mut seed[..]);
        write_private(&dir.join("evaluation-seed.key"), &seed[..])?;
        let facts = Facts {
            format: FORMAT.into(),
            parameter_set: params.name.clone(),
            parameter_digest: hex::encode(params.digest()),
        };
        write_private(
            &dir.join("params.json"),
            &serde_json::to_vec_pretty(&facts)?,
        )?;
        Ok(Self {
            dir: dir.to_path_buf(),
            params,
        })
    }

    /// Opens a folder made by [`Self::create`].
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let bytes = read_bounded(&dir.join("params.json"), 1 << 16)?;
        let facts: Facts = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no key folder", dir.display()))?;
        if facts.format != FORMAT {
            bail!(
                "{} has the format {}, this program reads {FORMAT}",
                dir.display(),
                facts.format
            );
        }
        let params = Params::by_name(&facts.parameter_set)?;
        if hex::encode(params.digest()) != facts.parameter_digest {
            bail!(
                "the parameter set {} has changed since this key was made",
                facts.parameter_set
            );
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            params,
        })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The secret key.
    pub fn secret(&self) -> anyhow::Result<SecretKey> {
        let key = SecretKey::load(&self.dir.join("secret.key"))?;
        key.check(&self.params)?;
        Ok(key)
    }

    /// Generator of one evaluation key's seed and noise: the same for the same key, unrelated for any other.
    pub fn key_rng(&self, spec: &KeySpec) -> anyhow::Result<ChaCha20Rng> {
        let path = self.dir.join("evaluation-seed.key");
        let seed = Zeroizing::new(read_bounded(&path, 32)?);
        if seed.len() != 32 {
            bail!("{} is damaged", path.display());
        }
        let mut hash = Sha256::new();
        hash.update(b"cipherhop evaluation key randomness 1");
        hash.update(&seed[..]);
        hash.update((spec.limbs as u64).to_le_bytes());
        hash.update(spec.id.to_string());
        let derived: Zeroizing<[u8; 32]> = Zeroizing::new(hash.finalize().into());
        Ok(ChaCha20Rng::from_seed(*derived))
    }

    fn known_path(&self) -> PathBuf {
        self.dir.join("evaluation-keys.json")
    }

    /// Keys made before, by `id/limbs`.
    pub fn known_keys(&self) -> BTreeMap<String, KnownKey> {
        // A damaged list only costs time: the keys are made again.
        read_bounded(&self.known_path(), 16 << 20)
            .ok()
            .and_then(|b| serde_json::from_slice(&b).ok())
            .unwrap_or_default()
    }

    /// Remembers the keys made so far.
    pub fn remember(&self, known: &BTreeMap<String, KnownKey>) -> anyhow::Result<()> {
        write_private(&self.known_path(), &serde_json::to_vec_pretty(known)?)
    }
}

/// Name of a key in the list of known ones.
pub fn known_name(spec: &KeySpec) -> String {
    format!("{}/{}", spec.id, spec.limbs)
}

/// A generator seeded by the operating system.
pub fn system_rng() -> anyhow::Result<ChaCha20Rng> {
    ChaCha20Rng::try_from_rng(&mut rand::rngs::SysRng)
        .context("the operating system gives no randomness")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cipherhop_ckks::KeyId;

    #[test]
    fn a_key_folder_is_private_and_its_evaluation_keys_repeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let params = Params::by_name("n10-INSECURE").unwrap();
        let made = KeyFolder::create(&path, params.clone()).unwrap();
        assert!(
            KeyFolder::create(&path, params).is_err(),
            "must not overwrite"
        );
        let opened = KeyFolder::open(&path).unwrap();
        opened.secret().unwrap();
        let next = |f: &KeyFolder, id, limbs| f.key_rng(&KeySpec { id, limbs }).unwrap().next_u64();
        assert_eq!(
            next(&made, KeyId::Rot(3), 8),
            next(&opened, KeyId::Rot(3), 8)
        );
        assert_ne!(
            next(&made, KeyId::Rot(3), 8),
            next(&made, KeyId::Rot(3), 16)
        );
        assert_ne!(next(&made, KeyId::Rot(3), 8), next(&made, KeyId::Relin, 8));
        #[cfg(unix)]
        for name in ["secret.key", "evaluation-seed.key"] {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                std::fs::metadata(path.join(name))
                    .unwrap()
                    .permissions()
                    .mode()
                    & 0o777,
                0o600
            );
        }
    }
}
