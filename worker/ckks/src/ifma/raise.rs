//! Base conversion: scaled limbs laid out as one stream, and sums of them for several targets.

use super::lanes::{Lanes, MASK52};
use super::sums::Wide;
use super::{Factor, Field};
use crate::convert::{MAX_SOURCES, SourceConstants, overflow_at};
use crate::kernel::Raise;
use pulp::NullaryFnOnce;

/// Fraction bits of the sum of each scaled limb over its modulus.
const FRACTION: u32 = 49;

/// Units by which that sum may be too small: two for each source, and more than enough for the definition's own.
const SLACK: u64 = 32;

/// Scaled limbs of a base and their overflow: eight of each limb, then eight of the overflow, and so on.
pub(super) struct Prepare<'a, 'b, L> {
    pub(super) l: L,
    pub(super) sources: &'a [SourceConstants],
    pub(super) limbs: &'a [&'b [u64]],
    pub(super) out: &'a mut [u64],
}

/// A source modulus, and what makes 49 bits of fraction of x / q.
#[derive(Clone, Copy)]
struct Source<L: Lanes> {
    field: Field<L>,
    scale: Factor<L>,
    /// 2^(50 - bits of q), which takes x and q next to 2^50
    up: L::V,
    /// floor(2^101 / (q * up)), below 2^52
    reciprocal: L::V,
}

impl<L: Lanes> Source<L> {
    #[inline(always)]
    fn new(l: L, c: &SourceConstants) -> Source<L> {
        let q = c.modulus.value();
        let up = 1 << (q.leading_zeros() - 14);
        Source {
            field: Field::new(l, &c.modulus),
            scale: Factor::splat(l, c.hat_inverse),
            up: l.splat(up),
            reciprocal: l.splat(((1u128 << 101) / u128::from(q * up)) as u64),
        }
    }
}

impl<L: Lanes> NullaryFnOnce for Prepare<'_, '_, L> {
    type Output = ();

    /// The sum is too small by less than `SLACK` units. Where that many more would change the count, the count is made by
    /// its definition.
    #[inline(always)]
    fn call(self) {
        let (l, k) = (self.l, self.limbs.len());
        let Some(first) = self.sources.first() else {
            return;
        };
        let mut sources = [Source::new(l, first); MAX_SOURCES];
        let mut limbs = [&[][..]; MAX_SOURCES];
        for (i, (source, limb)) in self.sources.iter().zip(self.limbs).enumerate() {
            sources[i] = Source::new(l, source);
            limbs[i] = limb.as_chunks::<8>().0;
        }
        let (half, fraction) = (l.splat(1 << (FRACTION - 1)), l.splat((1 << FRACTION) - 1));
        let mut distance = l.splat(MASK52);
        let groups = self.out.as_chunks_mut::<8>().0;
        for (at, group) in groups.chunks_exact_mut(k + 1).enumerate() {
            let Some((overflow, hats)) = group.split_last_mut() else {
                return;
            };
            let mut sum = half;
            for ((hat, limb), s) in hats.iter_mut().zip(limbs).zip(&sources) {
                let x = s.field.fold(s.field.mul(l.load(&limb[at]), s.scale));
                l.store(x, hat);
                let next = l.madd_lo(s.field.zero, x, s.up);
                sum = l.madd_hi(sum, next, s.reciprocal);
            }
            distance = l.min(distance, l.sub(fraction, l.and(sum, fraction)));
            // sums are below 2^53: eight times one keeps its count in the bits from 52 on
            let count = l.shift(times_eight(l, sum));
            l.store(count, overflow);
        }
        let mut least = [0; 8];
        l.store(distance, &mut least);
        if least.iter().any(|d| *d < SLACK) {
            for group in self.out.chunks_exact_mut((k + 1) * 8) {
                let (hats, overflow) = group.split_at_mut(8 * k);
                let hats: [&[u64]; MAX_SOURCES] =
                    std::array::from_fn(|i| hats.get(8 * i..8 * i + 8).unwrap_or(&[]));
                for (c, v) in overflow.iter_mut().enumerate() {
                    *v = overflow_at(self.sources, &hats[..k], c);
                }
            }
        }
    }
}

/// 8x
#[inline(always)]
fn times_eight<L: Lanes>(l: L, x: L::V) -> L::V {
    let x = l.add(x, x);
    let x = l.add(x, x);
    l.add(x, x)
}

/// Most targets of one pass over the sources.
pub(super) const TARGETS: usize = 8;

/// Sums that are made at a time.
const SUMS: usize = 4;

/// Base conversion of what `Prepare` laid out; the results are below 4q.
pub(super) struct Convert<'a, 'b, L> {
    pub(super) l: L,
    pub(super) prepared: &'a [u64],
    pub(super) targets: &'a mut [Raise<'b>],
}

#[inline(always)]
fn convert_k<L: Lanes, const K: usize>(c: Convert<'_, '_, L>) {
    let (l, count) = (c.l, c.targets.len());
    let mut fields = [Wide::new(l, c.targets[0].table.modulus()); TARGETS];
    // times 2^52, because the sums are divided by it
    let mut weights = [[l.splat(0); MAX_SOURCES + 1]; TARGETS];
    let mut outs: [&mut [[u64; 8]]; TARGETS] = Default::default();
    for (i, target) in c.targets.iter_mut().enumerate() {
        let m = target.table.modulus();
        let unit = m.reduce(1 << 52);
        fields[i] = Wide::new(l, m);
        for (to, w) in weights[i].iter_mut().zip(target.weights) {
            *to = l.splat(m.mul(*w, unit));
        }
        outs[i] = target.out.as_chunks_mut().0;
    }
    let outs = &mut outs[..count];
    // several sums at a time, so that multiplications do not wait for each other
    let groups = c.prepared.as_chunks::<8>().0;
    for (at, groups) in groups.chunks_exact((K + 1) * SUMS).enumerate() {
        for ((out, f), w) in outs.iter_mut().zip(&fields).zip(&weights) {
            let mut sums = [f.zero(); SUMS];
            for i in 0..K {
                for (s, sum) in sums.iter_mut().enumerate() {
                    f.add_product(sum, l.load(&groups[s * (K + 1) + i]), w[i]);
                }
            }
            let out = &mut out[at * SUMS..(at + 1) * SUMS];
            for ((s, sum), out) in sums.iter_mut().enumerate().zip(out) {
                f.add_product(sum, l.load(&groups[s * (K + 1) + K]), w[K]);
                l.store(f.shifted(*sum), out);
            }
        }
    }
}

impl<L: Lanes> NullaryFnOnce for Convert<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.targets.first().map_or(0, |t| t.weights.len()) {
            0 | 1 => (),
            2 => convert_k::<L, 1>(self),
            3 => convert_k::<L, 2>(self),
            4 => convert_k::<L, 3>(self),
            5 => convert_k::<L, 4>(self),
            6 => convert_k::<L, 5>(self),
            7 => convert_k::<L, 6>(self),
            8 => convert_k::<L, 7>(self),
            9 => convert_k::<L, 8>(self),
            _ => convert_k::<L, MAX_SOURCES>(self),
        }
    }
}
