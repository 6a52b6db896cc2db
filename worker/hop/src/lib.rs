//! One encrypted decoder layer ("hop"): planning, packing, the circuit, and its checkpointed execution.
//! There is no secret key in this crate.

pub mod error;
pub mod keys;
pub mod run;
