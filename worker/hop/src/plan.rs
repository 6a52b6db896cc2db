//! What the circuit of one layer needs to know besides weights: polynomials, bounds and levels.

use serde::{Deserialize, Serialize};

use crate::backend::poly_depth;
use crate::error::PlanError;
use crate::layout::Layout;

/// A polynomial on an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approx {
    /// Lower end.
    #[serde(with = "crate::hexfloat")]
    pub lo: f64,
    /// Upper end.
    #[serde(with = "crate::hexfloat")]
    pub hi: f64,
    /// Chebyshev coefficients on u = (2x - lo - hi) / (hi - lo).
    #[serde(with = "crate::hexfloat::list")]
    pub coeffs: Vec<f64>,
}

impl Approx {
    /// Levels it uses.
    pub fn depth(&self) -> usize {
        poly_depth(&self.coeffs)
    }

    /// Factor and constant of the map x -> u.
    pub fn affine(&self) -> (f64, f64) {
        let a = 2.0 / (self.hi - self.lo);
        (a, -(self.hi + self.lo) / (self.hi - self.lo))
    }
}

/// Calibrated data of one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPlan {
    /// Factors that bring the residual near unit mean square before the norms.
    pub lift: [u64; 2],
    /// x^-1/2 of the mean square plus eps, before attention and before the MLP.
    pub norms: [Approx; 2],
    /// The same for query and key heads.
    pub qk: Option<[Approx; 2]>,
    /// Bound of the scores of private keys before the q/k factors. Unused without q/k norm.
    #[serde(with = "crate::hexfloat")]
    pub raw_private: f64,
    /// The same for public keys, whose own norm is already applied.
    #[serde(with = "crate::hexfloat")]
    pub raw_public: f64,
    /// Bound of scores, of their differences and of partial log-sums.
    #[serde(with = "crate::hexfloat")]
    pub score: f64,
    /// sigmoid(score * u).
    #[serde(with = "crate::hexfloat::list")]
    pub sigmoid: Vec<f64>,
    /// softplus(score * u) / score.
    #[serde(with = "crate::hexfloat::list")]
    pub softplus: Vec<f64>,
    /// silu on the gate's interval.
    pub silu: Approx,
    /// Bound of the attention branch.
    #[serde(with = "crate::hexfloat")]
    pub o: f64,
    /// Bound of the up projection.
    #[serde(with = "crate::hexfloat")]
    pub up: f64,
    /// Bound of the MLP branch.
    #[serde(with = "crate::hexfloat")]
    pub down: f64,
    /// Whether a bootstrap refreshes the tournament before that round (index 0 is the first round).
    pub refresh: Vec<bool>,
}

/// Levels at which the segments of a layer start: as low as possible, since cost grows with the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Of a bootstrap's input.
    pub floor: usize,
    /// After a bootstrap.
    pub top: usize,
    /// Residual entering the first norm.
    pub s1: usize,
    /// Values (V) and the attention product.
    pub values: usize,
    /// Residual entering the second norm.
    pub s4: usize,
    /// Gate and up after their bootstrap.
    pub s5: usize,
}

/// Levels from the input of a norm to its output.
const NORM: usize = 3;

/// Levels above the floor where the residual enters the two norms: norm, QKV, RoPE, scores, arrangement of the
/// lanes; norm, gate and up. A split map is followed by a mask.
fn norm_starts(layout: &Layout, plan: &LayerPlan) -> [usize; 2] {
    let mask = |splits: usize| usize::from(splits > 1);
    [
        NORM + plan.norms[0].depth() + 4 + mask(layout.qkv_splits),
        NORM + plan.norms[1].depth() + 1 + mask(layout.gate_splits),
    ]
}

impl Layout {
    /// The layout of one layer: maps are split only where the levels allow the mask behind them.
    pub fn for_plan(&self, plan: &LayerPlan, floor: usize, top: usize) -> Layout {
        let mut out = self.clone();
        let [s1, s4] = norm_starts(self, plan).map(|levels| floor + levels);
        if s1 > top {
            out.qkv_splits = 1;
        }
        if s4 > top {
            out.gate_splits = 1;
        }
        if out != *self {
            out.count_parts();
        }
        out
    }
}

impl Levels {
    /// Counts the levels of the segments; an error names the first that does not fit.
    pub fn count(
        layer: usize,
        layout: &Layout,
        plan: &LayerPlan,
        floor: usize,
        top: usize,
    ) -> Result<Levels, PlanError> {
        let [s1, s4] = norm_starts(layout, plan).map(|levels| floor + levels);
        // silu * up, down, mask
        let s5 = floor + plan.silu.depth() + 3;
        let hint = "recalibrate this layer with a narrower interval or a lower degree";
        for (stage, need) in [
            ("norm and scores", s1),
            ("second norm and gate", s4),
            ("silu and down", s5),
        ] {
            if need > top {
                return Err(PlanError::Levels {
                    layer,
                    stage,
                    need: need - floor,
                    have: top - floor,
                    hint,
                });
            }
        }
        Ok(Levels {
            floor,
            top,
            s1,
            values: floor + 3,
            s4,
            s5,
        })
    }
}

/// Decides before which tournament rounds a bootstrap is needed.
pub fn place_refreshes(
    layer: usize,
    layout: &Layout,
    plan: &LayerPlan,
    levels: &Levels,
) -> Result<Vec<bool>, PlanError> {
    let rounds = layout.rounds();
    let (inner, last) = plan.round_depths();
    let tail = probability_levels(layout);
    let mut level = levels.top;
    if let Some([q, k]) = &plan.qk {
        level = level.saturating_sub(q.depth().max(k.depth()) + 2);
    }
    let mut out = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let need = if round + 1 == rounds {
            last + tail + levels.values
        } else {
            inner + levels.floor
        };
        if need > levels.top {
            return Err(PlanError::Levels {
                layer,
                stage: "softmax",
                need: need - levels.floor,
                have: levels.top - levels.floor,
                hint: "recalibrate this layer with a lower score degree",
            });
        }
        let refresh = level < need;
        if refresh {
            level = levels.top;
        }
        level -= if round + 1 == rounds { last } else { inner };
        out.push(refresh);
    }
    Ok(out)
}

/// Levels from the last round's weight to probabilities in place: one product per earlier round, the lane masks.
fn probability_levels(layout: &Layout) -> usize {
    layout.rounds()
}

impl LayerPlan {
    /// Levels of an inner and of the last tournament round.
    pub fn round_depths(&self) -> (usize, usize) {
        let inner = poly_depth(&self.sigmoid).max(poly_depth(&self.softplus));
        (inner, poly_depth(&self.sigmoid))
    }

    /// Level the tournament needs at the start of a round to get to the next refresh, or to the end.
    pub fn round_level(&self, layout: &Layout, levels: &Levels, round: usize) -> usize {
        let (inner, last) = self.round_depths();
        let rounds = layout.rounds();
        let next = (round + 1..rounds).find(|r| self.refresh.get(*r) == Some(&true));
        match next {
            Some(r) => levels.floor + inner * (r - round),
            None => {
                levels.values + probability_levels(layout) + last + inner * (rounds - 1 - round)
            }
        }
    }

    /// Level at which the weights of an inner round enter the probabilities.
    pub fn weight_level(&self, levels: &Levels, round: usize) -> usize {
        levels.values + 2 + round
    }
}

const MOST_COEFFS: usize = 1024;

impl Approx {
    fn check(&self, name: &str) -> Result<(), String> {
        let wide = self.hi - self.lo;
        if !(wide.is_normal() && wide > 0.0) {
            return Err(format!("{name}: empty interval"));
        }
        check_coeffs(name, &self.coeffs)
    }
}

fn check_coeffs(name: &str, coeffs: &[f64]) -> Result<(), String> {
    if coeffs.len() < 2 || coeffs.len() > MOST_COEFFS || coeffs.iter().any(|c| !c.is_finite()) {
        return Err(format!("{name}: {} coefficients", coeffs.len()));
    }
    Ok(())
}

impl LayerPlan {
    /// Checks ranges; says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.norms[0].check("norm1")?;
        self.norms[1].check("norm2")?;
        self.silu.check("silu")?;
        for a in self.qk.iter().flatten() {
            a.check("q/k norm")?;
        }
        check_coeffs("sigmoid", &self.sigmoid)?;
        check_coeffs("softplus", &self.softplus)?;
        let bounds = [
            self.raw_private,
            self.raw_public,
            self.score,
            self.o,
            self.up,
            self.down,
        ];
        if bounds.iter().any(|b| !(b.is_normal() && *b > 0.0)) {
            return Err("a bound is not positive".into());
        }
        if self
            .lift
            .iter()
            .any(|l| !l.is_power_of_two() || *l > 1 << 40)
        {
            return Err("lift is no power of two".into());
        }
        Ok(())
    }
}
