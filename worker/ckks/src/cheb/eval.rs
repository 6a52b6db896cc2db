//! Evaluation. Scales are tracked as f64 inside (only * and /): upper limbs of a power are dropped without
//! rescaling it, and the drift of its scale goes into the constants that multiply it.

use super::plan::power_depth;
use super::{ChebPoly, Node, Plan, powers_of};
use crate::cipher::{Ciphertext, Plaintext, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::encode::round_constant;
use crate::error::CkksError;
use crate::eval::Evaluator;
use crate::keys::KeyId;
use crate::poly::{Domain, Poly};
use crate::switch::{Addend, Switch};
use std::collections::BTreeMap;

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
        let powers = self.powers(ct, &plan)?;
        let run = |(p, node): (&&ChebPoly, &Node)| {
            let level = ct.level - p.depth();
            let scale = ctx.scale_of(ct.scale, level)?;
            let mask = p.mask.as_deref().map(real_slots);
            let out = self.node(node, &powers, mask.as_deref(), level, scale)?;
            Ok(Ciphertext {
                c0: out.c0,
                c1: out.c1,
                level,
                scale: ct.scale,
            })
        };
        polys.iter().zip(&plan.nodes).map(run).collect()
    }

    /// T_n for every index of the plan.
    fn powers(&self, ct: &Ciphertext, plan: &Plan) -> Result<BTreeMap<usize, Scaled>, CkksError> {
        let ctx = &self.ctx;
        let first = Scaled {
            c0: ct.c0.clone(),
            c1: ct.c1.clone(),
            level: ct.level,
            scale: ctx.scale_of(ct.scale, ct.level)?,
        };
        let mut powers = BTreeMap::from([(1, first)]);
        for &n in plan.powers.iter().filter(|&&n| n > 1) {
            let (a, b) = powers_of(n);
            let (ta, tb) = (&powers[&a], &powers[&b]);
            let level = ta.level.min(tb.level);
            let limbs = level + 1;
            debug_assert_eq!(level, ct.level - power_depth(n) + 1);
            let raw = ta.scale * tb.scale;
            // 2 (T_a T_b - T_c / 2): the halved constant is taken modulo each prime
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
            let next = self.finish(&sum, level, raw)?;
            powers.insert(n, next);
        }
        Ok(powers)
    }

    /// Evaluates a node to `level` and `scale`.
    fn node(
        &self,
        node: &Node,
        powers: &BTreeMap<usize, Scaled>,
        mask: Option<&[Complex]>,
        level: usize,
        scale: f64,
    ) -> Result<Scaled, CkksError> {
        let ctx = &self.ctx;
        let limbs = level + 2;
        let top = ctx.modulus(level + 1).value() as f64;
        let raw = scale * top;
        let below = node
            .products
            .iter()
            .map(|(g, q)| {
                let t = &powers[g];
                Ok((t, self.node(q, powers, mask, level + 1, raw / t.scale)?))
            })
            .collect::<Result<Vec<_>, CkksError>>()?;
        let mut sum = Sum::default();
        sum.products.extend(below.iter().map(|(t, q)| (*t, q)));
        for (i, c) in &node.terms {
            let t = &powers[i];
            let by = c * (raw / t.scale);
            let factor = match mask {
                None => Factor::Constant(constant(ctx, limbs, by)?),
                Some(m) => {
                    let row = ScaleId::Message;
                    Factor::Masked(ctx.encode_at_scale(m, limbs, false, by, row)?)
                }
            };
            sum.terms.push((t, factor));
        }
        if node.constant != 0.0 {
            match mask {
                None => sum.constant = Some(constant(ctx, limbs, node.constant * raw)?),
                Some(m) => {
                    // at the final scale, times the prime that the rescale takes off
                    let by = node.constant * scale;
                    let p = ctx.encode_at_scale(m, limbs, false, by, ScaleId::Message)?;
                    sum.masked_constant = Some(p);
                }
            }
        }
        self.finish(&sum, level + 1, raw)
    }

    /// Adds everything up at `level`, relinearises if there are products, and rescales.
    fn finish(&self, sum: &Sum<'_>, level: usize, raw: f64) -> Result<Scaled, CkksError> {
        let ctx = &self.ctx;
        let top = ctx.modulus(level).value();
        let c0 = self.dot(level, &sum.terms_of(|s| &s.c0), &sum.pairs(&[(C0, C0)]));
        let c1 = self.dot(
            level,
            &sum.terms_of(|s| &s.c1),
            &sum.pairs(&[(C0, C1), (C1, C0)]),
        );
        let (mut c0, mut c1) = (c0, c1);
        self.each_limb(&mut c0, |i, limb| {
            let m = ctx.modulus(i);
            if let Some(c) = &sum.constant {
                limb.iter_mut().for_each(|x| *x = m.add(*x, c[i]));
            }
            if let Some(p) = &sum.masked_constant {
                let w = m.shoup(m.reduce(top));
                let run = limb.len() / p.limb(i).len();
                for (run, &y) in limb.chunks_exact_mut(run).zip(p.limb(i)) {
                    let y = m.mul_shoup(w, y);
                    run.iter_mut().for_each(|x| *x = m.add(*x, y));
                }
            }
            if sum.double {
                limb.iter_mut().for_each(|x| *x = m.add(*x, *x));
            }
        });
        if sum.double {
            self.double(&mut c1);
        }
        let scale = raw / top as f64;
        if sum.products.is_empty() {
            let [c0, c1] = ctx.rescale_polys([&c0, &c1])?;
            return Ok(Scaled {
                c0,
                c1,
                level: level - 1,
                scale,
            });
        }
        let mut c2 = self.dot(level, &[], &sum.pairs(&[(C1, C1)]));
        if sum.double {
            self.double(&mut c2);
        }
        let key = self.keys.key(KeyId::Relin)?;
        let switch = Switch {
            key: &key,
            permutation: None,
            addends: [Addend::Lifted(&c0), Addend::Lifted(&c1)],
        };
        let (k0, k1) = ctx.key_switch_ext(&c2, &switch)?;
        let (c0, c1) = ctx.mod_down_rescale_both(&k0, &k1);
        Ok(Scaled {
            c0,
            c1,
            level: level - 1,
            scale,
        })
    }

    fn double(&self, x: &mut Poly) {
        let ctx = &self.ctx;
        self.each_limb(x, |i, limb| {
            let m = ctx.modulus(i);
            limb.iter_mut().for_each(|x| *x = m.add(*x, *x));
        });
    }

    fn dot(&self, level: usize, terms: &[(&Poly, &Factor)], pairs: &[(&Poly, &Poly)]) -> Poly {
        let ctx = &self.ctx;
        let mut out = Poly::scratch(ctx.n(), level + 1, Domain::Ntt);
        self.each_limb(&mut out, |i, limb| {
            let factors = terms.iter().map(|(x, f)| (x.limb(i), f.limb(i)));
            let products = pairs.iter().map(|(x, y)| (x.limb(i), y.limb(i)));
            let all: Vec<_> = products.chain(factors).collect();
            ctx.kernel().dot(ctx.modulus(i), limb, &all);
        });
        out
    }
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
    fn pairs(&self, parts: &[(Part, Part)]) -> Vec<(&Poly, &Poly)> {
        self.products
            .iter()
            .flat_map(|(a, b)| parts.iter().map(move |(f, g)| (f(a), g(b))))
            .collect()
    }

    fn terms_of(&self, part: Part) -> Vec<(&Poly, &Factor)> {
        self.terms.iter().map(|(s, f)| (part(s), f)).collect()
    }
}

fn real_slots(mask: &[f64]) -> Vec<Complex> {
    mask.iter().map(|&x| Complex::real(x)).collect()
}
