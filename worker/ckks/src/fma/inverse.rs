//! The inverse transform, two layers at a time.

use super::transform::{BITS, Four, INTEGERS, block_roots, get, neighbour_roots, put, quarters};
use super::vector::{Native, Vectors};
use super::wide::{Lanes, Root, V, Wide16};
use super::{Field, SMALL};
use pulp::NullaryFnOnce;

/// Two inverse layers. The products reach 1/2 + 0.75k, the sums 4k and 1 + 0.75k. With `REDUCE` the sums are
/// reduced, so that k <= 2 gives k <= 2.
#[inline(always)]
fn inverse4<const REDUCE: bool>(f: Wide16, x: Lanes, w: [Root; 3]) -> Lanes {
    let s = f.s;
    let (u, v) = (s.add(x[0], x[1]), s.add(x[2], x[3]));
    let [r, t] = f.mul2([s.sub(x[0], x[1]), s.sub(x[2], x[3])], [w[1], w[2]]);
    let sums: [V; 2] = [s.add(u, v), s.add(r, t)];
    let [y2, y3] = f.mul2([s.sub(u, v), s.sub(r, t)], [w[0], w[0]]);
    let [y0, y1] = if REDUCE { f.reduce2(sums) } else { sums };
    [y0, y1, y2, y3]
}

/// `inverse4` on two sets of values, side by side.
#[inline(always)]
fn inverse8<const REDUCE: bool>(f: Wide16, [x, y]: [Lanes; 2], w: [[Root; 3]; 2]) -> [Lanes; 2] {
    let s = f.s;
    let (a, b) = (s.add(x[0], x[1]), s.add(x[2], x[3]));
    let (c, d) = (s.add(y[0], y[1]), s.add(y[2], y[3]));
    let differences = [
        s.sub(x[0], x[1]),
        s.sub(x[2], x[3]),
        s.sub(y[0], y[1]),
        s.sub(y[2], y[3]),
    ];
    let [r, t, u, v] = f.mul4(differences, [w[0][1], w[0][2], w[1][1], w[1][2]]);
    let sums = [s.add(a, b), s.add(r, t), s.add(c, d), s.add(u, v)];
    let differences = [s.sub(a, b), s.sub(r, t), s.sub(c, d), s.sub(u, v)];
    let [x2, x3, y2, y3] = f.mul4(differences, [w[0][0], w[0][0], w[1][0], w[1][0]]);
    let [x0, x1, y0, y1] = if REDUCE { f.reduce(sums) } else { sums };
    [[x0, x1, x2, x3], [y0, y1, y2, y3]]
}

/// The first two layers, on four neighbours.
#[inline(always)]
fn inverse_first<const REDUCE: bool>(
    f: Wide16,
    roots: &[f64],
    from: Option<&[Four]>,
    a: &mut [Four],
) {
    let first = roots[a.len()..2 * a.len()].as_chunks::<4>().0;
    let pairs = roots[2 * a.len()..4 * a.len()].as_chunks::<4>().0;
    let mut roots = first.iter().zip(pairs.as_chunks::<2>().0);
    let mut from = from.map(|x| x.as_chunks::<4>().0.iter());
    let (two, one) = a.as_chunks_mut::<4>().0.as_chunks_mut::<2>();
    for [a, b] in two {
        let (Some((w, p)), Some((v, r))) = (roots.next(), roots.next()) else {
            return;
        };
        let w = [neighbour_roots(f, w, p), neighbour_roots(f, v, r)];
        let (x, y) = match &mut from {
            None => (&*a, &*b),
            Some(from) => match (from.next(), from.next()) {
                (Some(x), Some(y)) => (x, y),
                _ => return,
            },
        };
        let x =
            f.s.transpose(get::<INTEGERS>(f, [&x[0], &x[1], &x[2], &x[3]]));
        let y =
            f.s.transpose(get::<INTEGERS>(f, [&y[0], &y[1], &y[2], &y[3]]));
        let [x, y] = inverse8::<REDUCE>(f, [x, y], w);
        put(f, f.s.transpose(x), a.each_mut());
        put(f, f.s.transpose(y), b.each_mut());
    }
    // a transform of sixteen values
    if let ([a], Some((w, p))) = (one, roots.next()) {
        if let Some(x) = from.and_then(|mut from| from.next()) {
            *a = *x;
        }
        let w = neighbour_roots(f, w, p);
        let x =
            f.s.transpose(get::<INTEGERS>(f, [&a[0], &a[1], &a[2], &a[3]]));
        put(f, f.s.transpose(inverse4::<REDUCE>(f, x, w)), a.each_mut());
    }
}

#[inline(always)]
fn inverse_pass<const REDUCE: bool>(f: Wide16, roots: &[f64], a: &mut [Four], blocks: usize) {
    let size = a.len() / blocks;
    let (w, pairs) = (&roots[blocks..2 * blocks], &roots[2 * blocks..4 * blocks]);
    let roots = w.iter().zip(pairs.as_chunks::<2>().0);
    for (block, (w, p)) in a.chunks_exact_mut(size).zip(roots) {
        let w = block_roots(f, *w, *p);
        let [b0, b1, b2, b3] = quarters(block);
        for (((x0, x1), x2), x3) in b0.iter_mut().zip(b1).zip(b2).zip(b3) {
            let y = inverse4::<REDUCE>(f, get::<BITS>(f, [x0, x1, x2, x3]), w);
            put(f, y, [x0, x1, x2, x3]);
        }
    }
}

/// Inverse transform.
pub(super) struct Inverse<'a> {
    pub(super) native: Native,
    pub(super) field: Field,
    pub(super) roots: &'a [f64],
    pub(super) n_inv: f64,
    pub(super) n_inv_root: f64,
    /// The input, if it is not in `a`.
    pub(super) from: Option<&'a [u64]>,
    pub(super) a: &'a mut [u64],
}

impl NullaryFnOnce for Inverse<'_> {
    type Output = ();

    // The last pass takes sums up to 4k as factors, which may reach 8q, or 256q below 2^43, where the quotient
    // is off by at most 1/2 + 3/8.
    #[inline(always)]
    fn call(self) {
        let (roots, a) = (self.roots, self.a);
        let f = Wide16::new(self.native, self.field);
        let from = self.from.map(|x| x.as_chunks().0);
        let n = a.len();
        let most = if self.field.q < SMALL { 64 } else { 2 };
        let mut k = 4;
        if k > most {
            inverse_first::<true>(f, roots, from, a.as_chunks_mut().0);
            k = 2;
        } else {
            inverse_first::<false>(f, roots, from, a.as_chunks_mut().0);
        }
        let mut blocks = n / 4;
        if n.trailing_zeros() % 2 == 1 {
            let f = self.field;
            blocks /= 2;
            for (block, w) in a.as_chunks_mut::<8>().0.iter_mut().zip(&roots[blocks..]) {
                let (lo, hi) = block.split_at_mut(4);
                for (x, y) in lo.iter_mut().zip(hi) {
                    let (u, v) = (f64::from_bits(*x), f64::from_bits(*y));
                    *x = f.reduce(u + v).to_bits();
                    *y = f.mul(u - v, *w).to_bits();
                }
            }
            k = 2;
        }
        let a = a.as_chunks_mut::<4>().0;
        // here `blocks` is a power of four: blocks of this pass hold two layers
        while blocks > 4 {
            blocks /= 4;
            k *= 4;
            if k > most {
                inverse_pass::<true>(f, roots, a, blocks);
                k = 2;
            } else {
                inverse_pass::<false>(f, roots, a, blocks);
            }
        }
        let w = block_roots(f, self.n_inv_root, [roots[2], roots[3]]);
        let n_inv = f.root(f.s.splat(self.n_inv));
        let [b0, b1, b2, b3] = quarters(a);
        for (((x0, x1), x2), x3) in b0.iter_mut().zip(b1).zip(b2).zip(b3) {
            let y = inverse4::<false>(f, get::<BITS>(f, [x0, x1, x2, x3]), w);
            let [y0, y1] = f.mul2([y[0], y[1]], [n_inv; 2]);
            put(f, f.canonical([y0, y1, y[2], y[3]]), [x0, x1, x2, x3]);
        }
    }
}
