//! The fused pass of a linear map on f64 vectors.
//!
//! A product x*y is cut by rounding at 2^50: t = x*y + C with C = 1.5 * 2^102 has units of 2^50, so h = t - C is a
//! multiple of 2^50 and x*y - h an integer of at most 2^49; both are exact. Sums of the two parts stay exact for
//! 8 products: sum h < 2^103 in units of 2^50, sum of the rests at most 2^52. `fold` then takes them modulo q.

use super::{Field, load};
use crate::fused::{BabySums, SumLimb, Turn};
use pulp::NullaryFnOnce;

const TILE: usize = 512;
const CUT: f64 = 1.5 * (1u128 << 102) as f64;
const UNIT: f64 = 1.0 / (1u64 << 50) as f64;

/// Most baby steps whose tiles are kept at full size.
const MANY: usize = 24;

/// Whether a job has a shape that is handled here.
pub(super) fn fits(job: &BabySums<'_>, out: &[SumLimb<'_>]) -> bool {
    let len = out.first().map_or(0, |o| o.0.len());
    let whole = len.is_power_of_two() || len.is_multiple_of(TILE);
    whole && (1..=4).contains(&job.digits.len()) && job.start.is_multiple_of(len.min(TILE))
}

pub(super) struct Sums<'a, 'b, 'c> {
    pub(super) field: Field,
    /// 2^50 modulo q, centred
    pub(super) unit: f64,
    /// P modulo q
    pub(super) p: f64,
    pub(super) job: &'a BabySums<'b>,
    pub(super) out: &'a mut [SumLimb<'c>],
}

/// Two parts of a sum of products.
type Parts = (f64, f64);

#[inline(always)]
fn accumulate(s: Parts, x: f64, y: f64) -> Parts {
    let h = x.mul_add(y, CUT) - CUT;
    (s.0 + h, s.1 + x.mul_add(y, -h))
}

/// A representative of least absolute value of `more` and a sum of up to 8 products |x| <= 0.51q, 0 <= y < q, or
/// up to 5 products of canonical residues. In units of q the upper part is at most 5.1, so its product with
/// `unit` is below 1.5; the lower part is at most 2^52.
#[inline(always)]
fn fold(f: Field, unit: f64, s: Parts, more: f64) -> f64 {
    f.reduce(f.mul(s.0 * UNIT, unit) + s.1 + more)
}

/// Entries of `x` through the table, which keeps to one aligned block.
#[inline(always)]
fn gather(out: &mut [u64], table: &[u32], x: &[u64]) {
    let mask = out.len() - 1;
    let base = table[0] as usize & !mask;
    let block = &x[base..base + out.len()];
    for (o, &k) in out.iter_mut().zip(table) {
        *o = block[k as usize & mask];
    }
}

/// One baby step on one tile; D digits, and P*c0 if `lifted`.
#[inline(always)]
fn turn_tile<const D: usize, const LIFTED: bool>(
    s: &Sums<'_, '_, '_>,
    turn: &Turn<'_>,
    start: usize,
    x0: &mut [f64],
    x1: &mut [f64],
) {
    let t = x0.len();
    let x1 = &mut x1[..t];
    let range = start..start + t;
    let table = &turn.table[range.clone()];
    let mut gathered = [[0u64; TILE]; D];
    for (g, d) in gathered.iter_mut().zip(s.job.digits) {
        gather(&mut g[..t], table, d);
    }
    let mut c0 = [0u64; TILE];
    if let (true, Some(input)) = (LIFTED, s.job.input) {
        gather(&mut c0[..t], table, input.c0);
    }
    let (mut b, mut a) = ([&c0[..0]; D], [&c0[..0]; D]);
    for ((b, a), (kb, ka)) in b.iter_mut().zip(&mut a).zip(&turn.key) {
        (*b, *a) = (&kb[range.clone()], &ka[range.clone()]);
    }
    let (f, unit, p) = (s.field, s.unit, s.p);
    let (b, a) = (b.map(|b| &b[..t]), a.map(|a| &a[..t]));
    for k in 0..t {
        let (mut s0, mut s1) = ((0.0, 0.0), (0.0, 0.0));
        for j in 0..D {
            let x = load(gathered[j][k]);
            s0 = accumulate(s0, x, load(b[j][k]));
            s1 = accumulate(s1, x, load(a[j][k]));
        }
        if LIFTED {
            s0 = accumulate(s0, load(c0[k]), p);
        }
        x0[k] = fold(f, unit, s0, 0.0);
        x1[k] = fold(f, unit, s1, 0.0);
    }
}

#[inline(always)]
fn turn_tile_of<const D: usize>(
    s: &Sums<'_, '_, '_>,
    turn: &Turn<'_>,
    start: usize,
    x0: &mut [f64],
    x1: &mut [f64],
) {
    if s.job.input.is_some() {
        turn_tile::<D, true>(s, turn, start, x0, x1);
    } else {
        turn_tile::<D, false>(s, turn, start, x0, x1);
    }
}

/// The input itself, times P.
#[inline(always)]
fn unmoved_tile(s: &Sums<'_, '_, '_>, start: usize, x0: &mut [f64], x1: &mut [f64]) {
    let Some(input) = s.job.input else {
        x0.fill(0.0);
        x1.fill(0.0);
        return;
    };
    for (x, c) in [(x0, input.c0), (x1, input.c1)] {
        for (x, c) in x.iter_mut().zip(&c[start..]) {
            *x = fold(s.field, s.unit, accumulate((0.0, 0.0), load(*c), s.p), 0.0);
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
            for (run, y) in out.chunks_mut(repeat.min(TILE)).zip(y) {
                run.fill(load(*y));
            }
        }
    }
}

/// The parts of both components' sums.
struct Accumulators {
    high: [[f64; TILE]; 2],
    low: [[f64; TILE]; 2],
}

/// Adds K terms to the parts of the sum of one component.
#[inline(always)]
fn add_terms<const K: usize>(
    high: &mut [f64],
    low: &mut [f64],
    x: [&[f64]; K],
    y: &[[f64; TILE]; 4],
) {
    let t = high.len();
    let low = &mut low[..t];
    let x = x.map(|x| &x[..t]);
    for k in 0..t {
        let mut s = (high[k], low[k]);
        for j in 0..K {
            s = accumulate(s, x[j][k], y[j][k]);
        }
        (high[k], low[k]) = s;
    }
}

#[inline(always)]
fn add_group<const K: usize>(
    acc: &mut Accumulators,
    tiles: &[f64],
    (t, n): (usize, usize),
    start: usize,
    group: &[(usize, &[u64])],
) {
    let mut y = [[0.0f64; TILE]; 4];
    for (y, (_, values)) in y.iter_mut().zip(group) {
        spread(&mut y[..t], values, start, n / values.len());
    }
    for (c, (high, low)) in acc.high.iter_mut().zip(&mut acc.low).enumerate() {
        let mut x = [&tiles[..0]; K];
        for (x, (b, _)) in x.iter_mut().zip(group) {
            *x = &tiles[(2 * b + c) * t..(2 * b + c + 1) * t];
        }
        add_terms::<K>(&mut high[..t], &mut low[..t], x, &y);
    }
}

/// Sum of all terms of one giant step on one tile.
#[inline(always)]
fn giant_tile(
    s: (Field, f64),
    tiles: &[f64],
    (t, n): (usize, usize),
    start: usize,
    terms: &[(usize, &[u64])],
    out: (&mut [u64], &mut [u64]),
) {
    let (f, unit) = s;
    let mut sums = [[0.0f64; TILE]; 2];
    for eight in terms.chunks(8) {
        let mut acc = Accumulators {
            high: [[0.0; TILE]; 2],
            low: [[0.0; TILE]; 2],
        };
        for group in eight.chunks(4) {
            match group.len() {
                1 => add_group::<1>(&mut acc, tiles, (t, n), start, group),
                2 => add_group::<2>(&mut acc, tiles, (t, n), start, group),
                3 => add_group::<3>(&mut acc, tiles, (t, n), start, group),
                _ => add_group::<4>(&mut acc, tiles, (t, n), start, group),
            }
        }
        for (sum, (high, low)) in sums.iter_mut().zip(acc.high.iter().zip(&acc.low)) {
            for ((sum, h), l) in sum[..t].iter_mut().zip(high).zip(low) {
                *sum = fold(f, unit, (*h, *l), *sum);
            }
        }
    }
    for (out, sum) in [(out.0, &sums[0]), (out.1, &sums[1])] {
        for (o, x) in out.iter_mut().zip(sum) {
            *o = f.canonical(*x);
        }
    }
}

impl NullaryFnOnce for Sums<'_, '_, '_> {
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
        for from in (0..len).step_by(t) {
            let start = self.job.start + from;
            for (baby, tile) in babies.iter().zip(tiles.chunks_exact_mut(2 * t)) {
                let (x0, x1) = tile.split_at_mut(t);
                match (baby, self.job.digits.len()) {
                    (None, _) => unmoved_tile(&self, start, x0, x1),
                    (Some(turn), 1) => turn_tile_of::<1>(&self, turn, start, x0, x1),
                    (Some(turn), 2) => turn_tile_of::<2>(&self, turn, start, x0, x1),
                    (Some(turn), 3) => turn_tile_of::<3>(&self, turn, start, x0, x1),
                    (Some(turn), _) => turn_tile_of::<4>(&self, turn, start, x0, x1),
                }
            }
            let s = (self.field, self.unit);
            for (terms, (o0, o1)) in self.job.giants.iter().zip(self.out.iter_mut()) {
                let out = (&mut o0[from..from + t], &mut o1[from..from + t]);
                giant_tile(s, &tiles, (t, n), start, terms, out);
            }
        }
    }
}
