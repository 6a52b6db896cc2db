//! Evaluation. Scales are tracked as f64 inside (only * and /): upper limbs of a power are dropped without
//! rescaling it, and the drift of its scale goes into the constants that multiply it.

use super::plan::power_depth;
use super::{ChebPoly, Node, Plan, powers_of};
use crate::cipher::{Ciphertext, Plaintext, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::encode::{Embedding, round_constant};
use crate::error::CkksError;
use crate::eval::Evaluator;
use crate::keys::{EvalKey, KeyId};
use crate::modular::Modulus;
use crate::poly::{Domain, Poly};
use crate::switch::{Addend, Switch};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A ciphertext with its own scale.
struct Scaled {
    c0: Poly,
    c1: Poly,
    level: usize,
    scale: f64,
}

/// A factor that is constant over the slots, or a masked one.
enum Factor {
    Constant(Vec<u64>),
    Masked(Plaintext),
}

impl Factor {
    fn limb(&self, i: usize) -> &[u64] {
        match self {
            Factor::Constant(c) => &c[i..i + 1],
            Factor::Masked(p) => p.limb(i),
        }
    }
}

/// Nearest integer to `x`, which may be beyond 2^64: then it is an integer already.
fn round_wide(x: f64) -> Result<i128, CkksError> {
    if x.abs() < (1u64 << 53) as f64 {
        Ok(round_constant(x)? as i128)
    } else if x.abs() < 1e36 {
        Ok(x as i128)
    } else if x.is_finite() {
        Err(CkksError::ValueTooLarge)
    } else {
        Err(CkksError::NotFinite)
    }
}

fn constant(ctx: &Context, limbs: usize, x: f64) -> Result<Vec<u64>, CkksError> {
    let k = round_wide(x)?;
    Ok((0..limbs).map(|i| ctx.modulus(i).from_i128(k)).collect())
}

impl Evaluator {
    /// Evaluates polynomials in the Chebyshev basis of [-1, 1]; the argument is already normalised, its slots
    /// are real and in the interval. Result i is ceil(log2(degree_i + 1)) levels below `ct`.
    pub fn cheb(&self, ct: &Ciphertext, polys: &[&ChebPoly]) -> Result<Vec<Ciphertext>, CkksError> {
        let ctx = &self.ctx;
        let need = polys
            .iter()
            .map(|p| p.depth())
            .max()
            .ok_or(CkksError::Empty)?;
        let (lowest, _) = ctx.level_range(ct.scale);
        if ct.level < lowest + need {
            return Err(CkksError::LevelTooLow {
                have: ct.level,
                need: lowest + need,
            });
        }
        let plan = Plan::new(polys, ct.level);
        // Nodes that need no product of each other run side by side: on few threads that wastes less time than
        // sharing out the loops of one after the other. So nobody asks for a key while a loop runs.
        let relin = match plan.multiplies() {
            true => Some(self.keys.key(KeyId::Relin)?),
            false => None,
        };
        let powers = self.powers(ct, &plan, relin.as_ref())?;
        let run = |(p, node): (&&ChebPoly, &Node)| {
            let level = ct.level - p.depth();
            let scale = ctx.scale_of(ct.scale, level)?;
            let mask = p.mask.as_deref().map(|m| ctx.embedding(&real_slots(m)));
            let shared = Shared {
                powers: &powers,
                mask: mask.transpose()?,
                relin: relin.as_ref(),
            };
            let out = self.node(node, &shared, level, scale)?;
            Ok(Ciphertext {
                c0: out.c0,
                c1: out.c1,
                level,
                scale: ct.scale,
            })
        };
        polys.par_iter().zip(&plan.nodes).map(run).collect()
    }

    /// T_n for every index of the plan.
    fn powers(
        &self,
        ct: &Ciphertext,
        plan: &Plan,
        relin: Option<&Arc<EvalKey>>,
    ) -> Result<BTreeMap<usize, Scaled>, CkksError> {
        let first = Scaled {
            c0: ct.c0.clone(),
            c1: ct.c1.clone(),
            level: ct.level,
            scale: self.ctx.scale_of(ct.scale, ct.level)?,
        };
        let mut powers = BTreeMap::from([(1, first)]);
        for depth in 1..=plan.powers.last().map_or(0, |&n| power_depth(n)) {
            let next = plan
                .powers
                .par_iter()
                .copied()
                .filter(|&n| n > 1 && power_depth(n) == depth)
                .map(|n| Ok((n, self.power(n, &powers, relin)?)))
                .collect::<Result<Vec<_>, CkksError>>()?;
            powers.extend(next);
        }
        Ok(powers)
    }

    /// T_n from those of a smaller depth: 2 (T_a T_b - T_c / 2), where the halved constant is taken modulo each prime.
    fn power(
        &self,
        n: usize,
        powers: &BTreeMap<usize, Scaled>,
        relin: Option<&Arc<EvalKey>>,
    ) -> Result<Scaled, CkksError> {
        let ctx = &self.ctx;
        let (a, b) = powers_of(n);
        let (ta, tb) = (&powers[&a], &powers[&b]);
        let level = ta.level.min(tb.level);
        let limbs = level + 1;
        debug_assert_eq!(level, powers[&1].level - power_depth(n) + 1);
        let raw = ta.scale * tb.scale;
        let halved = |x: f64| -> Result<Vec<u64>, CkksError> {
            let k = constant(ctx, limbs, -x)?;
            let half = |(i, x)| {
                let m = ctx.modulus(i);
                m.mul(x, m.value().div_ceil(2))
            };
            Ok(k.into_iter().enumerate().map(half).collect())
        };
        let mut sum = Sum::default();
        sum.products.push((ta, tb));
        if a == b {
            sum.constant = Some(halved(raw)?);
        } else {
            let tc = &powers[&(a - b)];
            let factor = Factor::Constant(halved(raw / tc.scale)?);
            sum.terms.push((tc, factor));
        }
        sum.double = true;
        self.finish(&sum, level, raw, relin)
    }

    /// Evaluates a node to `level` and `scale`.
    fn node(
        &self,
        node: &Node,
        shared: &Shared<'_>,
        level: usize,
        scale: f64,
    ) -> Result<Scaled, CkksError> {
        let ctx = &self.ctx;
        let limbs = level + 2;
        let top = ctx.modulus(level + 1).value() as f64;
        let raw = scale * top;
        let below = node
            .products
            .par_iter()
            .map(|(g, q)| {
                let t = &shared.powers[g];
                Ok((t, self.node(q, shared, level + 1, raw / t.scale)?))
            })
            .collect::<Result<Vec<_>, CkksError>>()?;
        let masked =
            |mask: &Embedding, by: f64| ctx.encode_embedding(mask, limbs, by, ScaleId::Message);
        let mut sum = Sum::default();
        sum.products.extend(below.iter().map(|(t, q)| (*t, q)));
        let terms = node.terms.par_iter().map(|(i, c)| {
            let t = &shared.powers[i];
            let by = c * (raw / t.scale);
            let factor = match &shared.mask {
                None => Factor::Constant(constant(ctx, limbs, by)?),
                Some(m) => Factor::Masked(masked(m, by)?),
            };
            Ok((t, factor))
        });
        sum.terms = terms.collect::<Result<_, CkksError>>()?;
        if node.constant != 0.0 {
            match &shared.mask {
                None => sum.constant = Some(constant(ctx, limbs, node.constant * raw)?),
                // at the final scale, times the prime that the rescale takes off
                Some(m) => sum.masked_constant = Some(masked(m, node.constant * scale)?),
            }
        }
        self.finish(&sum, level + 1, raw, shared.relin)
    }

    /// Adds everything up at `level`, relinearises if there are products, and rescales.
    fn finish(
        &self,
        sum: &Sum<'_>,
        level: usize,
        raw: f64,
        relin: Option<&Arc<EvalKey>>,
    ) -> Result<Scaled, CkksError> {
        let ctx = &self.ctx;
        let top = ctx.modulus(level).value();
        let scale = raw / top as f64;
        let scaled = |[c0, c1]: [Poly; 2]| Scaled {
            c0,
            c1,
            level: level - 1,
            scale,
        };
        let scratch = || Poly::scratch(ctx.n(), level + 1, Domain::Ntt);
        if sum.products.is_empty() {
            let mut c = [scratch(), scratch()];
            self.each_limb_of(&mut c, |i, [c0, c1]| self.sum_limb(sum, i, top, [c0, c1]));
            return Ok(scaled(ctx.rescale_polys([&c[0], &c[1]])?));
        }
        let key = relin.ok_or(CkksError::MissingKey(KeyId::Relin))?;
        let mut c = [scratch(), scratch(), scratch()];
        self.each_limb_of(&mut c, |i, [c0, c1, c2]| {
            self.sum_limb(sum, i, top, [c0, c1]);
            let m = ctx.modulus(i);
            ctx.kernel().dot(m, c2, &sum.pairs(i, &[(C1, C1)]));
            if sum.double {
                double(m, c2);
            }
        });
        let [c0, c1, c2] = c;
        let switch = Switch {
            key,
            permutation: None,
            addends: [Addend::Lifted(&c0), Addend::Lifted(&c1)],
        };
        let (k0, k1) = ctx.key_switch_ext(&c2, &switch)?;
        Ok(scaled(ctx.mod_down_rescale_both(&k0, &k1).into()))
    }

    /// Limb `i` of the first two components of a sum; `top` is the prime that its rescale takes off.
    fn sum_limb(&self, sum: &Sum<'_>, i: usize, top: u64, [c0, c1]: [&mut [u64]; 2]) {
        let m = self.ctx.modulus(i);
        let all = |part: Part, pairs: &[(Part, Part)]| {
            let mut all = sum.pairs(i, pairs);
            all.extend(sum.terms.iter().map(|(s, f)| (part(s).limb(i), f.limb(i))));
            all
        };
        let kernel = self.ctx.kernel();
        kernel.dot(m, c0, &all(C0, &[(C0, C0)]));
        kernel.dot(m, c1, &all(C1, &[(C0, C1), (C1, C0)]));
        if let Some(c) = &sum.constant {
            c0.iter_mut().for_each(|x| *x = m.add(*x, c[i]));
        }
        if let Some(p) = &sum.masked_constant {
            let w = m.shoup(m.reduce(top));
            let run = c0.len() / p.limb(i).len();
            for (run, &y) in c0.chunks_exact_mut(run).zip(p.limb(i)) {
                let y = m.mul_shoup(w, y);
                run.iter_mut().for_each(|x| *x = m.add(*x, y));
            }
        }
        if sum.double {
            double(m, c0);
            double(m, c1);
        }
    }
}

fn double(m: &Modulus, x: &mut [u64]) {
    x.iter_mut().for_each(|x| *x = m.add(*x, *x));
}

/// What all nodes of a polynomial read.
struct Shared<'a> {
    powers: &'a BTreeMap<usize, Scaled>,
    mask: Option<Embedding>,
    relin: Option<&'a Arc<EvalKey>>,
}

type Part = fn(&Scaled) -> &Poly;
const C0: Part = |s| &s.c0;
const C1: Part = |s| &s.c1;

/// What meets before one rescale.
#[derive(Default)]
struct Sum<'a> {
    products: Vec<(&'a Scaled, &'a Scaled)>,
    terms: Vec<(&'a Scaled, Factor)>,
    constant: Option<Vec<u64>>,
    masked_constant: Option<Plaintext>,
    double: bool,
}

impl Sum<'_> {
    /// Limb `i` of parts of the products' factors.
    fn pairs(&self, i: usize, parts: &[(Part, Part)]) -> Vec<(&[u64], &[u64])> {
        self.products
            .iter()
            .flat_map(|(a, b)| parts.iter().map(move |(f, g)| (f(a).limb(i), g(b).limb(i))))
            .collect()
    }
}

fn real_slots(mask: &[f64]) -> Vec<Complex> {
    mask.iter().map(|&x| Complex::real(x)).collect()
}
