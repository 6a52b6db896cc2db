//! Sums of products and base conversion on f64 vectors. A product of canonical residues comes out below
//! 0.875q in absolute value, so eight of them and a reduced sum stay below 8q.

use super::{Field, load};
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
            *o = f.product(load(*x) - load(*o), self.w);
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
            *a = f.product(load(*a), self.w);
        }
    }
}

/// a = a + b.
pub(super) struct Add<'a> {
    pub(super) field: Field,
    pub(super) a: &'a mut [u64],
    pub(super) b: &'a [u64],
}

impl NullaryFnOnce for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        for (a, b) in self.a.iter_mut().zip(self.b) {
            *a = f.lift_negative(load(*a) + load(*b) - f.q);
        }
    }
}

/// a = a - b.
pub(super) struct Sub<'a> {
    pub(super) field: Field,
    pub(super) a: &'a mut [u64],
    pub(super) b: &'a [u64],
}

impl NullaryFnOnce for Sub<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = self.field;
        for (a, b) in self.a.iter_mut().zip(self.b) {
            *a = f.lift_negative(load(*a) - load(*b));
        }
    }
}
