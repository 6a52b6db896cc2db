//! SwiGLU: gate and up in one product, silu, down.

use cipherhop_ckks::Complex;

use super::{Circuit, one};
use crate::backend::{Backend, Poly, span_sum};
use crate::error::HopError;

impl Circuit<'_> {
    /// A part of the product: gate in units of half its interval (real), up in units of its bound (imaginary).
    pub(super) fn gate_up<B: Backend>(
        &self,
        b: &B,
        part: usize,
        h: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let d = lay.d;
        let (a, _) = self.plan.silu.affine();
        let up = 1.0 / self.plan.up;
        let weight = |unit: usize, k: usize| {
            let (g, u) = (w.gate[unit * d + k], w.up[unit * d + k]);
            Complex::new(a * f64::from(g), up * f64::from(u))
        };
        b.linear(h, &self.part(lay.gate_up_map(), part)?, &weight)
    }

    /// Sum of the parts, with the middle of the gate's interval taken off.
    pub(super) fn centre<B: Backend>(&self, b: &B, parts: &[B::Ct]) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let (_, c) = self.plan.silu.affine();
        let mut y = self.gathered(b, parts, lay.mlp, lay.gate_splits)?;
        let mut used = vec![false; lay.block];
        (0..lay.mlp).for_each(|u| used[lay.unit_pos(u)] = true);
        if lay.gate_splits > 1 {
            // Partial sums that other row groups have left may exceed the bounds.
            let mask: Vec<Complex> = used.iter().map(|u| one(*u)).collect();
            y = b.mul_plain(&y, &mask)?;
        }
        let y = b.add_plain(&y, &lay.per_token(|_, p| one(used[p]).scale(c)))?;
        b.drop_to(&y, self.levels.floor)
    }

    /// silu(gate) * up / bound of up.
    pub(super) fn act<B: Backend>(
        &self,
        b: &B,
        gate: &B::Ct,
        up: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let gate = b.drop_to(gate, self.levels.s5)?;
        let silu = b.polys(&gate, &[Poly::scaled("silu", &self.plan.silu.coeffs, 1.0)])?;
        b.mul(&silu[0], up)
    }

    /// A part of the partial MLP outputs, one row group per copy.
    pub(super) fn down<B: Backend>(
        &self,
        b: &B,
        part: usize,
        act: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let map = self.part(lay.down_map(), part)?;
        let x = self.paired(b, act, &map)?;
        let unit = self.plan.up / self.plan.down;
        let weight =
            |out: usize, k: usize| Complex::real(unit * f64::from(w.down[out * lay.mlp + k]));
        b.linear(&x, &map, &weight)
    }

    /// Sum of the row groups, in all copies.
    pub(super) fn gather<B: Backend>(&self, b: &B, parts: &[B::Ct]) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let d = lay.d as i64;
        let y = self.sum(b, parts)?;
        let sum = span_sum(b, &y, d, lay.down_copies())?;
        let first = b.mul_plain(&sum, &lay.per_block(|c, _, _| one(c == 0)))?;
        span_sum(b, &first, -d, lay.copies)
    }
}
