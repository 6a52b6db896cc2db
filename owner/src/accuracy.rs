//! Judges decrypted hops against the plaintext model (acceptance of CIRCUIT.md section 4).

use serde::Serialize;

/// Largest `max|err|/F` of a hop.
pub const MAX_ERR_OVER_F: f64 = 3e-2;
/// Largest relative rms of a token after the last layer.
pub const MAX_REL_RMS: f64 = 1e-2;
/// The next token must be equal where the plaintext model's margin is larger.
pub const MARGIN: f64 = 0.05;

/// Errors of one hop's output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HopErrors {
    /// Hop.
    pub hop: u32,
    /// Largest error over the layer's scale F.
    pub max_err_over_f: f64,
    /// Relative rms error per token.
    pub rel_rms: Vec<f64>,
    /// Largest of them.
    pub worst_rel_rms: f64,
}

impl HopErrors {
    /// Compares `found` with `exact`, both `tokens` vectors of `d`.
    pub fn of(hop: u32, found: &[f64], exact: &[f64], d: usize, f: f64) -> Self {
        let pairs = || found.iter().zip(exact);
        let max = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, nan_max);
        let rel_rms: Vec<f64> = found
            .chunks_exact(d)
            .zip(exact.chunks_exact(d))
            .map(|(a, b)| {
                let error: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
                (error / b.iter().map(|y| y * y).sum::<f64>()).sqrt()
            })
            .collect();
        let worst_rel_rms = rel_rms.iter().copied().fold(0.0, nan_max);
        Self {
            hop,
            max_err_over_f: max / f,
            rel_rms,
            worst_rel_rms,
        }
    }

    /// Whether the hop's own limit holds.
    pub fn within(&self) -> bool {
        self.max_err_over_f <= MAX_ERR_OVER_F
    }
}

/// Like `f64::max`, but not a number wins: a broken result must not pass.
fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// Verdict on a chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// All limits hold.
    pub accepted: bool,
    /// What does not hold, in words.
    pub problems: Vec<String>,
    /// Largest `max|err|/F` of any hop.
    pub worst_max_err_over_f: f64,
    /// Largest relative rms of a token after the last layer.
    pub worst_rel_rms: f64,
}

impl Verdict {
    /// Judges all hops; `tokens_equal` and `margin` speak of the next token.
    pub fn of(hops: &[HopErrors], tokens_equal: bool, margin: f64) -> Self {
        let worst_max_err_over_f = hops.iter().map(|h| h.max_err_over_f).fold(0.0, nan_max);
        let worst_rel_rms = hops.last().map_or(f64::NAN, |h| h.worst_rel_rms);
        let mut problems: Vec<String> = hops
            .iter()
            .filter(|h| !h.within())
            .map(|h| {
                format!(
                    "hop {}: max|err|/F {:.1e} is above {MAX_ERR_OVER_F:.0e}",
                    h.hop, h.max_err_over_f
                )
            })
            .collect();
        if worst_rel_rms.is_nan() || worst_rel_rms > MAX_REL_RMS {
            problems.push(format!(
                "relative rms {worst_rel_rms:.1e} after the last layer is above {MAX_REL_RMS:.0e}"
            ));
        }
        if !tokens_equal && margin > MARGIN {
            problems.push(format!(
                "the next token differs although the margin is {margin:.3}"
            ));
        }
        Self {
            accepted: problems.is_empty(),
            problems,
            worst_max_err_over_f,
            worst_rel_rms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_follows_the_limits() {
        let exact = [1.0, -1.0, 100.0, 100.0];
        let good = HopErrors::of(0, &[1.001, -1.0, 100.0, 100.1], &exact, 2, 64.0);
        assert!((good.max_err_over_f - 0.1 / 64.0).abs() < 1e-9 && good.worst_rel_rms < 1e-3);
        assert!(Verdict::of(std::slice::from_ref(&good), true, 1.0).accepted);
        assert!(Verdict::of(std::slice::from_ref(&good), false, 0.04).accepted);
        assert!(!Verdict::of(std::slice::from_ref(&good), false, 0.06).accepted);
        // A small token ruined beside a large one: the largest error alone would not show it.
        let blind = HopErrors::of(0, &[1.5, -1.0, 100.0, 100.0], &exact, 2, 64.0);
        assert!(blind.within() && !Verdict::of(&[blind], true, 1.0).accepted);
        let broken = HopErrors::of(0, &[f64::NAN, -1.0, 100.0, 100.0], &exact, 2, 64.0);
        assert!(!broken.within() && !Verdict::of(&[broken], true, 1.0).accepted);
        assert!(!Verdict::of(&[], true, 1.0).accepted);
    }
}
