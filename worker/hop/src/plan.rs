//! What the circuit of one layer needs to know besides weights: polynomials, bounds and levels.

use crate::backend::poly_depth;
use crate::error::PlanError;
use crate::layout::Layout;

/// A polynomial on an interval.
#[derive(Debug, Clone, PartialEq)]
pub struct Approx {
    /// Lower end.
    pub lo: f64,
    /// Upper end.
    pub hi: f64,
    /// Chebyshev coefficients on u = (2x - lo - hi) / (hi - lo).
    pub coeffs: Vec<f64>,
}

impl Approx {
    /// Levels it uses.
    pub fn depth(&self) -> usize {
        poly_depth(self.coeffs.len())
    }

    /// Factor and constant of the map x -> u.
    pub fn affine(&self) -> (f64, f64) {
        let a = 2.0 / (self.hi - self.lo);
        (a, -(self.hi + self.lo) / (self.hi - self.lo))
    }
}

/// Calibrated data of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerPlan {
    /// Factors that bring the residual near unit mean square before the norms.
    pub lift: [u64; 2],
    /// x^-1/2 of the mean square plus eps, before attention and before the MLP.
    pub norms: [Approx; 2],
    /// The same for query and key heads.
    pub qk: Option<[Approx; 2]>,
    /// Bound of the scores before the q/k factors.
    pub raw_score: f64,
    /// Bound of scores, of their differences and of partial log-sums.
    pub score: f64,
    /// sigmoid(score * u).
    pub sigmoid: Vec<f64>,
    /// softplus(score * u) / score.
    pub softplus: Vec<f64>,
    /// silu on the gate's interval.
    pub silu: Approx,
    /// Bound of the attention branch.
    pub o: f64,
    /// Bound of the up projection.
    pub up: f64,
    /// Bound of the MLP branch.
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

impl Levels {
    /// Counts the levels of the segments; an error names the first that does not fit.
    pub fn count(
        layer: usize,
        plan: &LayerPlan,
        floor: usize,
        top: usize,
    ) -> Result<Levels, PlanError> {
        // norm, QKV, RoPE, scores, arrangement of the lanes
        let s1 = floor + NORM + plan.norms[0].depth() + 4;
        let s4 = floor + NORM + plan.norms[1].depth() + 1;
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
        let inner = poly_depth(self.sigmoid.len().max(self.softplus.len()));
        (inner, poly_depth(self.sigmoid.len()))
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
