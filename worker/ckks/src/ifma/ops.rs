//! Sums of products, base conversion and elementwise operations. A sum of products is kept as the sums of the
//! low and of the high halves (52 bits each): 2048 products of factors below 2^50 and a residue fit.

use super::lanes::Lanes;
use super::{Factor, Field};
use crate::modular::{Modulus, Shoup};
use pulp::NullaryFnOnce;

const MAX_TERMS: usize = 2048;

/// Vectors handled together: the sums stay in registers while the terms go by.
const TILE: usize = 4;

type Term<'a> = (&'a [u64], &'a [u64]);

#[derive(Clone, Copy)]
struct Sum<L: Lanes> {
    lo: L::V,
    hi: L::V,
}

/// What takes a sum to its residue.
#[derive(Clone, Copy)]
struct Wide<L: Lanes> {
    f: Field<L>,
    /// 2^52 and 2^104
    unit: Factor<L>,
    unit2: Factor<L>,
}

impl<L: Lanes> Wide<L> {
    #[inline(always)]
    fn new(l: L, m: &Modulus) -> Wide<L> {
        let unit = m.reduce(1 << 52);
        Wide {
            f: Field::new(l, m),
            unit: Factor::splat(l, m.shoup(unit)),
            unit2: Factor::splat(l, m.shoup(m.mul(unit, unit))),
        }
    }

    #[inline(always)]
    fn zero(self) -> Sum<L> {
        Sum {
            lo: self.f.zero,
            hi: self.f.zero,
        }
    }

    #[inline(always)]
    fn add_product(self, s: &mut Sum<L>, x: L::V, y: L::V) {
        s.lo = self.f.l.madd_lo(s.lo, x, y);
        s.hi = self.f.l.madd_hi(s.hi, x, y);
    }

    /// The residue of a sum.
    #[inline(always)]
    fn total(self, s: Sum<L>) -> L::V {
        let (f, l) = (self.f, self.f.l);
        let hi = l.add(s.hi, l.shift(s.lo));
        // multiplication reads the low 52 bits only
        let high = l.add(f.mul(hi, self.unit), f.mul(l.shift(hi), self.unit2));
        let sum = l.add(f.halve(high), f.reduce(l.and(s.lo, f.mask)));
        f.fold(f.halve(sum))
    }
}

/// T vectors of x from `start` on.
#[inline(always)]
fn tile<const T: usize>(x: &[u64], start: usize) -> &[[u64; 8]] {
    x[start..start + 8 * T].as_chunks().0
}

/// Entries `at` to `at + 8` of y with each value repeated.
#[inline(always)]
fn repeated<L: Lanes>(l: L, y: &[u64], repeat: usize, at: usize) -> L::V {
    if repeat >= 8 {
        return l.splat(y[at / repeat]);
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
    for group in terms.chunks(MAX_TERMS) {
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
        for s in &mut sums {
            *s = Sum {
                lo: f.total(*s),
                hi: f.f.zero,
            };
        }
    }
    let out = out[start..start + 8 * T].as_chunks_mut().0;
    for (o, s) in out.iter_mut().zip(sums) {
        l.store(s.lo, o);
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
        let (l, zero) = (self.l, f.f.zero);
        let outs = self.out0.as_chunks_mut::<8>().0.iter_mut();
        let outs = outs.zip(self.out1.as_chunks_mut::<8>().0);
        for (at, ((o0, o1), table)) in outs.zip(self.table.as_chunks::<8>().0).enumerate() {
            let (mut s0, mut s1) = (f.zero(), f.zero());
            for (i, ((x, y0), (_, y1))) in self.terms0.iter().zip(self.terms1).enumerate() {
                if i > 0 && i.is_multiple_of(MAX_TERMS) {
                    s0 = Sum {
                        lo: f.total(s0),
                        hi: zero,
                    };
                    s1 = Sum {
                        lo: f.total(s1),
                        hi: zero,
                    };
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

/// Elementwise operations of `Kernel`.
#[derive(Clone, Copy)]
pub(super) enum Op {
    /// out + x
    Add,
    /// out - x
    Sub,
    /// x from that modulus, centred
    Lift(u64),
    /// (x - out) * w
    SubScale(Shoup),
    /// out + x * w
    AddScaled(Shoup),
}

/// out = op(out, x)
pub(super) struct Map<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) op: Op,
    pub(super) out: &'a mut [u64],
    pub(super) x: &'a [u64],
}

/// One vector of an operation. A trait and not a closure, because it has to be inlined.
trait Each<L: Lanes>: Copy {
    fn call(self, f: Field<L>, o: L::V, x: L::V) -> L::V;
}

#[derive(Clone, Copy)]
struct Add;

impl<L: Lanes> Each<L> for Add {
    #[inline(always)]
    fn call(self, f: Field<L>, o: L::V, x: L::V) -> L::V {
        f.fold(f.l.add(o, x))
    }
}

#[derive(Clone, Copy)]
struct Sub;

impl<L: Lanes> Each<L> for Sub {
    #[inline(always)]
    fn call(self, f: Field<L>, o: L::V, x: L::V) -> L::V {
        f.fold(f.l.sub(f.l.add(o, f.q), x))
    }
}

/// x + (s - 1)/2 mod s is the centred residue plus (s - 1)/2.
#[derive(Clone, Copy)]
struct Lift<L: Lanes> {
    source: L::V,
    half: L::V,
    /// -(s - 1)/2 mod q
    back: L::V,
}

impl<L: Lanes> Each<L> for Lift<L> {
    #[inline(always)]
    fn call(self, f: Field<L>, _: L::V, x: L::V) -> L::V {
        let l = f.l;
        let up = l.add(x, self.half);
        let up = l.min(up, l.sub(up, self.source));
        f.fold(f.halve(l.add(f.reduce(up), self.back)))
    }
}

#[derive(Clone, Copy)]
struct SubScale<L: Lanes>(Factor<L>);

impl<L: Lanes> Each<L> for SubScale<L> {
    #[inline(always)]
    fn call(self, f: Field<L>, o: L::V, x: L::V) -> L::V {
        f.fold(f.mul(f.l.sub(f.l.add(x, f.q), o), self.0))
    }
}

#[derive(Clone, Copy)]
struct AddScaled<L: Lanes>(Factor<L>);

impl<L: Lanes> Each<L> for AddScaled<L> {
    #[inline(always)]
    fn call(self, f: Field<L>, o: L::V, x: L::V) -> L::V {
        f.fold(f.halve(f.l.add(o, f.mul(x, self.0))))
    }
}

#[inline(always)]
fn each<L: Lanes>(f: Field<L>, out: &mut [u64], x: &[u64], op: impl Each<L>) {
    for (o, x) in out.as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
        let y = op.call(f, f.l.load(o), f.l.load(x));
        f.l.store(y, o);
    }
}

impl<L: Lanes> NullaryFnOnce for Map<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Map { l, m, op, out, x } = self;
        let f = Field::new(l, m);
        match op {
            Op::Add => each(f, out, x, Add),
            Op::Sub => each(f, out, x, Sub),
            Op::Lift(source) => {
                let half = source / 2;
                let op = Lift {
                    source: l.splat(source),
                    half: l.splat(half),
                    back: l.splat(m.neg(m.reduce(half))),
                };
                each(f, out, x, op);
            }
            Op::SubScale(w) => each(f, out, x, SubScale(Factor::splat(l, w))),
            Op::AddScaled(w) => each(f, out, x, AddScaled(Factor::splat(l, w))),
        }
    }
}

/// a = a * w
pub(super) struct Scale<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) w: Shoup,
    pub(super) a: &'a mut [u64],
}

impl<L: Lanes> NullaryFnOnce for Scale<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = Field::new(self.l, self.m);
        let w = Factor::splat(self.l, self.w);
        for x in self.a.as_chunks_mut().0 {
            let y = f.fold(f.mul(self.l.load(x), w));
            self.l.store(y, x);
        }
    }
}
