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

/// A sum of products x*w, exact: `high` collects the products rounded to multiples of a unit, `low` what the
/// rounding left. Adding a large constant rounds to its last place and taking it off again is exact; the
/// product less the rounded one is an integer of at most half a unit, which a fused multiply-add gives
/// exactly. No product waits for another one.
///
/// Signed: x, w in [-2^49, 2^49], so a product is at most 2^98, below a quarter of the constant 1.5 * 2^101:
/// the unit is 2^49. Nine products: `high` is at most 2^52.2 units, `low` at most 4.5 * 2^49.
/// Unsigned: x, w in [0, 2^50), the constant 2^102, the unit 2^50. Five products: `high` is at most 2^52.4
/// units, `low` at most 2.5 * 2^50.
#[derive(Clone, Copy)]
struct Wide {
    high: f64,
    low: f64,
}

/// 2^102.
const UNSIGNED: f64 = f64::from_bits(0x4650_0000_0000_0000);
/// 1.5 * 2^101.
const SIGNED: f64 = f64::from_bits(0x4648_0000_0000_0000);

impl Wide {
    const ZERO: Wide = Wide {
        high: 0.0,
        low: 0.0,
    };

    #[inline(always)]
    fn add(self, x: f64, w: f64, constant: f64) -> Wide {
        let rounded = x.mul_add(w, constant) - constant;
        Wide {
            high: self.high + rounded,
            low: self.low + x.mul_add(w, -rounded),
        }
    }

    /// A representative of the high part, at most q/2 + 2^-52 * |high|: the quotient is the product of two
    /// rounded factors, so it is off by its 2^-52th, and the remainder is an integer below 2^53.
    #[inline(always)]
    fn high(self, f: Field) -> f64 {
        f.reduce(self.high)
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

/// Constants of one target.
#[derive(Clone, Copy)]
struct Target {
    field: Field,
    weights: [f64; MAX_SOURCES],
    /// negated product of the sources
    negated: f64,
    /// 2^49 times the sum of the weights plus 4 times the negated product
    constant: f64,
}

impl Target {
    /// From k weights and the negated product.
    fn new(m: &Modulus, weights: &[u64]) -> Target {
        let (negated, weights) = weights.split_last().unwrap_or((&0, &[]));
        let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
        let constant = (sum << 49) + 4 * u128::from(*negated);
        let mut centred = [0.0; MAX_SOURCES];
        for (c, w) in centred.iter_mut().zip(weights) {
            *c = Field::centred(m, *w);
        }
        Target {
            field: Field::new(m),
            weights: centred,
            negated: Field::centred(m, *negated),
            constant: Field::centred(m, m.reduce_u128(constant)),
        }
    }
}

/// An integer below 2^50, less 2^49.
#[inline(always)]
fn load_centred(x: u64) -> f64 {
    const OFFSET: f64 = 4503599627370496.0 + 562949953421312.0; // 2^52 + 2^49
    f64::from_bits(x | MAGIC_BITS) - OFFSET
}

/// One tile of one target; the overflow less 4. Bounds in units of 2^49, of which f64 holds 16: the high part
/// 1 + 9/8, the overflow term 5, the constant 1, the low part 4.5.
#[inline(always)]
fn convert_tile<const K: usize>(
    t: &Target,
    sources: &[[f64; TILE]; MAX_SOURCES],
    overflow: &[f64; TILE],
    out: &mut [u64],
) {
    let (f, len) = (t.field, out.len().min(TILE));
    let (overflow, out) = (&overflow[..len], &mut out[..len]);
    for k in 0..len {
        let mut sum = Wide::ZERO;
        for (source, w) in sources[..K].iter().zip(&t.weights) {
            sum = sum.add(source[k], *w, SIGNED);
        }
        let x = overflow[k].mul_add(t.negated, sum.high(f) + t.constant);
        out[k] = f.canonical(x + sum.low);
    }
}

#[inline(always)]
fn convert_k<const K: usize>(c: Convert) {
    let n = c.overflow.len();
    let mut targets = [Target::new(c.targets[0].0, &[]); TARGETS];
    for (t, (m, weights)) in targets.iter_mut().zip(c.targets) {
        *t = Target::new(m, weights);
    }
    // the last tile may be shorter
    let mut sources = [[0.0; TILE]; MAX_SOURCES];
    let mut overflow = [0.0; TILE];
    for (tile, v) in c.overflow.chunks(TILE).enumerate() {
        let at = tile * TILE..tile * TILE + v.len();
        for (source, hats) in sources.iter_mut().zip(c.hats.chunks_exact(n)) {
            for (s, h) in source.iter_mut().zip(&hats[at.clone()]) {
                *s = load_centred(*h);
            }
        }
        for (o, v) in overflow.iter_mut().zip(v) {
            *o = load(*v) - 4.0;
        }
        for (out, t) in c.outs.iter_mut().zip(&targets) {
            convert_tile::<K>(t, &sources, &overflow, &mut out[at.clone()]);
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

/// One component of one tile. The high part is at most 5/4 * 2^50 + q/2, the low one 2.5 * 2^50: together
/// below 2^53, so one reduction is enough.
#[inline(always)]
fn key_tile<const K: usize>(
    f: Field,
    x: &[[f64; TILE]; K],
    y: [&[u64]; K],
    (addend, w): (&[f64; TILE], f64),
    out: &mut [u64],
) {
    let len = out.len().min(TILE);
    let (y, out) = (y.map(|y| &y[..len]), &mut out[..len]);
    for k in 0..len {
        let mut sum = Wide::ZERO.add(addend[k], w, UNSIGNED);
        for i in 0..K {
            sum = sum.add(x[i][k], load(y[i][k]), UNSIGNED);
        }
        out[k] = f.canonical(sum.high(f) + sum.low);
    }
}

#[inline(always)]
fn key_k<const K: usize>(key: Key) {
    let (f, p) = (key.field, key.product);
    let mut x = [[0.0; TILE]; K];
    let mut addends = [[0.0; TILE]; 2];
    let w = p.addends.map(|a| a.map_or(0.0, |(_, w)| w.w as f64));
    let outs0 = key.out0.chunks_mut(TILE);
    let outs1 = key.out1.chunks_mut(TILE);
    for (tile, (out0, out1)) in outs0.zip(outs1).enumerate() {
        let at = tile * TILE..tile * TILE + out0.len();
        for (to, (from, _, _)) in x.iter_mut().zip(p.terms) {
            fill(to, from, p.table, at.clone());
        }
        for (to, from) in addends.iter_mut().zip(p.addends) {
            if let Some((from, _)) = from {
                fill(to, from, p.table, at.clone());
            }
        }
        let y0 = std::array::from_fn(|i| &p.terms[i].1[at.clone()]);
        let y1 = std::array::from_fn(|i| &p.terms[i].2[at.clone()]);
        key_tile::<K>(f, &x, y0, (&addends[0], w[0]), out0);
        key_tile::<K>(f, &x, y1, (&addends[1], w[1]), out1);
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
