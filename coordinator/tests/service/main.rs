//! The services over a real socket, with SQLite and a local blob folder.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod care;
mod chains;
mod devices;
mod reflection;
mod replicas;
mod results;
mod speed;
mod uploads;
mod watch;
