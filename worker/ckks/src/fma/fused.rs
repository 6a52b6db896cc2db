//! The fused pass of a linear map on f64 vectors.

use super::permute::gather_f64;
use super::sums::UNSIGNED;
use super::vector::{Native, Vectors};
use super::wide::{LANES, Sums, Wide16};
use super::{Field, load};
use crate::fused::{BabySums, SumLimb, Turn};
use pulp::NullaryFnOnce;

const TILE: usize = 512;
/// Part of a tile whose diagonals are spread at a time.
const PART: usize = 128;
/// Diagonals multiplied at a time.
const TERMS: usize = 8;
/// Start of a sum of eight products |x| <= q/2 + 2, 0 <= y < q: 1.5 * 2^103. They are at most 2^102, the unit is 2^51,
/// the low part at most 8 * 2^50.
const SIGNED: f64 = f64::from_bits(0x4668_0000_0000_0000);

/// Most baby steps whose tiles are kept at full size.
const MANY: usize = 24;

/// Whether a job has a shape that is handled here.
pub(super) fn fits(job: &BabySums<'_>, out: &[SumLimb<'_>]) -> bool {
    let len = out.first().map_or(0, |o| o.0.len());
    let whole = len.is_power_of_two() || len.is_multiple_of(TILE);
    whole
        && len.is_multiple_of(LANES)
        && (1..=4).contains(&job.digits.len())
        && job.start.is_multiple_of(len.min(TILE))
}

pub(super) struct Pass<'a, 'b, 'c> {
    pub(super) native: Native,
    pub(super) field: Field,
    /// P modulo q
    pub(super) p: f64,
    pub(super) job: &'a BabySums<'b>,
    pub(super) out: &'a mut [SumLimb<'c>],
}

/// Tiles of the digits and of c0 after an automorphism.
struct Moved([[f64; TILE]; 4], [[f64; TILE]; 1]);

/// One baby step on one tile; D digits, and P*c0 if `lifted`.
#[inline(always)]
fn turn_tile<const D: usize, const LIFTED: bool>(
    s: &Pass<'_, '_, '_>,
    turn: &Turn<'_>,
    start: usize,
    Moved(moved, c0): &mut Moved,
    [x0, x1]: [&mut [f64]; 2],
) {
    let range = start..start + x0.len();
    let table = &turn.table[range.clone()];
    let (Some(x), Some(digits)) = (moved.first_chunk_mut::<D>(), s.job.digits.first_chunk()) else {
        return;
    };
    gather_f64(s.native, x, table, *digits);
    if let (true, Some(input)) = (LIFTED, s.job.input) {
        gather_f64(s.native, c0, table, [input.c0]);
    }
    let (mut b, mut a) = ([&turn.key[0].0[..0]; D], [&turn.key[0].0[..0]; D]);
    for ((b, a), (kb, ka)) in b.iter_mut().zip(&mut a).zip(&turn.key) {
        (*b, *a) = (&kb[range.clone()], &ka[range.clone()]);
    }
    component_tile::<D, LIFTED>(s, x, b, &c0[0], x0);
    component_tile::<D, false>(s, x, a, &c0[0], x1);
}

/// One component of a baby step. In units of 2^49, of which f64 holds 16: the high part 1 + 5/2, the low part 10.
#[inline(always)]
fn component_tile<const D: usize, const LIFTED: bool>(
    s: &Pass<'_, '_, '_>,
    x: &[[f64; TILE]; D],
    y: [&[u64]; D],
    c0: &[f64; TILE],
    out: &mut [f64],
) {
    let f = Wide16::new(s.native, s.field);
    let y = y.map(|y| y.as_chunks::<LANES>().0);
    let c0 = c0.as_chunks::<LANES>().0;
    for (k, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let mut sum = Sums::new(f.s, UNSIGNED);
        for j in 0..D {
            let x = f.floats(&x[j].as_chunks::<LANES>().0[k]);
            sum.add(f.s, x, f.integers(&y[j][k]));
        }
        if LIFTED {
            sum.add(f.s, f.floats(&c0[k]), [f.s.splat(s.p); 4]);
        }
        let [high, low] = sum.split(f, UNSIGNED);
        f.put_floats(f.reduce(f.add(high, low)), out);
    }
}

#[inline(always)]
fn turn_tile_of<const D: usize>(
    s: &Pass<'_, '_, '_>,
    turn: &Turn<'_>,
    start: usize,
    moved: &mut Moved,
    out: [&mut [f64]; 2],
) {
    if s.job.input.is_some() {
        turn_tile::<D, true>(s, turn, start, moved, out);
    } else {
        turn_tile::<D, false>(s, turn, start, moved, out);
    }
}

/// The input itself, times P.
#[inline(always)]
fn unmoved_tile(s: &Pass<'_, '_, '_>, start: usize, [x0, x1]: [&mut [f64]; 2]) {
    let Some(input) = s.job.input else {
        x0.fill(0.0);
        x1.fill(0.0);
        return;
    };
    for (x, c) in [(x0, input.c0), (x1, input.c1)] {
        for (x, c) in x.iter_mut().zip(&c[start..]) {
            *x = s.field.reduce(s.field.mul(load(*c), s.p));
        }
    }
}

/// A tile of a diagonal as f64, each value repeated.
#[inline(always)]
fn spread(out: &mut [f64], y: &[u64], start: usize, repeat: usize) {
    #[inline(always)]
    fn runs<const R: usize>(out: &mut [f64], y: &[u64]) {
        for (run, y) in out.as_chunks_mut::<R>().0.iter_mut().zip(y) {
            *run = [load(*y); R];
        }
    }
    let y = &y[start / repeat..];
    match repeat {
        1 => runs::<1>(out, y),
        2 => runs::<2>(out, y),
        4 => runs::<4>(out, y),
        8 => runs::<8>(out, y),
        16 => runs::<16>(out, y),
        _ => {
            for (run, y) in out.chunks_mut(repeat.min(PART)).zip(y) {
                run.fill(load(*y));
            }
        }
    }
}

/// Adds K products to the sum of one component: in units of 2^49 the high part, 1 + 2, and the low part, 1.
#[inline(always)]
fn add_terms<const K: usize>(
    f: Wide16,
    x: [&[f64]; TERMS],
    y: &[[f64; PART]; TERMS],
    sums: &mut [f64],
) {
    let x = x.map(|x| x.as_chunks::<LANES>().0);
    for (k, sums) in sums.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let mut sum = Sums::new(f.s, SIGNED);
        for j in 0..K {
            let y = f.floats(&y[j].as_chunks::<LANES>().0[k]);
            sum.add(f.s, f.floats(&x[j][k]), y);
        }
        let [high, low] = sum.split(f, SIGNED);
        let more = f.add(high, f.reduce(low));
        f.put_floats(f.add(f.floats(sums), more), sums);
    }
}

/// Sum of all terms of one giant step on one tile.
#[inline(always)]
fn giant_tile(
    (native, f): (Native, Field),
    tiles: &[f64],
    (t, n): (usize, usize),
    start: usize,
    terms: &[(usize, &[u64])],
    y: &mut [[f64; PART]; TERMS],
    out: (&mut [u64], &mut [u64]),
) {
    let mut sums = [[0.0f64; TILE]; 2];
    let wide = Wide16::new(native, f);
    for (number, terms) in terms.chunks(TERMS).enumerate() {
        for from in (0..t).step_by(PART) {
            let len = PART.min(t);
            for (y, (_, values)) in y.iter_mut().zip(terms) {
                spread(&mut y[..len], values, start + from, n / values.len());
            }
            for (c, sums) in sums.iter_mut().enumerate() {
                let mut x = [&tiles[..0]; TERMS];
                for (x, (b, _)) in x.iter_mut().zip(terms) {
                    let at = (2 * b + c) * t + from;
                    *x = &tiles[at..at + len];
                }
                let sums = &mut sums[from..from + len];
                match terms.len() {
                    1 => add_terms::<1>(wide, x, y, sums),
                    2 => add_terms::<2>(wide, x, y, sums),
                    3 => add_terms::<3>(wide, x, y, sums),
                    4 => add_terms::<4>(wide, x, y, sums),
                    5 => add_terms::<5>(wide, x, y, sums),
                    6 => add_terms::<6>(wide, x, y, sums),
                    7 => add_terms::<7>(wide, x, y, sums),
                    _ => add_terms::<TERMS>(wide, x, y, sums),
                }
            }
        }
        // three times 4 units and a reduced sum are below 16
        if number % 3 == 2 {
            for sum in sums.as_flattened_mut() {
                *sum = f.reduce(*sum);
            }
        }
    }
    for (out, sum) in [(out.0, &sums[0]), (out.1, &sums[1])] {
        for (o, x) in out.iter_mut().zip(sum) {
            *o = f.canonical(*x);
        }
    }
}

impl NullaryFnOnce for Pass<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let babies = self.job.babies;
        let len = self.out.first().map_or(0, |o| o.0.len());
        let n = self.job.whole();
        // the tiles of all baby steps stay in the second-level cache
        let tile = if babies.len() > MANY { TILE / 2 } else { TILE };
        let t = tile.min(len);
        let mut tiles = vec![0.0f64; 2 * t * babies.len()];
        let mut diagonals = [[0.0; PART]; TERMS];
        let mut moved = Moved([[0.0; TILE]; 4], [[0.0; TILE]]);
        for from in (0..len).step_by(t) {
            let start = self.job.start + from;
            for (baby, tile) in babies.iter().zip(tiles.chunks_exact_mut(2 * t)) {
                let (x0, x1) = tile.split_at_mut(t);
                match (baby, self.job.digits.len()) {
                    (None, _) => unmoved_tile(&self, start, [x0, x1]),
                    (Some(turn), 1) => turn_tile_of::<1>(&self, turn, start, &mut moved, [x0, x1]),
                    (Some(turn), 2) => turn_tile_of::<2>(&self, turn, start, &mut moved, [x0, x1]),
                    (Some(turn), 3) => turn_tile_of::<3>(&self, turn, start, &mut moved, [x0, x1]),
                    (Some(turn), _) => turn_tile_of::<4>(&self, turn, start, &mut moved, [x0, x1]),
                }
            }
            for (terms, (o0, o1)) in self.job.giants.iter().zip(self.out.iter_mut()) {
                let out = (&mut o0[from..from + t], &mut o1[from..from + t]);
                giant_tile(
                    (self.native, self.field),
                    &tiles,
                    (t, n),
                    start,
                    terms,
                    &mut diagonals,
                    out,
                );
            }
        }
    }
}
