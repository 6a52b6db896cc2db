//! Elementwise operations.

use super::lanes::Lanes;
use super::{Factor, Field};
use crate::modular::{Modulus, Shoup};
use pulp::NullaryFnOnce;

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
