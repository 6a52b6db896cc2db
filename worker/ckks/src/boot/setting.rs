//! Settings of the modular reduction (EvalMod): how many levels it takes and how precise it is. All of them
//! work on the same primes, the same keys and the same matrices. Measured figures: docs/precision.md.

use super::reduction;
use crate::cheb::{ChebPoly, relinearisation_levels};

/// How a bootstrap reduces modulo q0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvalModSetting {
    /// One odd polynomial of degree 95: no level beyond those of the parameter set.
    #[default]
    Default,
    /// The message enters 12 times larger, so that every noise weighs 12 times less, and an odd polynomial
    /// of degree 95 times an even one of degree 94 reduces it: one level more.
    Precise,
}

impl EvalModSetting {
    /// Both settings.
    pub const ALL: [EvalModSetting; 2] = [EvalModSetting::Default, EvalModSetting::Precise];

    /// Name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            EvalModSetting::Default => "default",
            EvalModSetting::Precise => "precise",
        }
    }

    /// Levels beyond those that the parameter set reserves for the reduction: the result comes out that
    /// much lower.
    pub fn extra_levels(self) -> usize {
        match self {
            EvalModSetting::Default => 0,
            EvalModSetting::Precise => 1,
        }
    }

    /// Factor of the message before ModRaise.
    pub(super) fn message_factor(self) -> i64 {
        match self {
            EvalModSetting::Default => 1,
            EvalModSetting::Precise => reduction::PRECISE_FACTOR,
        }
    }
}

/// The polynomials of a setting; the reduction is their product.
#[derive(Debug, Clone)]
pub(super) struct Reduction {
    pub(super) odd: ChebPoly,
    pub(super) even: Option<ChebPoly>,
}

impl Reduction {
    /// For a slot value v that is m = v / `ratio` modulo 1; results are read on a row `row_ratio` times
    /// larger than that of the argument.
    pub(super) fn new(setting: EvalModSetting, ratio: f64, row_ratio: f64) -> Reduction {
        let poly = |coefficients| ChebPoly::new(coefficients, -1.0, 1.0);
        match setting {
            EvalModSetting::Default => Reduction {
                odd: poly(reduction::default(ratio / row_ratio)),
                even: None,
            },
            EvalModSetting::Precise => Reduction {
                odd: poly(reduction::precise_odd(ratio / row_ratio)),
                even: Some(poly(reduction::precise_even(1.0 / row_ratio))),
            },
        }
    }

    /// The polynomials, the results multiplied by `gain`.
    pub(super) fn polynomials(&self, gain: f64) -> Vec<ChebPoly> {
        let mut odd = self.odd.clone();
        odd.coeffs.iter_mut().for_each(|c| *c *= gain);
        std::iter::once(odd).chain(self.even.clone()).collect()
    }

    /// Levels of all relinearisations for an argument at `level`.
    pub(super) fn relinearisation_levels(&self, level: usize) -> Vec<usize> {
        let polys = self.polynomials(1.0);
        let mut levels = relinearisation_levels(&polys.iter().collect::<Vec<_>>(), level);
        if self.even.is_some() {
            levels.push(level - self.odd.depth());
        }
        levels
    }
}
