//! A kernel on double-precision vectors. Residues below 2^50 and all intermediate results are integers that
//! f64 holds exactly; a fused multiply-add gives the low half of a product, so every step is exact and the
//! bytes are those of the scalar kernel (the technique is van der Hoeven, Lecerf, Quintin 2016, section 3).
//! Needs AVX2 and FMA on x86-64, which are looked for at run time.
//!
//! Bounds. For |x| <= k*q and |w| <= q/2 the quotient estimate is off by at most 1/2 + 0.1875*k (three
//! roundings of 2^-53 on k*q/2 < k*2^49), so `mul` returns |r| <= (1/2 + 0.1875*k)*q. Exactness needs every
//! sum below 2^53, that is k <= 8.

mod fused;
mod inverse;
mod ops;
mod permute;
mod sums;
mod transform;
mod vector;
mod wide;

use crate::convert::SourceConstants;
use crate::fused::{BabySums, SumLimb, baby_sums_scalar};
use crate::isa::Isa;
use crate::kernel::{BLOCK, Kernel, KeyProduct, Raise, ScalarKernel, key_product_in_parts};
use crate::modular::{Modulus, Shoup};
use crate::ntt::NttTable;
use pulp::NullaryFnOnce;
use wide::LANES;

/// A modulus and its inverse as f64.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    q: f64,
    inverse: f64,
}

/// Primes below this have room for lazy values and long sums in f64.
const SMALL: f64 = (1u64 << 43) as f64;

const MAGIC: f64 = 4503599627370496.0; // 2^52
const MAGIC_BITS: u64 = 0x4330_0000_0000_0000;

/// An integer below 2^52 as f64.
#[inline(always)]
fn load(x: u64) -> f64 {
    f64::from_bits(x | MAGIC_BITS) - MAGIC
}

/// A non-negative integer below 2^52 from f64.
#[inline(always)]
fn store(x: f64) -> u64 {
    (x + MAGIC).to_bits() ^ MAGIC_BITS
}

impl Field {
    fn new(m: &Modulus) -> Field {
        let q = m.value() as f64;
        Field {
            q,
            inverse: 1.0 / q,
        }
    }

    /// A residue in (-q/2, q/2).
    fn centred(m: &Modulus, w: u64) -> f64 {
        m.centre(w) as f64
    }

    /// A representative of x*w; see the bounds above.
    #[inline(always)]
    fn mul(self, x: f64, w: f64) -> f64 {
        let high = x * w;
        let low = x.mul_add(w, -high);
        let c = (high * self.inverse).round_ties_even();
        (-c).mul_add(self.q, high) + low
    }

    /// The representative of least absolute value, up to rounding of the quotient.
    #[inline(always)]
    fn reduce(self, x: f64) -> f64 {
        let c = (x * self.inverse).round_ties_even();
        (-c).mul_add(self.q, x)
    }

    /// The canonical residue.
    #[inline(always)]
    fn canonical(self, x: f64) -> u64 {
        self.lift_negative(self.reduce(x))
    }

    /// The canonical residue of an integer in (-q, q).
    #[inline(always)]
    fn lift_negative(self, x: f64) -> u64 {
        store(x + if x < 0.0 { self.q } else { 0.0 })
    }

    /// The canonical residue of x*w for |x| <= q and |w| <= q/2: `mul` stays below 0.69q.
    #[inline(always)]
    fn product(self, x: f64, w: f64) -> u64 {
        self.lift_negative(self.mul(x, w))
    }
}

/// f64 vectors where the processor has fused multiply-add.
#[derive(Debug, Clone, Copy)]
pub struct FmaKernel {
    #[cfg(target_arch = "x86_64")]
    level: pulp::x86::V3,
}

impl FmaKernel {
    /// `None` if this processor has no suitable instructions.
    #[cfg(target_arch = "x86_64")]
    pub fn try_new() -> Option<FmaKernel> {
        pulp::x86::V3::try_new().map(|level| FmaKernel { level })
    }

    /// `None` if this processor has no suitable instructions.
    #[cfg(target_arch = "aarch64")]
    pub fn try_new() -> Option<FmaKernel> {
        Some(FmaKernel {})
    }

    /// `None` if this processor has no suitable instructions.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn try_new() -> Option<FmaKernel> {
        None
    }

    #[cfg(target_arch = "x86_64")]
    fn run<Op: NullaryFnOnce<Output = ()>>(&self, op: Op) {
        self.level.vectorize(op);
    }

    fn inverse<'a>(
        &self,
        table: &'a NttTable,
        from: Option<&'a [u64]>,
        a: &'a mut [u64],
    ) -> inverse::Inverse<'a> {
        let m = &table.modulus;
        inverse::Inverse {
            native: self.native(),
            field: Field::new(m),
            roots: &table.inverse_f64,
            n_inv: Field::centred(m, table.n_inv.w),
            n_inv_root: Field::centred(m, table.n_inv_root.w),
            from,
            a,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn native(&self) -> vector::Native {
        self.level
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn native(&self) -> vector::Native {
        vector::Arrays
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn run<Op: NullaryFnOnce<Output = ()>>(&self, op: Op) {
        op.call();
    }
}

impl Kernel for FmaKernel {
    fn name(&self) -> &'static str {
        if cfg!(target_arch = "aarch64") {
            Isa::Neon.name()
        } else {
            Isa::Avx2.name()
        }
    }

    fn ntt_forward(&self, table: &NttTable, a: &mut [u64]) {
        if a.len() < transform::SMALLEST {
            return ScalarKernel.ntt_forward(table, a);
        }
        self.run(transform::Forward {
            native: self.native(),
            lazy: false,
            field: Field::new(&table.modulus),
            roots: &table.forward_f64,
            a,
            finish: None,
        });
    }

    fn ntt_inverse(&self, table: &NttTable, a: &mut [u64]) {
        if a.len() < transform::SMALLEST {
            return ScalarKernel.ntt_inverse(table, a);
        }
        self.run(self.inverse(table, None, a));
    }

    fn ntt_inverse_from(&self, table: &NttTable, x: &[u64], out: &mut [u64]) {
        if out.len() < transform::SMALLEST {
            return ScalarKernel.ntt_inverse_from(table, x, out);
        }
        self.run(self.inverse(table, Some(x), out));
    }

    fn dot(&self, m: &Modulus, out: &mut [u64], terms: &[(&[u64], &[u64])]) {
        if !out.len().is_multiple_of(LANES) {
            return ScalarKernel.dot(m, out, terms);
        }
        self.run(ops::Dot {
            native: self.native(),
            field: Field::new(m),
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
        self.run(ops::DotPermuted {
            native: self.native(),
            field: Field::new(m),
            out0,
            out1,
            table,
            terms0,
            terms1,
        });
    }

    fn prepare(&self, sources: &[SourceConstants], limbs: &[&[u64]], out: &mut [u64]) {
        if limbs.first().is_none_or(|l| l.len() < BLOCK) {
            return ScalarKernel.prepare(sources, limbs, out);
        }
        self.run(sums::Prepare {
            native: self.native(),
            sources,
            limbs,
            out,
        });
    }

    fn raise(&self, prepared: &[u64], targets: &mut [Raise]) {
        if targets.first().is_none_or(|t| t.out.len() < BLOCK) {
            return ScalarKernel.raise(prepared, targets);
        }
        for targets in targets.chunks_mut(sums::TARGETS) {
            let native = self.native();
            self.run(sums::Convert {
                native,
                prepared,
                targets,
            });
            for target in targets {
                let modulus = &target.table.modulus;
                self.run(transform::Forward {
                    native,
                    lazy: true,
                    field: Field::new(modulus),
                    roots: &target.table.forward_f64,
                    a: target.out,
                    finish: target
                        .finish
                        .map(|(x, w)| (x, Field::centred(modulus, w.w))),
                });
            }
        }
    }

    fn key_product(&self, m: &Modulus, out0: &mut [u64], out1: &mut [u64], p: &KeyProduct) {
        if p.terms.len() > sums::MAX_TERMS || !out0.len().is_multiple_of(LANES) {
            return key_product_in_parts(self, m, out0, out1, p);
        }
        self.run(sums::Key {
            native: self.native(),
            field: Field::new(m),
            out0,
            out1,
            product: p,
        });
    }

    fn permute(&self, table: &[u32], x: &[u64], out: &mut [u64]) {
        self.run(permute::Permute {
            native: self.native(),
            table,
            x,
            out,
        });
    }

    fn add(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        let field = Field::new(m);
        self.run(ops::Add { field, a, b });
    }

    fn sub(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        let field = Field::new(m);
        self.run(ops::Sub { field, a, b });
    }

    fn residues(&self, m: &Modulus, x: &[i64], out: &mut [u64]) {
        self.run(ops::Residues { modulus: m, x, out });
    }

    fn lift(&self, source: u64, m: &Modulus, x: &[u64], out: &mut [u64]) {
        self.run(ops::Lift {
            field: Field::new(m),
            source: source as f64,
            x,
            out,
        });
    }

    fn sub_scale(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        self.run(ops::SubScale {
            field: Field::new(m),
            w: Field::centred(m, w.w),
            out,
            x,
        });
    }

    fn add_scaled(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        self.run(ops::AddScaled {
            field: Field::new(m),
            w: Field::centred(m, w.w),
            out,
            x,
        });
    }

    fn scale(&self, m: &Modulus, a: &mut [u64], w: Shoup) {
        self.run(ops::Scale {
            field: Field::new(m),
            w: Field::centred(m, w.w),
            a,
        });
    }

    fn baby_sums(&self, m: &Modulus, job: &BabySums<'_>, out: &mut [SumLimb<'_>]) {
        if !fused::fits(job, out) {
            return baby_sums_scalar(m, job, out);
        }
        self.run(fused::Pass {
            native: self.native(),
            field: Field::new(m),
            p: job.input.map_or(0.0, |i| i.p.w as f64),
            job,
            out,
        });
    }
}
