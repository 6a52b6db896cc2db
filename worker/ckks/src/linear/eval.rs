//! Evaluation of linear maps: hoisted baby steps, lazily accumulated products, Horner giant steps. Where it
//! pays, everything up to the end of a segment stays modulo QP (double hoisting, Bossuat et al. 2021).

use super::{Giant, LinearMap, Plan};
use crate::cipher::{Ciphertext, ExtCiphertext, Plaintext, Product, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::error::CkksError;
use crate::eval::Evaluator;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// A map with its plaintexts encoded for one level, for maps that are used again and again.
#[derive(Debug, Clone)]
pub struct PreparedMap {
    plan: Plan,
    plaintexts: BTreeMap<i64, Plaintext>,
    level: usize,
    row: ScaleId,
    extended: bool,
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

/// Where the plaintexts of an evaluation come from.
enum Source<'a> {
    Map(&'a LinearMap),
    Prepared(&'a PreparedMap),
}

/// Baby steps on either side of ModDown.
enum Babies {
    Plain(BTreeMap<usize, Ciphertext>),
    Extended(BTreeMap<usize, ExtCiphertext>),
}

impl LinearMap {
    /// True if baby steps should stay modulo QP: the products and encodings on the special limbs then cost
    /// less than the ModDown of every baby step. In units of N word operations; a transform is 12.
    fn extended(&self, ctx: &Context, plan: &Plan, level: usize) -> bool {
        let (p, limbs) = (ctx.p_len(), level + 1);
        let encode = 12 * p * 2 * self.period / ctx.n();
        let extra = self.diagonals.len() * (2 * p + encode);
        let mod_down = plan.babies.len() * 2 * (12 * (p + limbs) + p * limbs);
        extra < mod_down
    }

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
    fn encode(
        &self,
        ctx: &Context,
        (row, level): (ScaleId, usize),
        extended: bool,
        r: i64,
        giant: i64,
    ) -> Result<Plaintext, CkksError> {
        let d = &self.diagonals[&r];
        let period = self.period as i64;
        let moved: Vec<Complex> = (0..period)
            .map(|p| d[(p - giant).rem_euclid(period) as usize])
            .collect();
        if extended {
            ctx.encode_mul_ext(&moved, row, level)
        } else {
            ctx.encode_mul_on(&moved, row, level)
        }
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
        let extended = self.extended(ctx, &plan, level);
        let giants: Vec<&Giant> = plan.segments.iter().flatten().collect();
        let plaintexts = giants
            .par_iter()
            .flat_map_iter(|g| g.terms.iter().map(|&(_, r)| (r, g.index * plan.step)))
            .map(|(r, giant)| Ok((r, self.encode(ctx, (row, level), extended, r, giant)?)))
            .collect::<Result<_, CkksError>>()?;
        Ok(PreparedMap {
            plaintexts,
            level,
            row,
            extended,
            plan,
        })
    }
}

impl Evaluator {
    /// Applies a linear map; one level.
    pub fn linear(&self, ct: &Ciphertext, map: &LinearMap) -> Result<Ciphertext, CkksError> {
        map.check(&self.ctx)?;
        let all = 0..map.segments();
        self.rescale(&self.linear_partial(ct, map, all)?)
    }

    /// The part of a linear map that its segments in `range` contribute, before the one rescale. The parts
    /// of all segments add (`add_product`) to the same bytes however they are grouped; `rescale` ends it.
    pub fn linear_partial(
        &self,
        ct: &Ciphertext,
        map: &LinearMap,
        range: Range<usize>,
    ) -> Result<Product, CkksError> {
        map.check(&self.ctx)?;
        let plan = map.plan();
        let extended = map.extended(&self.ctx, &plan, ct.level);
        self.run(ct, Source::Map(map), &plan, extended, range)
    }

    /// Applies a prepared map; one level. The same bytes as `linear`.
    pub fn linear_prepared(
        &self,
        ct: &Ciphertext,
        map: &PreparedMap,
    ) -> Result<Ciphertext, CkksError> {
        self.check_prepared(ct, map)?;
        let all = 0..map.plan.segments.len();
        let product = self.run(ct, Source::Prepared(map), &map.plan, map.extended, all)?;
        self.rescale(&product)
    }

    fn check_prepared(&self, ct: &Ciphertext, map: &PreparedMap) -> Result<(), CkksError> {
        if ct.scale != map.row {
            return Err(CkksError::ScaleMismatch(ct.scale, map.row));
        }
        if ct.level != map.level {
            return Err(CkksError::PlaintextMismatch("made for another level"));
        }
        Ok(())
    }

    /// Applies a map of one segment and leaves the result modulo QP, before ModDown and rescale.
    pub(crate) fn linear_extended(
        &self,
        ct: &Ciphertext,
        map: &PreparedMap,
    ) -> Result<ExtCiphertext, CkksError> {
        self.check_prepared(ct, map)?;
        match (&map.plan.segments[..], map.extended) {
            ([segment], true) => {
                let Babies::Extended(babies) = self.babies(ct, &map.plan, true)? else {
                    return Err(CkksError::ShapeMismatch("baby steps"));
                };
                self.segment_extended(&Source::Prepared(map), &map.plan, segment, &babies, ct)
            }
            _ => Err(CkksError::PlaintextMismatch(
                "not an extended map of one segment",
            )),
        }
    }

    fn babies(&self, ct: &Ciphertext, plan: &Plan, extended: bool) -> Result<Babies, CkksError> {
        let rotations: Vec<i64> = plan.babies.values().copied().collect();
        Ok(if extended {
            let digits = self.hoist(ct);
            let done = rotations
                .iter()
                .map(|&r| self.rotate_ext(ct, &digits, r))
                .collect::<Result<Vec<_>, _>>()?;
            Babies::Extended(plan.babies.keys().copied().zip(done).collect())
        } else {
            let done = self.rotate_hoisted(ct, &rotations)?;
            Babies::Plain(plan.babies.keys().copied().zip(done).collect())
        })
    }

    fn run(
        &self,
        ct: &Ciphertext,
        source: Source<'_>,
        plan: &Plan,
        extended: bool,
        range: Range<usize>,
    ) -> Result<Product, CkksError> {
        let segments = plan.segments.get(range).ok_or(CkksError::Empty)?;
        let babies = self.babies(ct, plan, extended)?;
        let mut total: Option<Product> = None;
        for segment in segments {
            let part = match &babies {
                Babies::Extended(b) => {
                    let x = self.segment_extended(&source, plan, segment, b, ct)?;
                    self.mod_down_product(&x)
                }
                Babies::Plain(b) => self.segment_plain(&source, plan, segment, b, ct)?,
            };
            match &mut total {
                Some(t) => self.add_product(t, &part)?,
                None => total = Some(part),
            }
        }
        total.ok_or(CkksError::Empty)
    }

    /// Plaintexts of one giant step.
    fn factors<'a>(
        &self,
        source: &'a Source<'_>,
        plan: &Plan,
        giant: &Giant,
        ct: &Ciphertext,
        extended: bool,
    ) -> Result<Vec<Cow<'a, Plaintext>>, CkksError> {
        match source {
            Source::Prepared(m) => giant
                .terms
                .iter()
                .map(|(_, r)| {
                    let p = m.plaintexts.get(r).ok_or(CkksError::Empty)?;
                    Ok(Cow::Borrowed(p))
                })
                .collect(),
            Source::Map(m) => giant
                .terms
                .par_iter()
                .map(|&(_, r)| {
                    let moved = giant.index * plan.step;
                    let at = (ct.scale, ct.level);
                    Ok(Cow::Owned(m.encode(&self.ctx, at, extended, r, moved)?))
                })
                .collect(),
        }
    }

    fn segment_extended(
        &self,
        source: &Source<'_>,
        plan: &Plan,
        segment: &[Giant],
        babies: &BTreeMap<usize, ExtCiphertext>,
        ct: &Ciphertext,
    ) -> Result<ExtCiphertext, CkksError> {
        let mut sum: Option<(i64, ExtCiphertext)> = None;
        for giant in segment {
            let factors = self.factors(source, plan, giant, ct, true)?;
            let terms: Vec<_> = giant
                .terms
                .iter()
                .zip(&factors)
                .map(|((b, _), p)| (&babies[b], p.as_ref()))
                .collect();
            let own = self.dot_plain_ext(&terms)?;
            sum = Some((
                giant.index,
                match sum {
                    None => own,
                    Some((above, mut acc)) => {
                        for _ in giant.index..above {
                            acc = self.rotate_extended(&acc, plan.step)?;
                        }
                        self.add_extended(&mut acc, &own)?;
                        acc
                    }
                },
            ));
        }
        let (last, acc) = sum.ok_or(CkksError::Empty)?;
        self.rotate_extended(&acc, last * plan.step)
    }

    fn segment_plain(
        &self,
        source: &Source<'_>,
        plan: &Plan,
        segment: &[Giant],
        babies: &BTreeMap<usize, Ciphertext>,
        ct: &Ciphertext,
    ) -> Result<Product, CkksError> {
        let mut sum: Option<(i64, Product)> = None;
        for giant in segment {
            let factors = self.factors(source, plan, giant, ct, false)?;
            let terms: Vec<_> = giant
                .terms
                .iter()
                .zip(&factors)
                .map(|((b, _), p)| (&babies[b], p.as_ref()))
                .collect();
            let own = self.dot_plain_no_rescale(&terms)?;
            sum = Some((
                giant.index,
                match sum {
                    None => own,
                    Some((above, mut acc)) => {
                        for _ in giant.index..above {
                            acc = self.rotate_product(&acc, plan.step)?;
                        }
                        self.add_product(&mut acc, &own)?;
                        acc
                    }
                },
            ));
        }
        let (last, acc) = sum.ok_or(CkksError::Empty)?;
        self.rotate_product(&acc, last * plan.step)
    }
}
