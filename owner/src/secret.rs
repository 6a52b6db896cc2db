//! The secret key: a uniform ternary secret, and the sparse ephemeral secret that bootstrapping uses only
//! modulo q0*p0. Wiped from memory when dropped; stored in a file that only its owner may read.

use crate::noise;
use cipherhop_ckks::Params;
use rand::CryptoRng;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

const MAGIC: [u8; 4] = *b"CHSK";
const VERSION: u16 = 1;
/// magic, version, log2(N), reserved, parameter digest
const HEADER: usize = 4 + 2 + 1 + 1 + 32;

/// Errors around the secret key and what it makes.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Reading or writing the key file failed.
    #[error("secret key file {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a secret key, is damaged, or is of an unknown version.
    #[error("not a usable secret key: {0}")]
    BadFile(&'static str),
    /// Others may read the file.
    #[error("{0} can be read by others; run chmod 600 on it")]
    TooOpen(PathBuf),
    /// The key belongs to another parameter set.
    #[error("the secret key belongs to another parameter set")]
    ForeignParams,
    /// The parameter set's noise is not the one this program samples.
    #[error("noise of standard deviation {0} is not supported")]
    UnsupportedNoise(f64),
    /// The engine refused.
    #[error(transparent)]
    Ckks(#[from] cipherhop_ckks::CkksError),
}

/// The key holder's secret. Neither printed nor cloned.
pub struct SecretKey {
    params_digest: [u8; 32],
    dense: Zeroizing<Vec<i8>>,
    sparse: Zeroizing<Vec<i8>>,
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

impl SecretKey {
    /// A fresh secret.
    pub fn generate<R: CryptoRng>(params: &Params, rng: &mut R) -> SecretKey {
        SecretKey {
            params_digest: params.digest(),
            dense: noise::ternary(rng, params.n()),
            sparse: noise::sparse_ternary(rng, params.n(), params.sparse_h),
        }
    }

    /// Digest of the parameter set it belongs to.
    pub fn params_digest(&self) -> &[u8; 32] {
        &self.params_digest
    }

    /// Fails unless the key belongs to that parameter set.
    pub fn check(&self, params: &Params) -> Result<(), SecretError> {
        if self.params_digest != params.digest() || self.dense.len() != params.n() {
            return Err(SecretError::ForeignParams);
        }
        Ok(())
    }

    /// Coefficients of the dense secret.
    pub(crate) fn dense(&self) -> &[i8] {
        &self.dense
    }

    /// Coefficients of the sparse ephemeral secret.
    pub(crate) fn sparse(&self) -> &[i8] {
        &self.sparse
    }

    /// File form: header {magic, version, log2(N), parameter digest}, both secrets at two bits a
    /// coefficient, SHA-256 over everything before it.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let n = self.dense.len();
        let mut out = Zeroizing::new(Vec::with_capacity(HEADER + n / 2 + 32));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.push(n.trailing_zeros() as u8);
        out.push(0);
        out.extend_from_slice(&self.params_digest);
        for s in [&self.dense, &self.sparse] {
            for four in s.chunks_exact(4) {
                out.push(
                    four.iter()
                        .rev()
                        .fold(0, |byte, &c| byte << 2 | (c + 1) as u8),
                );
            }
        }
        let digest = Sha256::digest(&out[..]);
        out.extend_from_slice(&digest);
        out
    }

    /// Reads the file form, strictly.
    pub fn from_bytes(bytes: &[u8]) -> Result<SecretKey, SecretError> {
        let bad = SecretError::BadFile;
        if bytes.len() < HEADER || bytes[..4] != MAGIC {
            return Err(bad("wrong first bytes"));
        }
        if bytes[4..6] != VERSION.to_le_bytes() {
            return Err(bad("unknown version"));
        }
        let log_n = bytes[6] as u32;
        if !(4..=16).contains(&log_n) || bytes[7] != 0 {
            return Err(bad("undefined header field"));
        }
        let n = 1usize << log_n;
        if bytes.len() != HEADER + n / 2 + 32 {
            return Err(bad("wrong length"));
        }
        let (body, digest) = bytes.split_at(bytes.len() - 32);
        if Sha256::digest(body)[..] != *digest {
            return Err(bad("checksum differs"));
        }
        let mut params_digest = [0; 32];
        params_digest.copy_from_slice(&bytes[8..HEADER]);
        let mut secrets = Zeroizing::new(Vec::with_capacity(2 * n));
        for &byte in &body[HEADER..] {
            for k in 0..4 {
                let pair = byte >> (2 * k) & 3;
                if pair == 3 {
                    return Err(bad("coefficient out of range"));
                }
                secrets.push(pair as i8 - 1);
            }
        }
        let sparse = Zeroizing::new(secrets[n..].to_vec());
        secrets[n..].zeroize();
        secrets.truncate(n);
        Ok(SecretKey {
            params_digest,
            dense: secrets,
            sparse,
        })
    }

    /// Writes a new file with mode 0600, whole or not at all; an existing file is never overwritten.
    pub fn save(&self, path: &Path) -> Result<(), SecretError> {
        let io = |source| SecretError::Io {
            path: path.to_path_buf(),
            source,
        };
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        // a temporary file is created with mode 0600
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
        file.write_all(&self.to_bytes()).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        file.persist_noclobber(path).map_err(|e| io(e.error))?;
        fs::File::open(folder)
            .and_then(|f| f.sync_all())
            .map_err(io)
    }

    /// Reads a key file; refuses one that others may read.
    pub fn load(path: &Path) -> Result<SecretKey, SecretError> {
        let io = |source| SecretError::Io {
            path: path.to_path_buf(),
            source,
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(path).map_err(io)?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(SecretError::TooOpen(path.to_path_buf()));
            }
        }
        SecretKey::from_bytes(&Zeroizing::new(fs::read(path).map_err(io)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;

    fn key() -> SecretKey {
        let params = Params::by_name("n10-INSECURE").unwrap();
        SecretKey::generate(&params, &mut ChaCha20Rng::seed_from_u64(7))
    }

    #[test]
    fn a_saved_key_is_private_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        let k = key();
        k.save(&path).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(&path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let back = SecretKey::load(&path).unwrap();
        assert_eq!(*back.dense, *k.dense);
        assert_eq!(*back.sparse, *k.sparse);
        assert!(k.save(&path).is_err(), "must not overwrite");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            assert!(matches!(
                SecretKey::load(&path),
                Err(SecretError::TooOpen(_))
            ));
        }
    }

    #[test]
    fn every_copy_of_the_secret_is_wiped_when_dropped() {
        fn wiped<T: zeroize::ZeroizeOnDrop>(_: &T) {}
        let k = key();
        wiped(&k.dense);
        wiped(&k.sparse);
        wiped(&k.to_bytes());
        let mut x = k.dense.clone();
        assert!(x.iter().any(|&c| c != 0));
        x.zeroize();
        assert!(x.is_empty());
    }

    #[test]
    fn damaged_key_files_are_refused() {
        let good = key().to_bytes();
        for position in 0..good.len() {
            let mut bad = good.to_vec();
            bad[position] ^= 1;
            assert!(SecretKey::from_bytes(&bad).is_err(), "byte {position}");
        }
        assert!(SecretKey::from_bytes(&good[..good.len() - 1]).is_err());
        assert!(SecretKey::from_bytes(&[]).is_err());
    }

    #[test]
    fn a_key_is_tied_to_its_parameter_set_and_never_printed() {
        let k = key();
        let other = Params::by_name("n11-INSECURE").unwrap();
        assert!(matches!(k.check(&other), Err(SecretError::ForeignParams)));
        assert_eq!(format!("{k:?}"), "SecretKey(..)");
    }
}
