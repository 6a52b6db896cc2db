//! Linear maps compiled from positions (CIRCUIT.md section 2). A row at position p reads input k at any of
//! the positions where a copy of it lies; each choice q puts the weight on diagonal r = q - p. Diagonals
//! have the period of a token block.

use std::collections::{BTreeMap, BTreeSet};

use cipherhop_ckks::Complex;
use rayon::prelude::*;

/// One output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Position in the block.
    pub pos: usize,
    /// Number handed to the weight function.
    pub out: usize,
    /// First input read.
    pub first: usize,
    /// Number of inputs read.
    pub count: usize,
}

/// Where things lie, before weights are known.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearSpec {
    /// Period of the diagonals, B.
    pub block: usize,
    /// Baby steps.
    pub n1: usize,
    /// Output rows.
    pub rows: Vec<Row>,
    /// Position of the first copy of every input.
    pub inputs: Vec<usize>,
    /// Distance between copies.
    pub stride: usize,
    /// Number of copies.
    pub copies: usize,
    /// If set, the map acts on x + i*rot(x, h) and carries diagonal r + h as -i times its weight on r;
    /// only real parts of the result mean anything.
    pub pair: Option<i64>,
    /// If set, only these diagonals: a part of a map that is computed in several steps.
    pub range: Option<(i64, i64)>,
}

impl LinearSpec {
    /// Diagonal for an input whose first copy lies `base` after the row: the one in [0, stride) if a copy allows
    /// it, else the one nearest to zero.
    fn diagonal(&self, base: i64) -> i64 {
        let stride = self.stride.max(1) as i64;
        let most = self.copies.saturating_sub(1) as i64;
        let wanted = (-base).div_euclid(stride) + i64::from((-base).rem_euclid(stride) != 0);
        base + wanted.clamp(0, most) * stride
    }

    /// Diagonals before pairing, ascending.
    fn raw_rotations(&self) -> Vec<i64> {
        // Few distances occur, many times each.
        let reach = self.block as i64;
        let mut distances = vec![false; 2 * self.block];
        for row in &self.rows {
            for &first in self.inputs.iter().skip(row.first).take(row.count) {
                if let Some(seen) = distances.get_mut((first + self.block).wrapping_sub(row.pos)) {
                    *seen = true;
                }
            }
        }
        let occurring = distances.iter().zip(-reach..).filter(|(seen, _)| **seen);
        let set: BTreeSet<i64> = occurring.map(|(_, base)| self.diagonal(base)).collect();
        set.into_iter().collect()
    }

    /// Halves the diagonals with complex weights (real maps whose imaginary output does not matter).
    pub fn paired(mut self) -> LinearSpec {
        let set = self.raw_rotations();
        if let (Some(lo), Some(hi)) = (set.first(), set.last()) {
            self.pair = Some((hi - lo + 2) / 2);
        }
        self
    }

    /// Distance to which [`LinearSpec::paired`] maps fold, and the diagonal where the upper half begins.
    fn fold(&self) -> Option<(i64, i64)> {
        let h = self.pair?;
        let lo = *self.raw_rotations().first()?;
        Some((h, lo + h))
    }

    /// Diagonals in use, ascending.
    pub fn rotations(&self) -> Vec<i64> {
        let set = self.raw_rotations();
        let (lo, hi) = self.range.unwrap_or((i64::MIN, i64::MAX));
        let inside = |r: &i64| (lo..hi).contains(r);
        match self.fold() {
            None => set.into_iter().filter(inside).collect(),
            Some((h, cut)) => {
                let folded: BTreeSet<i64> = set
                    .into_iter()
                    .map(|r| if r >= cut { r - h } else { r })
                    .collect();
                folded.into_iter().filter(inside).collect()
            }
        }
    }

    /// Rotations the evaluation needs for these diagonals: baby steps, the giant step, and the last one.
    pub fn key_rotations(&self, diagonals: &[i64]) -> BTreeSet<i64> {
        let n1 = self.n1 as i64;
        let mut out: BTreeSet<i64> = diagonals.iter().map(|r| r.rem_euclid(n1)).collect();
        let giants: BTreeSet<i64> = diagonals.iter().map(|r| r.div_euclid(n1)).collect();
        if let (Some(lo), Some(hi)) = (giants.first(), giants.last()) {
            out.insert(lo * n1);
            if lo < hi {
                out.insert(n1);
            }
        }
        out.remove(&0);
        out
    }

    /// Splits the giant steps into up to `count` consecutive ranges of about equal size. The results of the parts
    /// add up to the result of the map.
    pub fn parts(&self, count: usize) -> Vec<LinearSpec> {
        let n1 = self.n1 as i64;
        let giants: BTreeSet<i64> = self.rotations().iter().map(|r| r.div_euclid(n1)).collect();
        let giants: Vec<i64> = giants.into_iter().collect();
        let size = giants.len().div_ceil(count.max(1)).max(1);
        let part = |g: &[i64]| LinearSpec {
            range: Some((g[0] * n1, (g[g.len() - 1] + 1) * n1)),
            ..self.clone()
        };
        giants.chunks(size).map(part).collect()
    }

    /// The diagonals, at output positions: y[p] += D_r[p] * x[p + r].
    pub fn diagonals(
        &self,
        weight: &(dyn Fn(usize, usize) -> Complex + Sync),
    ) -> BTreeMap<i64, Vec<Complex>> {
        let fold = self.fold();
        let (lo, hi) = self.range.unwrap_or((i64::MIN, i64::MAX));
        let mut wanted: BTreeMap<i64, Vec<(usize, usize, usize, bool)>> = BTreeMap::new();
        for row in &self.rows {
            for k in row.first..(row.first + row.count).min(self.inputs.len()) {
                let r = self.diagonal(self.inputs[k] as i64 - row.pos as i64);
                let (r, upper) = match fold {
                    Some((h, cut)) if r >= cut => (r - h, true),
                    _ => (r, false),
                };
                if (lo..hi).contains(&r) {
                    wanted
                        .entry(r)
                        .or_default()
                        .push((row.pos, row.out, k, upper));
                }
            }
        }
        wanted
            .into_par_iter()
            .map(|(r, entries)| {
                let mut d = vec![Complex::ZERO; self.block];
                for (pos, out, k, upper) in entries {
                    let w = weight(out, k);
                    d[pos] = d[pos] + if upper { Complex::new(w.im, -w.re) } else { w };
                }
                (r, d)
            })
            .collect()
    }
}

/// Baby steps for maps with about `diagonals` diagonals: a power of two, so that keys are shared.
pub fn baby_steps(diagonals: usize) -> usize {
    let root = (diagonals.max(1) as f64).sqrt().ceil() as usize;
    root.next_power_of_two().clamp(2, 32)
}
