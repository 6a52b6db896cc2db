//! Sums of products that are reduced once, without a reduction of each product: base conversion and the
//! inner products of key switching.

use super::{Field, MAGIC_BITS, load};
use crate::convert::{MAX_SOURCES, SourceConstants, overflow_at};
use crate::kernel::KeyProduct;
use crate::modular::Modulus;
use pulp::NullaryFnOnce;
use std::ops::Range;

/// Coefficients handled together; operands that several sums share are converted to f64 once per tile.
pub(super) const TILE: usize = 256;

/// A sum of products x*w, exact: `high` collects the products rounded to multiples of 2^51, `low` what the
/// rounding left, at most 2^50 each.
///
/// `high` starts in [2^103, 2^104), where neighbours are 2^51 apart, and has to stay there, so that every
/// step of it is a multiple of 2^51 that f64 holds; x*w less that step is an integer of at most 50 bits,
/// which the second fused multiply-add gives exactly. Eight `low` parts make at most 2^53, still exact.
/// Room in `high`: from 2^103 for eight products of integers in [0, 2^50), since 8*(2^50 - 1)^2 + 8*2^50 < 2^103;
/// from the middle for nine products of integers in [-2^49, 2^49], since 9*2^98 + 9*2^50 < 2^102.
struct Wide {
    high: Lanes,
    low: Lanes,
}

/// Sums taken side by side: one alone is a long chain of dependent operations.
const LANES: usize = 8;
type Lanes = [f64; LANES];

/// 2^103: products are not negative.
const UNSIGNED: f64 = f64::from_bits(0x4660_0000_0000_0000);
/// 1.5 * 2^103: products of either sign.
const SIGNED: f64 = f64::from_bits(0x4668_0000_0000_0000);

impl Wide {
    #[inline(always)]
    fn new(start: f64) -> Wide {
        Wide {
            high: [start; LANES],
            low: [0.0; LANES],
        }
    }

    #[inline(always)]
    fn add(&mut self, x: &Lanes, w: impl Fn(usize) -> f64) {
        for (l, x) in x.iter().enumerate() {
            let next = x.mul_add(w(l), self.high[l]);
            let step = next - self.high[l];
            self.low[l] += x.mul_add(w(l), -step);
            self.high[l] = next;
        }
    }

    /// A representative of the high part, at most q/2 + 2^-52 * |high - start|: the quotient is the product
    /// of two rounded factors, so it is off by its 2^-52th, and the remainder is an integer below 2^53.
    #[inline(always)]
    fn high(&self, f: Field, start: f64) -> Lanes {
        self.high.map(|x| f.reduce(x - start))
    }
}

/// Conversions in one pass over the sources.
pub(super) const TARGETS: usize = 8;

/// Base conversion. The hats are taken less 2^49, which a constant per target makes good.
pub(super) struct Convert<'a, 'b> {
    pub(super) targets: &'a [(&'a Modulus, &'a [u64])],
    pub(super) hats: &'a [u64],
    pub(super) overflow: &'a [u64],
    pub(super) outs: &'a mut [&'b mut [u64]],
}

/// Constants of one target of K sources.
#[derive(Clone, Copy)]
struct Target<const K: usize> {
    field: Field,
    weights: [f64; K],
    /// negated product of the sources
    negated: f64,
    /// 2^49 times the sum of the weights
    constant: f64,
}

impl<const K: usize> Target<K> {
    fn new(m: &Modulus, weights: &[u64]) -> Target<K> {
        let sum: u128 = weights[..K].iter().map(|w| u128::from(*w)).sum();
        Target {
            field: Field::new(m),
            weights: std::array::from_fn(|i| Field::centred(m, weights[i])),
            negated: Field::centred(m, weights[K]),
            constant: Field::centred(m, m.reduce_u128(sum << 49)),
        }
    }
}

/// An integer below 2^50, less 2^49.
#[inline(always)]
fn load_centred(x: u64) -> f64 {
    const OFFSET: f64 = 4503599627370496.0 + 562949953421312.0; // 2^52 + 2^49
    f64::from_bits(x | MAGIC_BITS) - OFFSET
}

/// Bounds in units of 2^49, of which f64 holds 16: the high part 1 + K/8, the overflow term K, the constant 1,
/// a low part 2 or, up to eight of them reduced, 1 together. That is at most 14.5 for K <= 4, 11 for K <= 8 and
/// 15.2 for K = 9.
#[inline(always)]
fn convert_lanes<const K: usize>(
    t: &Target<K>,
    sources: [&Lanes; K],
    overflow: &Lanes,
    out: &mut [u64; LANES],
) {
    let f = t.field;
    let mut sum = Wide::new(SIGNED);
    let mut rest = [0.0; LANES];
    for (i, (x, w)) in sources.into_iter().zip(t.weights).enumerate() {
        sum.add(x, |_| w);
        if i == 7 && K > 8 {
            rest = sum.low.map(|x| f.reduce(x));
            sum.low = [0.0; LANES];
        }
    }
    if K > 4 && K <= 8 {
        sum.low = sum.low.map(|x| f.reduce(x));
    }
    let high = sum.high(f, SIGNED);
    for l in 0..LANES {
        let x = overflow[l].mul_add(t.negated, high[l] + t.constant);
        out[l] = f.canonical(x + rest[l] + sum.low[l]);
    }
}

#[inline(always)]
fn convert_k<const K: usize>(c: Convert) {
    let n = c.overflow.len();
    let mut targets = [Target::<K> {
        field: Field {
            q: 1.0,
            inverse: 1.0,
        },
        weights: [0.0; K],
        negated: 0.0,
        constant: 0.0,
    }; TARGETS];
    for (t, (m, weights)) in targets.iter_mut().zip(c.targets) {
        *t = Target::new(m, weights);
    }
    // lengths that the compiler does not know, or it unrolls the loops over a tile
    let len = TILE.min(n);
    let mut sources = [[[0.0; LANES]; TILE / LANES]; K];
    let mut overflow = [[0.0; LANES]; TILE / LANES];
    for tile in 0..n / TILE {
        let at = tile * TILE..tile * TILE + len;
        for (i, source) in sources.iter_mut().enumerate() {
            let hats = &c.hats[i * n..(i + 1) * n][at.clone()];
            for (s, h) in source.as_flattened_mut().iter_mut().zip(hats) {
                *s = load_centred(*h);
            }
        }
        for (o, v) in overflow
            .as_flattened_mut()
            .iter_mut()
            .zip(&c.overflow[at.clone()])
        {
            *o = load(*v);
        }
        for (out, t) in c.outs.iter_mut().zip(&targets) {
            let outs = out[at.clone()].as_chunks_mut::<LANES>().0.iter_mut();
            for (l, (out, overflow)) in outs.zip(&overflow).enumerate() {
                let sources = std::array::from_fn(|i| &sources[i][l]);
                convert_lanes::<K>(t, sources, overflow, out);
            }
        }
    }
}

impl NullaryFnOnce for Convert<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.targets.first().map_or(0, |(_, w)| w.len()) {
            0 | 1 => (),
            2 => convert_k::<1>(self),
            3 => convert_k::<2>(self),
            4 => convert_k::<3>(self),
            5 => convert_k::<4>(self),
            6 => convert_k::<5>(self),
            7 => convert_k::<6>(self),
            8 => convert_k::<7>(self),
            9 => convert_k::<8>(self),
            _ => convert_k::<MAX_SOURCES>(self),
        }
    }
}

/// The overflow counts, by f64: the sum of the hats over their moduli, below 9, is off by less than 2^-47.
/// The fixed-point count, off by less than 2^-56, can differ only next to a tie, where it is computed.
pub(super) struct CountOverflow<'a> {
    pub(super) sources: &'a [SourceConstants],
    pub(super) hats: &'a [&'a [u64]],
    pub(super) overflow: &'a mut [u64],
}

impl NullaryFnOnce for CountOverflow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        const NEAR: f64 = 1.0 / (1u64 << 40) as f64;
        let mut sums = [0.0f64; TILE];
        for (tile, out) in self.overflow.chunks_mut(TILE).enumerate() {
            let start = tile * TILE;
            let sums = &mut sums[..out.len()];
            sums.fill(0.0);
            for (c, hats) in self.sources.iter().zip(self.hats) {
                let inverse = 1.0 / c.modulus.value() as f64;
                for (s, h) in sums.iter_mut().zip(&hats[start..]) {
                    *s = load(*h).mul_add(inverse, *s);
                }
            }
            let mut distance = 1.0f64;
            for (s, v) in sums.iter().zip(out.iter_mut()) {
                let nearest = s.round_ties_even();
                let d = 0.5 - (s - nearest).abs();
                distance = if d < distance { d } else { distance };
                *v = super::store(nearest);
            }
            if distance < NEAR {
                for (k, v) in out.iter_mut().enumerate() {
                    *v = overflow_at(self.sources, self.hats, start + k);
                }
            }
        }
    }
}

/// Most terms of a key product done here, besides the addend.
pub(super) const MAX_TERMS: usize = 4;

/// Both sums of a key product.
pub(super) struct Key<'a, 'b> {
    pub(super) field: Field,
    pub(super) out0: &'a mut [u64],
    pub(super) out1: &'a mut [u64],
    pub(super) product: &'a KeyProduct<'b>,
}

/// One tile of x as f64, through the permutation.
#[inline(always)]
fn fill(to: &mut [f64], x: &[u64], table: Option<&[u32]>, at: Range<usize>) {
    match table {
        None => {
            for (t, x) in to.iter_mut().zip(&x[at]) {
                *t = load(*x);
            }
        }
        Some(table) => {
            for (t, &k) in to.iter_mut().zip(&table[at]) {
                *t = load(x[k as usize]);
            }
        }
    }
}

/// Five terms leave low parts of at most 5*2^50, the high part 5/4*2^50 and q/2: below 2^53, so one
/// reduction is enough.
#[inline(always)]
fn key_lanes<const K: usize>(
    f: Field,
    x: [&Lanes; K],
    y: [&[u64; LANES]; K],
    (addend, w): (&Lanes, f64),
    out: &mut [u64; LANES],
) {
    let mut sum = Wide::new(UNSIGNED);
    sum.add(addend, |_| w);
    for (x, y) in x.into_iter().zip(y) {
        sum.add(x, |l| load(y[l]));
    }
    let high = sum.high(f, UNSIGNED);
    for l in 0..LANES {
        out[l] = f.canonical(high[l] + sum.low[l]);
    }
}

#[inline(always)]
fn key_k<const K: usize>(key: Key) {
    let (f, p) = (key.field, key.product);
    let n = key.out0.len();
    let len = TILE.min(n);
    let mut x = [[[0.0; LANES]; TILE / LANES]; K];
    let mut addends = [[[0.0; LANES]; TILE / LANES]; 2];
    let w = p.addends.map(|a| a.map_or(0.0, |(_, w)| w.w as f64));
    for tile in 0..n / TILE {
        let at = tile * TILE..tile * TILE + len;
        for (to, (from, _, _)) in x.iter_mut().zip(p.terms) {
            fill(to.as_flattened_mut(), from, p.table, at.clone());
        }
        for (to, from) in addends.iter_mut().zip(p.addends) {
            if let Some((from, _)) = from {
                fill(to.as_flattened_mut(), from, p.table, at.clone());
            }
        }
        let y0: [&[[u64; LANES]]; K] =
            std::array::from_fn(|i| p.terms[i].1[at.clone()].as_chunks().0);
        let y1: [&[[u64; LANES]]; K] =
            std::array::from_fn(|i| p.terms[i].2[at.clone()].as_chunks().0);
        let outs0 = key.out0[at.clone()].as_chunks_mut().0.iter_mut();
        let outs1 = key.out1[at].as_chunks_mut().0.iter_mut();
        for (l, (out0, out1)) in outs0.zip(outs1).enumerate() {
            let x = std::array::from_fn(|i| &x[i][l]);
            let y0 = std::array::from_fn(|i| &y0[i][l]);
            let y1 = std::array::from_fn(|i| &y1[i][l]);
            key_lanes::<K>(f, x, y0, (&addends[0][l], w[0]), out0);
            key_lanes::<K>(f, x, y1, (&addends[1][l], w[1]), out1);
        }
    }
}

impl NullaryFnOnce for Key<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.product.terms.len() {
            0 => key_k::<0>(self),
            1 => key_k::<1>(self),
            2 => key_k::<2>(self),
            3 => key_k::<3>(self),
            _ => key_k::<MAX_TERMS>(self),
        }
    }
}
