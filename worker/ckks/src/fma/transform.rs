//! Both transforms, two layers at a time. Between the passes the array holds the bits of f64.

use super::{Field, load};
use pulp::NullaryFnOnce;

/// Smallest transform done here.
pub(super) const SMALLEST: usize = 16;

/// How a pass reads its input.
const BITS: u8 = 0;
const INTEGERS: u8 = 1;
const REDUCED: u8 = 2;

#[inline(always)]
fn get<const IN: u8>(f: Field, x: u64) -> f64 {
    match IN {
        INTEGERS => load(x),
        REDUCED => f.reduce(f64::from_bits(x)),
        _ => f64::from_bits(x),
    }
}

#[inline(always)]
fn put<const LAST: bool>(f: Field, x: f64) -> u64 {
    if LAST { f.canonical(x) } else { x.to_bits() }
}

/// Splits a block into its quarters.
#[inline(always)]
fn quarters(block: &mut [u64]) -> [&mut [u64]; 4] {
    let len = block.len();
    let (a, b) = block.split_at_mut(len / 2);
    let (a0, a1) = a.split_at_mut(len / 4);
    let (b0, b1) = b.split_at_mut(len / 4);
    [a0, a1, b0, b1]
}

/// Two forward layers on four values.
#[inline(always)]
fn forward4(f: Field, x: [f64; 4], w: [f64; 3]) -> [f64; 4] {
    let (t2, t3) = (f.mul(x[2], w[0]), f.mul(x[3], w[0]));
    let (a0, a2) = (x[0] + t2, x[0] - t2);
    let (a1, a3) = (x[1] + t3, x[1] - t3);
    let (t1, t3) = (f.mul(a1, w[1]), f.mul(a3, w[2]));
    [a0 + t1, a0 - t1, a2 + t3, a2 - t3]
}

/// The four quarters as separate arguments, so that the compiler knows that they do not overlap.
#[inline(always)]
fn forward_quarters<const IN: u8>(
    f: Field,
    b0: &mut [u64],
    b1: &mut [u64],
    b2: &mut [u64],
    b3: &mut [u64],
    w: [f64; 3],
) {
    let len = b0.len();
    let (b1, b2, b3) = (&mut b1[..len], &mut b2[..len], &mut b3[..len]);
    for i in 0..len {
        let x = [b0[i], b1[i], b2[i], b3[i]].map(|x| get::<IN>(f, x));
        let y = forward4(f, x, w);
        b0[i] = y[0].to_bits();
        b1[i] = y[1].to_bits();
        b2[i] = y[2].to_bits();
        b3[i] = y[3].to_bits();
    }
}

#[inline(always)]
fn forward_block<const IN: u8>(f: Field, block: &mut [u64], w: [f64; 3]) {
    let [b0, b1, b2, b3] = quarters(block);
    forward_quarters::<IN>(f, b0, b1, b2, b3, w);
}

#[inline(always)]
fn forward_pass<const IN: u8>(f: Field, roots: &[f64], a: &mut [u64], blocks: usize) {
    let size = a.len() / blocks;
    let (w, pairs) = (&roots[blocks..2 * blocks], &roots[2 * blocks..4 * blocks]);
    let twiddles = w.iter().zip(pairs.chunks_exact(2));
    for (block, (w, p)) in a.chunks_exact_mut(size).zip(twiddles) {
        forward_block::<IN>(f, block, [*w, p[0], p[1]]);
    }
}

/// Groups of four neighbours handled together in the last pass.
const TILE: usize = 64;

/// The last two layers, on four neighbours; canonical output. The neighbours are first spread over four
/// arrays, because the compiler vectorises across groups only then.
#[inline(always)]
fn forward_last<const IN: u8>(f: Field, roots: &[f64], a: &mut [u64]) {
    let n = a.len();
    let (w, pairs) = (&roots[n / 4..n / 2], &roots[n / 2..n]);
    let twiddles = w.chunks(TILE).zip(pairs.as_chunks::<2>().0.chunks(TILE));
    let mut lanes = [[0.0; TILE]; 4];
    let mut out = [[0; TILE]; 4];
    for (a, (w, p)) in a.as_chunks_mut::<4>().0.chunks_mut(TILE).zip(twiddles) {
        let [l0, l1, l2, l3] = &mut lanes;
        for ((((x, l0), l1), l2), l3) in a.iter().zip(l0).zip(l1).zip(l2).zip(l3) {
            *l0 = get::<IN>(f, x[0]);
            *l1 = get::<IN>(f, x[1]);
            *l2 = get::<IN>(f, x[2]);
            *l3 = get::<IN>(f, x[3]);
        }
        for (j, (w, p)) in w.iter().zip(p).enumerate() {
            let x = [lanes[0][j], lanes[1][j], lanes[2][j], lanes[3][j]];
            let y = forward4(f, x, [*w, p[0], p[1]]);
            out[0][j] = f.canonical(y[0]);
            out[1][j] = f.canonical(y[1]);
            out[2][j] = f.canonical(y[2]);
            out[3][j] = f.canonical(y[3]);
        }
        let [l0, l1, l2, l3] = &out;
        for ((((x, l0), l1), l2), l3) in a.iter_mut().zip(l0).zip(l1).zip(l2).zip(l3) {
            *x = [*l0, *l1, *l2, *l3];
        }
    }
}

/// Forward transform of the sub-ring of degree `a.len()`.
pub(super) struct Forward<'a> {
    pub(super) field: Field,
    pub(super) roots: &'a [f64],
    pub(super) a: &'a mut [u64],
}

impl NullaryFnOnce for Forward<'_> {
    type Output = ();

    // From k = 1 six layers reach k = 7.6; after a reduction (k = 1/2) six more reach 6.2.
    #[inline(always)]
    fn call(self) {
        let Forward { field: f, roots, a } = self;
        let layers = a.len().trailing_zeros() as usize;
        let mut done = 0;
        let mut since_reduction = 0;
        if layers % 2 == 1 {
            let half = a.len() / 2;
            let (lo, hi) = a.split_at_mut(half);
            for (x, y) in lo.iter_mut().zip(hi) {
                let u = load(*x);
                let t = f.mul(load(*y), roots[1]);
                *x = (u + t).to_bits();
                *y = (u - t).to_bits();
            }
            done = 1;
            since_reduction = 1;
        }
        while done < layers - 2 {
            if done == 0 {
                forward_pass::<INTEGERS>(f, roots, a, 1);
            } else if since_reduction > 4 {
                forward_pass::<REDUCED>(f, roots, a, 1 << done);
                since_reduction = 0;
            } else {
                forward_pass::<BITS>(f, roots, a, 1 << done);
            }
            done += 2;
            since_reduction += 2;
        }
        if since_reduction > 4 {
            forward_last::<REDUCED>(f, roots, a);
        } else {
            forward_last::<BITS>(f, roots, a);
        }
    }
}

/// Two inverse layers on four values. Inputs with k <= 2 give outputs with k <= 2: the sums (up to 4k and
/// 1 + 0.75k) are reduced, the products reach 1/2 + 0.75k.
#[inline(always)]
fn inverse4(f: Field, x: [f64; 4], w: [f64; 3]) -> [f64; 4] {
    let (s, r) = (x[0] + x[1], f.mul(x[0] - x[1], w[1]));
    let (t, v) = (x[2] + x[3], f.mul(x[2] - x[3], w[2]));
    [
        f.reduce(s + t),
        f.reduce(r + v),
        f.mul(s - t, w[0]),
        f.mul(r - v, w[0]),
    ]
}

#[inline(always)]
fn inverse_first(f: Field, roots: &[f64], a: &mut [u64]) {
    let n = a.len();
    let (w, pairs) = (&roots[n / 4..n / 2], &roots[n / 2..n]);
    let twiddles = w.iter().zip(pairs.as_chunks::<2>().0);
    for (x, (w, p)) in a.as_chunks_mut::<4>().0.iter_mut().zip(twiddles) {
        let y = inverse4(f, x.map(load), [*w, p[0], p[1]]);
        *x = y.map(f64::to_bits);
    }
}

#[inline(always)]
fn inverse_quarters<const LAST: bool>(
    f: Field,
    b0: &mut [u64],
    b1: &mut [u64],
    b2: &mut [u64],
    b3: &mut [u64],
    w: [f64; 3],
    n_inv: f64,
) {
    let len = b0.len();
    let (b1, b2, b3) = (&mut b1[..len], &mut b2[..len], &mut b3[..len]);
    for i in 0..len {
        let x = [b0[i], b1[i], b2[i], b3[i]].map(f64::from_bits);
        let mut y = inverse4(f, x, w);
        if LAST {
            y[0] = f.mul(y[0], n_inv);
            y[1] = f.mul(y[1], n_inv);
        }
        b0[i] = put::<LAST>(f, y[0]);
        b1[i] = put::<LAST>(f, y[1]);
        b2[i] = put::<LAST>(f, y[2]);
        b3[i] = put::<LAST>(f, y[3]);
    }
}

#[inline(always)]
fn inverse_block<const LAST: bool>(f: Field, block: &mut [u64], w: [f64; 3], n_inv: f64) {
    let [b0, b1, b2, b3] = quarters(block);
    inverse_quarters::<LAST>(f, b0, b1, b2, b3, w, n_inv);
}

/// Inverse transform.
pub(super) struct Inverse<'a> {
    pub(super) field: Field,
    pub(super) roots: &'a [f64],
    pub(super) n_inv: f64,
    pub(super) n_inv_root: f64,
    pub(super) a: &'a mut [u64],
}

impl NullaryFnOnce for Inverse<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Inverse {
            field: f,
            roots,
            n_inv,
            n_inv_root,
            a,
        } = self;
        let n = a.len();
        inverse_first(f, roots, a);
        let mut blocks = n / 4;
        if n.trailing_zeros() % 2 == 1 {
            blocks /= 2;
            for (block, w) in a.as_chunks_mut::<8>().0.iter_mut().zip(&roots[blocks..]) {
                let (lo, hi) = block.split_at_mut(4);
                for (x, y) in lo.iter_mut().zip(hi) {
                    let (u, v) = (f64::from_bits(*x), f64::from_bits(*y));
                    *x = f.reduce(u + v).to_bits();
                    *y = f.mul(u - v, *w).to_bits();
                }
            }
        }
        // here `blocks` is a power of four: blocks of this pass hold two layers
        while blocks > 4 {
            blocks /= 4;
            let (w, pairs) = (&roots[blocks..2 * blocks], &roots[2 * blocks..4 * blocks]);
            let twiddles = w.iter().zip(pairs.chunks_exact(2));
            for (block, (w, p)) in a.chunks_exact_mut(n / blocks).zip(twiddles) {
                inverse_block::<false>(f, block, [*w, p[0], p[1]], 0.0);
            }
        }
        inverse_block::<true>(f, a, [n_inv_root, roots[2], roots[3]], n_inv);
    }
}
