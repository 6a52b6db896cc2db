//! RMSNorm: mean square, inverse square root by a polynomial, product.

use cipherhop_ckks::Complex;

use super::Circuit;
use crate::backend::{Backend, Poly, span_sum};
use crate::error::HopError;

impl Circuit<'_> {
    fn lifted<B: Backend>(&self, b: &B, which: usize, x: &B::Ct) -> Result<B::Ct, HopError> {
        let start = [self.levels.s1, self.levels.s4][which];
        // The integer comes first: the rounding of the drop then stays small beside the values.
        let lift = i64::try_from(self.plan.lift[which]).unwrap_or(i64::MAX);
        b.drop_to(&b.mul_int(x, lift)?, start)
    }

    /// Residual to the normalised argument of the inverse square root, in all copies.
    pub(super) fn norm_stat<B: Backend>(
        &self,
        b: &B,
        which: usize,
        x: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let xs = self.lifted(b, which, x)?;
        let sum = span_sum(b, &b.square(&xs)?, 1, lay.d)?;
        let (a, c) = self.plan.norms[which].affine();
        let unit = self.f / self.plan.lift[which] as f64;
        let factor = a * unit * unit / lay.d as f64;
        let first = |copy: usize| if copy == 0 { 1.0 } else { 0.0 };
        let m = b.mul_plain(
            &sum,
            &lay.per_block(|copy, _, _| Complex::real(factor * first(copy))),
        )?;
        let constant = a * self.eps + c;
        let m = b.add_plain(
            &m,
            &lay.lanes_complex(|_, copy, _, _| Complex::real(constant * first(copy))),
        )?;
        span_sum(b, &m, -(lay.d as i64), lay.copies)
    }

    /// Residual times the inverse root mean square.
    pub(super) fn norm_apply<B: Backend>(
        &self,
        b: &B,
        which: usize,
        x: &B::Ct,
        m: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let unit = self.f / self.plan.lift[which] as f64;
        let name = ["norm1", "norm2"][which];
        let root = b.polys(
            m,
            &[Poly::scaled(name, &self.plan.norms[which].coeffs, unit)],
        )?;
        let xs = self.lifted(b, which, x)?;
        b.mul(&xs, &root[0])
    }
}
