//! The volunteer's program: claims hops, runs them, hands results in. It holds one hop's inputs, evaluation keys and
//! weights, and never a secret key.

pub mod agent;
pub mod cache;
pub mod child;
pub mod cli;
pub mod commands;
pub mod durable;
pub mod error;
pub mod eta;
pub mod folder;
pub mod hours;
pub mod journal;
pub mod machine;
pub mod pack;
pub mod permit;
pub mod preferences;
pub mod range;
pub mod report;
pub mod selftest;
pub mod units;
