//! Sums of products that are reduced once, without a reduction of each product: base conversion and the
//! inner products of key switching.

use super::Field;
use super::permute::gather;
use super::vector::{Native, Vectors};
use super::wide::{LANES, Lanes, Sums, Wide16};
use crate::convert::{MAX_SOURCES, SourceConstants, overflow_at};
use crate::kernel::{KeyProduct, Raise};
use crate::modular::Modulus;
use pulp::NullaryFnOnce;

/// Entries that a key product moves through an automorphism at a time.
const TILE: usize = 256;

/// Start of sums of up to eight products of x, w in [-2^49, 2^49]: 1.5 * 2^102. They are at most 2^101, the unit is
/// 2^50, the low part at most 8 * 2^49.
const SIGNED: f64 = f64::from_bits(0x4658_0000_0000_0000);

/// Start of sums of up to five products of x, w in [0, 2^50): 2^103. They are below 2^103, the unit is 2^51, the low
/// part at most 5 * 2^50.
pub(super) const UNSIGNED: f64 = f64::from_bits(0x4660_0000_0000_0000);

/// Scaled limbs of a base and their overflow as f64: representatives of least absolute value, at most
/// q/2 + 2, and the integer nearest to the sum of each over its modulus. Sixteen of each limb, then sixteen of the
/// overflow, and so on: one stream for the conversion to read.
pub(super) struct Prepare<'a, 'b> {
    pub(super) native: Native,
    pub(super) sources: &'a [SourceConstants],
    pub(super) limbs: &'a [&'b [u64]],
    pub(super) out: &'a mut [u64],
}

impl NullaryFnOnce for Prepare<'_, '_> {
    type Output = ();

    /// The sum is off by less than 2^-47. The fixed-point count of the definition, off by less than 2^-56, can
    /// differ only next to a tie, where it is computed.
    #[inline(always)]
    fn call(self) {
        const NEAR: f64 = 1.0 / (1u64 << 40) as f64;
        let (s, k) = (self.native, self.limbs.len());
        let mut constants = [(
            Field {
                q: 1.0,
                inverse: 1.0,
            },
            0.0,
        ); MAX_SOURCES];
        let mut limbs = [&self.limbs[0].as_chunks::<LANES>().0[..0]; MAX_SOURCES];
        for (i, (source, limb)) in self.sources.iter().zip(self.limbs).enumerate() {
            let w = Field::centred(&source.modulus, source.hat_inverse.w);
            constants[i] = (Field::new(&source.modulus), w);
            limbs[i] = limb.as_chunks::<LANES>().0;
        }
        let groups = self.out.as_chunks_mut::<LANES>().0;
        let mut distance = [s.splat(0.0); 4];
        for (at, group) in groups.chunks_exact_mut(k + 1).enumerate() {
            let Some((overflow, hats)) = group.split_last_mut() else {
                return;
            };
            let mut sum = [s.splat(0.0); 4];
            for ((hats, limb), (field, w)) in hats.iter_mut().zip(limbs).zip(constants) {
                let f = Wide16::new(s, field);
                let x = f.reduce(f.mul(f.integers(&limb[at]), w));
                f.put(x, hats);
                sum = f.mul_add(x, field.inverse, sum);
            }
            let f = Wide16::new(s, constants[0].0);
            f.put(f.nearest(sum, &mut distance), overflow);
        }
        let greatest = Wide16::new(s, constants[0].0).greatest(distance);
        if greatest > (0.5 - NEAR) * (0.5 - NEAR) {
            for group in self.out.chunks_exact_mut((k + 1) * LANES) {
                exact_overflow(self.sources, group);
            }
        }
    }
}

/// The overflow by its definition, which counts for residues from 0 to q - 1: less one for each negative
/// representative.
#[inline(never)]
fn exact_overflow(sources: &[SourceConstants], group: &mut [u64]) {
    let (hats, overflow) = group.split_at_mut(sources.len() * LANES);
    let mut residues = [[0; LANES]; MAX_SOURCES];
    let mut negative = [0.0; LANES];
    for ((residues, hats), c) in residues
        .iter_mut()
        .zip(hats.as_chunks::<LANES>().0)
        .zip(sources)
    {
        for ((r, hat), negative) in residues.iter_mut().zip(hats).zip(&mut negative) {
            let x = f64::from_bits(*hat) as i64;
            *negative += if x < 0 { 1.0 } else { 0.0 };
            *r = x.rem_euclid(c.modulus.value() as i64) as u64;
        }
    }
    let residues: Vec<&[u64]> = residues
        .iter()
        .take(sources.len())
        .map(|r| &r[..])
        .collect();
    for (k, (v, negative)) in overflow.iter_mut().zip(negative).enumerate() {
        *v = (overflow_at(sources, &residues, k) as f64 - negative).to_bits();
    }
}

/// Base conversion of what `Prepare` laid out; the results are left as f64, at most q/2 + 2.
pub(super) struct Convert<'a, 'b> {
    pub(super) native: Native,
    pub(super) prepared: &'a [u64],
    pub(super) targets: &'a mut [Raise<'b>],
}

/// Conversions in one pass over the sources.
pub(super) const TARGETS: usize = 8;

/// Constants of one target.
#[derive(Clone, Copy)]
struct Target {
    field: Field,
    weights: [f64; MAX_SOURCES],
    /// negated product of the sources
    negated: f64,
}

impl Target {
    /// From k weights and the negated product.
    fn new(m: &Modulus, weights: &[u64]) -> Target {
        let (negated, weights) = weights.split_last().unwrap_or((&0, &[]));
        let mut centred = [0.0; MAX_SOURCES];
        for (c, w) in centred.iter_mut().zip(weights) {
            *c = Field::centred(m, *w);
        }
        Target {
            field: Field::new(m),
            weights: centred,
            negated: Field::centred(m, *negated),
        }
    }
}

/// Sixteen values for one target. Bounds in units of 2^49, of which f64 holds 16, for eight sources: the high part
/// 2, the overflow term 4, the low part 8. A ninth source is a product of its own, 0.6, on a reduced sum.
#[inline(always)]
fn convert_group<const K: usize>(
    native: Native,
    t: &Target,
    group: &[[u64; LANES]],
    out: &mut [u64; LANES],
) {
    let f = Wide16::new(native, t.field);
    let mut sum = Sums::new(native, SIGNED);
    for (source, w) in group[..K.min(8)].iter().zip(&t.weights) {
        sum.add(native, f.bits(source), f.all(*w));
    }
    let [high, low] = sum.split(f, SIGNED);
    let x = f.mul_add(f.bits(&group[K]), t.negated, high);
    let mut x = f.add(x, low);
    if K > 8 {
        x = f.add(f.reduce(x), f.mul(f.bits(&group[8]), t.weights[8]));
    }
    f.put(f.reduce(x), out);
}

#[inline(always)]
fn convert_k<const K: usize>(c: Convert) {
    let count = c.targets.len();
    let mut targets = [Target::new(c.targets[0].table.modulus(), &[]); TARGETS];
    let mut outs: [&mut [[u64; LANES]]; TARGETS] = Default::default();
    for ((t, out), target) in targets.iter_mut().zip(&mut outs).zip(c.targets) {
        *t = Target::new(target.table.modulus(), target.weights);
        *out = target.out.as_chunks_mut().0;
    }
    let outs = &mut outs[..count];
    let groups = c.prepared.as_chunks::<LANES>().0.chunks_exact(K + 1);
    for (at, group) in groups.enumerate() {
        for (out, t) in outs.iter_mut().zip(&targets) {
            convert_group::<K>(c.native, t, group, &mut out[at]);
        }
    }
}

impl NullaryFnOnce for Convert<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.targets.first().map_or(0, |t| t.weights.len()) {
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

/// Most terms of a key product done here, besides the addend.
pub(super) const MAX_TERMS: usize = 4;

/// Both sums of a key product.
pub(super) struct Key<'a, 'b> {
    pub(super) native: Native,
    pub(super) field: Field,
    pub(super) out0: &'a mut [u64],
    pub(super) out1: &'a mut [u64],
    pub(super) product: &'a KeyProduct<'b>,
}

/// Both components of eight entries. The high part is at most 5/4 * 2^50 + q/2, the low one 5 * 2^50: together
/// below 2^53, so one reduction is enough.
#[inline(always)]
fn key_group<const K: usize>(
    f: Wide16,
    x: &[&[[u64; HALF]]; K],
    y: &[[&[[u64; HALF]]; 2]; K],
    (addends, w): ([&[[u64; HALF]]; 2], Lanes),
    at: usize,
) -> Lanes {
    let mut sum = Sums::new(f.s, UNSIGNED);
    sum.add(f.s, f.two_integers(&addends[0][at], &addends[1][at]), w);
    for (x, y) in x.iter().zip(y) {
        let x = f.two_integers(&x[at], &x[at]);
        sum.add(f.s, x, f.two_integers(&y[0][at], &y[1][at]));
    }
    let [high, low] = sum.split(f, UNSIGNED);
    f.canonical(f.add(high, low))
}

const HALF: usize = LANES / 2;

#[inline(always)]
fn key_k<const K: usize>(key: Key) {
    let (f, p) = (Wide16::new(key.native, key.field), key.product);
    let mut moved = [[0; TILE]; K];
    let mut moved_addends = [[0; TILE]; 2];
    let w = p
        .addends
        .map(|a| f.s.splat(a.map_or(0.0, |(_, w)| w.w as f64)));
    let w = [w[0], w[0], w[1], w[1]];
    let outs0 = key.out0.chunks_mut(TILE);
    let outs1 = key.out1.chunks_mut(TILE);
    for (tile, (out0, out1)) in outs0.zip(outs1).enumerate() {
        let at = tile * TILE..tile * TILE + out0.len();
        if let Some(table) = p.table {
            for (to, (from, _, _)) in moved.iter_mut().zip(p.terms) {
                gather(f.s, &mut to[..at.len()], &table[at.clone()], from);
            }
            for (to, from) in moved_addends.iter_mut().zip(p.addends) {
                if let Some((from, _)) = from {
                    gather(f.s, &mut to[..at.len()], &table[at.clone()], from);
                }
            }
        }
        let x = std::array::from_fn(|i| match p.table {
            Some(_) => moved[i].as_chunks().0,
            None => p.terms[i].0[at.clone()].as_chunks().0,
        });
        let addends = std::array::from_fn(|i| match (p.table, p.addends[i]) {
            (None, Some((from, _))) => from[at.clone()].as_chunks().0,
            _ => moved_addends[i].as_chunks().0,
        });
        let y = std::array::from_fn(|i| {
            let (_, b, a) = p.terms[i];
            [b, a].map(|y| y[at.clone()].as_chunks().0)
        });
        let out1 = out1.as_chunks_mut().0;
        for (k, (out0, out1)) in out0.as_chunks_mut().0.iter_mut().zip(out1).enumerate() {
            f.put_two(key_group::<K>(f, &x, &y, (addends, w), k), [out0, out1]);
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
