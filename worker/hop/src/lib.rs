//! One encrypted decoder layer ("hop"): model import, planning, packing, the circuit, and its checkpointed execution.
//! There is no secret key in this crate.

pub mod calib;
pub mod calibrate;
pub mod error;
pub mod fold;
pub mod hexfloat;
pub mod keys;
pub mod model;
pub mod run;
pub mod stats;
