//! A kernel on 52-bit integer multiply-add, eight lanes at a time (AVX-512 IFMA on x86-64, looked for at run
//! time). The algorithms are written once over [`Lanes`], which has the instructions and their exact emulation
//! behind it, so that they are tested on machines without them too.
//!
//! Bounds. Moduli are below 2^50, so 4q fits the 52 bits that a multiplication reads. A product by a constant
//! with its quotient floor(w * 2^52 / q) (Shoup) comes out in [0, 2q) for any factor below 2^52.

mod fused;
mod lanes;
mod ops;
mod permute;
mod raise;
mod sums;
mod transform;

use crate::convert::SourceConstants;
use crate::fma::FmaKernel;
use crate::fused::{BabySums, SumLimb, baby_sums_scalar};
use crate::kernel::{BLOCK, Kernel, KeyProduct, Raise, ScalarKernel, key_product_in_parts};
use crate::modular::{Modulus, Shoup};
use crate::ntt::NttTable;
use lanes::{Emulated, Lanes, MASK52};
use std::sync::Arc;

pub(crate) use transform::Roots52;

/// A constant factor in all lanes, or one in each.
#[derive(Clone, Copy)]
struct Factor<L: Lanes> {
    w: L::V,
    quotient: L::V,
}

impl<L: Lanes> Factor<L> {
    #[inline(always)]
    fn splat(l: L, w: Shoup) -> Factor<L> {
        Factor {
            w: l.splat(w.w),
            quotient: l.splat(w.quotient >> 12),
        }
    }
}

/// q^-1 modulo 2^52, q odd: each step of Newton's iteration doubles the bits that are right, three at first.
fn odd_inverse(q: u64) -> u64 {
    let step = |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(q.wrapping_mul(x)));
    (0..5).fold(q, step) & MASK52
}

/// A modulus in all lanes.
#[derive(Clone, Copy)]
struct Field<L: Lanes> {
    l: L,
    q: L::V,
    two_q: L::V,
    /// 2^52 - q
    minus_q: L::V,
    /// floor(2^52 / q)
    inverse: L::V,
    /// q^-1 modulo 2^52
    odd_inverse: L::V,
    mask: L::V,
    zero: L::V,
}

impl<L: Lanes> Field<L> {
    #[inline(always)]
    fn new(l: L, m: &Modulus) -> Field<L> {
        let q = m.value();
        Field {
            l,
            q: l.splat(q),
            two_q: l.splat(2 * q),
            minus_q: l.splat((1 << 52) - q),
            inverse: l.splat((1 << 52) / q),
            odd_inverse: l.splat(odd_inverse(q)),
            mask: l.splat(MASK52),
            zero: l.splat(0),
        }
    }

    /// x * w mod q in [0, 2q), for x < 2^52.
    #[inline(always)]
    fn mul(self, x: L::V, f: Factor<L>) -> L::V {
        let l = self.l;
        let h = l.madd_hi(self.zero, x, f.quotient);
        let r = l.madd_lo(l.madd_lo(self.zero, x, f.w), h, self.minus_q);
        l.and(r, self.mask)
    }

    /// x mod q in [0, 2q), for x < 2^52.
    #[inline(always)]
    fn reduce(self, x: L::V) -> L::V {
        let l = self.l;
        let h = l.madd_hi(self.zero, x, self.inverse);
        l.sub(x, l.madd_lo(self.zero, h, self.q))
    }

    /// From [0, 4q) to [0, 2q).
    #[inline(always)]
    fn halve(self, x: L::V) -> L::V {
        self.l.min(x, self.l.sub(x, self.two_q))
    }

    /// From [0, 2q) to [0, q).
    #[inline(always)]
    fn fold(self, x: L::V) -> L::V {
        self.l.min(x, self.l.sub(x, self.q))
    }
}

/// The kernel, on instructions or on their emulation.
#[derive(Debug, Clone, Copy)]
struct IfmaKernel<L: Lanes> {
    l: L,
}

/// The kernel on this processor's instructions; `None` where it lacks them.
pub(crate) fn ifma_kernel() -> Option<Arc<dyn Kernel>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(l) = lanes::Avx512::try_new() {
        return Some(Arc::new(IfmaKernel { l }));
    }
    None
}

/// The same kernel on emulated instructions: slow, for tests on machines that lack them.
pub fn emulated_ifma_kernel() -> Arc<dyn Kernel> {
    Arc::new(IfmaKernel { l: Emulated })
}

impl<L: Lanes> Kernel for IfmaKernel<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn ntt_forward(&self, table: &NttTable, a: &mut [u64]) {
        if a.len() < transform::SMALLEST {
            return ScalarKernel.ntt_forward(table, a);
        }
        self.l.run(transform::Forward {
            l: self.l,
            m: &table.modulus,
            roots: &table.roots_52()[0],
            a,
            finish: None,
        });
    }

    fn ntt_inverse(&self, table: &NttTable, a: &mut [u64]) {
        if a.len() < transform::SMALLEST {
            return ScalarKernel.ntt_inverse(table, a);
        }
        self.inverse(table, None, a);
    }

    fn ntt_inverse_from(&self, table: &NttTable, x: &[u64], out: &mut [u64]) {
        if out.len() < transform::SMALLEST {
            return ScalarKernel.ntt_inverse_from(table, x, out);
        }
        self.inverse(table, Some(x), out);
    }

    fn add(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        self.map(m, ops::Op::Add, a, b);
    }

    fn sub(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        self.map(m, ops::Op::Sub, a, b);
    }

    fn dot(&self, m: &Modulus, out: &mut [u64], terms: &[(&[u64], &[u64])]) {
        if !out.len().is_multiple_of(8) {
            return ScalarKernel.dot(m, out, terms);
        }
        self.l.run(sums::Dot {
            l: self.l,
            m,
            out,
            terms,
        });
    }

    fn dot_permuted(
        &self,
        m: &Modulus,
        out0: &mut [u64],
        out1: &mut [u64],
        table: &[u32],
        terms0: &[(&[u64], &[u64])],
        terms1: &[(&[u64], &[u64])],
    ) {
        if !out0.len().is_multiple_of(8) {
            return ScalarKernel.dot_permuted(m, out0, out1, table, terms0, terms1);
        }
        self.l.run(sums::DotPermuted {
            l: self.l,
            m,
            out0,
            out1,
            table,
            terms0,
            terms1,
        });
    }

    fn convert(
        &self,
        m: &Modulus,
        weights: &[u64],
        hats: &[u64],
        overflow: &[u64],
        out: &mut [u64],
    ) {
        if !out.len().is_multiple_of(8) {
            return ScalarKernel.convert(m, weights, hats, overflow, out);
        }
        self.l.run(sums::Convert {
            l: self.l,
            m,
            weights,
            hats,
            overflow,
            out,
        });
    }

    fn lift(&self, source: u64, m: &Modulus, x: &[u64], out: &mut [u64]) {
        self.map(m, ops::Op::Lift(source), out, x);
    }

    fn sub_scale(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        self.map(m, ops::Op::SubScale(w), out, x);
    }

    fn add_scaled(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        self.map(m, ops::Op::AddScaled(w), out, x);
    }

    fn prepare(&self, sources: &[SourceConstants], limbs: &[&[u64]], out: &mut [u64]) {
        if limbs.first().is_none_or(|l| l.len() < BLOCK) {
            return ScalarKernel.prepare(sources, limbs, out);
        }
        self.l.run(raise::Prepare {
            l: self.l,
            sources,
            limbs,
            out,
        });
    }

    fn raise(&self, prepared: &[u64], targets: &mut [Raise]) {
        if targets.first().is_none_or(|t| t.out.len() < BLOCK) {
            return ScalarKernel.raise(prepared, targets);
        }
        let l = self.l;
        for targets in targets.chunks_mut(raise::TARGETS) {
            l.run(raise::Convert {
                l,
                prepared,
                targets,
            });
            for target in targets {
                l.run(transform::Forward {
                    l,
                    m: &target.table.modulus,
                    roots: &target.table.roots_52()[0],
                    a: target.out,
                    finish: target.finish,
                });
            }
        }
    }

    fn key_product(&self, m: &Modulus, out0: &mut [u64], out1: &mut [u64], p: &KeyProduct) {
        if p.terms.len() > sums::MAX_DIGITS || !out0.len().is_multiple_of(8) {
            return key_product_in_parts(self, m, out0, out1, p);
        }
        self.l.run(sums::Key {
            l: self.l,
            m,
            out0,
            out1,
            product: p,
        });
    }

    fn permute(&self, table: &[u32], x: &[u64], out: &mut [u64]) {
        if !out.len().is_multiple_of(8) {
            return ScalarKernel.permute(table, x, out);
        }
        let l = self.l;
        l.run(permute::Permute { l, table, x, out });
    }

    /// Done by the kernel on f64 vectors, which every processor with these instructions can run.
    fn residues(&self, m: &Modulus, x: &[i64], out: &mut [u64]) {
        match FmaKernel::try_new() {
            Some(kernel) => kernel.residues(m, x, out),
            None => ScalarKernel.residues(m, x, out),
        }
    }

    fn baby_sums(&self, m: &Modulus, job: &BabySums<'_>, out: &mut [SumLimb<'_>]) {
        if !fused::fits(job, out) {
            return baby_sums_scalar(m, job, out);
        }
        let l = self.l;
        l.run(fused::Pass { l, m, job, out });
    }

    fn scale(&self, m: &Modulus, a: &mut [u64], w: Shoup) {
        if !a.len().is_multiple_of(8) {
            return ScalarKernel.scale(m, a, w);
        }
        self.l.run(ops::Scale { l: self.l, m, w, a });
    }
}

impl<L: Lanes> IfmaKernel<L> {
    fn inverse(&self, table: &NttTable, from: Option<&[u64]>, a: &mut [u64]) {
        self.l.run(transform::Inverse {
            l: self.l,
            m: &table.modulus,
            roots: &table.roots_52()[1],
            n_inv: table.n_inv,
            n_inv_root: table.n_inv_root,
            from,
            a,
        });
    }

    fn map(&self, m: &Modulus, op: ops::Op, out: &mut [u64], x: &[u64]) {
        if out.len().is_multiple_of(8) {
            let l = self.l;
            return l.run(ops::Map { l, m, op, out, x });
        }
        match op {
            ops::Op::Add => ScalarKernel.add(m, out, x),
            ops::Op::Sub => ScalarKernel.sub(m, out, x),
            ops::Op::Lift(source) => ScalarKernel.lift(source, m, x, out),
            ops::Op::SubScale(w) => ScalarKernel.sub_scale(m, out, x, w),
            ops::Op::AddScaled(w) => ScalarKernel.add_scaled(m, out, x, w),
        }
    }
}

#[cfg(test)]
mod tests;
