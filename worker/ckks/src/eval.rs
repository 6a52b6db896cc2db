//! The evaluator: what a circuit may do with ciphertexts. Binary operations align their operands to the
//! lower level by themselves; every result is canonical and on the scale of its level.

mod linear_ops;
mod multiply;
mod rotate;

pub use multiply::Tensor;

use crate::cipher::{Ciphertext, PlainKind, Plaintext, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::encode::round_constant;
use crate::error::CkksError;
use crate::keys::KeySource;
use crate::poly::{Poly, most_limbs};
use rayon::prelude::*;
use std::borrow::Cow;
use std::sync::Arc;

/// Computes on ciphertexts with evaluation keys only.
#[derive(Clone)]
pub struct Evaluator {
    pub(crate) ctx: Arc<Context>,
    pub(crate) keys: Arc<dyn KeySource>,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator")
            .field("params", &self.ctx.params().name)
            .finish_non_exhaustive()
    }
}

/// Residues of a constant on both halves of the transform.
pub(crate) struct Constant {
    pub(crate) re: i64,
    pub(crate) im: i64,
}

impl Evaluator {
    /// An evaluator over a context and a source of keys.
    pub fn new(ctx: Arc<Context>, keys: Arc<dyn KeySource>) -> Evaluator {
        Evaluator { ctx, keys }
    }

    /// The context.
    pub fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// The source of keys.
    pub fn keys(&self) -> &Arc<dyn KeySource> {
        &self.keys
    }

    /// Brings both operands to the lower of their levels.
    pub(crate) fn align<'a>(
        &self,
        a: &'a Ciphertext,
        b: &'a Ciphertext,
    ) -> Result<(Cow<'a, Ciphertext>, Cow<'a, Ciphertext>), CkksError> {
        if a.scale != b.scale {
            return Err(CkksError::ScaleMismatch(a.scale, b.scale));
        }
        let level = a.level.min(b.level);
        Ok((self.lowered(a, level)?, self.lowered(b, level)?))
    }

    pub(crate) fn lowered<'a>(
        &self,
        a: &'a Ciphertext,
        level: usize,
    ) -> Result<Cow<'a, Ciphertext>, CkksError> {
        Ok(if a.level == level {
            Cow::Borrowed(a)
        } else {
            Cow::Owned(self.drop_to(a, level)?)
        })
    }

    /// Lowers a ciphertext to `level`, exactly on that level's scale: upper limbs are dropped, the rest is
    /// multiplied by the integer nearest to q_(level+1) * D_level / D_current and rescaled.
    pub fn drop_to(&self, a: &Ciphertext, level: usize) -> Result<Ciphertext, CkksError> {
        if level > a.level {
            return Err(CkksError::LevelTooLow {
                have: a.level,
                need: level,
            });
        }
        if level == a.level {
            return Ok(a.clone());
        }
        let ctx = &self.ctx;
        let here = ctx.scale_of(a.scale, a.level)?;
        let there = ctx.scale_of(a.scale, level)?;
        let factor = round_constant(ctx.modulus(level + 1).value() as f64 * there / here)?;
        let lower = |c: &Poly| {
            let mut c = c.lowest(level + 2);
            self.scale_poly(&mut c, &Constant { re: factor, im: 0 });
            c
        };
        let (c0, c1) = (lower(&a.c0), lower(&a.c1));
        let [c0, c1] = ctx.rescale_polys([&c0, &c1])?;
        Ok(Ciphertext {
            c0,
            c1,
            level,
            scale: a.scale,
        })
    }

    /// Applies `f(limb number, limb of x, limb of y)` to all limbs.
    pub(crate) fn zip_limbs(
        &self,
        x: &mut Poly,
        y: &Poly,
        f: impl Fn(usize, &mut [u64], &[u64]) + Send + Sync,
    ) {
        debug_assert_eq!((x.limbs, x.domain), (y.limbs, y.domain));
        let n = x.n;
        x.data
            .par_chunks_exact_mut(n)
            .zip(y.data.par_chunks_exact(n))
            .enumerate()
            .with_max_len(most_limbs(n))
            .with_min_len(1 + (1 << 13) / n)
            .for_each(|(i, (a, b))| f(i, a, b));
    }

    pub(crate) fn add_poly(&self, x: &mut Poly, y: &Poly) {
        let ctx = &self.ctx;
        self.zip_limbs(x, y, |i, a, b| ctx.kernel().add(ctx.modulus(i), a, b));
    }

    pub(crate) fn sub_poly(&self, x: &mut Poly, y: &Poly) {
        let ctx = &self.ctx;
        self.zip_limbs(x, y, |i, a, b| ctx.kernel().sub(ctx.modulus(i), a, b));
    }

    /// Applies `f` to all limbs.
    pub(crate) fn each_limb(&self, x: &mut Poly, f: impl Fn(usize, &mut [u64]) + Send + Sync) {
        self.each_limb_of(std::array::from_mut(x), |i, [limb]| f(i, limb));
    }

    /// The same on polynomials of one shape side by side.
    pub(crate) fn each_limb_of<const C: usize>(
        &self,
        polys: &mut [Poly; C],
        f: impl Fn(usize, [&mut [u64]; C]) + Send + Sync,
    ) {
        let n = self.ctx.n();
        let limbs = polys.first().map_or(0, |p| p.limbs);
        let mut rest = polys.each_mut().map(|p| p.data.chunks_exact_mut(n));
        let limbs: Vec<_> = (0..limbs)
            .map(|_| rest.each_mut().map(|r| r.next().unwrap_or_default()))
            .collect();
        limbs
            .into_par_iter()
            .enumerate()
            .with_max_len(most_limbs(n))
            .with_min_len(1 + (1 << 13) / n)
            .for_each(|(i, parts)| f(i, parts));
    }

    /// Multiplies by the polynomial re + im*X^(N/2), whose slots are all re + im*i: its transform is
    /// constant on each half.
    pub(crate) fn scale_poly(&self, x: &mut Poly, c: &Constant) {
        let ctx = &self.ctx;
        self.each_limb(x, |i, limb| {
            let (m, table) = (ctx.modulus(i), ctx.table(i));
            let re = m.from_i64(c.re);
            let im = m.mul_shoup(table.imaginary, m.from_i64(c.im));
            let (lo, hi) = limb.split_at_mut(limb.len() / 2);
            ctx.kernel().scale(m, lo, m.shoup(m.add(re, im)));
            ctx.kernel().scale(m, hi, m.shoup(m.sub(re, im)));
        });
    }

    fn constant(&self, c: Complex, scale: f64) -> Result<Constant, CkksError> {
        Ok(Constant {
            re: round_constant(c.re * scale)?,
            im: round_constant(c.im * scale)?,
        })
    }

    pub(crate) fn check_plain(
        &self,
        a: &Ciphertext,
        p: &Plaintext,
        kind: PlainKind,
    ) -> Result<(), CkksError> {
        if p.kind != kind && p.kind != PlainKind::Raw {
            return Err(CkksError::PlaintextMismatch("made for another operation"));
        }
        if p.limbs != a.level + 1 {
            return Err(CkksError::PlaintextMismatch("made for another level"));
        }
        if p.scale != a.scale {
            return Err(CkksError::ScaleMismatch(a.scale, p.scale));
        }
        if p.len == 0 || !p.len.is_power_of_two() || p.len > self.ctx.n() {
            return Err(CkksError::PlaintextMismatch("made for another ring"));
        }
        Ok(())
    }

    /// Same ciphertext read on the message row: the value grows by 2^8 (the ratio of the two rows at the
    /// level where they meet). Only at that level.
    pub(crate) fn reread_as_message(&self, mut a: Ciphertext) -> Result<Ciphertext, CkksError> {
        if a.scale != ScaleId::EvalMod || a.level != self.ctx.params().boot_out_level() {
            return Err(CkksError::BadLevel(a.level));
        }
        a.scale = ScaleId::Message;
        Ok(a)
    }
}
