//! One encrypted decoder layer ("hop"): model import, planning, packing, the circuit, and its checkpointed execution.
//! There is no secret key in this crate.

pub mod backend;
pub mod calib;
pub mod calibrate;
pub mod circuit;
pub mod ckks_backend;
mod corpus;
pub mod error;
mod fit;
pub mod fold;
pub mod golden;
pub mod hexfloat;
mod key_store;
pub mod keys;
pub mod layout;
pub mod lin;
pub mod maps;
pub mod memory;
pub mod model;
pub mod plan;
pub mod planner;
pub mod program;
pub mod record;
pub mod registers;
pub mod run;
pub mod schedule;
pub mod sim;
pub mod single;
pub mod stats;
pub mod tensors;
