//! Products of ciphertexts.

use super::Evaluator;
use crate::cipher::{Ciphertext, ScaleId};
use crate::error::CkksError;
use crate::keys::KeyId;
use crate::poly::{Domain, Poly};
use crate::switch::{Addend, Switch};

/// Selects a component.
type Part = fn(&Ciphertext) -> &Poly;

/// A product of two ciphertexts, or a sum of such, before relinearisation: three components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    d0: Poly,
    d1: Poly,
    d2: Poly,
    level: usize,
    scale: ScaleId,
}

impl Tensor {
    /// Level of the factors; the relinearised result is one below.
    pub fn level(&self) -> usize {
        self.level
    }
}

impl Evaluator {
    /// a * b, relinearised and rescaled: one level below the lower operand.
    pub fn mul(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, CkksError> {
        self.mul_sum(&[(a, b)])
    }

    /// a * a, as `mul`.
    pub fn square(&self, a: &Ciphertext) -> Result<Ciphertext, CkksError> {
        self.mul_sum(&[(a, a)])
    }

    /// Sum of a * b over the pairs with a single relinearisation and rescale.
    pub fn mul_sum(&self, pairs: &[(&Ciphertext, &Ciphertext)]) -> Result<Ciphertext, CkksError> {
        let tensor = self.tensor(pairs)?;
        self.relinearise(&tensor)
    }

    /// Sum of a * b over the pairs, unrelinearised, at the lowest level of all operands.
    pub fn tensor(&self, pairs: &[(&Ciphertext, &Ciphertext)]) -> Result<Tensor, CkksError> {
        let (first, _) = pairs.first().ok_or(CkksError::Empty)?;
        let scale = first.scale;
        let mut level = first.level;
        for (a, b) in pairs {
            for c in [a, b] {
                if c.scale != scale {
                    return Err(CkksError::ScaleMismatch(scale, c.scale));
                }
                level = level.min(c.level);
            }
        }
        if level == 0 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        let lowered = pairs
            .iter()
            .map(|(a, b)| Ok((self.lowered(a, level)?, self.lowered(b, level)?)))
            .collect::<Result<Vec<_>, CkksError>>()?;
        let ctx = &self.ctx;
        let product = |terms: &[(&Poly, &Poly)]| {
            let mut out = Poly::scratch(ctx.n(), level + 1, Domain::Ntt);
            self.each_limb(&mut out, |i, limb| {
                let operands: Vec<_> = terms.iter().map(|(a, b)| (a.limb(i), b.limb(i))).collect();
                ctx.kernel().dot(ctx.modulus(i), limb, &operands);
            });
            out
        };
        let select = |f: fn(&Ciphertext) -> &Poly, g: fn(&Ciphertext) -> &Poly| {
            lowered.iter().map(move |(a, b)| (f(a), g(b)))
        };
        let (c0, c1): (Part, Part) = (|c| &c.c0, |c| &c.c1);
        let cross: Vec<_> = select(c0, c1).chain(select(c1, c0)).collect();
        Ok(Tensor {
            d0: product(&select(c0, c0).collect::<Vec<_>>()),
            d1: product(&cross),
            d2: product(&select(c1, c1).collect::<Vec<_>>()),
            level,
            scale,
        })
    }

    /// x += y for tensors of one level.
    pub fn add_tensor(&self, x: &mut Tensor, y: &Tensor) -> Result<(), CkksError> {
        if x.level != y.level || x.scale != y.scale {
            return Err(CkksError::ScaleMismatch(x.scale, y.scale));
        }
        self.add_poly(&mut x.d0, &y.d0);
        self.add_poly(&mut x.d1, &y.d1);
        self.add_poly(&mut x.d2, &y.d2);
        Ok(())
    }

    /// Relinearises and rescales; the division by P and by the top prime is one rounding.
    pub fn relinearise(&self, t: &Tensor) -> Result<Ciphertext, CkksError> {
        let ctx = &self.ctx;
        ctx.scale_of(t.scale, t.level - 1)?;
        let key = self.keys.key(KeyId::Relin)?;
        let switch = Switch {
            key: &key,
            permutation: None,
            addends: [Addend::Lifted(&t.d0), Addend::Lifted(&t.d1)],
        };
        let (k0, k1) = ctx.key_switch_ext(&t.d2, &switch)?;
        let (c0, c1) = ctx.mod_down_rescale_both(&k0, &k1);
        Ok(Ciphertext {
            c0,
            c1,
            level: t.level - 1,
            scale: t.scale,
        })
    }
}
