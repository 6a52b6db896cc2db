//! The hoisted half of a linear map in one pass over memory: baby steps are computed tile by tile, multiplied
//! with the diagonals of all giant steps while they are in cache, and never written out. Sums modulo q are
//! exact in any order, so the bytes are those of separate rotations and products.

use crate::buffer::Buffer;
use crate::cipher::{Ciphertext, ExtCiphertext};
use crate::context::Context;
use crate::error::CkksError;
use crate::keys::EvalKey;
use crate::modular::{Modulus, Shoup};
use crate::poly::{ExtPoly, most_limbs};
use crate::switch::Digits;
use rayon::prelude::*;
use std::sync::Arc;

/// Coefficients per tile of the reference code.
const TILE: usize = 256;

/// A baby step other than the identity: an automorphism and the limb of its key, per digit.
#[derive(Debug)]
pub struct Turn<'a> {
    /// out[k] = in[table[k]].
    pub table: &'a [u32],
    /// First and second component of the key.
    pub key: Vec<(&'a [u64], &'a [u64])>,
}

/// The input's share of one limb; absent on special limbs, where P times the input is zero.
#[derive(Debug, Clone, Copy)]
pub struct InputLimb<'a> {
    /// First component.
    pub c0: &'a [u64],
    /// Second component.
    pub c1: &'a [u64],
    /// P modulo the modulus of the limb.
    pub p: Shoup,
}

/// One limb of a hoisted linear map.
#[derive(Debug)]
pub struct BabySums<'a> {
    /// The limb of every raised digit.
    pub digits: &'a [&'a [u64]],
    /// The input itself.
    pub input: Option<InputLimb<'a>>,
    /// Baby steps; `None` is the input unmoved.
    pub babies: &'a [Option<Turn<'a>>],
    /// Per giant step: number of a baby step and the limb of the diagonal, which may be shorter than the
    /// limb (each value then serves that many consecutive entries).
    pub giants: &'a [Vec<(usize, &'a [u64])>],
    /// First coefficient to compute.
    pub start: usize,
}

/// Both components of one giant step's sum, from `start` on.
pub type SumLimb<'a> = (&'a mut [u64], &'a mut [u64]);

/// The reference for `Kernel::baby_sums`.
pub(crate) fn baby_sums_scalar(m: &Modulus, job: &BabySums<'_>, out: &mut [SumLimb<'_>]) {
    let (n, len) = (job.whole(), out.first().map_or(0, |o| o.0.len()));
    let mut tiles = vec![[0u64; 2 * TILE]; job.babies.len()];
    for from in (0..len).step_by(TILE) {
        let count = TILE.min(len - from);
        let start = job.start + from;
        for (baby, tile) in job.babies.iter().zip(&mut tiles) {
            for k in 0..count {
                (tile[k], tile[TILE + k]) = baby_at(m, job, baby.as_ref(), start + k);
            }
        }
        for (terms, (o0, o1)) in job.giants.iter().zip(out.iter_mut()) {
            for k in 0..count {
                let (mut s0, mut s1) = (0u128, 0u128);
                for (b, y) in terms {
                    let y = u128::from(y[(start + k) / (n / y.len())]);
                    s0 += u128::from(tiles[*b][k]) * y;
                    s1 += u128::from(tiles[*b][TILE + k]) * y;
                }
                (o0[from + k], o1[from + k]) = (m.reduce_u128(s0), m.reduce_u128(s1));
            }
        }
    }
}

impl BabySums<'_> {
    /// Entries of a whole limb.
    pub(crate) fn whole(&self) -> usize {
        let input = self.input.map(|i| i.c0.len());
        self.digits.first().map(|d| d.len()).or(input).unwrap_or(1)
    }
}

fn baby_at(m: &Modulus, job: &BabySums<'_>, turn: Option<&Turn<'_>>, k: usize) -> (u64, u64) {
    let lifted = |p: Shoup, x: u64| u128::from(m.mul_shoup(p, x));
    let Some(turn) = turn else {
        return job.input.map_or((0, 0), |i| {
            (m.mul_shoup(i.p, i.c0[k]), m.mul_shoup(i.p, i.c1[k]))
        });
    };
    let from = turn.table[k] as usize;
    let mut s0 = job.input.map_or(0, |i| lifted(i.p, i.c0[from]));
    let mut s1 = 0u128;
    for (d, (b, a)) in job.digits.iter().zip(&turn.key) {
        s0 += u128::from(d[from]) * u128::from(b[k]);
        s1 += u128::from(d[from]) * u128::from(a[k]);
    }
    (m.reduce_u128(s0), m.reduce_u128(s1))
}

/// A baby step: its automorphism and key, or `None` for the input itself.
pub(crate) type Baby = Option<(Arc<Vec<u32>>, Arc<EvalKey>)>;

/// Where the diagonals come from.
pub(crate) trait Diagonals: Sync {
    /// Limb `i` (q limbs, then special limbs) of every diagonal, in the order of the giants' terms.
    /// `buffer` may hold them.
    fn limb<'a>(&'a self, i: usize, buffer: &'a mut Buffer) -> Vec<&'a [u64]>;
}

/// Limb `i` of a baby step on ciphertexts of `limbs` limbs.
fn turn<'a>(
    (table, key): &'a (Arc<Vec<u32>>, Arc<EvalKey>),
    i: usize,
    limbs: usize,
    digits: usize,
) -> Turn<'a> {
    // limb i of the key sits higher when the key covers more q limbs
    let k = if i < limbs { i } else { i - limbs + key.limbs };
    let used = key.digits.iter().take(digits);
    Turn {
        table,
        key: used.map(|d| (d.b.limb(k), d.a.limb(k))).collect(),
    }
}

/// Everything the hoisted half of a linear map reads.
pub(crate) struct Hoisted<'a> {
    pub(crate) ct: &'a Ciphertext,
    /// the digits of `ct`
    pub(crate) digits: &'a Digits,
    pub(crate) babies: &'a [Baby],
    /// numbers of the baby steps of each giant's terms
    pub(crate) giants: &'a [Vec<usize>],
    pub(crate) diagonals: &'a dyn Diagonals,
}

impl Hoisted<'_> {
    fn check(&self, special: usize) -> Result<(), CkksError> {
        let limbs = self.ct.level + 1;
        for (_, key) in self.babies.iter().flatten() {
            if key.limbs < limbs {
                return Err(CkksError::KeyTooSmall {
                    id: key.id,
                    have: key.limbs,
                    need: limbs,
                });
            }
            if key.special != special || key.digits.len() < self.digits.raised.len() {
                return Err(CkksError::ShapeMismatch("key components"));
            }
        }
        let mut used = self.giants.iter().flatten();
        if self.digits.limbs != limbs || used.any(|&b| b >= self.babies.len()) {
            return Err(CkksError::ShapeMismatch("digits of another ciphertext"));
        }
        Ok(())
    }

    /// One sum for each giant step, modulo QP.
    pub(crate) fn sums(&self, ctx: &Context) -> Result<Vec<ExtCiphertext>, CkksError> {
        let (n, limbs, special) = (ctx.n(), self.ct.level + 1, ctx.p_len());
        self.check(special)?;
        let sum = || ExtCiphertext {
            c0: ExtPoly::scratch(n, limbs, special),
            c1: ExtPoly::scratch(n, limbs, special),
            level: self.ct.level,
            scale: self.ct.scale,
        };
        let mut sums: Vec<ExtCiphertext> = self.giants.iter().map(|_| sum()).collect();
        let mut by_limb: Vec<Vec<SumLimb<'_>>> = (0..limbs + special).map(|_| Vec::new()).collect();
        for sum in &mut sums {
            let (c0, c1) = (&mut sum.c0.data, &mut sum.c1.data);
            let pairs = c0.chunks_exact_mut(n).zip(c1.chunks_exact_mut(n));
            for (limb, pair) in by_limb.iter_mut().zip(pairs) {
                limb.push(pair);
            }
        }
        by_limb
            .into_par_iter()
            .enumerate()
            .with_max_len(most_limbs(n))
            .for_each(|(i, out)| self.limb(ctx, i, out));
        Ok(sums)
    }

    fn limb(&self, ctx: &Context, i: usize, out: Vec<SumLimb<'_>>) {
        let (n, limbs) = (ctx.n(), self.ct.level + 1);
        let at = |i: usize| i * n..(i + 1) * n;
        let digits: Vec<&[u64]> = self.digits.raised.iter().map(|d| &d[at(i)]).collect();
        let input = (i < limbs).then(|| InputLimb {
            c0: self.ct.c0.limb(i),
            c1: self.ct.c1.limb(i),
            p: ctx.converters().special.product[i],
        });
        let babies: Vec<Option<Turn<'_>>> = self
            .babies
            .iter()
            .map(|baby| baby.as_ref().map(|b| turn(b, i, limbs, digits.len())))
            .collect();
        let mut buffer = Buffer::scratch(0);
        let mut rest = self.diagonals.limb(i, &mut buffer).into_iter();
        let giants: Vec<Vec<(usize, &[u64])>> = self
            .giants
            .iter()
            .map(|g| g.iter().copied().zip(rest.by_ref()).collect())
            .collect();
        // pieces of a limb, so that many threads have something to do
        let piece = (n / 4).max(n.min(1 << 13));
        let mut pieces: Vec<Vec<SumLimb<'_>>> = (0..n / piece).map(|_| Vec::new()).collect();
        for (o0, o1) in out {
            let pairs = o0.chunks_exact_mut(piece).zip(o1.chunks_exact_mut(piece));
            for (p, pair) in pieces.iter_mut().zip(pairs) {
                p.push(pair);
            }
        }
        let m = ctx.modulus(ctx.ext_index(limbs, i));
        let work = pieces.into_par_iter().enumerate().with_max_len(1);
        work.for_each(|(number, mut out)| {
            let job = BabySums {
                digits: &digits,
                input,
                babies: &babies,
                giants: &giants,
                start: number * piece,
            };
            ctx.kernel().baby_sums(m, &job, &mut out);
        });
    }
}

#[cfg(test)]
mod tests;
