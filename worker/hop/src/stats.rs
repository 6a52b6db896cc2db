//! Extremes of every quantity the encrypted circuit must keep inside an interval, taken from a plain run.

use serde::Serialize;

use crate::{
    calib::LayerCalib,
    fold::Rotator,
    model::{LayerRun, ModelConfig},
};

/// Smallest and largest value seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Range {
    fn of<'a>(values: impl IntoIterator<Item = &'a f64>) -> Self {
        let start = Self {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        };
        values.into_iter().fold(start, |r, v| Self {
            min: r.min.min(*v),
            max: r.max.max(*v),
        })
    }

    /// Largest magnitude.
    pub fn magnitude(&self) -> f64 {
        self.max.abs().max(self.min.abs())
    }
}

/// Extremes of one layer over a batch of prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStats {
    /// Mean square plus eps before attention.
    pub ms1: Range,
    /// Mean square plus eps before the MLP.
    pub ms2: Range,
    /// Largest magnitude of leaves, partial log-sum-exps and differences in the softmax tournament, per head.
    pub score_heads: Vec<f64>,
    /// Gate.
    pub gate: Range,
    /// Up.
    pub up: f64,
    /// `silu(gate) * up`.
    pub act: f64,
    /// Attention branch, rotated basis.
    pub attn: f64,
    /// MLP branch, rotated basis.
    pub mlp: f64,
    /// Residual after the layer, rotated basis.
    pub residual: f64,
    /// Q/k norm quantities of the Qwen3 shape.
    pub qk: Option<QkStats>,
}

/// Extremes of the per-head norms.
#[derive(Clone, Debug, PartialEq)]
pub struct QkStats {
    /// Mean square plus eps of raw query heads.
    pub q: Range,
    /// Mean square plus eps of raw key heads.
    pub k: Range,
    /// Raw scores between private tokens.
    pub raw_private: f64,
    /// Raw scores against public keys.
    pub raw_public: f64,
}

fn magnitude(values: &[f64]) -> f64 {
    Range::of(values.iter().filter(|v| v.is_finite()))
        .magnitude()
        .max(0.0)
}

/// Largest magnitude met while the pairwise tournament turns one query's scores into probabilities.
///
/// Leaf j < `public` is public key j, leaf `public + delta` the private token delta places back; with 2^R >= leaves lanes,
/// a round pairs lane j with lane j + half. The right one of a pair is never valid without the left one.
fn tournament(scores: &[f64], public: usize, query: usize, relative: bool) -> f64 {
    let base = if relative { scores[0] } else { 0.0 };
    let lanes = scores.len().next_power_of_two();
    let mut l = vec![None; lanes];
    for (j, lane) in l.iter_mut().enumerate().take(public) {
        *lane = Some(scores[j] - base);
    }
    for delta in 0..=query {
        l[public + delta] = Some(scores[public + query - delta] - base);
    }
    let mut top = l.iter().flatten().fold(0.0f64, |m, v| m.max(v.abs()));
    let mut half = lanes / 2;
    while half > 0 {
        for j in 0..half {
            if let (Some(a), Some(b)) = (l[j], l[j + half]) {
                let larger = a.max(b);
                let sum = larger + (-(a - b).abs()).exp().ln_1p();
                top = top.max((b - a).abs()).max(sum.abs());
                l[j] = Some(sum);
            }
        }
        half /= 2;
    }
    top
}

impl LayerStats {
    /// Extremes of one layer's run.
    pub fn of(cfg: &ModelConfig, run: &LayerRun, rotator: &Rotator) -> Self {
        let keys = run.public + run.tokens;
        let mut score_heads = vec![0.0f64; cfg.heads];
        for (i, row) in run.scores.chunks_exact(keys).enumerate() {
            let (at, head) = (i / cfg.heads, i % cfg.heads);
            let top = tournament(row, run.public, at % run.tokens, !cfg.qk_norm());
            score_heads[head] = score_heads[head].max(top);
        }
        let qk = cfg.qk_norm().then(|| {
            let part = |private: bool| {
                let rows = run.raw_scores.chunks_exact(keys);
                let pick = rows.flat_map(|r| {
                    if private {
                        &r[run.public..]
                    } else {
                        &r[..run.public]
                    }
                });
                Range::of(pick.filter(|v| v.is_finite())).magnitude()
            };
            QkStats {
                q: Range::of(&run.q_ms),
                k: Range::of(&run.k_ms),
                raw_private: part(true),
                raw_public: part(false),
            }
        });
        Self {
            ms1: Range::of(&run.ms1),
            ms2: Range::of(&run.ms2),
            score_heads,
            gate: Range::of(&run.gate),
            up: magnitude(&run.up),
            act: magnitude(&run.act),
            attn: magnitude(&rotator.rotate(&run.attn)),
            mlp: magnitude(&rotator.rotate(&run.mlp)),
            residual: magnitude(&rotator.rotate(&run.y)),
            qk,
        }
    }

    /// Largest score magnitude over all heads.
    pub fn score(&self) -> f64 {
        self.score_heads.iter().fold(0.0, |a, b| a.max(*b))
    }

    /// Everything that leaves the interval the calibration promises.
    pub fn violations(&self, layer: usize, calib: &LayerCalib) -> Vec<Violation> {
        let mut out = Vec::new();
        let mut check = |quantity: &'static str, seen: Range, lo: f64, hi: f64| {
            if seen.min < lo || seen.max > hi || !seen.min.is_finite() || !seen.max.is_finite() {
                let value = if seen.max > hi { seen.max } else { seen.min };
                out.push(Violation {
                    layer,
                    quantity,
                    value,
                    lo,
                    hi,
                });
            }
        };
        let both = |v: f64| Range { min: -v, max: v };
        let b = &calib.bounds;
        check(
            "mean square before attention",
            self.ms1,
            calib.rms1.lo,
            calib.rms1.hi,
        );
        check(
            "mean square before the MLP",
            self.ms2,
            calib.rms2.lo,
            calib.rms2.hi,
        );
        check(
            "attention score",
            both(self.score()),
            -calib.score,
            calib.score,
        );
        check("gate", self.gate, -b.gate, b.gate);
        check("up", both(self.up), -b.up, b.up);
        check("activation", both(self.act), -b.act, b.act);
        check("attention branch", both(self.attn), -b.o, b.o);
        check("MLP branch", both(self.mlp), -b.down, b.down);
        check(
            "residual",
            both(self.residual),
            -0.5 * calib.f,
            0.5 * calib.f,
        );
        if let (Some(seen), Some(qk)) = (&self.qk, &calib.qk) {
            check("query norm", seen.q, qk.q.lo, qk.q.hi);
            check("key norm", seen.k, qk.k.lo, qk.k.hi);
            check(
                "raw attention score",
                both(seen.raw_private),
                -qk.raw_score,
                qk.raw_score,
            );
            check(
                "raw attention score against public keys",
                both(seen.raw_public),
                -qk.raw_score_public,
                qk.raw_score_public,
            );
        }
        out
    }
}

/// A plain run that left a calibrated interval: encrypted, it would be destroyed.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[error("layer {layer}: {quantity} reaches {value:.4}, calibrated for {lo:.4} to {hi:.4}")]
pub struct Violation {
    /// Layer.
    pub layer: usize,
    /// Quantity, in words.
    pub quantity: &'static str,
    /// Value seen.
    pub value: f64,
    /// Lower end of the interval.
    pub lo: f64,
    /// Upper end of the interval.
    pub hi: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tournament_sees_leaves_differences_and_sums() {
        // Two public keys, query 0: leaves 0, 1 and the private token itself; lanes 0 and 2 meet first.
        let top = tournament(&[5.0, 1.0, -3.0, f64::NEG_INFINITY], 2, 0, true);
        assert_eq!(top, 8.0);
        let top = tournament(&[2.0, 2.0], 1, 0, false);
        assert!((top - (2.0 + 2f64.ln())).abs() < 1e-12);
    }
}
