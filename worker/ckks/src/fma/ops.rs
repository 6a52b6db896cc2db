//! Sums of products and base conversion on f64 vectors. A product of canonical residues comes out below
//! 0.875q in absolute value, so eight of them and a reduced sum stay below 8q.

use super::{Field, load, store};
use pulp::NullaryFnOnce;

const TILE: usize = 512;
const TERMS_PER_REDUCTION: usize = 8;

/// out = sum x * y, y possibly shorter than out.
pub(super) struct Dot<'a> {
    pub(super) field: Field,
    pub(super) out: &'a mut [u64],
    pub(super) terms: &'a [(&'a [u64], &'a [u64])],
}

/// acc += x * y with y repeated in runs of R (a fixed length that vectorises).
#[inline(always)]
fn accumulate_runs<const R: usize>(f: Field, acc: &mut [f64], x: &[u64], y: &[u64]) {
    let runs = acc.as_chunks_mut::<R>().0.iter_mut();
    for ((acc, x), y) in runs.zip(x.as_chunks::<R>().0).zip(y) {
        let y = load(*y);
        for (a, x) in acc.iter_mut().zip(x) {
            *a += f.mul(load(*x), y);
        }
    }
}

impl NullaryFnOnce for Dot<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Dot {
            field: f,
            out,
            terms,
        } = self;
        let n = out.len();
        let mut acc = [0.0f64; TILE];
        for (tile, out) in out.chunks_mut(TILE).enumerate() {
            let (start, acc) = (tile * TILE, &mut acc[..out.len()]);
            acc.fill(0.0);
            for group in terms.chunks(TERMS_PER_REDUCTION) {
                for (x, y) in group {
                    let x = &x[start..start + acc.len()];
                    let repeat = n / y.len();
                    let y = &y[start / repeat..];
                    match repeat {
                        1 => {
                            for ((a, x), y) in acc.iter_mut().zip(x).zip(y) {
                                *a += f.mul(load(*x), load(*y));
                            }
                        }
                        4 if acc.len() % 4 == 0 => accumulate_runs::<4>(f, acc, x, y),
                        8 if acc.len() % 8 == 0 => accumulate_runs::<8>(f, acc, x, y),
                        _ => {
                            let run = repeat.min(acc.len());
                            for ((a, x), y) in acc.chunks_mut(run).zip(x.chunks(run)).zip(y) {
                                let y = load(*y);
                                for (a, x) in a.iter_mut().zip(x) {
                                    *a += f.mul(load(*x), y);
                                }
                            }
                        }
                    }
                }
                for a in acc.iter_mut() {
                    *a = f.reduce(*a);
                }
            }
            for (o, a) in out.iter_mut().zip(acc.iter()) {
                *o = f.canonical(*a);
            }
        }
    }
}

/// Two sums of products that share their permuted first operands.
pub(super) struct DotPermuted<'a> {
    pub(super) field: Field,
    pub(super) out0: &'a mut [u64],
    pub(super) out1: &'a mut [u64],
    pub(super) table: &'a [u32],
    pub(super) terms0: &'a [(&'a [u64], &'a [u64])],
    pub(super) terms1: &'a [(&'a [u64], &'a [u64])],
}

impl NullaryFnOnce for DotPermuted<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        let (mut acc0, mut acc1) = ([0.0f64; TILE], [0.0f64; TILE]);
        let mut gathered = [0u64; TILE];
        let outs = self.out0.chunks_mut(TILE).zip(self.out1.chunks_mut(TILE));
        for ((tile, table), (out0, out1)) in self.table.chunks(TILE).enumerate().zip(outs) {
            let range = tile * TILE..tile * TILE + table.len();
            acc0.fill(0.0);
            acc1.fill(0.0);
            for (i, ((x, y0), (_, y1))) in self.terms0.iter().zip(self.terms1).enumerate() {
                for (g, &k) in gathered.iter_mut().zip(table) {
                    *g = x[k as usize];
                }
                let factors = y0[range.clone()].iter().zip(&y1[range.clone()]);
                let sums = acc0.iter_mut().zip(&mut acc1);
                for (((a0, a1), x), (y0, y1)) in sums.zip(&gathered).zip(factors) {
                    let x = load(*x);
                    *a0 += f.mul(x, load(*y0));
                    *a1 += f.mul(x, load(*y1));
                }
                if i % TERMS_PER_REDUCTION == TERMS_PER_REDUCTION - 1 {
                    for (a0, a1) in acc0.iter_mut().zip(&mut acc1) {
                        *a0 = f.reduce(*a0);
                        *a1 = f.reduce(*a1);
                    }
                }
            }
            for (o, a) in out0.iter_mut().zip(&acc0) {
                *o = f.canonical(*a);
            }
            for (o, a) in out1.iter_mut().zip(&acc1) {
                *o = f.canonical(*a);
            }
        }
    }
}

/// Base conversion to one target. Nine products by centred weights (k = 1: |r| <= 0.69q each) and the
/// overflow term stay below 7.5q.
pub(super) struct Convert<'a> {
    pub(super) field: Field,
    pub(super) weights: &'a [f64],
    pub(super) hats: &'a [u64],
    pub(super) overflow: &'a [u64],
    pub(super) out: &'a mut [u64],
}

#[inline(always)]
fn convert_k<const K: usize>(
    f: Field,
    weights: &[f64],
    hats: &[u64],
    overflow: &[u64],
    out: &mut [u64],
) {
    let n = out.len();
    let mut limbs = [&hats[..0]; K];
    for (i, limb) in limbs.iter_mut().enumerate() {
        *limb = &hats[i * n..(i + 1) * n];
    }
    let mut w = [0.0; K];
    w.copy_from_slice(&weights[..K]);
    let negated = weights[K];
    let overflow = &overflow[..n];
    for k in 0..n {
        let mut sum = f.mul(load(overflow[k]), negated);
        for i in 0..K {
            sum += f.mul(load(limbs[i][k]), w[i]);
        }
        out[k] = f.canonical(sum);
    }
}

impl NullaryFnOnce for Convert<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (f, w, hats, overflow, out) =
            (self.field, self.weights, self.hats, self.overflow, self.out);
        match w.len() - 1 {
            1 => convert_k::<1>(f, w, hats, overflow, out),
            2 => convert_k::<2>(f, w, hats, overflow, out),
            3 => convert_k::<3>(f, w, hats, overflow, out),
            4 => convert_k::<4>(f, w, hats, overflow, out),
            5 => convert_k::<5>(f, w, hats, overflow, out),
            6 => convert_k::<6>(f, w, hats, overflow, out),
            7 => convert_k::<7>(f, w, hats, overflow, out),
            8 => convert_k::<8>(f, w, hats, overflow, out),
            _ => convert_k::<9>(f, w, hats, overflow, out),
        }
    }
}

/// Centred lift from one modulus to another.
pub(super) struct Lift<'a> {
    pub(super) field: Field,
    pub(super) source: f64,
    pub(super) x: &'a [u64],
    pub(super) out: &'a mut [u64],
}

impl NullaryFnOnce for Lift<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (f, source) = (self.field, self.source);
        let half = source * 0.5;
        for (o, x) in self.out.iter_mut().zip(self.x) {
            let x = load(*x);
            *o = f.canonical(x - if x > half { source } else { 0.0 });
        }
    }
}

/// out = (x - out) * w.
pub(super) struct SubScale<'a> {
    pub(super) field: Field,
    pub(super) w: f64,
    pub(super) out: &'a mut [u64],
    pub(super) x: &'a [u64],
}

impl NullaryFnOnce for SubScale<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        for (o, x) in self.out.iter_mut().zip(self.x) {
            *o = f.canonical(f.mul(load(*x) - load(*o), self.w));
        }
    }
}

/// out = out + x * w.
pub(super) struct AddScaled<'a> {
    pub(super) field: Field,
    pub(super) w: f64,
    pub(super) out: &'a mut [u64],
    pub(super) x: &'a [u64],
}

impl NullaryFnOnce for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        for (o, x) in self.out.iter_mut().zip(self.x) {
            *o = f.canonical(load(*o) + f.mul(load(*x), self.w));
        }
    }
}

/// a = a * w.
pub(super) struct Scale<'a> {
    pub(super) field: Field,
    pub(super) w: f64,
    pub(super) a: &'a mut [u64],
}

impl NullaryFnOnce for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        for a in self.a {
            let r = f.mul(load(*a), self.w);
            // |r| < q, one correction suffices
            *a = store(r + if r < 0.0 { f.q } else { 0.0 });
        }
    }
}
