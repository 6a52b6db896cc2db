//! Both transforms. Layers are numbered as a binary tree: the block with number r (the whole array is 1) has
//! the root number r and the halves 2r and 2r + 1. A block that does not fit the first-level cache is split by
//! two layers at a time and its quarters are finished one after the other.
//!
//! Forward values stay below 4q. Where q is so small that sixteen layers of growth by 2q stay below 2^52
//! (36q < 2^52, from values below 4q on), they are left to grow.

use super::lanes::Lanes;
use super::{Factor, Field};
use crate::modular::{Modulus, Shoup};
use pulp::NullaryFnOnce;

/// Smallest transform done here.
pub(super) const SMALLEST: usize = 256;

/// Largest block that is finished layer by layer: 32 KiB.
const BLOCK: usize = 4096;

/// Moduli below this need no reduction between forward layers.
const SMALL: u64 = 1 << 46;

/// Roots with their 52-bit quotients.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Roots52 {
    /// of the layers above the last three
    top: Vec<(u64, u64)>,
    last: Vec<Last>,
}

/// The roots of the last three layers of eight neighbouring blocks of eight: of each block, of its halves, of its
/// quarters. Times 2^52 mod q and without a quotient: seven eighths of all roots are here, and a limb with its roots does
/// not fit the second-level cache.
#[derive(Debug, Clone, PartialEq)]
struct Last([[u64; 8]; 7]);

impl Roots52 {
    pub(crate) fn new(m: &Modulus, roots: &[Shoup]) -> Roots52 {
        let unit = m.reduce(1 << 52);
        // the layer below a block of eight and the place there that each vector is for
        const BELOW: [(usize, usize); 7] = [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)];
        let vectors = |first: usize| {
            Last(BELOW.map(|(layer, place)| {
                std::array::from_fn(|lane| m.mul(roots[layer * (first + lane) + place].w, unit))
            }))
        };
        let top = roots.iter().take(roots.len() / 8);
        Roots52 {
            top: top.map(|r| (r.w, r.quotient >> 12)).collect(),
            last: (0..roots.len() / 32).map(|i| vectors(8 * i)).collect(),
        }
    }

    #[inline(always)]
    fn splat<L: Lanes>(&self, l: L, i: usize) -> Factor<L> {
        let (w, quotient) = self.top[i];
        Factor {
            w: l.splat(w),
            quotient: l.splat(quotient),
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

    /// The last three layers of a block of `len` values, which has number r: a part for each 64 of them.
    #[inline(always)]
    fn last(&self, r: usize, len: usize) -> &[Last] {
        &self.last[r * (len / 64)..(r + 1) * (len / 64)]
    }
}

impl Last {
    #[inline(always)]
    fn load<L: Lanes>(&self, l: L) -> [L::V; 7] {
        self.0.each_ref().map(|w| l.load(w))
    }
}

/// How two vectors exchange halves (4), quarters (2) and eighths (1): together the transposition of eight vectors.
const SPLIT4: [[u64; 8]; 2] = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]];
const SPLIT2: [[u64; 8]; 2] = [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]];
const SPLIT1: [[u64; 8]; 2] = [[0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]];

#[inline(always)]
fn deal<L: Lanes>(l: L, x: [L::V; 2], to: &[[u64; 8]; 2]) -> [L::V; 2] {
    [l.select(x[0], x[1], &to[0]), l.select(x[0], x[1], &to[1])]
}

/// Rows to columns.
#[inline(always)]
fn transpose<L: Lanes>(l: L, x: [L::V; 8]) -> [L::V; 8] {
    let [a, e] = deal(l, [x[0], x[4]], &SPLIT4);
    let [b, f] = deal(l, [x[1], x[5]], &SPLIT4);
    let [c, g] = deal(l, [x[2], x[6]], &SPLIT4);
    let [d, h] = deal(l, [x[3], x[7]], &SPLIT4);
    let [a, c] = deal(l, [a, c], &SPLIT2);
    let [b, d] = deal(l, [b, d], &SPLIT2);
    let [e, g] = deal(l, [e, g], &SPLIT2);
    let [f, h] = deal(l, [f, h], &SPLIT2);
    let [a, b] = deal(l, [a, b], &SPLIT1);
    let [c, d] = deal(l, [c, d], &SPLIT1);
    let [e, f] = deal(l, [e, f], &SPLIT1);
    let [g, h] = deal(l, [g, h], &SPLIT1);
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
fn load8<L: Lanes>(l: L, x: &[u64; 64]) -> [L::V; 8] {
    let mut out = [l.splat(0); 8];
    for (out, row) in out.iter_mut().zip(x.as_chunks::<8>().0) {
        *out = l.load(row);
    }
    out
}

#[inline(always)]
fn store8<L: Lanes>(l: L, x: [L::V; 8], out: &mut [u64; 64]) {
    for (x, row) in x.into_iter().zip(out.as_chunks_mut::<8>().0) {
        l.store(x, row);
    }
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

/// Three forward layers on the whole array.
#[inline(always)]
fn forward_eighths<L: Lanes, const GROW: bool>(f: Field<L>, roots: &Roots52, a: &mut [u64]) {
    let (l, size) = (f.l, a.len() / 8);
    let r: [Factor<L>; 7] = std::array::from_fn(|i| roots.splat(l, i + 1));
    let mut parts: [&mut [[u64; 8]]; 8] = Default::default();
    for (part, a) in parts.iter_mut().zip(a.chunks_exact_mut(size)) {
        *part = a.as_chunks_mut().0;
    }
    let [p0, p1, p2, p3, p4, p5, p6, p7] = parts;
    let low = p0.iter_mut().zip(p1).zip(p2).zip(p3);
    let high = p4.iter_mut().zip(p5).zip(p6).zip(p7);
    for ((((p0, p1), p2), p3), (((p4, p5), p6), p7)) in low.zip(high) {
        let [x0, x4] = forward2::<L, GROW>(f, [l.load(p0), l.load(p4)], r[0]);
        let [x1, x5] = forward2::<L, GROW>(f, [l.load(p1), l.load(p5)], r[0]);
        let [x2, x6] = forward2::<L, GROW>(f, [l.load(p2), l.load(p6)], r[0]);
        let [x3, x7] = forward2::<L, GROW>(f, [l.load(p3), l.load(p7)], r[0]);
        let [x0, x2] = forward2::<L, GROW>(f, [x0, x2], r[1]);
        let [x1, x3] = forward2::<L, GROW>(f, [x1, x3], r[1]);
        let [x4, x6] = forward2::<L, GROW>(f, [x4, x6], r[2]);
        let [x5, x7] = forward2::<L, GROW>(f, [x5, x7], r[2]);
        let [x0, x1] = forward2::<L, GROW>(f, [x0, x1], r[3]);
        let [x2, x3] = forward2::<L, GROW>(f, [x2, x3], r[4]);
        let [x4, x5] = forward2::<L, GROW>(f, [x4, x5], r[5]);
        let [x6, x7] = forward2::<L, GROW>(f, [x6, x7], r[6]);
        l.store(x0, p0);
        l.store(x1, p1);
        l.store(x2, p2);
        l.store(x3, p3);
        l.store(x4, p4);
        l.store(x5, p5);
        l.store(x6, p6);
        l.store(x7, p7);
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

/// x * w / 2^52 mod q in (-q, q), for x < 2^52 and w < q (Montgomery 1985).
#[inline(always)]
fn reduced<L: Lanes>(f: Field<L>, x: L::V, w: L::V) -> L::V {
    let l = f.l;
    let low = l.madd_lo(f.zero, x, w);
    let multiple = l.madd_lo(f.zero, low, f.odd_inverse);
    l.sub(l.madd_hi(f.zero, x, w), l.madd_hi(f.zero, multiple, f.q))
}

/// `forward2` with a root times 2^52.
#[inline(always)]
fn forward2_last<L: Lanes, const GROW: bool>(f: Field<L>, x: [L::V; 2], w: L::V) -> [L::V; 2] {
    let l = f.l;
    let u = if GROW { x[0] } else { f.halve(x[0]) };
    let (u, v) = (l.add(u, f.q), reduced(f, x[1], w));
    [l.add(u, v), l.sub(u, v)]
}

/// The layers with partners less than eight apart; canonical output, or with `FINISH` (x - output) * w.
#[inline(always)]
fn forward_last<L: Lanes, const GROW: bool, const FINISH: bool>(
    f: Field<L>,
    roots: &[Last],
    a: &mut [u64],
    (from, w): (&[u64], Factor<L>),
) {
    let l = f.l;
    let mut from = from.as_chunks::<64>().0.iter();
    for (rows, roots) in a.as_chunks_mut::<64>().0.iter_mut().zip(roots) {
        let r = roots.load(l);
        let x = transpose(l, load8(l, rows));
        let [x0, x4] = forward2_last::<L, GROW>(f, [x[0], x[4]], r[0]);
        let [x1, x5] = forward2_last::<L, GROW>(f, [x[1], x[5]], r[0]);
        let [x2, x6] = forward2_last::<L, GROW>(f, [x[2], x[6]], r[0]);
        let [x3, x7] = forward2_last::<L, GROW>(f, [x[3], x[7]], r[0]);
        let [x0, x2] = forward2_last::<L, GROW>(f, [x0, x2], r[1]);
        let [x1, x3] = forward2_last::<L, GROW>(f, [x1, x3], r[1]);
        let [x4, x6] = forward2_last::<L, GROW>(f, [x4, x6], r[2]);
        let [x5, x7] = forward2_last::<L, GROW>(f, [x5, x7], r[2]);
        let [x0, x1] = forward2_last::<L, GROW>(f, [x0, x1], r[3]);
        let [x2, x3] = forward2_last::<L, GROW>(f, [x2, x3], r[4]);
        let [x4, x5] = forward2_last::<L, GROW>(f, [x4, x5], r[5]);
        let [x6, x7] = forward2_last::<L, GROW>(f, [x6, x7], r[6]);
        let mut x = transpose(l, [x0, x1, x2, x3, x4, x5, x6, x7]);
        for x in &mut x {
            *x = if GROW { f.reduce(*x) } else { f.halve(*x) };
        }
        if let (true, Some(from)) = (FINISH, from.next()) {
            for (x, from) in x.iter_mut().zip(load8(l, from)) {
                *x = f.mul(l.sub(l.add(from, f.two_q), *x), w);
            }
        }
        for x in &mut x {
            *x = f.fold(*x);
        }
        store8(l, x, rows);
    }
}

/// Forward transform of the sub-ring of degree `a.len()`, of values below 4q.
pub(super) struct Forward<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) roots: &'a Roots52,
    pub(super) a: &'a mut [u64],
    /// Makes the result (x - result) * w.
    pub(super) finish: Option<(&'a [u64], Shoup)>,
}

impl<L: Lanes> NullaryFnOnce for Forward<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Forward { l, m, roots, a, .. } = self;
        let f = Field::new(l, m);
        let finish = self.finish.map_or(
            (
                &[][..],
                Factor {
                    w: f.zero,
                    quotient: f.zero,
                },
            ),
            |(x, w)| (x, Factor::splat(l, w)),
        );
        match (m.value() < SMALL, self.finish.is_some()) {
            (true, true) => forward::<L, true, true>(f, roots, a, finish),
            (true, false) => forward::<L, true, false>(f, roots, a, finish),
            (false, true) => forward::<L, false, true>(f, roots, a, finish),
            (false, false) => forward::<L, false, false>(f, roots, a, finish),
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
fn forward<L: Lanes, const GROW: bool, const FINISH: bool>(
    f: Field<L>,
    roots: &Roots52,
    a: &mut [u64],
    (from, w): (&[u64], Factor<L>),
) {
    let mut size = a.len();
    // an odd number of layers above the last three
    if size.trailing_zeros().is_multiple_of(2) {
        if size >= 1 << 12 {
            forward_eighths::<L, GROW>(f, roots, a);
            size /= 8;
        } else {
            half_pass(f.l, a, Down::<L, GROW, 1>(f, [roots.splat(f.l, 1)]));
            size /= 2;
        }
    }
    while size > BLOCK {
        descend::<L, GROW>(f, roots, a, size, a.len() / size);
        size /= 4;
    }
    let (blocks, whole) = (a.len() / size, size);
    for (i, block) in a.chunks_exact_mut(size).enumerate() {
        let (r, mut size) = (blocks + i, whole);
        while size > 8 {
            descend::<L, GROW>(f, roots, block, size, r * (block.len() / size));
            size /= 4;
        }
        let from = if FINISH {
            &from[whole * i..whole * (i + 1)]
        } else {
            from
        };
        forward_last::<L, GROW, FINISH>(f, roots.last(r, whole), block, (from, w));
    }
}

/// Inverse butterfly: from values below 2q to values below 2q.
#[inline(always)]
fn inverse2<L: Lanes>(f: Field<L>, x: [L::V; 2], w: Factor<L>) -> [L::V; 2] {
    let l = f.l;
    let d = l.sub(l.add(x[0], f.two_q), x[1]);
    [f.halve(l.add(x[0], x[1])), f.mul(d, w)]
}

/// `inverse2` with a root times 2^52.
#[inline(always)]
fn inverse2_first<L: Lanes>(f: Field<L>, x: [L::V; 2], w: L::V) -> [L::V; 2] {
    let l = f.l;
    let d = l.sub(l.add(x[0], f.two_q), x[1]);
    [f.halve(l.add(x[0], x[1])), l.add(f.q, reduced(f, d, w))]
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

/// The layers with partners less than eight apart; the input may be elsewhere.
#[inline(always)]
fn inverse_first<L: Lanes>(f: Field<L>, roots: &[Last], from: Option<&[u64]>, a: &mut [u64]) {
    let l = f.l;
    let from = from.map(|x| x.as_chunks::<64>().0);
    let rows = a.as_chunks_mut::<64>().0.iter_mut();
    for (i, (rows, roots)) in rows.zip(roots).enumerate() {
        let r = roots.load(l);
        let x = transpose(l, load8(l, from.map_or(&*rows, |from| &from[i])));
        let [x0, x1] = inverse2_first(f, [x[0], x[1]], r[3]);
        let [x2, x3] = inverse2_first(f, [x[2], x[3]], r[4]);
        let [x4, x5] = inverse2_first(f, [x[4], x[5]], r[5]);
        let [x6, x7] = inverse2_first(f, [x[6], x[7]], r[6]);
        let [x0, x2] = inverse2_first(f, [x0, x2], r[1]);
        let [x1, x3] = inverse2_first(f, [x1, x3], r[1]);
        let [x4, x6] = inverse2_first(f, [x4, x6], r[2]);
        let [x5, x7] = inverse2_first(f, [x5, x7], r[2]);
        let [x0, x4] = inverse2_first(f, [x0, x4], r[0]);
        let [x1, x5] = inverse2_first(f, [x1, x5], r[0]);
        let [x2, x6] = inverse2_first(f, [x2, x6], r[0]);
        let [x3, x7] = inverse2_first(f, [x3, x7], r[0]);
        store8(l, transpose(l, [x0, x1, x2, x3, x4, x5, x6, x7]), rows);
    }
}

/// Inverse transform.
pub(super) struct Inverse<'a, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) roots: &'a Roots52,
    pub(super) n_inv: Shoup,
    pub(super) n_inv_root: Shoup,
    /// The input, if it is not in `a`.
    pub(super) from: Option<&'a [u64]>,
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
            let from = self.from.map(|x| &x[i * small..(i + 1) * small]);
            inverse_first(f, roots.last(r, small), from, block);
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
