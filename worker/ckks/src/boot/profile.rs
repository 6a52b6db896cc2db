//! Where the time of a bootstrap goes.

/// Seconds spent in each stage of one bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BootProfile {
    /// Slots-to-coefficients.
    pub stc_s: f64,
    /// Switch to the sparse secret, ModRaise, switch back.
    pub modraise_s: f64,
    /// Coefficients-to-slots.
    pub cts_s: f64,
    /// Modular reduction.
    pub evalmod_s: f64,
    /// All of it.
    pub total_s: f64,
    /// Bytes of evaluation keys read, both halves.
    pub key_bytes: u64,
}

impl BootProfile {
    /// Adds another profile, stage by stage.
    pub fn add(&mut self, other: &BootProfile) {
        self.stc_s += other.stc_s;
        self.modraise_s += other.modraise_s;
        self.cts_s += other.cts_s;
        self.evalmod_s += other.evalmod_s;
        self.total_s += other.total_s;
        self.key_bytes += other.key_bytes;
    }
}
