//! Work nobody asks for: safe to run anywhere, any number of times.

pub mod certificate;
pub mod collector;
pub mod reaper;
