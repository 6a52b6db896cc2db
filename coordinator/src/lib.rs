//! The coordinator: hands out hops, verifies results, keeps the archive. It never holds a secret key or plaintext.

pub mod auth;
pub mod blobs;
pub mod cli;
pub mod clock;
pub mod config;
pub mod domain;
pub mod service;
pub mod store;
pub mod tasks;
