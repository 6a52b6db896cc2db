//! The forward transform, two layers at a time, and what the inverse shares with it. Between the passes the array
//! holds the bits of f64.

use super::vector::{Native, Vectors};
use super::wide::{Lanes, Root, Wide16};
use super::{Field, SMALL, load};
use pulp::NullaryFnOnce;

/// Smallest transform done here.
pub(super) const SMALLEST: usize = 16;

/// How a pass reads its input.
pub(super) const BITS: u8 = 0;
pub(super) const INTEGERS: u8 = 1;
const REDUCED: u8 = 2;

pub(super) type Four = [u64; 4];
type Four64 = [f64; 4];
/// A part of a transform: its node and its values.
type Part<'a> = (usize, &'a mut [Four]);

/// Layers of a part that stays in the nearest cache while all of them are done: the whole and its roots do not fit in the
/// second one.
const PART: usize = 12;

#[inline(always)]
pub(super) fn get<const IN: u8>(f: Wide16, x: [&Four; 4]) -> Lanes {
    let x = [
        f.s.load(*x[0]),
        f.s.load(*x[1]),
        f.s.load(*x[2]),
        f.s.load(*x[3]),
    ];
    match IN {
        INTEGERS => f.loaded(x),
        REDUCED => f.reduce(x),
        _ => x,
    }
}

/// Splits a block into its quarters.
#[inline(always)]
pub(super) fn quarters(block: &mut [Four]) -> [&mut [Four]; 4] {
    let len = block.len();
    let (a, b) = block.split_at_mut(len / 2);
    let (a0, a1) = a.split_at_mut(len / 4);
    let (b0, b1) = b.split_at_mut(len / 4);
    [a0, a1, b0, b1]
}

#[inline(always)]
pub(super) fn put(f: Wide16, y: Lanes, [x0, x1, x2, x3]: [&mut Four; 4]) {
    *x0 = f.s.store(y[0]);
    *x1 = f.s.store(y[1]);
    *x2 = f.s.store(y[2]);
    *x3 = f.s.store(y[3]);
}

/// Two forward layers.
#[inline(always)]
fn forward4(f: Wide16, x: Lanes, w: [Root; 3]) -> Lanes {
    let s = f.s;
    let [t2, t3] = f.mul2([x[2], x[3]], [w[0], w[0]]);
    let (a0, a2) = (s.add(x[0], t2), s.sub(x[0], t2));
    let (a1, a3) = (s.add(x[1], t3), s.sub(x[1], t3));
    let [t1, t3] = f.mul2([a1, a3], [w[1], w[2]]);
    [s.add(a0, t1), s.sub(a0, t1), s.add(a2, t3), s.sub(a2, t3)]
}

/// `forward4` on two sets of values, side by side.
#[inline(always)]
fn forward8(f: Wide16, x: [Lanes; 2], w: [[Root; 3]; 2]) -> [Lanes; 2] {
    let s = f.s;
    let [[x0, x1, x2, x3], [y0, y1, y2, y3]] = x;
    let [a2, a3, b2, b3] = f.mul4([x2, x3, y2, y3], [w[0][0], w[0][0], w[1][0], w[1][0]]);
    let (x0, x2) = (s.add(x0, a2), s.sub(x0, a2));
    let (y0, y2) = (s.add(y0, b2), s.sub(y0, b2));
    let (x1, x3) = (s.add(x1, a3), s.sub(x1, a3));
    let (y1, y3) = (s.add(y1, b3), s.sub(y1, b3));
    let [a1, a3, b1, b3] = f.mul4([x1, x3, y1, y3], [w[0][1], w[0][2], w[1][1], w[1][2]]);
    [
        [s.add(x0, a1), s.sub(x0, a1), s.add(x2, a3), s.sub(x2, a3)],
        [s.add(y0, b1), s.sub(y0, b1), s.add(y2, b3), s.sub(y2, b3)],
    ]
}

/// The roots of two layers that a block takes: of the first layer and, in a pair, of the second.
#[inline(always)]
pub(super) fn block_roots(f: Wide16, w: f64, [p, q]: [f64; 2]) -> [Root; 3] {
    [
        f.root(f.s.splat(w)),
        f.root(f.s.splat(p)),
        f.root(f.s.splat(q)),
    ]
}

/// The roots of two layers of the part of a transform below `node`: the whole is node 1, the halves of node i are nodes
/// 2i and 2i + 1. The part has `blocks` blocks in the first of these layers.
#[inline(always)]
fn roots_below(roots: &[f64], node: usize, blocks: usize) -> (&[f64], &[[f64; 2]]) {
    let (from, to) = (node * blocks, (node + 1) * blocks);
    (&roots[from..to], roots[2 * from..2 * to].as_chunks().0)
}

#[inline(always)]
fn forward_pass<const IN: u8>(f: Wide16, roots: &[f64], (node, a): Part<'_>, blocks: usize) {
    let size = a.len() / blocks;
    let (w, pairs) = roots_below(roots, node, blocks);
    let roots = w.iter().zip(pairs);
    for (block, (w, p)) in a.chunks_exact_mut(size).zip(roots) {
        let w = block_roots(f, *w, *p);
        let [b0, b1, b2, b3] = quarters(block);
        if b0.len() == 1 {
            let y = forward4(f, get::<IN>(f, [&b0[0], &b1[0], &b2[0], &b3[0]]), w);
            put(f, y, [&mut b0[0], &mut b1[0], &mut b2[0], &mut b3[0]]);
            continue;
        }
        let pairs = b0
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .zip(b1.as_chunks_mut::<2>().0);
        let others = b2
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .zip(b3.as_chunks_mut::<2>().0);
        for (([x0, y0], [x1, y1]), ([x2, y2], [x3, y3])) in pairs.zip(others) {
            let x = get::<IN>(f, [x0, x1, x2, x3]);
            let y = get::<IN>(f, [y0, y1, y2, y3]);
            let [x, y] = forward8(f, [x, y], [w, w]);
            put(f, x, [x0, x1, x2, x3]);
            put(f, y, [y0, y1, y2, y3]);
        }
    }
}

/// The roots of the two layers that work on four neighbours, for four such groups.
#[inline(always)]
pub(super) fn neighbour_roots(f: Wide16, w: &Four64, [p, q]: &[Four64; 2]) -> [Root; 3] {
    let [p, q] = f.s.unzip([f.s.load_f64(*p), f.s.load_f64(*q)]);
    [f.root(f.s.load_f64(*w)), f.root(p), f.root(q)]
}

/// The roots of the last two layers of a part.
#[inline(always)]
fn neighbours(
    roots: &[f64],
    node: usize,
    blocks: usize,
) -> impl Iterator<Item = (&Four64, &[Four64; 2])> {
    let (first, pairs) = roots_below(roots, node, blocks);
    let pairs = pairs.as_flattened().as_chunks().0.as_chunks().0;
    first.as_chunks().0.iter().zip(pairs)
}

/// The last two layers, on four neighbours; canonical output, or with `FINISH` (x - output) * w.
#[inline(always)]
fn forward_last<const IN: u8, const FINISH: bool>(
    f: Wide16,
    roots: &[f64],
    (node, a): Part<'_>,
    (x, w): (&[u64], f64),
) {
    let mut roots = neighbours(roots, node, a.len());
    let mut xs = x.as_chunks::<4>().0.as_chunks::<4>().0.iter();
    let finish = f.root(f.s.splat(w));
    let (two, one) = a.as_chunks_mut::<4>().0.as_chunks_mut::<2>();
    for [a, b] in two {
        let (Some((w, p)), Some((v, r))) = (roots.next(), roots.next()) else {
            return;
        };
        let w = [neighbour_roots(f, w, p), neighbour_roots(f, v, r)];
        let y = f.s.transpose(get::<IN>(f, [&a[0], &a[1], &a[2], &a[3]]));
        let z = f.s.transpose(get::<IN>(f, [&b[0], &b[1], &b[2], &b[3]]));
        let [y, z] = forward8(f, [y, z], w);
        if FINISH {
            let (Some(c), Some(d)) = (xs.next(), xs.next()) else {
                return;
            };
            let [y, z] = f.reduced2([f.s.transpose(y), f.s.transpose(z)]);
            let y = f.sub(get::<INTEGERS>(f, [&c[0], &c[1], &c[2], &c[3]]), y);
            let z = f.sub(get::<INTEGERS>(f, [&d[0], &d[1], &d[2], &d[3]]), z);
            let (y, z) = (f.mul4(y, [finish; 4]), f.mul4(z, [finish; 4]));
            put(f, f.lifted(y), a.each_mut());
            put(f, f.lifted(z), b.each_mut());
        } else {
            let [y, z] = f.reduced2([y, z]).map(|y| f.s.transpose(f.lifted(y)));
            put(f, y, a.each_mut());
            put(f, z, b.each_mut());
        }
    }
    // a transform of sixteen values
    if let ([a], Some((w, p))) = (one, roots.next()) {
        let w = neighbour_roots(f, w, p);
        let y = f.s.transpose(get::<IN>(f, [&a[0], &a[1], &a[2], &a[3]]));
        let y = f.s.transpose(f.canonical(forward4(f, y, w)));
        put(f, y, a.each_mut());
    }
}

/// One forward layer on the whole array.
#[inline(always)]
fn forward_first<const IN: u8>(f: Field, w: f64, a: &mut [u64]) {
    let get = |x| {
        if IN == INTEGERS {
            load(x)
        } else {
            f64::from_bits(x)
        }
    };
    let (lo, hi) = a.split_at_mut(a.len() / 2);
    for (x, y) in lo.iter_mut().zip(hi) {
        let (u, t) = (get(*x), f.mul(get(*y), w));
        *x = (u + t).to_bits();
        *y = (u - t).to_bits();
    }
}

/// Forward transform of the sub-ring of degree `a.len()`.
pub(super) struct Forward<'a> {
    pub(super) native: Native,
    /// The input is f64, at most q/2 + 2, not canonical residues.
    pub(super) lazy: bool,
    pub(super) field: Field,
    pub(super) roots: &'a [f64],
    pub(super) a: &'a mut [u64],
    /// Makes the result (x - result) * w, for more than sixteen values.
    pub(super) finish: Option<(&'a [u64], f64)>,
}

impl NullaryFnOnce for Forward<'_> {
    type Output = ();

    // From k = 1 six layers reach k = 7.6; after a reduction (k = 1/2) six more reach 6.2. Below 2^43 the
    // quotients are exact enough that a layer adds little more than 1/2 to k, and f64 holds 1024q.
    #[inline(always)]
    fn call(self) {
        let Forward { lazy, roots, a, .. } = self;
        let f = Wide16::new(self.native, self.field);
        let layers = a.len().trailing_zeros() as usize;
        let mut done = 0;
        let mut since_reduction = 0;
        let most = if self.field.q < SMALL { usize::MAX } else { 4 };
        if layers % 2 == 1 {
            if lazy {
                forward_first::<BITS>(self.field, roots[1], a);
            } else {
                forward_first::<INTEGERS>(self.field, roots[1], a);
            }
            done = 1;
            since_reduction = 1;
        }
        let a = a.as_chunks_mut::<4>().0;
        if done == 0 && !lazy && layers > 2 {
            forward_pass::<INTEGERS>(f, roots, (1, a), 1);
            (done, since_reduction) = (2, 2);
        }
        let mut steps = Steps {
            most,
            since_reduction,
        };
        while done + PART < layers {
            steps.forward(f, roots, (1, a), 1 << done);
            done += 2;
        }
        let split = if layers > PART { done } else { 0 };
        let size = a.len() >> split;
        for (i, part) in a.chunks_exact_mut(size).enumerate() {
            let mut steps = steps;
            let node = (1 << split) + i;
            for depth in (done - split..layers - split - 2).step_by(2) {
                steps.forward(f, roots, (node, part), 1 << depth);
            }
            let finish = self.finish.map_or((&[][..], 0.0), |(x, w)| {
                (&x[4 * size * i..4 * size * (i + 1)], w)
            });
            match (steps.reduce(), self.finish.is_some()) {
                (true, true) => forward_last::<REDUCED, true>(f, roots, (node, part), finish),
                (true, false) => forward_last::<REDUCED, false>(f, roots, (node, part), finish),
                (false, true) => forward_last::<BITS, true>(f, roots, (node, part), finish),
                (false, false) => forward_last::<BITS, false>(f, roots, (node, part), finish),
            }
        }
    }
}

/// Layers done since the last reduction.
#[derive(Clone, Copy)]
struct Steps {
    most: usize,
    since_reduction: usize,
}

impl Steps {
    #[inline(always)]
    fn reduce(self) -> bool {
        self.since_reduction > self.most
    }

    /// Two layers.
    #[inline(always)]
    fn forward(&mut self, f: Wide16, roots: &[f64], part: Part<'_>, blocks: usize) {
        if self.reduce() {
            forward_pass::<REDUCED>(f, roots, part, blocks);
            self.since_reduction = 0;
        } else {
            forward_pass::<BITS>(f, roots, part, blocks);
        }
        self.since_reduction += 2;
    }
}
