//! The polynomial of the modular reduction (EvalMod): p((I + m)/A) = m for the integers |I| <= 13 and
//! |m| <= 2^-10. It is fitted on those intervals only, so degree 95 is as exact there as the slope-corrected
//! sine of degree 127, with a quarter fewer key switches; see tools/modreduction.py.

use super::reduction_table::ODD_COEFFICIENT_BITS;

/// Half width A of the interval, in units of q0: the coefficients after ModRaise divided by A*q0 are the
/// argument of the polynomial. 13 integers each side and room for the message.
pub(crate) const HALF_WIDTH: f64 = 13.0078125;

/// Chebyshev coefficients T_0 .. T_95 of the reduction times `factor`.
pub(crate) fn coefficients(factor: f64) -> Vec<f64> {
    ODD_COEFFICIENT_BITS
        .iter()
        .flat_map(|&bits| [0.0, f64::from_bits(bits) * factor])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cheb::clenshaw;

    #[test]
    fn the_table_reduces_modulo_one_near_every_integer() {
        let c = coefficients(1.0);
        assert_eq!(c.len(), 96);
        let bound = 1.0 / 1024.0;
        let mut worst: f64 = 0.0;
        for i in -13..=13 {
            for k in -500..=500 {
                let m = bound * k as f64 / 500.0;
                let error = clenshaw(&c, (i as f64 + m) / HALF_WIDTH) - m;
                worst = worst.max(error.abs() / bound);
            }
        }
        assert!(worst.log2() < -19.18, "2^{}", worst.log2());
        // nothing lies between the intervals, but the values there must not be wild either
        for k in 0..=10000 {
            assert!(clenshaw(&c, k as f64 / 10000.0).abs() < 0.2);
        }
    }
}
