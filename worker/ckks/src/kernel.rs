//! Whole-limb operations, behind a trait so that SIMD and GPU versions can stand beside the scalar
//! reference and be tested against it. Inputs and outputs are canonical residues unless said otherwise.

use crate::convert::SourceConstants;
use crate::fused::{BabySums, SumLimb, baby_sums_scalar};
use crate::modular::{Modulus, Shoup};
use crate::ntt::NttTable;

/// Coefficients that a base conversion lays out together.
pub const BLOCK: usize = 256;

/// Operations on single limbs. Implementations must agree byte for byte with [`ScalarKernel`]; the provided
/// methods are its code.
pub trait Kernel: Send + Sync + std::fmt::Debug {
    /// Name for reports.
    fn name(&self) -> &'static str;

    /// In-place forward transform of the sub-ring of degree `a.len()` (a power of two from 2 up to the
    /// table's degree).
    fn ntt_forward(&self, table: &NttTable, a: &mut [u64]);

    /// In-place inverse transform of the full ring.
    fn ntt_inverse(&self, table: &NttTable, a: &mut [u64]);

    /// The same from one place to another.
    fn ntt_inverse_from(&self, table: &NttTable, x: &[u64], out: &mut [u64]) {
        out.copy_from_slice(x);
        self.ntt_inverse(table, out);
    }

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

    /// out = sum of x * y over the terms. A second operand may be shorter than `out`: each of its values
    /// then serves out.len() / y.len() consecutive entries. At most 2^20 terms.
    fn dot(&self, m: &Modulus, out: &mut [u64], terms: &[(&[u64], &[u64])]);

    /// Two sums of products that share their first operands, taken through an automorphism:
    /// out0 = sum x[table] * y0, out1 = sum x[table] * y1. All slices have the same length.
    fn dot_permuted(
        &self,
        m: &Modulus,
        out0: &mut [u64],
        out1: &mut [u64],
        table: &[u32],
        terms0: &[(&[u64], &[u64])],
        terms1: &[(&[u64], &[u64])],
    );

    /// One target limb of a base conversion: out = sum of hats_i * weights_i over the k source limbs of
    /// `hats`, plus overflow * weights_k. Hats are below 2^50, overflow is at most k, weights are residues.
    fn convert(
        &self,
        m: &Modulus,
        weights: &[u64],
        hats: &[u64],
        overflow: &[u64],
        out: &mut [u64],
    ) {
        crate::convert::convert_scalar(m, weights, hats, overflow, out);
    }

    /// Conversion to several targets at once, each a modulus with its weights.
    fn convert_many(
        &self,
        targets: &[(&Modulus, &[u64])],
        hats: &[u64],
        overflow: &[u64],
        outs: &mut [&mut [u64]],
    ) {
        for ((m, weights), out) in targets.iter().zip(outs) {
            self.convert(m, weights, hats, overflow, out);
        }
    }

    /// The overflow of a base conversion, from the k source limbs of hats.
    fn count_overflow(&self, sources: &[SourceConstants], hats: &[&[u64]], overflow: &mut [u64]) {
        crate::convert::count_overflow(sources, hats, overflow);
    }

    /// Gets the limbs of a base ready for [`Kernel::raise`]: x_i * (D/d_i)^-1 mod d_i, D the product of the base, and
    /// how many times D has to be taken off their sum. The limbs are in coefficients. `out` is one limb longer
    /// than the limbs together; it holds blocks of [`BLOCK`] coefficients (fewer in small rings): that part of
    /// each scaled limb, then of the count. What the words mean is up to the kernel.
    fn prepare(&self, sources: &[SourceConstants], limbs: &[&[u64]], out: &mut [u64]) {
        let len = limbs.first().map_or(0, |l| l.len());
        let block = BLOCK.min(len);
        let parts = out.chunks_exact_mut((limbs.len() + 1) * block);
        for (start, out) in (0..len).step_by(block).zip(parts) {
            let (hats, overflow) = out.split_at_mut(limbs.len() * block);
            for ((source, limb), hat) in sources.iter().zip(limbs).zip(hats.chunks_exact_mut(block))
            {
                hat.copy_from_slice(&limb[start..start + block]);
                self.scale(&source.modulus, hat, source.hat_inverse);
            }
            let hats: Vec<_> = hats.chunks_exact(block).collect();
            self.count_overflow(sources, &hats, overflow);
        }
    }

    /// Base conversion of what [`Kernel::prepare`] laid out to several targets, and the forward transform of each.
    fn raise(&self, prepared: &[u64], targets: &mut [Raise]) {
        let Some(first) = targets.first() else {
            return;
        };
        let (k, block) = (first.weights.len() - 1, BLOCK.min(first.out.len()));
        for (number, part) in prepared.chunks_exact((k + 1) * block).enumerate() {
            let (hats, overflow) = part.split_at(k * block);
            let at = number * block..(number + 1) * block;
            let all = targets.iter_mut();
            let (moduli, mut outs): (Vec<_>, Vec<_>) = all
                .map(|t| ((t.table.modulus(), t.weights), &mut t.out[at.clone()]))
                .unzip();
            self.convert_many(&moduli, hats, overflow, &mut outs);
        }
        for Raise {
            table, out, finish, ..
        } in targets
        {
            self.ntt_forward(table, out);
            if let Some((x, w)) = finish {
                self.sub_scale(table.modulus(), out, x, *w);
            }
        }
    }

    /// Both sums of a key switch on one limb; see [`KeyProduct`].
    fn key_product(&self, m: &Modulus, out0: &mut [u64], out1: &mut [u64], p: &KeyProduct) {
        key_product_in_parts(self, m, out0, out1, p);
    }

    /// out[k] = x[table[k]], the table of an automorphism.
    fn permute(&self, table: &[u32], x: &[u64], out: &mut [u64]) {
        for (o, &k) in out.iter_mut().zip(table) {
            *o = x[k as usize];
        }
    }

    /// Residues of signed integers.
    fn residues(&self, m: &Modulus, x: &[i64], out: &mut [u64]) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = m.from_i64(*x);
        }
    }

    /// Residues modulo `source`, read as integers in (-source/2, source/2), modulo `m`.
    fn lift(&self, source: u64, m: &Modulus, x: &[u64], out: &mut [u64]) {
        let half = source / 2;
        let shift = m.value() - m.reduce(source);
        for (o, &x) in out.iter_mut().zip(x) {
            *o = m.reduce(if x > half { x + shift } else { x });
        }
    }

    /// out = (x - out) * w
    fn sub_scale(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        let q = m.value();
        for (o, x) in out.iter_mut().zip(x) {
            *o = m.mul_shoup(w, *x + q - *o);
        }
    }

    /// out = out + x * w
    fn add_scaled(&self, m: &Modulus, out: &mut [u64], x: &[u64], w: Shoup) {
        for (o, x) in out.iter_mut().zip(x) {
            *o = m.add(*o, m.mul_shoup(w, *x));
        }
    }

    /// One limb of the hoisted half of a linear map, from `job.start` on; see [`BabySums`].
    fn baby_sums(&self, m: &Modulus, job: &BabySums<'_>, out: &mut [SumLimb<'_>]) {
        baby_sums_scalar(m, job, out);
    }

    /// a = a * w
    fn scale(&self, m: &Modulus, a: &mut [u64], w: Shoup) {
        for x in a {
            *x = m.mul_shoup(w, *x);
        }
    }
}

/// One target of a base conversion.
#[derive(Debug)]
pub struct Raise<'a> {
    /// Its modulus and the modulus' roots.
    pub table: &'a NttTable,
    /// Of every source, then of the overflow.
    pub weights: &'a [u64],
    /// The transformed limb.
    pub out: &'a mut [u64],
    /// Makes it (x - out) * w.
    pub finish: Option<(&'a [u64], Shoup)>,
}

/// out0 = sum x * y0 + x0 * w0 and out1 = sum x * y1 + x1 * w1, where every x is first taken through an
/// automorphism: x[table[k]] in place of x[k]. All slices have the same length.
#[derive(Debug)]
pub struct KeyProduct<'a> {
    /// the table of the automorphism, if any
    pub table: Option<&'a [u32]>,
    /// (x, y0, y1)
    pub terms: &'a [(&'a [u64], &'a [u64], &'a [u64])],
    /// (x0, w0) and (x1, w1)
    pub addends: [Option<(&'a [u64], Shoup)>; 2],
}

/// A key product from the other operations.
pub(crate) fn key_product_in_parts<K: Kernel + ?Sized>(
    kernel: &K,
    m: &Modulus,
    out0: &mut [u64],
    out1: &mut [u64],
    p: &KeyProduct,
) {
    let terms0: Vec<_> = p.terms.iter().map(|(x, y, _)| (*x, *y)).collect();
    let terms1: Vec<_> = p.terms.iter().map(|(x, _, y)| (*x, *y)).collect();
    match p.table {
        None => {
            kernel.dot(m, out0, &terms0);
            kernel.dot(m, out1, &terms1);
        }
        Some(table) => kernel.dot_permuted(m, out0, out1, table, &terms0, &terms1),
    }
    for (out, addend) in [out0, out1].into_iter().zip(p.addends) {
        match (addend, p.table) {
            (None, _) => (),
            (Some((x, w)), None) => kernel.add_scaled(m, out, x, w),
            (Some((x, w)), Some(table)) => {
                let moved: Vec<u64> = table.iter().map(|&k| x[k as usize]).collect();
                kernel.add_scaled(m, out, &moved, w);
            }
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

    fn dot(&self, m: &Modulus, out: &mut [u64], terms: &[(&[u64], &[u64])]) {
        const TILE: usize = 512;
        let n = out.len();
        let mut acc = [0u128; TILE];
        for (tile, out) in out.chunks_mut(TILE).enumerate() {
            let (start, acc) = (tile * TILE, &mut acc[..out.len()]);
            acc.fill(0);
            for (x, y) in terms {
                let x = &x[start..start + acc.len()];
                let repeat = n / y.len();
                if repeat == 1 {
                    let y = &y[start..start + acc.len()];
                    for ((a, x), y) in acc.iter_mut().zip(x).zip(y) {
                        *a += *x as u128 * *y as u128;
                    }
                } else {
                    let run = repeat.min(acc.len());
                    let y = &y[start / repeat..];
                    for ((a, x), y) in acc.chunks_mut(run).zip(x.chunks(run)).zip(y) {
                        for (a, x) in a.iter_mut().zip(x) {
                            *a += *x as u128 * *y as u128;
                        }
                    }
                }
            }
            for (o, a) in out.iter_mut().zip(acc.iter()) {
                *o = m.reduce_u128(*a);
            }
        }
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
        const TILE: usize = 256;
        let (mut acc0, mut acc1) = ([0u128; TILE], [0u128; TILE]);
        let outs = out0.chunks_mut(TILE).zip(out1.chunks_mut(TILE));
        for ((tile, table), (out0, out1)) in table.chunks(TILE).enumerate().zip(outs) {
            let range = tile * TILE..tile * TILE + table.len();
            acc0.fill(0);
            acc1.fill(0);
            for ((x, y0), (_, y1)) in terms0.iter().zip(terms1) {
                let factors = y0[range.clone()].iter().zip(&y1[range.clone()]);
                let sums = acc0.iter_mut().zip(&mut acc1);
                for (((a0, a1), k), (y0, y1)) in sums.zip(table).zip(factors) {
                    let x = x[*k as usize] as u128;
                    *a0 += x * *y0 as u128;
                    *a1 += x * *y1 as u128;
                }
            }
            for (o, a) in out0.iter_mut().zip(&acc0) {
                *o = m.reduce_u128(*a);
            }
            for (o, a) in out1.iter_mut().zip(&acc1) {
                *o = m.reduce_u128(*a);
            }
        }
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

#[cfg(test)]
mod tests;
