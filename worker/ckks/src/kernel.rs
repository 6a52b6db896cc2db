//! Whole-limb operations, behind a trait so that SIMD and GPU versions can stand beside the scalar
//! reference and be tested against it. Inputs and outputs are canonical residues unless said otherwise.

use crate::modular::{Modulus, Shoup};
use crate::ntt::NttTable;

/// Operations on single limbs. Implementations must agree byte for byte with [`ScalarKernel`].
pub trait Kernel: Send + Sync + std::fmt::Debug {
    /// Name for reports.
    fn name(&self) -> &'static str;

    /// In-place forward transform of the sub-ring of degree `a.len()` (a power of two from 2 up to the
    /// table's degree). Accepts inputs below 2q.
    fn ntt_forward(&self, table: &NttTable, a: &mut [u64]);

    /// In-place inverse transform of the full ring.
    fn ntt_inverse(&self, table: &NttTable, a: &mut [u64]);

    /// a += b
    fn add(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        for (x, y) in a.iter_mut().zip(b) {
            *x = m.add(*x, *y);
        }
    }

    /// a -= b
    fn sub(&self, m: &Modulus, a: &mut [u64], b: &[u64]) {
        for (x, y) in a.iter_mut().zip(b) {
            *x = m.sub(*x, *y);
        }
    }

    /// a = -a
    fn neg(&self, m: &Modulus, a: &mut [u64]) {
        for x in a {
            *x = m.neg(*x);
        }
    }

    /// out = a * b
    fn mul(&self, m: &Modulus, out: &mut [u64], a: &[u64], b: &[u64]) {
        for ((o, x), y) in out.iter_mut().zip(a).zip(b) {
            *o = m.mul(*x, *y);
        }
    }

    /// a = a * w
    fn scale(&self, m: &Modulus, a: &mut [u64], w: Shoup) {
        for x in a {
            *x = m.mul_shoup(w, *x);
        }
    }
}

/// The reference implementation: portable integer code.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScalarKernel;

impl Kernel for ScalarKernel {
    fn name(&self) -> &'static str {
        "scalar"
    }

    fn ntt_forward(&self, table: &NttTable, a: &mut [u64]) {
        let m = &table.modulus;
        let (q, two_q) = (m.value(), 2 * m.value());
        let mut t = a.len() / 2;
        let mut blocks = 1;
        // each layer adds at most 2q: after 16 layers a value is below 34q < 2^56
        while t >= 1 {
            for (block, w) in a.chunks_exact_mut(2 * t).zip(&table.forward[blocks..]) {
                let (lo, hi) = block.split_at_mut(t);
                for (x, y) in lo.iter_mut().zip(hi) {
                    let u = *x;
                    let v = w.mul_lazy(*y, q);
                    *x = u + v;
                    *y = u + two_q - v;
                }
            }
            blocks *= 2;
            t /= 2;
        }
        for x in a {
            *x = m.reduce(*x);
        }
    }

    fn ntt_inverse(&self, table: &NttTable, a: &mut [u64]) {
        let m = &table.modulus;
        let (q, two_q) = (m.value(), 2 * m.value());
        let mut t = 1;
        let mut blocks = a.len() / 2;
        while blocks > 1 {
            for (block, w) in a.chunks_exact_mut(2 * t).zip(&table.inverse[blocks..]) {
                let (lo, hi) = block.split_at_mut(t);
                for (x, y) in lo.iter_mut().zip(hi) {
                    let (u, v) = (*x, *y);
                    let s = u + v;
                    *x = s.min(s.wrapping_sub(two_q));
                    *y = w.mul_lazy(u + two_q - v, q);
                }
            }
            blocks /= 2;
            t *= 2;
        }
        let (lo, hi) = a.split_at_mut(t);
        for (x, y) in lo.iter_mut().zip(hi) {
            let (u, v) = (*x, *y);
            *x = m.mul_shoup(table.n_inv, u + v);
            *y = m.mul_shoup(table.n_inv_root, u + two_q - v);
        }
    }
}
