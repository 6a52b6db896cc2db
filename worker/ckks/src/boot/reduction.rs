//! The polynomials of the modular reduction (EvalMod): p((I + m)/A) = m for the integers |I| <= 13 and m in a
//! small interval. They are fitted on those intervals only, so degree 95 is as exact there as the
//! slope-corrected sine of degree 127, with a quarter fewer key switches; see tools/modreduction.py.

use super::reduction_table::ODD_COEFFICIENT_BITS;
use super::reduction_table_precise::{EVEN_FACTOR_BITS, ODD_FACTOR_BITS};

/// Half width A of the interval, in units of q0: the coefficients after ModRaise divided by A*q0 are the
/// argument of the polynomial. 13 integers each side and room for the message.
pub(crate) const HALF_WIDTH: f64 = 13.0078125;

/// How much larger the message is in the precise setting: |m| <= 12 * 2^-10.
pub(crate) const PRECISE_FACTOR: i64 = 12;

fn odd(bits: &[u64], factor: f64) -> Vec<f64> {
    bits.iter()
        .flat_map(|&bits| [0.0, f64::from_bits(bits) * factor])
        .collect()
}

/// Chebyshev coefficients T_0 .. T_95 of the default reduction (|m| <= 2^-10) times `factor`.
pub(crate) fn default(factor: f64) -> Vec<f64> {
    odd(&ODD_COEFFICIENT_BITS, factor)
}

/// Coefficients T_0 .. T_95 of the odd factor of the precise reduction times `factor`.
pub(crate) fn precise_odd(factor: f64) -> Vec<f64> {
    odd(&ODD_FACTOR_BITS, factor)
}

/// Coefficients T_0 .. T_94 of the even factor of the precise reduction times `factor`.
pub(crate) fn precise_even(factor: f64) -> Vec<f64> {
    let pairs = EVEN_FACTOR_BITS
        .iter()
        .flat_map(|&bits| [f64::from_bits(bits) * factor, 0.0]);
    pairs.take(2 * EVEN_FACTOR_BITS.len() - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cheb::clenshaw;

    /// Worst relative error over the intervals, as log2.
    fn error(p: impl Fn(f64) -> f64, bound: f64) -> f64 {
        let mut worst: f64 = 0.0;
        for i in -13..=13 {
            for k in -500..=500 {
                let m = bound * k as f64 / 500.0;
                let error = p((i as f64 + m) / HALF_WIDTH) - m;
                worst = worst.max(error.abs() / bound);
            }
        }
        worst.log2()
    }

    fn largest(c: &[f64]) -> f64 {
        (0..=10000)
            .map(|k| clenshaw(c, k as f64 / 10000.0).abs())
            .fold(0.0, f64::max)
    }

    #[test]
    fn the_table_reduces_modulo_one_near_every_integer() {
        let c = default(1.0);
        assert_eq!(c.len(), 96);
        let worst = error(|x| clenshaw(&c, x), 1.0 / 1024.0);
        assert!(worst < -19.18, "2^{worst}");
        // nothing lies between the intervals, but the values there must not be wild either
        assert!(largest(&c) < 0.2);
    }

    #[test]
    fn the_product_of_the_precise_tables_reduces_modulo_one_12_times_wider() {
        let (odd, even) = (precise_odd(1.0), precise_even(1.0));
        assert_eq!((odd.len(), even.len()), (96, 95));
        let bound = PRECISE_FACTOR as f64 / 1024.0;
        let worst = error(|x| clenshaw(&odd, x) * clenshaw(&even, x), bound);
        assert!(worst < -22.5, "2^{worst}");
        assert!(largest(&odd) < 0.25 && largest(&even) < 2.0);
    }
}
