//! Identifiers: 16 bytes each, one type per kind so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes or text that is not an identifier of the named kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {kind} is 16 bytes, written as a UUID")]
pub struct ParseIdError {
    /// The kind expected, in words.
    pub kind: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh identifier, ordered by creation time (UUID version 7).
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// Wraps 16 bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// Reads exactly 16 bytes.
            pub fn from_slice(bytes: &[u8]) -> Result<Self, ParseIdError> {
                Uuid::from_slice(bytes).map(Self).map_err(|_| ParseIdError { kind: $kind })
            }

            /// The 16 bytes.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// The 16 bytes as the wire carries them.
            pub fn to_vec(self) -> Vec<u8> {
                self.0.as_bytes().to_vec()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self).map_err(|_| ParseIdError { kind: $kind })
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(id: $name) -> Self {
                id.to_vec()
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = ParseIdError;

            fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
                Self::from_slice(bytes)
            }
        }
    };
}

id!(
    /// A chain, chosen by its owner.
    ChainId, "chain id");
id!(
    /// One volunteer's try at one hop.
    AttemptId, "attempt id");
id!(
    /// A volunteer's machine.
    DeviceId, "device id");
id!(
    /// A person or organisation: groups devices and tokens.
    AccountId, "account id");
id!(
    /// A bearer token's public handle (not the secret).
    TokenId, "token id");
id!(
    /// One resumable upload.
    UploadId, "upload id");
id!(
    /// 16 random bytes that make a request idempotent.
    Nonce, "nonce");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_bytes_and_text() {
        let id = ChainId::generate();
        assert_eq!(ChainId::from_slice(&id.to_vec()).unwrap(), id);
        assert_eq!(id.to_string().parse::<ChainId>().unwrap(), id);
        assert_eq!(
            ChainId::from_slice(&[1; 15]),
            Err(ParseIdError { kind: "chain id" })
        );
    }
}
