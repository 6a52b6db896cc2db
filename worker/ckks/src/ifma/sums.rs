//! Sums of products, reduced once per sum. A sum is kept as the sums of the low and of the high halves of its
//! products, 52 bits each. It is divided by 2^52 modulo q (Montgomery 1985): the multiple of q that makes the low
//! half zero is taken off, which needs no carry, and a product with 2^52 takes it back.
//!
//! Bounds. Eleven products of factors below 2^50 have high halves below 2.75 * 2^50; with q to start from and the
//! carry of the low halves the quotient is in [0, 2^52), which is what a product by a constant takes.

use super::lanes::Lanes;
use super::permute::{moved, shuffles};
use super::{Factor, Field};
use crate::kernel::KeyProduct;
use crate::modular::Modulus;
use pulp::NullaryFnOnce;

/// Most products between two reductions.
pub(super) const MAX_TERMS: usize = 11;

/// Vectors handled together: the sums stay in registers while the terms go by.
const TILE: usize = 4;

type Term<'a> = (&'a [u64], &'a [u64]);

#[derive(Clone, Copy)]
pub(super) struct Sum<L: Lanes> {
    lo: L::V,
    hi: L::V,
}

/// What takes a sum to its residue.
#[derive(Clone, Copy)]
pub(super) struct Wide<L: Lanes> {
    pub(super) f: Field<L>,
    /// 2^52
    unit: Factor<L>,
}

impl<L: Lanes> Wide<L> {
    #[inline(always)]
    pub(super) fn new(l: L, m: &Modulus) -> Wide<L> {
        Wide {
            f: Field::new(l, m),
            unit: Factor::splat(l, m.shoup(m.reduce(1 << 52))),
        }
    }

    /// An empty sum: q * 2^52.
    #[inline(always)]
    pub(super) fn zero(self) -> Sum<L> {
        self.from(self.f.zero)
    }

    /// A sum of one value below 2^52.
    #[inline(always)]
    pub(super) fn from(self, x: L::V) -> Sum<L> {
        Sum {
            lo: x,
            hi: self.f.q,
        }
    }

    #[inline(always)]
    pub(super) fn add_product(self, s: &mut Sum<L>, x: L::V, y: L::V) {
        s.lo = self.f.l.madd_lo(s.lo, x, y);
        s.hi = self.f.l.madd_hi(s.hi, x, y);
    }

    /// The sum divided by 2^52 modulo q, below 2^52: between 0 and the high half with its carry.
    #[inline(always)]
    pub(super) fn shifted(self, s: Sum<L>) -> L::V {
        let (f, l) = (self.f, self.f.l);
        let multiple = l.madd_lo(f.zero, s.lo, f.odd_inverse);
        let high = l.madd_hi(f.zero, multiple, f.q);
        l.sub(l.add(s.hi, l.shift(s.lo)), high)
    }

    /// The sum modulo q, in [0, 2q).
    #[inline(always)]
    pub(super) fn lazy(self, s: Sum<L>) -> L::V {
        self.f.mul(self.shifted(s), self.unit)
    }

    /// The residue of a sum.
    #[inline(always)]
    pub(super) fn total(self, s: Sum<L>) -> L::V {
        self.f.fold(self.lazy(s))
    }
}

/// T vectors of x from `start` on.
#[inline(always)]
fn tile<const T: usize>(x: &[u64], start: usize) -> &[[u64; 8]] {
    x[start..start + 8 * T].as_chunks().0
}

/// Entries `at` to `at + 8` of y with each value repeated.
#[inline(always)]
pub(super) fn repeated<L: Lanes>(l: L, y: &[u64], repeat: usize, at: usize) -> L::V {
    if repeat >= 8 {
        return l.splat(y[at / repeat]);
    }
    if repeat == 1 {
        return l.load(&tile::<1>(y, at)[0]);
    }
    let mut out = [0; 8];
    for (i, o) in out.iter_mut().enumerate() {
        *o = y[(at + i) / repeat];
    }
    l.load(&out)
}

/// out = sum x * y, y possibly shorter than out.
pub(super) struct Dot<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) out: &'a mut [u64],
    pub(super) terms: &'a [Term<'a>],
}

#[inline(always)]
fn dot_tile<L: Lanes, const T: usize>(
    f: Wide<L>,
    out: &mut [u64],
    terms: &[Term<'_>],
    start: usize,
) {
    let (l, n) = (f.f.l, out.len());
    let mut sums = [f.zero(); T];
    for (number, group) in terms.chunks(MAX_TERMS).enumerate() {
        if number > 0 {
            for s in &mut sums {
                *s = f.from(f.lazy(*s));
            }
        }
        for (x, y) in group {
            let x = tile::<T>(x, start);
            let repeat = n / y.len();
            if repeat == 1 {
                let y = tile::<T>(y, start);
                for ((s, x), y) in sums.iter_mut().zip(x).zip(y) {
                    f.add_product(s, l.load(x), l.load(y));
                }
            } else {
                for (i, (s, x)) in sums.iter_mut().zip(x).enumerate() {
                    f.add_product(s, l.load(x), repeated(l, y, repeat, start + 8 * i));
                }
            }
        }
    }
    let out = out[start..start + 8 * T].as_chunks_mut().0;
    for (o, s) in out.iter_mut().zip(sums) {
        l.store(f.total(s), o);
    }
}

impl<L: Lanes> NullaryFnOnce for Dot<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = Wide::new(self.l, self.m);
        let mut start = 0;
        while start + 8 * TILE <= self.out.len() {
            dot_tile::<L, TILE>(f, self.out, self.terms, start);
            start += 8 * TILE;
        }
        while start < self.out.len() {
            dot_tile::<L, 1>(f, self.out, self.terms, start);
            start += 8;
        }
    }
}

/// Two sums of products that share their permuted first operands.
pub(super) struct DotPermuted<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) out0: &'a mut [u64],
    pub(super) out1: &'a mut [u64],
    pub(super) table: &'a [u32],
    pub(super) terms0: &'a [Term<'a>],
    pub(super) terms1: &'a [Term<'a>],
}

impl<L: Lanes> NullaryFnOnce for DotPermuted<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = Wide::new(self.l, self.m);
        let l = self.l;
        let outs = self.out0.as_chunks_mut::<8>().0.iter_mut();
        let outs = outs.zip(self.out1.as_chunks_mut::<8>().0);
        for (at, ((o0, o1), table)) in outs.zip(self.table.as_chunks::<8>().0).enumerate() {
            let (mut s0, mut s1) = (f.zero(), f.zero());
            for (i, ((x, y0), (_, y1))) in self.terms0.iter().zip(self.terms1).enumerate() {
                if i > 0 && i.is_multiple_of(MAX_TERMS) {
                    s0 = f.from(f.lazy(s0));
                    s1 = f.from(f.lazy(s1));
                }
                let mut moved = [0; 8];
                for (m, &k) in moved.iter_mut().zip(table) {
                    *m = x[k as usize];
                }
                let x = l.load(&moved);
                f.add_product(&mut s0, x, l.load(&tile::<1>(y0, 8 * at)[0]));
                f.add_product(&mut s1, x, l.load(&tile::<1>(y1, 8 * at)[0]));
            }
            l.store(f.total(s0), o0);
            l.store(f.total(s1), o1);
        }
    }
}

/// Base conversion to one target.
pub(super) struct Convert<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) weights: &'a [u64],
    pub(super) hats: &'a [u64],
    pub(super) overflow: &'a [u64],
    pub(super) out: &'a mut [u64],
}

#[inline(always)]
fn convert_tile<L: Lanes, const T: usize>(f: Wide<L>, c: &mut Convert<'_, L>, start: usize) {
    let (l, n, k) = (c.l, c.out.len(), c.weights.len() - 1);
    let mut sums = [f.zero(); T];
    let limbs = c.hats.chunks_exact(n).chain([c.overflow]);
    for (limb, w) in limbs.zip(&c.weights[..=k]) {
        let w = l.splat(*w);
        for (s, x) in sums.iter_mut().zip(tile::<T>(limb, start)) {
            f.add_product(s, l.load(x), w);
        }
    }
    let out = c.out[start..start + 8 * T].as_chunks_mut().0;
    for (o, s) in out.iter_mut().zip(sums) {
        l.store(f.total(s), o);
    }
}

impl<L: Lanes> NullaryFnOnce for Convert<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let f = Wide::new(self.l, self.m);
        let mut start = 0;
        while start + 8 * TILE <= self.out.len() {
            convert_tile::<L, TILE>(f, &mut self, start);
            start += 8 * TILE;
        }
        while start < self.out.len() {
            convert_tile::<L, 1>(f, &mut self, start);
            start += 8;
        }
    }
}

/// Most digits of a key product done here.
pub(super) const MAX_DIGITS: usize = 4;

/// Both sums of a key product.
pub(super) struct Key<'a, 'b, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) out0: &'a mut [u64],
    pub(super) out1: &'a mut [u64],
    pub(super) product: &'a KeyProduct<'b>,
}

#[inline(always)]
fn key_k<L: Lanes, const K: usize, const MOVED: bool>(key: Key<'_, '_, L>) {
    let (f, l, p) = (Wide::new(key.l, key.m), key.l, key.product);
    let table = p.table.map_or(&[][..], |t| t.as_chunks::<8>().0);
    let shuffles = shuffles(table.first());
    let mut x = [&[][..]; K];
    let (mut b, mut a) = ([&[][..]; K], [&[][..]; K]);
    for (i, (digit, kb, ka)) in p.terms.iter().enumerate().take(K) {
        x[i] = digit.as_chunks::<8>().0;
        (b[i], a[i]) = (kb.as_chunks::<8>().0, ka.as_chunks::<8>().0);
    }
    let addend = |c: usize| {
        let (x, w) = p.addends[c]?;
        Some((x.as_chunks::<8>().0, l.splat(w.w)))
    };
    let addends = [addend(0), addend(1)];
    // two blocks at a time, so that multiplications do not wait for each other
    let outs = key.out0.as_chunks_mut::<8>().0.chunks_mut(2);
    let outs = outs.zip(key.out1.as_chunks_mut::<8>().0.chunks_mut(2));
    for (pair, (out0, out1)) in outs.enumerate() {
        let last = out0.len() - 1;
        let at = [2 * pair, 2 * pair + last];
        let starts = at.map(|at| if MOVED { table[at][0] } else { 8 * at as u32 });
        let mut sums = [[f.zero(); 2]; 2];
        for i in 0..K {
            for (s, [sum0, sum1]) in sums.iter_mut().enumerate() {
                let x = moved::<L, MOVED>(l, x[i], starts[s], &shuffles);
                f.add_product(sum0, x, l.load(&b[i][at[s]]));
                f.add_product(sum1, x, l.load(&a[i][at[s]]));
            }
        }
        for (c, addend) in addends.into_iter().enumerate() {
            if let Some((x, w)) = addend {
                for (s, sums) in sums.iter_mut().enumerate() {
                    f.add_product(
                        &mut sums[c],
                        moved::<L, MOVED>(l, x, starts[s], &shuffles),
                        w,
                    );
                }
            }
        }
        for (out, sums) in [0, last].into_iter().zip(sums) {
            l.store(f.total(sums[0]), &mut out0[out]);
            l.store(f.total(sums[1]), &mut out1[out]);
        }
    }
}

impl<L: Lanes> NullaryFnOnce for Key<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match (self.product.terms.len(), self.product.table.is_some()) {
            (0, false) => key_k::<L, 0, false>(self),
            (0, true) => key_k::<L, 0, true>(self),
            (1, false) => key_k::<L, 1, false>(self),
            (1, true) => key_k::<L, 1, true>(self),
            (2, false) => key_k::<L, 2, false>(self),
            (2, true) => key_k::<L, 2, true>(self),
            (3, false) => key_k::<L, 3, false>(self),
            (3, true) => key_k::<L, 3, true>(self),
            (_, false) => key_k::<L, MAX_DIGITS, false>(self),
            (_, true) => key_k::<L, MAX_DIGITS, true>(self),
        }
    }
}
