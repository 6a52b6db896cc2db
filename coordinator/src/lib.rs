//! The coordinator: hands out hops, verifies results, keeps the archive. It never holds a secret key or plaintext.

pub mod auth;
pub mod backup;
pub mod blobs;
pub mod cli;
pub mod clock;
pub mod config;
pub mod database;
pub mod doctor;
pub mod domain;
mod files;
pub mod http;
pub mod ledger_key;
pub mod metrics;
mod present;
pub mod service;
pub mod store;
pub mod tasks;
pub mod tls;
