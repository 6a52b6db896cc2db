//! Both transforms. Layers are numbered as a binary tree: the block with number r (the whole array is 1) has
//! the root number r and the halves 2r and 2r + 1. A block that does not fit the first-level cache is split by
//! two layers at a time and its quarters are finished one after the other.
//!
//! Forward values stay below 4q. Where q is so small that sixteen layers of growth by 2q stay below 2^52
//! (33q < 2^52), they are left to grow.

use super::lanes::Lanes;
use super::{Factor, Field};
use crate::modular::{Modulus, Shoup};
use pulp::NullaryFnOnce;

/// Smallest transform done here.
pub(super) const SMALLEST: usize = 64;

/// Largest block that is finished layer by layer: 32 KiB.
const BLOCK: usize = 4096;

/// Moduli below this need no reduction between forward layers.
const SMALL: u64 = 1 << 46;

/// Roots with their 52-bit quotients.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Roots52 {
    w: Vec<u64>,
    quotient: Vec<u64>,
}

impl Roots52 {
    pub(crate) fn new(roots: &[Shoup]) -> Roots52 {
        Roots52 {
            w: roots.iter().map(|r| r.w).collect(),
            quotient: roots.iter().map(|r| r.quotient >> 12).collect(),
        }
    }

    #[inline(always)]
    fn splat<L: Lanes>(&self, l: L, i: usize) -> Factor<L> {
        Factor {
            w: l.splat(self.w[i]),
            quotient: l.splat(self.quotient[i]),
        }
    }

    /// The roots of a two-layer step on block r.
    #[inline(always)]
    fn splat3<L: Lanes>(&self, l: L, r: usize) -> [Factor<L>; 3] {
        [
            self.splat(l, r),
            self.splat(l, 2 * r),
            self.splat(l, 2 * r + 1),
        ]
    }

    /// Eight consecutive roots from number `i` on, spread over the lanes.
    #[inline(always)]
    fn spread<L: Lanes>(&self, l: L, i: usize, index: &[u64; 8]) -> Factor<L> {
        let (w, quotient) = (eight(l, &self.w, i), eight(l, &self.quotient, i));
        Factor {
            w: l.select(w, w, index),
            quotient: l.select(quotient, quotient, index),
        }
    }
}

/// x[i..i + 8]; nobody asks for it nearer to the end.
#[inline(always)]
fn eight<L: Lanes>(l: L, x: &[u64], i: usize) -> L::V {
    match x[i..].first_chunk() {
        Some(x) => l.load(x),
        None => l.splat(0),
    }
}

/// How sixteen neighbours are dealt to two vectors whose lanes are the partners of a layer: from order to
/// halves of eight (4), of four (2), of two (1), and back to order.
const SPLIT4: [[u64; 8]; 2] = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]];
const SPLIT2: [[u64; 8]; 2] = [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]];
const SPLIT1: [[u64; 8]; 2] = [[0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]];
const ORDER: [[u64; 8]; 2] = [[0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]];
/// The inverse of ORDER: even and odd positions.
const DEAL: [[u64; 8]; 2] = [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]];

/// Which roots the lanes of those vectors take, out of consecutive ones.
const SPREAD4: [u64; 8] = [0, 0, 0, 0, 1, 1, 1, 1];
const SPREAD2: [u64; 8] = [0, 0, 1, 1, 2, 2, 3, 3];
const SPREAD1: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[inline(always)]
fn deal<L: Lanes>(l: L, x: [L::V; 2], to: &[[u64; 8]; 2]) -> [L::V; 2] {
    [l.select(x[0], x[1], &to[0]), l.select(x[0], x[1], &to[1])]
}

/// One layer on two vectors, or two layers on four. A trait and not closures: everything has to be inlined
/// where the instructions are enabled.
trait Step<L: Lanes, const K: usize>: Copy {
    fn call(self, x: [L::V; K]) -> [L::V; K];
}

/// Two layers on the quarters of a block.
#[inline(always)]
fn quarter_pass<L: Lanes>(l: L, block: &mut [u64], step: impl Step<L, 4>) {
    let len = block.len();
    let (a, c) = block.split_at_mut(len / 2);
    let (a, b) = a.split_at_mut(len / 4);
    let (c, d) = c.split_at_mut(len / 4);
    let (a, b) = (a.as_chunks_mut().0, b.as_chunks_mut().0);
    let (c, d) = (c.as_chunks_mut().0, d.as_chunks_mut().0);
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        let y = step.call([l.load(a), l.load(b), l.load(c), l.load(d)]);
        l.store(y[0], a);
        l.store(y[1], b);
        l.store(y[2], c);
        l.store(y[3], d);
    }
}

/// One layer on the halves of a block.
#[inline(always)]
fn half_pass<L: Lanes>(l: L, block: &mut [u64], step: impl Step<L, 2>) {
    let (a, b) = block.split_at_mut(block.len() / 2);
    for (a, b) in a.as_chunks_mut().0.iter_mut().zip(b.as_chunks_mut().0) {
        let y = step.call([l.load(a), l.load(b)]);
        l.store(y[0], a);
        l.store(y[1], b);
    }
}

/// Forward butterfly (Harvey 2014).
#[inline(always)]
fn forward2<L: Lanes, const GROW: bool>(f: Field<L>, x: [L::V; 2], w: Factor<L>) -> [L::V; 2] {
    let l = f.l;
    let u = if GROW { x[0] } else { f.halve(x[0]) };
    let v = f.mul(x[1], w);
    [l.add(u, v), l.sub(l.add(u, f.two_q), v)]
}

/// Forward layers with these roots.
#[derive(Clone, Copy)]
struct Down<L: Lanes, const GROW: bool, const W: usize>(Field<L>, [Factor<L>; W]);

impl<L: Lanes, const GROW: bool> Step<L, 2> for Down<L, GROW, 1> {
    #[inline(always)]
    fn call(self, x: [L::V; 2]) -> [L::V; 2] {
        forward2::<L, GROW>(self.0, x, self.1[0])
    }
}

impl<L: Lanes, const GROW: bool> Step<L, 4> for Down<L, GROW, 3> {
    #[inline(always)]
    fn call(self, x: [L::V; 4]) -> [L::V; 4] {
        let Down(f, w) = self;
        let [a, c] = forward2::<L, GROW>(f, [x[0], x[2]], w[0]);
        let [b, d] = forward2::<L, GROW>(f, [x[1], x[3]], w[0]);
        let [a, b] = forward2::<L, GROW>(f, [a, b], w[1]);
        let [c, d] = forward2::<L, GROW>(f, [c, d], w[2]);
        [a, b, c, d]
    }
}

/// The layers with partners less than eight apart; canonical output. `r` is the number of the block.
#[inline(always)]
fn forward_last<L: Lanes, const GROW: bool>(f: Field<L>, roots: &Roots52, a: &mut [u64], r: usize) {
    let l = f.l;
    // numbers of the first blocks of eight, four and two
    let (r4, r2, r1) = (r * a.len() / 8, r * a.len() / 4, r * a.len() / 2);
    for (i, pair) in a.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let [lo, hi] = halves(pair);
        let x = deal(l, [l.load(lo), l.load(hi)], &SPLIT4);
        let x = forward2::<L, GROW>(f, x, roots.spread(l, r4 + 2 * i, &SPREAD4));
        let x = deal(l, x, &SPLIT2);
        let x = forward2::<L, GROW>(f, x, roots.spread(l, r2 + 4 * i, &SPREAD2));
        let x = deal(l, x, &SPLIT1);
        let x = forward2::<L, GROW>(f, x, roots.spread(l, r1 + 8 * i, &SPREAD1));
        let x = deal(l, x, &ORDER);
        l.store(canonical::<L, GROW>(f, x[0]), lo);
        l.store(canonical::<L, GROW>(f, x[1]), hi);
    }
}

#[inline(always)]
fn canonical<L: Lanes, const GROW: bool>(f: Field<L>, x: L::V) -> L::V {
    f.fold(if GROW { f.reduce(x) } else { f.halve(x) })
}

#[inline(always)]
fn halves(pair: &mut [u64; 16]) -> [&mut [u64; 8]; 2] {
    let (lo, hi) = pair.as_chunks_mut::<8>().0.split_at_mut(1);
    [&mut lo[0], &mut hi[0]]
}

/// Forward transform of the sub-ring of degree `a.len()`.
pub(super) struct Forward<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) roots: &'a Roots52,
    pub(super) a: &'a mut [u64],
}

impl<L: Lanes> NullaryFnOnce for Forward<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Forward { l, m, roots, a } = self;
        let f = Field::new(l, m);
        if m.value() < SMALL {
            forward::<L, true>(f, roots, a);
        } else {
            forward::<L, false>(f, roots, a);
        }
    }
}

/// Two layers on every block of `size` in `a`; `first` is the number of the first of them.
#[inline(always)]
fn descend<L: Lanes, const GROW: bool>(
    f: Field<L>,
    roots: &Roots52,
    a: &mut [u64],
    size: usize,
    first: usize,
) {
    for (i, block) in a.chunks_exact_mut(size).enumerate() {
        let step = Down::<L, GROW, 3>(f, roots.splat3(f.l, first + i));
        quarter_pass(f.l, block, step);
    }
}

#[inline(always)]
fn forward<L: Lanes, const GROW: bool>(f: Field<L>, roots: &Roots52, a: &mut [u64]) {
    let mut size = a.len();
    // an odd number of layers above the last three
    if size.trailing_zeros().is_multiple_of(2) {
        half_pass(f.l, a, Down::<L, GROW, 1>(f, [roots.splat(f.l, 1)]));
        size /= 2;
    }
    while size > BLOCK {
        descend::<L, GROW>(f, roots, a, size, a.len() / size);
        size /= 4;
    }
    let blocks = a.len() / size;
    for (i, block) in a.chunks_exact_mut(size).enumerate() {
        let (r, mut size) = (blocks + i, size);
        while size > 8 {
            descend::<L, GROW>(f, roots, block, size, r * (block.len() / size));
            size /= 4;
        }
        forward_last::<L, GROW>(f, roots, block, r);
    }
}

/// Inverse butterfly: from values below 2q to values below 2q.
#[inline(always)]
fn inverse2<L: Lanes>(f: Field<L>, x: [L::V; 2], w: Factor<L>) -> [L::V; 2] {
    let l = f.l;
    let d = l.sub(l.add(x[0], f.two_q), x[1]);
    [f.halve(l.add(x[0], x[1])), f.mul(d, w)]
}

/// Two inverse layers with these roots.
#[derive(Clone, Copy)]
struct Up<L: Lanes>(Field<L>, [Factor<L>; 3]);

impl<L: Lanes> Step<L, 4> for Up<L> {
    #[inline(always)]
    fn call(self, x: [L::V; 4]) -> [L::V; 4] {
        let Up(f, w) = self;
        let [a, b] = inverse2(f, [x[0], x[1]], w[1]);
        let [c, d] = inverse2(f, [x[2], x[3]], w[2]);
        let [a, c] = inverse2(f, [a, c], w[0]);
        let [b, d] = inverse2(f, [b, d], w[0]);
        [a, b, c, d]
    }
}

/// The last layer (both sides scaled, canonical output), or the last two.
#[derive(Clone, Copy)]
struct Top<L: Lanes> {
    f: Field<L>,
    n_inv: Factor<L>,
    n_inv_root: Factor<L>,
    below: [Factor<L>; 2],
}

impl<L: Lanes> Step<L, 2> for Top<L> {
    #[inline(always)]
    fn call(self, x: [L::V; 2]) -> [L::V; 2] {
        let (f, l) = (self.f, self.f.l);
        let d = l.sub(l.add(x[0], f.two_q), x[1]);
        [
            f.fold(f.mul(l.add(x[0], x[1]), self.n_inv)),
            f.fold(f.mul(d, self.n_inv_root)),
        ]
    }
}

impl<L: Lanes> Step<L, 4> for Top<L> {
    #[inline(always)]
    fn call(self, x: [L::V; 4]) -> [L::V; 4] {
        let [a, b] = inverse2(self.f, [x[0], x[1]], self.below[0]);
        let [c, d] = inverse2(self.f, [x[2], x[3]], self.below[1]);
        let [a, c] = Step::<L, 2>::call(self, [a, c]);
        let [b, d] = Step::<L, 2>::call(self, [b, d]);
        [a, b, c, d]
    }
}

/// Two layers that end in blocks of `size`; `first` is the number of the first of them.
#[inline(always)]
fn climb<L: Lanes>(f: Field<L>, roots: &Roots52, a: &mut [u64], size: usize, first: usize) {
    for (i, block) in a.chunks_exact_mut(size).enumerate() {
        quarter_pass(f.l, block, Up(f, roots.splat3(f.l, first + i)));
    }
}

/// The layers with partners less than eight apart.
#[inline(always)]
fn inverse_first<L: Lanes>(f: Field<L>, roots: &Roots52, a: &mut [u64], r: usize) {
    let l = f.l;
    let (r4, r2, r1) = (r * a.len() / 8, r * a.len() / 4, r * a.len() / 2);
    for (i, pair) in a.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let [lo, hi] = halves(pair);
        let x = deal(l, [l.load(lo), l.load(hi)], &DEAL);
        let x = inverse2(f, x, roots.spread(l, r1 + 8 * i, &SPREAD1));
        // SPLIT1, SPLIT2 and SPLIT4 undo themselves
        let x = deal(l, x, &SPLIT1);
        let x = inverse2(f, x, roots.spread(l, r2 + 4 * i, &SPREAD2));
        let x = deal(l, x, &SPLIT2);
        let x = inverse2(f, x, roots.spread(l, r4 + 2 * i, &SPREAD4));
        let x = deal(l, x, &SPLIT4);
        l.store(x[0], lo);
        l.store(x[1], hi);
    }
}

/// Inverse transform.
pub(super) struct Inverse<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) roots: &'a Roots52,
    pub(super) n_inv: Shoup,
    pub(super) n_inv_root: Shoup,
    pub(super) a: &'a mut [u64],
}

impl<L: Lanes> NullaryFnOnce for Inverse<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Inverse { l, m, roots, a, .. } = self;
        let f = Field::new(l, m);
        let two = (a.len().trailing_zeros() - 3).is_multiple_of(2);
        let below_top = a.len() / if two { 4 } else { 2 };
        let mut small = below_top;
        while small > BLOCK {
            small /= 4;
        }
        let blocks = a.len() / small;
        for (i, block) in a.chunks_exact_mut(small).enumerate() {
            let (r, mut size) = (blocks + i, 8);
            inverse_first(f, roots, block, r);
            while size < small {
                size *= 4;
                climb(f, roots, block, size, r * (block.len() / size));
            }
        }
        let mut size = small;
        while size < below_top {
            size *= 4;
            climb(f, roots, a, size, a.len() / size);
        }
        let top = Top {
            f,
            n_inv: Factor::splat(l, self.n_inv),
            n_inv_root: Factor::splat(l, self.n_inv_root),
            below: [roots.splat(l, 2), roots.splat(l, 3)],
        };
        if two {
            quarter_pass(l, a, top);
        } else {
            half_pass(l, a, top);
        }
    }
}
