//! Sums of products and elementwise operations on f64 vectors.

use super::permute::gather;
use super::vector::{Native, Vectors};
use super::wide::{LANES, Lanes, Sums, Wide16};
use super::{Field, SMALL, load};
use crate::modular::Modulus;
use pulp::NullaryFnOnce;

const TILE: usize = 512;
/// A product of canonical residues is below 0.875q in absolute value, so eight and a reduced sum stay below 8q.
const TERMS_PER_REDUCTION: usize = 8;

/// out = sum x * y, y possibly shorter than out.
pub(super) struct Dot<'a> {
    pub(super) native: Native,
    pub(super) field: Field,
    pub(super) out: &'a mut [u64],
    pub(super) terms: &'a [(&'a [u64], &'a [u64])],
}

/// Products that are summed without a reduction, and where their sum starts, modulo a prime below `SMALL`: the sum is below
/// 2^92, which is the constant, the unit 2^40, the low part at most 2^45. Modulo others: below 2^102, which is the
/// constant, the unit 2^50, the low part at most 2^51.
const LONG: (usize, f64) = (64, f64::from_bits(0x45B0_0000_0000_0000));
const SHORT: (usize, f64) = (4, f64::from_bits(0x4650_0000_0000_0000));

/// Sixteen values of y from entry `at` on, each value R times, or `repeat` times if R is 0.
#[inline(always)]
fn spread<const R: usize>(f: Wide16, y: &[u64], at: usize, repeat: usize) -> Lanes {
    let at = at / if R == 0 { repeat } else { R };
    let one = |i: usize| f.s.splat(load(y[at + i]));
    match R {
        1 => match y[at..].first_chunk() {
            Some(y) => f.integers(y),
            None => f.all(0.0),
        },
        4 => [one(0), one(1), one(2), one(3)],
        8 => {
            let (a, b) = (one(0), one(1));
            [a, a, b, b]
        }
        2 => {
            let y: [f64; LANES] = std::array::from_fn(|i| load(y[at + i / 2]));
            f.floats(&y)
        }
        _ => [one(0); 4],
    }
}

/// Terms that are read side by side.
const TERMS: usize = 4;

/// Adds K terms, whose second operands repeat alike, to the sums of a tile that begins at `start`.
#[inline(always)]
fn dot_terms<const K: usize, const R: usize>(
    f: Wide16,
    terms: &[(&[u64], &[u64])],
    (repeat, start): (usize, usize),
    sums: &mut [[[f64; LANES]; 2]],
) {
    let x: [&[[u64; LANES]]; K] = std::array::from_fn(|i| {
        let x = &terms[i].0[start..start + sums.len() * LANES];
        x.as_chunks().0
    });
    let y: [&[u64]; K] = std::array::from_fn(|i| terms[i].1);
    for (k, [high, low]) in sums.iter_mut().enumerate() {
        let mut sum = Sums::resume([f.floats(high), f.floats(low)]);
        for i in 0..K {
            let y = spread::<R>(f, y[i], start + k * LANES, repeat);
            sum.add(f.s, f.integers(&x[i][k]), y);
        }
        let [h, l] = sum.parts();
        f.put_floats(h, high);
        f.put_floats(l, low);
    }
}

#[inline(always)]
fn dot_repeated<const R: usize>(
    f: Wide16,
    terms: &[(&[u64], &[u64])],
    at: (usize, usize),
    sums: &mut [[[f64; LANES]; 2]],
) {
    let (many, rest) = terms.as_chunks::<TERMS>();
    for terms in many {
        dot_terms::<TERMS, R>(f, terms, at, sums);
    }
    for terms in rest.chunks(1) {
        dot_terms::<1, R>(f, terms, at, sums);
    }
}

impl NullaryFnOnce for Dot<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let f = Wide16::new(self.native, self.field);
        let (most, start) = if self.field.q < SMALL { LONG } else { SHORT };
        let n = self.out.len();
        let mut all = [[[0.0; LANES]; 2]; TILE / LANES];
        for (tile, out) in self.out.chunks_mut(TILE).enumerate() {
            let out = out.as_chunks_mut::<LANES>().0;
            let sums = &mut all[..out.len()];
            let mut totals = [[0.0; LANES]; TILE / LANES];
            for terms in self.terms.chunks(most) {
                sums.fill([[start; LANES], [0.0; LANES]]);
                for terms in terms.chunk_by(|(_, a), (_, b)| a.len() == b.len()) {
                    let repeat = n / terms[0].1.len();
                    let at = (repeat, tile * TILE);
                    match repeat {
                        1 => dot_repeated::<1>(f, terms, at, sums),
                        2 => dot_repeated::<2>(f, terms, at, sums),
                        4 => dot_repeated::<4>(f, terms, at, sums),
                        8 => dot_repeated::<8>(f, terms, at, sums),
                        _ => dot_repeated::<0>(f, terms, at, sums),
                    }
                }
                for ([high, low], total) in sums.iter().zip(&mut totals) {
                    // the high part is below 1.5q, with two reduced sums below 3q
                    let high = f.high(f.floats(high), start);
                    let sum = f.add(high, f.reduce(f.floats(low)));
                    f.put_floats(f.reduce(f.add(f.floats(total), sum)), total);
                }
            }
            for (total, out) in totals.iter().zip(out) {
                f.put(f.canonical(f.floats(total)), out);
            }
        }
    }
}

/// Two sums of products that share their permuted first operands.
pub(super) struct DotPermuted<'a> {
    pub(super) native: Native,
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
                gather(self.native, &mut gathered[..table.len()], table, x);
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

/// Residues of signed integers.
pub(super) struct Residues<'a> {
    pub(super) modulus: &'a Modulus,
    pub(super) x: &'a [i64],
    pub(super) out: &'a mut [u64],
}

impl NullaryFnOnce for Residues<'_> {
    type Output = ();

    /// Integers of less than 52 bits are f64 next to 1.5 * 2^52 when put into its mantissa.
    #[inline(always)]
    fn call(self) {
        const MIDDLE: f64 = 1.5 * super::MAGIC;
        const HALF: i64 = 1 << 51;
        let f = Field::new(self.modulus);
        for (out, x) in self.out.chunks_mut(TILE).zip(self.x.chunks(TILE)) {
            let large = x.iter().fold(0, |a, x| a | x.wrapping_add(HALF) as u64);
            if large >> 52 == 0 {
                for (o, x) in out.iter_mut().zip(x) {
                    let bits = (MIDDLE.to_bits() as i64).wrapping_add(*x);
                    *o = f.canonical(f64::from_bits(bits as u64) - MIDDLE);
                }
            } else {
                for (o, x) in out.iter_mut().zip(x) {
                    *o = self.modulus.from_i64(*x);
                }
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
