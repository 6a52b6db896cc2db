//! The key holder's side: the only place where a secret key exists. Secret and evaluation keys, encryption
//! and decryption, and the command line around them.

#![forbid(unsafe_code)]

pub mod accuracy;
pub mod chainfolder;
pub mod cli;
pub mod commands;
pub mod decrypt;
pub mod encrypt;
pub mod files;
pub mod keyfolder;
pub mod keygen;
pub mod noise;
pub mod reference;
pub mod report;
pub mod secret;
pub mod uploads;

pub use encrypt::Cryptor;
pub use keygen::EvalKeyGen;
pub use secret::{SecretError, SecretKey};
