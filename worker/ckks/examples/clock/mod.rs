//! Processor time, for the examples and the measuring tests of the workspace.

use nix::time::ClockId;

/// Seconds of processor time of all threads of this process so far, ended ones too: a busy machine does not spoil the
/// figures.
pub fn cpu_seconds() -> f64 {
    let time = ClockId::CLOCK_PROCESS_CPUTIME_ID.now();
    time.map_or(0.0, |t| t.tv_sec() as f64 + t.tv_nsec() as f64 * 1e-9)
}
