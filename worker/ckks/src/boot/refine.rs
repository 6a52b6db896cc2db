//! Two bootstraps for about the sum of their precisions (Bae, Cheon, Cho, Kim, Kim 2022, "META-BTS"): what the
//! first one got wrong is small, so it is enlarged by 2^k, bootstrapped too, and added at 2^-k. The factor
//! 2^-k is folded into the coefficients of the modular reduction, so it costs no level.

use super::{BootProfile, Bootstrapper};
use crate::cipher::Ciphertext;
use crate::error::CkksError;
use crate::eval::Evaluator;

impl Bootstrapper {
    /// Largest `log_factor`: the error of one bootstrap must stay well below 2^-`log_factor`.
    pub const MAX_LOG_FACTOR: u32 = 14;

    /// What `twice_y` / 2 misses of `x`, times 2^`log_factor`, at the lowest level that can be bootstrapped.
    fn enlarged_error(
        &self,
        ev: &Evaluator,
        x: &Ciphertext,
        twice_y: &Ciphertext,
        log_factor: u32,
    ) -> Result<Ciphertext, CkksError> {
        if !(1..=Bootstrapper::MAX_LOG_FACTOR).contains(&log_factor) {
            return Err(CkksError::ValueTooLarge);
        }
        let x = ev.drop_to(x, twice_y.level())?;
        let error = ev.sub(&ev.mul_int(&x, 2), twice_y)?;
        Ok(ev.mul_int(&error, 1 << (log_factor - 1)))
    }

    /// `real` without a mask in two passes with the factor 2^`log_factor`; twice the time, the same levels.
    pub fn real_refined(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        log_factor: u32,
    ) -> Result<(Ciphertext, BootProfile), CkksError> {
        let (y, mut profile) = self.real(ev, ct, None)?;
        let low = ev.drop_to(&y, self.ctx.params().boot_in_level())?;
        let rest = self.enlarged_error(ev, ct, &ev.mul_int(&low, 2), log_factor)?;
        let gain = 1.0 / f64::from(1u32 << log_factor);
        let (rest, second) = self.real_gain(ev, &rest, None, gain)?;
        profile.add(&second);
        Ok((ev.add(&y, &rest)?, profile))
    }

    /// `complex` without a mask in two passes with the factor 2^`log_factor`.
    pub fn complex_refined(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        log_factor: u32,
    ) -> Result<(Ciphertext, Ciphertext, BootProfile), CkksError> {
        let (re, im, mut profile) = self.complex(ev, ct, None)?;
        // The real parts alone, 2 re + 2i im: what noise left in the imaginary part of one result must not
        // count as an error of the other.
        let level = self.ctx.params().boot_in_level();
        let (a, b) = (ev.drop_to(&re, level)?, ev.drop_to(&im, level)?);
        let b = ev.mul_i(&b);
        let twice = ev.add(&ev.add(&a, &b)?, &ev.conjugate(&ev.sub(&a, &b)?)?)?;
        let rest = self.enlarged_error(ev, ct, &twice, log_factor)?;
        let gain = 1.0 / f64::from(1u32 << log_factor);
        let (rest_re, rest_im, second) = self.complex_gain(ev, &rest, None, gain)?;
        profile.add(&second);
        Ok((ev.add(&re, &rest_re)?, ev.add(&im, &rest_im)?, profile))
    }
}
