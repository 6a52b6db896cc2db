//! Sixteen f64 side by side, as four vectors: enough that no operation waits for the one before it.

use super::vector::{Native, Vectors};
use super::{Field, MAGIC, MAGIC_BITS};

/// Values handled together.
pub(super) const LANES: usize = 16;

/// Sixteen values.
pub(super) type Lanes = [<Native as Vectors>::V; 4];
/// Four values.
pub(super) type V = <Native as Vectors>::V;

/// A modulus, its inverse and the operations of `Field` on sixteen values, stage by stage.
#[derive(Clone, Copy)]
pub(super) struct Wide16 {
    pub(super) s: Native,
    q: V,
    inverse: V,
}

/// A root of a transform and the root over q.
#[derive(Clone, Copy)]
pub(super) struct Root {
    w: V,
    over_q: V,
}

#[inline(always)]
fn map(x: Lanes, f: impl Fn(V) -> V) -> Lanes {
    [f(x[0]), f(x[1]), f(x[2]), f(x[3])]
}

#[inline(always)]
fn zip(x: Lanes, y: Lanes, f: impl Fn(V, V) -> V) -> Lanes {
    [f(x[0], y[0]), f(x[1], y[1]), f(x[2], y[2]), f(x[3], y[3])]
}

impl Wide16 {
    #[inline(always)]
    pub(super) fn new(s: Native, f: Field) -> Wide16 {
        Wide16 {
            s,
            q: s.splat(f.q),
            inverse: s.splat(f.inverse),
        }
    }

    /// f64 from their bits.
    #[inline(always)]
    pub(super) fn bits(self, x: &[u64; LANES]) -> Lanes {
        let x = x.as_chunks::<4>().0;
        [x[0], x[1], x[2], x[3]].map(|x| self.s.load(x))
    }

    /// f64 of integers below 2^52.
    #[inline(always)]
    pub(super) fn integers(self, x: &[u64; LANES]) -> Lanes {
        self.loaded(self.bits(x))
    }

    #[inline(always)]
    pub(super) fn loaded(self, x: Lanes) -> Lanes {
        let (magic, bits) = (
            self.s.splat(MAGIC),
            self.s.splat(f64::from_bits(MAGIC_BITS)),
        );
        let x = map(x, |x| self.s.or(x, bits));
        map(x, |x| self.s.sub(x, magic))
    }

    /// f64 of two times eight integers below 2^52.
    #[inline(always)]
    pub(super) fn two_integers(self, x: &[u64; LANES / 2], y: &[u64; LANES / 2]) -> Lanes {
        let (x, y) = (x.as_chunks::<4>().0, y.as_chunks::<4>().0);
        self.loaded([x[0], x[1], y[0], y[1]].map(|x| self.s.load(x)))
    }

    /// The bits of two times eight f64.
    #[inline(always)]
    pub(super) fn put_two(self, x: Lanes, out: [&mut [u64; LANES / 2]; 2]) {
        for (out, x) in out.into_iter().zip(x.as_chunks::<2>().0) {
            for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                *out = self.s.store(*x);
            }
        }
    }

    #[inline(always)]
    pub(super) fn floats(self, x: &[f64; LANES]) -> Lanes {
        self.bits(&x.map(f64::to_bits))
    }

    /// The bits of the f64.
    #[inline(always)]
    pub(super) fn put(self, x: Lanes, out: &mut [u64; LANES]) {
        let out = out.as_chunks_mut::<4>().0;
        for (out, x) in out.iter_mut().zip(x) {
            *out = self.s.store(x);
        }
    }

    #[inline(always)]
    pub(super) fn put_floats(self, x: Lanes, out: &mut [f64; LANES]) {
        let out = out.as_chunks_mut::<4>().0;
        for (out, x) in out.iter_mut().zip(x) {
            *out = self.s.store(x).map(f64::from_bits);
        }
    }

    #[inline(always)]
    pub(super) fn add(self, x: Lanes, y: Lanes) -> Lanes {
        zip(x, y, |x, y| self.s.add(x, y))
    }

    /// The greatest square of a distance to the nearest integer, of x or `so_far`; and those integers.
    #[inline(always)]
    pub(super) fn nearest(self, x: Lanes, so_far: &mut Lanes) -> Lanes {
        let nearest = map(x, |x| self.s.round(x));
        let distance = zip(x, nearest, |x, n| self.s.sub(x, n));
        let square = map(distance, |d| self.s.mul(d, d));
        *so_far = zip(*so_far, square, |s, d| self.s.max(s, d));
        nearest
    }

    /// The greatest of all.
    #[inline(always)]
    pub(super) fn greatest(self, x: Lanes) -> f64 {
        let x = self.s.max(self.s.max(x[0], x[1]), self.s.max(x[2], x[3]));
        let x = self.s.store(x).map(f64::from_bits);
        x[0].max(x[1]).max(x[2].max(x[3]))
    }

    /// The same value sixteen times.
    #[inline(always)]
    pub(super) fn all(self, x: f64) -> Lanes {
        [self.s.splat(x); 4]
    }

    /// x * w + y
    #[inline(always)]
    pub(super) fn mul_add(self, x: Lanes, w: f64, y: Lanes) -> Lanes {
        let w = self.s.splat(w);
        zip(x, y, |x, y| self.s.mul_add(x, w, y))
    }

    /// The root w with w/q, from which the quotient takes no rounding more than `Field::mul`'s.
    #[inline(always)]
    pub(super) fn root(self, w: V) -> Root {
        Root {
            w,
            over_q: self.s.mul(w, self.inverse),
        }
    }

    /// Two products with roots, with the bounds of `Field::mul`. Step by step side by side: the processor finds
    /// independent operations next to each other.
    #[inline(always)]
    pub(super) fn mul2(self, x: [V; 2], r: [Root; 2]) -> [V; 2] {
        let s = self.s;
        let high = [s.mul(x[0], r[0].w), s.mul(x[1], r[1].w)];
        let c = [s.mul(x[0], r[0].over_q), s.mul(x[1], r[1].over_q)];
        let low = [
            s.mul_sub(x[0], r[0].w, high[0]),
            s.mul_sub(x[1], r[1].w, high[1]),
        ];
        let c = [s.round(c[0]), s.round(c[1])];
        let rest = [
            s.sub_mul(c[0], self.q, high[0]),
            s.sub_mul(c[1], self.q, high[1]),
        ];
        [s.add(rest[0], low[0]), s.add(rest[1], low[1])]
    }

    /// `mul2` on four values.
    #[inline(always)]
    pub(super) fn mul4(self, x: [V; 4], r: [Root; 4]) -> [V; 4] {
        let s = self.s;
        let high = [
            s.mul(x[0], r[0].w),
            s.mul(x[1], r[1].w),
            s.mul(x[2], r[2].w),
            s.mul(x[3], r[3].w),
        ];
        let c = [
            s.mul(x[0], r[0].over_q),
            s.mul(x[1], r[1].over_q),
            s.mul(x[2], r[2].over_q),
            s.mul(x[3], r[3].over_q),
        ];
        let low = [
            s.mul_sub(x[0], r[0].w, high[0]),
            s.mul_sub(x[1], r[1].w, high[1]),
            s.mul_sub(x[2], r[2].w, high[2]),
            s.mul_sub(x[3], r[3].w, high[3]),
        ];
        let c = [s.round(c[0]), s.round(c[1]), s.round(c[2]), s.round(c[3])];
        let rest = [
            s.sub_mul(c[0], self.q, high[0]),
            s.sub_mul(c[1], self.q, high[1]),
            s.sub_mul(c[2], self.q, high[2]),
            s.sub_mul(c[3], self.q, high[3]),
        ];
        [
            s.add(rest[0], low[0]),
            s.add(rest[1], low[1]),
            s.add(rest[2], low[2]),
            s.add(rest[3], low[3]),
        ]
    }

    /// `Field::mul` with one factor for all and the bounds of `Field::mul`.
    #[inline(always)]
    pub(super) fn mul(self, x: Lanes, w: f64) -> Lanes {
        self.mul4(x, [self.root(self.s.splat(w)); 4])
    }

    /// `Field::reduce`
    #[inline(always)]
    pub(super) fn reduce(self, x: Lanes) -> Lanes {
        let c = map(x, |x| self.s.mul(x, self.inverse));
        let c = map(c, |c| self.s.round(c));
        zip(c, x, |c, x| self.s.sub_mul(c, self.q, x))
    }

    /// `Field::reduce` on two vectors.
    #[inline(always)]
    pub(super) fn reduce2(self, x: [V; 2]) -> [V; 2] {
        let s = self.s;
        let c = [s.mul(x[0], self.inverse), s.mul(x[1], self.inverse)];
        let c = [s.round(c[0]), s.round(c[1])];
        [s.sub_mul(c[0], self.q, x[0]), s.sub_mul(c[1], self.q, x[1])]
    }

    /// Representatives of the high parts of `Sums` that began at `constant`, at most q/2 + 2^-52 * |high|: the
    /// quotient is the product of two rounded factors, so it is off by its 2^-52th, and the remainder is an
    /// integer below 2^53.
    #[inline(always)]
    pub(super) fn high(self, high: Lanes, constant: f64) -> Lanes {
        let constant = self.s.splat(constant);
        self.reduce(map(high, |h| self.s.sub(h, constant)))
    }

    /// `reduce` on thirty-two values.
    #[inline(always)]
    pub(super) fn reduced2(self, [x, y]: [Lanes; 2]) -> [Lanes; 2] {
        let s = self.s;
        let (c, d) = (
            map(x, |x| s.mul(x, self.inverse)),
            map(y, |y| s.mul(y, self.inverse)),
        );
        let (c, d) = (map(c, |c| s.round(c)), map(d, |d| s.round(d)));
        [
            zip(c, x, |c, x| s.sub_mul(c, self.q, x)),
            zip(d, y, |d, y| s.sub_mul(d, self.q, y)),
        ]
    }

    /// `Field::lift_negative`
    #[inline(always)]
    pub(super) fn lifted(self, x: Lanes) -> Lanes {
        let (magic, bits) = (
            self.s.splat(MAGIC),
            self.s.splat(f64::from_bits(MAGIC_BITS)),
        );
        let x = map(x, |x| self.s.add_to_negative(x, self.q));
        let x = map(x, |x| self.s.add(x, magic));
        map(x, |x| self.s.xor(x, bits))
    }

    #[inline(always)]
    pub(super) fn sub(self, x: Lanes, y: Lanes) -> Lanes {
        zip(x, y, |x, y| self.s.sub(x, y))
    }

    /// `Field::canonical`
    #[inline(always)]
    pub(super) fn canonical(self, x: Lanes) -> Lanes {
        self.lifted(self.reduce(x))
    }
}

/// Exact sums of products x*w. `high` starts at a constant so large that it stays in one binade, so each fused
/// multiply-add rounds x*w to a multiple of the constant's last place, the unit; the difference of two sums is
/// exact, and a second multiply-add gives what the rounding left, at most half a unit. `low` collects that.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    high: Lanes,
    low: Lanes,
}

impl Sums {
    #[inline(always)]
    pub(super) fn new(s: Native, constant: f64) -> Sums {
        Sums::resume([[s.splat(constant); 4], [s.splat(0.0); 4]])
    }

    /// From `parts`.
    #[inline(always)]
    pub(super) fn resume([high, low]: [Lanes; 2]) -> Sums {
        Sums { high, low }
    }

    /// Adds x*w.
    #[inline(always)]
    pub(super) fn add(&mut self, s: Native, x: Lanes, w: Lanes) {
        let next: Lanes = std::array::from_fn(|i| s.mul_add(x[i], w[i], self.high[i]));
        let rounded = zip(self.high, next, |h, n| s.sub(h, n));
        let rest: Lanes = std::array::from_fn(|i| s.mul_add(x[i], w[i], rounded[i]));
        self.low = zip(self.low, rest, |l, r| s.add(l, r));
        self.high = next;
    }

    /// Representatives of the high parts, and the low parts.
    #[inline(always)]
    pub(super) fn split(&self, f: Wide16, constant: f64) -> [Lanes; 2] {
        [f.high(self.high, constant), self.low]
    }

    /// The high parts with the constant, and the low parts.
    #[inline(always)]
    pub(super) fn parts(&self) -> [Lanes; 2] {
        [self.high, self.low]
    }
}
