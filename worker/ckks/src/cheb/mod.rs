//! Polynomials in the Chebyshev basis on ciphertexts. The plan is a recursion over p = q * T_g + r with g a
//! power of two (Paterson and Stockmeyer 1973 in the Chebyshev basis, with the depth-optimal rule of
//! Bossuat et al. 2021): ceil(log2(degree + 1)) levels. Several polynomials share one power basis.

mod eval;
mod plan;

use plan::{Node, Plan, powers_of};

/// A polynomial in the Chebyshev basis of an interval.
#[derive(Debug, Clone, PartialEq)]
pub struct ChebPoly {
    /// Coefficients of T_0, T_1, ...; the constant is not halved.
    pub coeffs: Vec<f64>,
    /// Lower end of the interval of the argument.
    pub lo: f64,
    /// Upper end of the interval of the argument.
    pub hi: f64,
    /// Factor per slot (length a power of two up to N/2, repeated), at no cost in levels.
    pub mask: Option<Vec<f64>>,
}

impl ChebPoly {
    /// A polynomial without mask.
    pub fn new(coeffs: Vec<f64>, lo: f64, hi: f64) -> ChebPoly {
        ChebPoly {
            coeffs,
            lo,
            hi,
            mask: None,
        }
    }

    /// Degree: index of the last coefficient that is not 0.
    pub fn degree(&self) -> usize {
        self.coeffs.iter().rposition(|&c| c != 0.0).unwrap_or(0)
    }

    /// Levels used.
    pub fn depth(&self) -> usize {
        cheb_depth(self.degree())
    }

    /// Value at `x` in the clear, without the mask.
    pub fn value(&self, x: f64) -> f64 {
        clenshaw(&self.coeffs, self.normalise(x))
    }

    /// Maps the interval to [-1, 1].
    pub fn normalise(&self, x: f64) -> f64 {
        (2.0 * x - self.lo - self.hi) / (self.hi - self.lo)
    }
}

/// Levels at which an argument at `level` makes the evaluation of these polynomials relinearise, one entry each.
pub(crate) fn relinearisation_levels(polys: &[&ChebPoly], level: usize) -> Vec<usize> {
    let depths: Vec<usize> = polys.iter().map(|p| p.depth()).collect();
    Plan::new(polys, level).relinearisation_levels(level, &depths)
}

/// Levels that a polynomial of that degree uses: ceil(log2(degree + 1)), and one for a constant with a mask.
pub fn cheb_depth(degree: usize) -> usize {
    ((degree + 1).next_power_of_two().trailing_zeros() as usize).max(1)
}

/// Clenshaw's recurrence on [-1, 1].
pub(crate) fn clenshaw(coeffs: &[f64], u: f64) -> f64 {
    let (mut b1, mut b2) = (0.0, 0.0);
    for &c in coeffs.iter().skip(1).rev() {
        (b1, b2) = (c + 2.0 * u * b1 - b2, b1);
    }
    coeffs.first().copied().unwrap_or(0.0) + u * b1 - b2
}
