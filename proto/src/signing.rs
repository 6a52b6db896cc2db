//! Device keys: a device signs its enrolment and each of its results, the coordinator checks and keeps the signatures.
//!
//! What is signed begins with a domain of its own and has fixed lengths, so that no signature can stand for another
//! statement. The coordinator's ledger is signed in the same way ([`crate::ledger`]).

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature as Ed25519, Signer as _, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::{AttemptId, ChainId, Digest, Nonce};

const RESULT: &[u8; 32] = b"cipherhop.v1 device result\0\0\0\0\0\0";
const ENROLMENT: &[u8; 32] = b"cipherhop.v1 device enrolment\0\0\0";

/// What a device says with a result: for this attempt at this hop I computed these bytes by this trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultStatement {
    /// The chain.
    pub chain: ChainId,
    /// Its generation.
    pub generation: u32,
    /// The hop.
    pub hop: u32,
    /// The attempt.
    pub attempt: AttemptId,
    /// Digest of the output.
    pub output: Digest,
    /// Root of the trace.
    pub trace_root: Digest,
}

/// What a device says when it enrols: this key is mine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnrolmentStatement {
    /// Nonce of the enrolment.
    pub nonce: Nonce,
    /// SHA-256 of the invite.
    pub invite: Digest,
}

/// Something a device signs.
pub trait Statement {
    /// The bytes that are signed.
    fn message(&self) -> Vec<u8>;
}

impl Statement for ResultStatement {
    fn message(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(136);
        bytes.extend_from_slice(RESULT);
        bytes.extend_from_slice(self.chain.as_bytes());
        bytes.extend_from_slice(&self.generation.to_be_bytes());
        bytes.extend_from_slice(&self.hop.to_be_bytes());
        bytes.extend_from_slice(self.attempt.as_bytes());
        bytes.extend_from_slice(self.output.as_bytes());
        bytes.extend_from_slice(self.trace_root.as_bytes());
        bytes
    }
}

impl Statement for EnrolmentStatement {
    fn message(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(80);
        bytes.extend_from_slice(ENROLMENT);
        bytes.extend_from_slice(self.nonce.as_bytes());
        bytes.extend_from_slice(self.invite.as_bytes());
        bytes
    }
}

/// Bytes or text that is no key or signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an ed25519 {0}")]
pub struct ParseKeyError(&'static str);

/// A device's secret key. Wiped from memory when dropped; its `Debug` shows nothing.
#[derive(Clone)]
pub struct DeviceKey(SigningKey);

impl DeviceKey {
    /// A key out of 32 random bytes.
    pub fn from_secret(secret: &[u8; 32]) -> DeviceKey {
        DeviceKey(SigningKey::from_bytes(secret))
    }

    /// The secret as 64 hexadecimal digits, for the device's own file.
    pub fn to_secret_text(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(Zeroizing::new(self.0.to_bytes())))
    }

    /// The key that others check with.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs a statement.
    pub fn sign(&self, statement: &impl Statement) -> Signature {
        Signature(self.0.sign(&statement.message()).to_bytes())
    }
}

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceKey(..)")
    }
}

impl FromStr for DeviceKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut secret = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim(), &mut *secret).map_err(|_| ParseKeyError("secret key"))?;
        Ok(DeviceKey::from_secret(&secret))
    }
}

/// A device's public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads 32 bytes that are a point of the curve and none of the few that match every signature.
    pub fn from_slice(bytes: &[u8]) -> Result<PublicKey, ParseKeyError> {
        const WRONG: ParseKeyError = ParseKeyError("public key");
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| WRONG)?;
        match VerifyingKey::from_bytes(&bytes) {
            Ok(key) if !key.is_weak() => Ok(PublicKey(bytes)),
            _ => Err(WRONG),
        }
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether the key's owner signed the statement.
    pub fn verify(&self, statement: &impl Statement, signature: &Signature) -> bool {
        VerifyingKey::from_bytes(&self.0).is_ok_and(|key| {
            key.verify_strict(&statement.message(), &Ed25519::from_bytes(&signature.0))
                .is_ok()
        })
    }
}

impl TryFrom<&[u8]> for PublicKey {
    type Error = ParseKeyError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        Self::from_slice(bytes)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A signature: 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; 64]);

impl Signature {
    /// The 64 bytes.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// The 64 bytes as the wire carries them.
    pub fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }
}

impl TryFrom<&[u8]> for Signature {
    type Error = ParseKeyError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes
            .try_into()
            .map(Signature)
            .map_err(|_| ParseKeyError("signature"))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({})", hex::encode(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement() -> ResultStatement {
        ResultStatement {
            chain: ChainId::from_bytes([1; 16]),
            generation: 2,
            hop: 3,
            attempt: AttemptId::from_bytes([4; 16]),
            output: Digest::from_bytes([5; 32]),
            trace_root: Digest::from_bytes([6; 32]),
        }
    }

    #[test]
    fn a_signature_stands_for_one_statement_of_one_key() {
        let key = DeviceKey::from_secret(&[7; 32]);
        let said = statement();
        let signature = key.sign(&said);
        assert!(key.public().verify(&said, &signature));
        let others = [
            ResultStatement {
                chain: ChainId::from_bytes([9; 16]),
                ..said
            },
            ResultStatement {
                generation: 9,
                ..said
            },
            ResultStatement { hop: 9, ..said },
            ResultStatement {
                attempt: AttemptId::from_bytes([9; 16]),
                ..said
            },
            ResultStatement {
                output: Digest::from_bytes([9; 32]),
                ..said
            },
            ResultStatement {
                trace_root: Digest::from_bytes([9; 32]),
                ..said
            },
            // Generation and hop swapped, output and root swapped: positions count.
            ResultStatement {
                generation: 3,
                hop: 2,
                ..said
            },
            ResultStatement {
                output: said.trace_root,
                trace_root: said.output,
                ..said
            },
        ];
        for other in others {
            assert!(!key.public().verify(&other, &signature), "{other:?}");
        }
        let stranger = DeviceKey::from_secret(&[8; 32]).public();
        assert!(!stranger.verify(&said, &signature));
        let mut bytes = *signature.as_bytes();
        bytes[63] ^= 1;
        assert!(!key.public().verify(&said, &Signature(bytes)));
    }

    #[test]
    fn the_statements_have_their_documented_bytes_and_different_domains() {
        let message = statement().message();
        assert_eq!(message.len(), 32 + 16 + 4 + 4 + 16 + 32 + 32);
        assert!(message.starts_with(b"cipherhop.v1 device result\0"));
        assert_eq!(
            message[32..56],
            [[1; 16].as_slice(), &[0, 0, 0, 2, 0, 0, 0, 3]].concat()
        );
        let enrolment = EnrolmentStatement {
            nonce: Nonce::from_bytes([1; 16]),
            invite: Digest::of(b"invite"),
        };
        assert_eq!(enrolment.message().len(), 80);
        assert_ne!(enrolment.message()[..32], message[..32]);
    }

    #[test]
    fn a_secret_survives_its_file_and_is_not_shown() {
        let key = DeviceKey::from_secret(&[7; 32]);
        let text = key.to_secret_text();
        let again: DeviceKey = format!("{}\n", *text).parse().unwrap();
        assert_eq!(again.public(), key.public());
        assert!(!format!("{key:?}").contains(&text[..8]));
        assert!("xyz".parse::<DeviceKey>().is_err());
    }

    #[test]
    fn weak_and_malformed_public_keys_are_refused() {
        // The neutral element: with it every message has a valid signature.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        for bad in [&neutral[..], &[2; 31]] {
            assert!(PublicKey::from_slice(bad).is_err(), "{bad:?}");
        }
        // Half of all y have no x.
        let points = (0..64).filter(|y| {
            let mut bytes = [0; 32];
            bytes[0] = *y;
            PublicKey::from_slice(&bytes).is_ok()
        });
        assert!((16..48).contains(&points.count()));
    }
}
