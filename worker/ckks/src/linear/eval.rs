//! Evaluation of linear maps: all baby steps and their products with the diagonals in one pass modulo QP
//! (double hoisting, Bossuat et al. 2021), then Horner giant steps, one division by P and the top prime.

use super::{Giant, LinearMap, Plan};
use crate::buffer::Buffer;
use crate::cipher::{Ciphertext, ExtCiphertext, Plaintext, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::error::CkksError;
use crate::eval::Evaluator;
use crate::fused::{Diagonals, Hoisted};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// A map with its plaintexts encoded for one level, for maps that are used again and again.
#[derive(Debug, Clone)]
pub struct PreparedMap {
    plan: Plan,
    plaintexts: BTreeMap<i64, Plaintext>,
    level: usize,
    row: ScaleId,
}

impl PreparedMap {
    /// Bytes of the plaintexts.
    pub fn bytes(&self) -> usize {
        self.plaintexts.values().map(Plaintext::bytes).sum()
    }

    /// Key switches of one evaluation.
    pub(crate) fn rotations_used(&self) -> usize {
        let babies = self.plan.babies.values().filter(|&&r| r != 0).count();
        let giants = |s: &Vec<Giant>| match (s.first(), s.last()) {
            (Some(a), Some(b)) => (a.index - b.index) as usize + usize::from(b.index != 0),
            _ => 0,
        };
        babies + self.plan.segments.iter().map(giants).sum::<usize>()
    }

    /// Level of the input.
    pub fn level(&self) -> usize {
        self.level
    }
}

/// Diagonals that are transformed limb by limb, when they are needed.
struct Fresh<'a> {
    ctx: &'a Context,
    /// integer coefficients, in the order of the giants' terms
    coefficients: Vec<Vec<i64>>,
    limbs: usize,
    len: usize,
}

impl Diagonals for Fresh<'_> {
    fn limb<'a>(&'a self, i: usize, buffer: &'a mut Buffer) -> Vec<&'a [u64]> {
        let index = self.ctx.ext_index(self.limbs, i);
        *buffer = Buffer::scratch(self.coefficients.len() * self.len);
        buffer
            .par_chunks_exact_mut(self.len)
            .zip(&self.coefficients)
            .for_each(|(out, c)| self.ctx.transform_limb(index, c, out));
        buffer.chunks_exact(self.len).collect()
    }
}

/// Diagonals that were transformed before.
struct Ready<'a>(Vec<&'a Plaintext>);

impl Diagonals for Ready<'_> {
    fn limb<'a>(&'a self, i: usize, _: &'a mut Buffer) -> Vec<&'a [u64]> {
        self.0.iter().map(|p| p.limb(i)).collect()
    }
}

impl LinearMap {
    fn check(&self, ctx: &Context) -> Result<(), CkksError> {
        let bad = |d: &Vec<Complex>| d.len() != self.period;
        let slots = ctx.slots();
        if !self.period.is_power_of_two() || self.period > slots || self.diagonals.values().any(bad)
        {
            return Err(CkksError::BadSlotCount(self.period));
        }
        if self.diagonals.is_empty() {
            return Err(CkksError::Empty);
        }
        let far = |r: &i64| r.unsigned_abs() > slots as u64;
        if self.diagonals.keys().any(far) || far(&self.base) || self.n1 > slots {
            return Err(CkksError::ShapeMismatch("offsets beyond the slots"));
        }
        Ok(())
    }

    /// The diagonal of offset `r` moved back by the rotation that follows its giant step.
    fn moved(&self, r: i64, giant: i64) -> Vec<Complex> {
        let d = &self.diagonals[&r];
        let by = giant.rem_euclid(self.period as i64) as usize;
        let (head, tail) = d.split_at(self.period - by);
        [tail, head].concat()
    }

    /// Encodes all diagonals for ciphertexts at `level` of a scale row.
    pub fn prepare(
        &self,
        ctx: &Context,
        row: ScaleId,
        level: usize,
    ) -> Result<PreparedMap, CkksError> {
        self.check(ctx)?;
        let plan = self.plan();
        let giants: Vec<&Giant> = plan.segments.iter().flatten().collect();
        let plaintexts = giants
            .par_iter()
            .flat_map_iter(|g| g.terms.iter().map(|&(_, r)| (r, g.index * plan.step)))
            .map(|(r, giant)| Ok((r, ctx.encode_mul_ext(&self.moved(r, giant), row, level)?)))
            .collect::<Result<_, CkksError>>()?;
        Ok(PreparedMap {
            plaintexts,
            level,
            row,
            plan,
        })
    }

    /// The diagonals of some giant steps, as integer coefficients.
    fn fresh<'a>(
        &self,
        ctx: &'a Context,
        (row, level): (ScaleId, usize),
        plan: &Plan,
        giants: &[&Giant],
    ) -> Result<Fresh<'a>, CkksError> {
        let scale = ctx.factor_scale(row, level)?;
        let coefficients = giants
            .par_iter()
            .flat_map_iter(|g| g.terms.iter().map(|&(_, r)| (r, g.index * plan.step)))
            .map(|(r, giant)| ctx.embed(&self.moved(r, giant), scale))
            .collect::<Result<_, CkksError>>()?;
        Ok(Fresh {
            ctx,
            coefficients,
            limbs: level + 1,
            len: 2 * self.period,
        })
    }
}

impl Evaluator {
    /// Applies a linear map; one level.
    pub fn linear(&self, ct: &Ciphertext, map: &LinearMap) -> Result<Ciphertext, CkksError> {
        map.check(&self.ctx)?;
        let all = 0..map.segments();
        self.mod_down_rescale(&self.linear_partial(ct, map, all)?)
    }

    /// The part of a linear map that its segments in `range` contribute, modulo QP. The parts of all segments
    /// add (`add_extended`) to the same bytes however they are grouped; `mod_down_rescale` ends it.
    pub fn linear_partial(
        &self,
        ct: &Ciphertext,
        map: &LinearMap,
        range: Range<usize>,
    ) -> Result<ExtCiphertext, CkksError> {
        map.check(&self.ctx)?;
        let plan = map.plan();
        let segments = plan.segments.get(range).ok_or(CkksError::Empty)?;
        let giants: Vec<&Giant> = segments.iter().flatten().collect();
        let fresh = map.fresh(&self.ctx, (ct.scale, ct.level), &plan, &giants)?;
        self.segments(ct, &plan, segments, &fresh)
    }

    /// Applies a prepared map; one level. The same bytes as `linear`.
    pub fn linear_prepared(
        &self,
        ct: &Ciphertext,
        map: &PreparedMap,
    ) -> Result<Ciphertext, CkksError> {
        self.mod_down_rescale(&self.linear_extended(ct, map)?)
    }

    /// Applies a prepared map and leaves the result modulo QP, before ModDown and rescale.
    pub(crate) fn linear_extended(
        &self,
        ct: &Ciphertext,
        map: &PreparedMap,
    ) -> Result<ExtCiphertext, CkksError> {
        if ct.scale != map.row {
            return Err(CkksError::ScaleMismatch(ct.scale, map.row));
        }
        if ct.level != map.level {
            return Err(CkksError::PlaintextMismatch("made for another level"));
        }
        let terms = map.plan.segments.iter().flatten().flat_map(|g| &g.terms);
        let plaintexts = terms
            .map(|(_, r)| map.plaintexts.get(r).ok_or(CkksError::Empty))
            .collect::<Result<_, _>>()?;
        self.segments(ct, &map.plan, &map.plan.segments, &Ready(plaintexts))
    }

    /// Sum of some segments; `diagonals` are those of their giant steps.
    fn segments(
        &self,
        ct: &Ciphertext,
        plan: &Plan,
        segments: &[Vec<Giant>],
        diagonals: &dyn Diagonals,
    ) -> Result<ExtCiphertext, CkksError> {
        let mut sums = self.giants(ct, plan, segments, diagonals)?.into_iter();
        let mut total: Option<ExtCiphertext> = None;
        for segment in segments {
            let mut state: Option<(i64, ExtCiphertext)> = None;
            for (giant, own) in segment.iter().zip(sums.by_ref()) {
                let sum = match state {
                    None => own,
                    Some((above, mut acc)) => {
                        for _ in giant.index..above {
                            acc = self.rotate_extended(&acc, plan.step)?;
                        }
                        self.add_extended(&mut acc, &own)?;
                        acc
                    }
                };
                state = Some((giant.index, sum));
            }
            let (last, mut acc) = state.ok_or(CkksError::Empty)?;
            if self.reduced_steps(last * plan.step) != 0 {
                acc = self.rotate_extended(&acc, last * plan.step)?;
            }
            match &mut total {
                Some(t) => self.add_extended(t, &acc)?,
                None => total = Some(acc),
            }
        }
        total.ok_or(CkksError::Empty)
    }

    /// The sums of all giant steps of some segments before their rotations, from one hoisted pass.
    fn giants(
        &self,
        ct: &Ciphertext,
        plan: &Plan,
        segments: &[Vec<Giant>],
        diagonals: &dyn Diagonals,
    ) -> Result<Vec<ExtCiphertext>, CkksError> {
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let mut babies = Vec::new();
        let mut giants = Vec::new();
        for giant in segments.iter().flatten() {
            let mut used = Vec::with_capacity(giant.terms.len());
            for (b, _) in &giant.terms {
                let number = match numbers.get(b) {
                    Some(&number) => number,
                    None => {
                        let steps = plan.babies.get(b).copied().ok_or(CkksError::Empty)?;
                        babies.push(self.baby(steps)?);
                        numbers.insert(*b, babies.len() - 1);
                        babies.len() - 1
                    }
                };
                used.push(number);
            }
            giants.push(used);
        }
        let hoisted = Hoisted {
            ct,
            digits: &self.hoist(ct),
            babies: &babies,
            giants: &giants,
            diagonals,
        };
        hoisted.sums(&self.ctx)
    }
}
