//! The fused pass of a linear map.

use super::lanes::Lanes;
use super::permute::{moved, shuffles};
use super::sums::{MAX_TERMS, Sum, Wide, repeated};
use crate::fused::{BabySums, SumLimb, Turn};
use crate::modular::Modulus;
use pulp::NullaryFnOnce;

const TILE: usize = 512;
/// Most baby steps whose tiles are kept at full size.
const MANY: usize = 24;
/// Vectors of a giant step's sum that stay in registers.
const VECTORS: usize = 4;

/// Whether a job has a shape that is handled here.
pub(super) fn fits(job: &BabySums<'_>, out: &[SumLimb<'_>]) -> bool {
    let len = out.first().map_or(0, |o| o.0.len());
    let whole = len.is_power_of_two() || len.is_multiple_of(TILE);
    whole
        && len.is_multiple_of(8 * VECTORS)
        && (1..=4).contains(&job.digits.len())
        && job.start.is_multiple_of(len.min(TILE))
}

pub(super) struct Pass<'a, 'b, 'c, L> {
    pub(super) l: L,
    pub(super) m: &'a Modulus,
    pub(super) job: &'a BabySums<'b>,
    pub(super) out: &'a mut [SumLimb<'c>],
}

/// One baby step on one tile; D digits.
#[inline(always)]
fn turn_tile<L: Lanes, const D: usize>(
    f: Wide<L>,
    job: &BabySums<'_>,
    turn: &Turn<'_>,
    start: usize,
    [x0, x1]: [&mut [u64]; 2],
) {
    let l = f.f.l;
    let shuffles = shuffles(turn.table.first_chunk());
    let range = start..start + x0.len();
    let table = turn.table[range.clone()].as_chunks::<8>().0;
    let mut digits = [&[][..]; D];
    let (mut b, mut a) = ([&[][..]; D], [&[][..]; D]);
    for (i, (digit, (kb, ka))) in job.digits.iter().zip(&turn.key).enumerate().take(D) {
        digits[i] = digit.as_chunks::<8>().0;
        b[i] = kb[range.clone()].as_chunks::<8>().0;
        a[i] = ka[range.clone()].as_chunks::<8>().0;
    }
    let lifted = job.input.map(|i| (i.c0.as_chunks::<8>().0, l.splat(i.p.w)));
    // two blocks at a time, so that multiplications do not wait for each other
    let outs = x0.as_chunks_mut::<16>().0.iter_mut();
    let outs = outs.zip(x1.as_chunks_mut::<16>().0);
    for (pair, ((x0, x1), blocks)) in outs.zip(table.as_chunks::<2>().0).enumerate() {
        let starts = [blocks[0][0], blocks[1][0]];
        let mut sums = [[f.zero(); 2]; 2];
        for i in 0..D {
            for (s, [sum0, sum1]) in sums.iter_mut().enumerate() {
                let x = moved::<L, true>(l, digits[i], starts[s], &shuffles);
                f.add_product(sum0, x, l.load(&b[i][2 * pair + s]));
                f.add_product(sum1, x, l.load(&a[i][2 * pair + s]));
            }
        }
        if let Some((c0, p)) = lifted {
            for (s, [sum0, _]) in sums.iter_mut().enumerate() {
                f.add_product(sum0, moved::<L, true>(l, c0, starts[s], &shuffles), p);
            }
        }
        for (x, sums) in x0.as_chunks_mut().0.iter_mut().zip(&sums) {
            l.store(f.total(sums[0]), x);
        }
        for (x, sums) in x1.as_chunks_mut().0.iter_mut().zip(&sums) {
            l.store(f.total(sums[1]), x);
        }
    }
}

/// The input itself, times P.
#[inline(always)]
fn unmoved_tile<L: Lanes>(f: Wide<L>, job: &BabySums<'_>, start: usize, [x0, x1]: [&mut [u64]; 2]) {
    let Some(input) = job.input else {
        x0.fill(0);
        x1.fill(0);
        return;
    };
    let (l, p) = (f.f.l, super::Factor::splat(f.f.l, input.p));
    for (x, c) in [(x0, input.c0), (x1, input.c1)] {
        for (x, c) in x.as_chunks_mut().0.iter_mut().zip(c[start..].as_chunks().0) {
            l.store(f.f.fold(f.f.mul(l.load(c), p)), x);
        }
    }
}

/// Sum of all terms of one giant step on one tile of `t` entries.
#[inline(always)]
fn giant_tile<L: Lanes>(
    f: Wide<L>,
    tiles: &[[u64; 8]],
    (t, n): (usize, usize),
    start: usize,
    terms: &[(usize, &[u64])],
    out: (&mut [u64], &mut [u64]),
) {
    let l = f.f.l;
    let outs = out.0.as_chunks_mut::<8>().0.chunks_exact_mut(VECTORS);
    let outs = outs.zip(out.1.as_chunks_mut::<8>().0.chunks_exact_mut(VECTORS));
    for (part, (out0, out1)) in outs.enumerate() {
        let mut sums = [[f.zero(); VECTORS]; 2];
        for (number, terms) in terms.chunks(MAX_TERMS).enumerate() {
            if number > 0 {
                sums = sums.map(|sums| sums.map(|s: Sum<L>| f.from(f.lazy(s))));
            }
            for (b, y) in terms {
                let at = 2 * b * (t / 8) + part * VECTORS;
                let (x0, x1) = (&tiles[at..at + VECTORS], &tiles[at + t / 8..][..VECTORS]);
                let repeat = n / y.len();
                let from = start + 8 * part * VECTORS;
                for i in 0..VECTORS {
                    let y = repeated(l, y, repeat, from + 8 * i);
                    f.add_product(&mut sums[0][i], l.load(&x0[i]), y);
                    f.add_product(&mut sums[1][i], l.load(&x1[i]), y);
                }
            }
        }
        for i in 0..VECTORS {
            l.store(f.total(sums[0][i]), &mut out0[i]);
            l.store(f.total(sums[1][i]), &mut out1[i]);
        }
    }
}

impl<L: Lanes> NullaryFnOnce for Pass<'_, '_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (job, f) = (self.job, Wide::new(self.l, self.m));
        let len = self.out.first().map_or(0, |o| o.0.len());
        let n = job.whole();
        // the tiles of all baby steps stay in the second-level cache
        let tile = if job.babies.len() > MANY {
            TILE / 2
        } else {
            TILE
        };
        let t = tile.min(len);
        let mut tiles = vec![[0u64; 8]; t / 4 * job.babies.len()];
        for from in (0..len).step_by(t) {
            let start = job.start + from;
            for (baby, tile) in job.babies.iter().zip(tiles.chunks_exact_mut(t / 4)) {
                let (x0, x1) = tile.as_flattened_mut().split_at_mut(t);
                match (baby, job.digits.len()) {
                    (None, _) => unmoved_tile(f, job, start, [x0, x1]),
                    (Some(turn), 1) => turn_tile::<L, 1>(f, job, turn, start, [x0, x1]),
                    (Some(turn), 2) => turn_tile::<L, 2>(f, job, turn, start, [x0, x1]),
                    (Some(turn), 3) => turn_tile::<L, 3>(f, job, turn, start, [x0, x1]),
                    (Some(turn), _) => turn_tile::<L, 4>(f, job, turn, start, [x0, x1]),
                }
            }
            for (terms, (o0, o1)) in job.giants.iter().zip(self.out.iter_mut()) {
                let out = (&mut o0[from..from + t], &mut o1[from..from + t]);
                giant_tile(f, &tiles, (t, n), start, terms, out);
            }
        }
    }
}
