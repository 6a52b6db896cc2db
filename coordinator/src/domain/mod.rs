//! The rules of chains, hops and attempts as pure functions: no SQL, no gRPC, no clock.
//!
//! [`decide`] takes what is known, a command and the time, and gives what follows or a refusal.

mod arbitrate;
pub mod attempt;
pub mod chain;
pub mod command;
mod decide;
pub mod event;
mod failure;
pub mod hop;
mod lease;
pub mod ledger;
mod operate;
mod recheck;
pub mod reconcile;
pub mod schedule;
pub mod time;
pub mod trust;
mod turn;
mod verify;
pub mod view;

pub use decide::decide;
pub use recheck::close_attempt;
