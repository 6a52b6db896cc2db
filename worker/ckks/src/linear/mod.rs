//! Linear maps on slots, as diagonals: y[p] = sum over r of D_r[p] * x[p + r], with weights of period B.
//! Evaluated by baby steps and Horner giant steps (Halevi and Shoup 2014; CIRCUIT.md section 2), so one key
//! serves all giant steps.

mod eval;

pub use eval::PreparedMap;

use crate::complex::Complex;
use crate::error::CkksError;
use std::collections::{BTreeMap, BTreeSet};

/// A linear map. Diagonal r holds the weights at the OUTPUT position: y[p] += D_r[p mod B] * x[p + r].
///
/// Writing r = base + stride * (g * n1 + b) with 0 <= b < n1 and stride the common divisor of the offsets, the
/// baby steps are the rotations base + stride * b and the giant step is stride * n1. The giants are cut into
/// segments of `segment` consecutive g; each segment is one Horner chain and ends with one rotation of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearMap {
    /// Slots after which the weights repeat, a power of two.
    pub period: usize,
    /// Weights by offset, each of length `period`.
    pub diagonals: BTreeMap<i64, Vec<Complex>>,
    /// Number of baby steps.
    pub n1: usize,
    /// Offset of the first baby step.
    pub base: i64,
    /// Giant steps per segment; the partial sums of segments can be computed apart without changing a byte.
    pub segment: usize,
}

/// One giant step: its Horner index and the diagonals it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Giant {
    pub(crate) index: i64,
    /// (baby index, offset of the diagonal)
    pub(crate) terms: Vec<(usize, i64)>,
}

/// How a map is evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// rotation of each baby step that is used
    pub(crate) babies: BTreeMap<usize, i64>,
    /// rotation between consecutive giant steps
    pub(crate) step: i64,
    /// segments of consecutive giants, each from its highest index down
    pub(crate) segments: Vec<Vec<Giant>>,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl LinearMap {
    /// The zero map of that period, with 16 baby steps.
    pub fn new(period: usize) -> LinearMap {
        LinearMap {
            period,
            diagonals: BTreeMap::new(),
            n1: 16,
            base: 0,
            segment: usize::MAX,
        }
    }

    /// Adds `w` to the weight at output position `p` of diagonal `r`.
    pub fn add(&mut self, p: usize, r: i64, w: Complex) {
        let period = self.period;
        let d = self
            .diagonals
            .entry(r)
            .or_insert_with(|| vec![Complex::ZERO; period]);
        d[p % period] = d[p % period] + w;
    }

    /// Multiplies every weight by a real number.
    pub fn scale(&mut self, by: f64) {
        for x in self.diagonals.values_mut().flatten() {
            *x = x.scale(by);
        }
    }

    /// Multiplies the output by a mask, of the map's period or of another power of two.
    pub fn mask_output(&mut self, mask: &[f64]) -> Result<(), CkksError> {
        self.extend_period(mask.len())?;
        for d in self.diagonals.values_mut() {
            for (p, x) in d.iter_mut().enumerate() {
                *x = x.scale(mask[p % mask.len()]);
            }
        }
        Ok(())
    }

    /// Multiplies the input by a mask, of the map's period or of another power of two.
    pub fn mask_input(&mut self, mask: &[f64]) -> Result<(), CkksError> {
        self.extend_period(mask.len())?;
        for (&r, d) in &mut self.diagonals {
            for (p, x) in d.iter_mut().enumerate() {
                let q = (p as i64 + r).rem_euclid(mask.len() as i64) as usize;
                *x = x.scale(mask[q]);
            }
        }
        Ok(())
    }

    fn extend_period(&mut self, period: usize) -> Result<(), CkksError> {
        if !period.is_power_of_two() || period > 1 << 15 {
            return Err(CkksError::BadSlotCount(period));
        }
        if period > self.period {
            for d in self.diagonals.values_mut() {
                *d = d.iter().copied().cycle().take(period).collect();
            }
            self.period = period;
        }
        Ok(())
    }

    /// The map in the clear; `x` has a multiple of `period` values.
    pub fn apply(&self, x: &[Complex]) -> Vec<Complex> {
        let n = x.len() as i64;
        let mut y = vec![Complex::ZERO; x.len()];
        for (&r, d) in &self.diagonals {
            for (p, o) in y.iter_mut().enumerate() {
                *o = *o + d[p % self.period] * x[(p as i64 + r).rem_euclid(n) as usize];
            }
        }
        y
    }

    fn stride(&self) -> i64 {
        let all = self
            .diagonals
            .keys()
            .map(|r| (r - self.base).unsigned_abs());
        (all.fold(0, gcd) as i64).max(1)
    }

    pub(crate) fn plan(&self) -> Plan {
        let stride = self.stride();
        let n1 = self.n1.max(1) as i64;
        let mut giants: BTreeMap<i64, Vec<(usize, i64)>> = BTreeMap::new();
        let mut babies = BTreeMap::new();
        for &r in self.diagonals.keys() {
            let k = (r - self.base) / stride;
            let (g, b) = (k.div_euclid(n1), k.rem_euclid(n1));
            giants.entry(g).or_default().push((b as usize, r));
            babies.insert(b as usize, self.base + stride * b);
        }
        let mut segments: Vec<Vec<Giant>> = Vec::new();
        let first = giants.keys().next().copied().unwrap_or(0);
        let segment = self.segment.clamp(1, i64::MAX as usize) as i64;
        let mut current = None;
        for (index, terms) in giants {
            let s = (index - first) / segment;
            if current != Some(s) {
                segments.push(Vec::new());
                current = Some(s);
            }
            if let Some(last) = segments.last_mut() {
                last.insert(0, Giant { index, terms });
            }
        }
        Plan {
            babies,
            step: stride * n1,
            segments,
        }
    }

    /// Number of segments that [`crate::Evaluator::linear_partial`] can compute apart.
    pub fn segments(&self) -> usize {
        self.plan().segments.len()
    }

    /// All rotations whose keys the evaluation needs, modulo the number of slots, without 0.
    pub fn rotations(&self, slots: usize) -> Vec<u32> {
        let plan = self.plan();
        let mut all: BTreeSet<i64> = plan.babies.values().copied().collect();
        for segment in &plan.segments {
            if segment.len() > 1 {
                all.insert(plan.step);
            }
            all.extend(segment.last().map(|g| g.index * plan.step));
        }
        let reduced: BTreeSet<u32> = all
            .into_iter()
            .map(|r| r.rem_euclid(slots as i64) as u32)
            .filter(|&r| r != 0)
            .collect();
        reduced.into_iter().collect()
    }

    /// Sets `n1` to the power of two with the lowest cost, a baby step being about ten times cheaper than a
    /// giant step on any level; at most `max_n1`, because each baby step needs a key.
    pub fn choose_n1(&mut self, max_n1: usize) {
        let mut best = (usize::MAX, 1);
        let mut n1 = 1;
        while n1 <= max_n1.max(1) {
            self.n1 = n1;
            let plan = self.plan();
            let span = |s: &Vec<Giant>| match (s.first(), s.last()) {
                (Some(a), Some(b)) => (a.index - b.index) as usize,
                _ => 0,
            };
            let giants: usize = plan.segments.iter().map(|s| span(s) + 1).sum();
            let cost = plan.babies.len() + 10 * giants;
            if cost < best.0 {
                best = (cost, n1);
            }
            n1 *= 2;
        }
        self.n1 = best.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_covers_every_diagonal_once() {
        let mut map = LinearMap::new(64);
        for r in [-40, -24, -8, 0, 8, 16, 56] {
            map.add(3, r, Complex::real(1.0));
        }
        map.n1 = 3;
        map.segment = 2;
        let plan = map.plan();
        let mut seen = Vec::new();
        for s in &plan.segments {
            for g in s {
                for &(b, r) in &g.terms {
                    assert_eq!(r, plan.babies[&b] + g.index * plan.step);
                    seen.push(r);
                }
            }
        }
        seen.sort();
        assert_eq!(seen, [-40, -24, -8, 0, 8, 16, 56]);
        assert_eq!(plan.step, 24);
        assert_eq!(plan.segments.len(), 3);
        assert_eq!(map.rotations(512), [8, 16, 24, 48, 464]);
    }
}
