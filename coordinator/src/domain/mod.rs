//! The rules of chains, hops and attempts as pure functions: no SQL, no gRPC, no clock.
//!
//! [`decide`] takes what is known, a command and the time, and gives what follows or a refusal.

pub mod attempt;
pub mod chain;
pub mod command;
pub mod event;
pub mod hop;
pub mod ledger;
pub mod time;
pub mod trust;
pub mod view;
