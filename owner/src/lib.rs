//! The key holder's side: the only place where a secret key exists. Secret and evaluation keys, encryption
//! and decryption.

#![forbid(unsafe_code)]

pub mod encrypt;
pub mod keygen;
pub mod noise;
pub mod secret;

pub use encrypt::Cryptor;
pub use keygen::EvalKeyGen;
pub use secret::{SecretError, SecretKey};
