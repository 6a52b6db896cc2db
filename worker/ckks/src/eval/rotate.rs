//! Rotations and conjugation. A single rotation moves the polynomial before it is cut into digits, a hoisted
//! one moves the digits: the same bytes, because the centred digits of -x are those of x, negated (short of a
//! tie within 2^-56, where either representative of a digit is right).

use super::Evaluator;
use crate::cipher::{Ciphertext, ExtCiphertext, Product};
use crate::error::CkksError;
use crate::fused::Baby;
use crate::keys::KeyId;
use crate::poly::{Domain, ExtPoly, Poly};
use crate::switch::{Addend, Digits, Switch};

impl Evaluator {
    /// Slots moved to the left by `steps` (any sign): rot(v, r)[p] = v[p + r].
    pub fn rotate(&self, a: &Ciphertext, steps: i64) -> Result<Ciphertext, CkksError> {
        let steps = self.reduced_steps(steps);
        if steps == 0 {
            return Ok(a.clone());
        }
        Ok(self.ctx.mod_down_ciphertext(&self.rotated(a, None, steps)?))
    }

    /// Several rotations of one ciphertext; the decomposition is shared.
    pub fn rotate_hoisted(
        &self,
        a: &Ciphertext,
        steps: &[i64],
    ) -> Result<Vec<Ciphertext>, CkksError> {
        let digits = steps
            .iter()
            .any(|&s| self.reduced_steps(s) != 0)
            .then(|| self.hoist(a));
        steps
            .iter()
            .map(|&s| match (&digits, self.reduced_steps(s)) {
                (Some(d), s) if s != 0 => {
                    Ok(self.ctx.mod_down_ciphertext(&self.rotated(a, Some(d), s)?))
                }
                _ => Ok(a.clone()),
            })
            .collect()
    }

    /// Complex conjugate of every slot.
    pub fn conjugate(&self, a: &Ciphertext) -> Result<Ciphertext, CkksError> {
        let x = self.automorphism_ext(a, None, KeyId::Conj)?;
        Ok(self.ctx.mod_down_ciphertext(&x))
    }

    /// Rotates a product before its rescale.
    pub fn rotate_product(&self, a: &Product, steps: i64) -> Result<Product, CkksError> {
        self.rotate(&a.0, steps).map(Product)
    }

    /// Conjugates a product before its rescale.
    pub fn conjugate_product(&self, a: &Product) -> Result<Product, CkksError> {
        self.conjugate(&a.0).map(Product)
    }

    /// `steps` modulo the number of slots.
    pub(crate) fn reduced_steps(&self, steps: i64) -> u32 {
        steps.rem_euclid(self.ctx.slots() as i64) as u32
    }

    /// The part of a rotation of `a` that all rotations share.
    pub fn hoist(&self, a: &Ciphertext) -> Digits {
        self.ctx.decompose(&a.c1)
    }

    /// A rotation left modulo QP (P times the rotated ciphertext); `digits` come from `hoist(a)`.
    pub fn rotate_ext(
        &self,
        a: &Ciphertext,
        digits: &Digits,
        steps: i64,
    ) -> Result<ExtCiphertext, CkksError> {
        match self.reduced_steps(steps) {
            0 => Ok(self.extend(a)),
            steps => self.rotated(a, Some(digits), steps),
        }
    }

    fn rotated(
        &self,
        a: &Ciphertext,
        digits: Option<&Digits>,
        steps: u32,
    ) -> Result<ExtCiphertext, CkksError> {
        self.automorphism_ext(a, digits, KeyId::Rot(steps))
    }

    /// P times a ciphertext.
    pub fn extend(&self, a: &Ciphertext) -> ExtCiphertext {
        ExtCiphertext {
            c0: self.ctx.lift_ext(&a.c0),
            c1: self.ctx.lift_ext(&a.c1),
            level: a.level,
            scale: a.scale,
        }
    }

    fn galois(&self, id: KeyId) -> usize {
        match id {
            KeyId::Rot(steps) => self.ctx.galois_rotation(steps as usize),
            _ => self.ctx.galois_conjugation(),
        }
    }

    /// Table and key of a rotation, for hoisted sums; `None` if nothing moves.
    pub(crate) fn baby(&self, steps: i64) -> Result<Baby, CkksError> {
        Ok(match self.reduced_steps(steps) {
            0 => None,
            steps => {
                let id = KeyId::Rot(steps);
                Some((self.ctx.automorphism(self.galois(id)), self.keys.key(id)?))
            }
        })
    }

    /// Automorphism and key switch of `a`, modulo QP; with the digits if they are there already.
    pub(crate) fn automorphism_ext(
        &self,
        a: &Ciphertext,
        digits: Option<&Digits>,
        id: KeyId,
    ) -> Result<ExtCiphertext, CkksError> {
        let key = self.keys.key(id)?;
        let table = self.ctx.automorphism(self.galois(id));
        let (c0, c1) = match digits {
            Some(digits) if digits.limbs != a.level + 1 => {
                return Err(CkksError::ShapeMismatch("digits of another ciphertext"));
            }
            Some(digits) => {
                let switch = Switch {
                    key: &key,
                    permutation: Some(&table),
                    addends: [Addend::Lifted(&a.c0), Addend::Nothing],
                };
                self.ctx.inner_product(digits, &switch)?
            }
            // moving the polynomials is less work than moving the digits
            None => {
                let moved = self.ctx.permute([&a.c0.data, &a.c1.data], &table);
                let (n, limbs, domain) = (a.c0.n, a.c0.limbs, Domain::Ntt);
                let moved = moved.map(|data| Poly {
                    n,
                    limbs,
                    domain,
                    data,
                });
                let switch = Switch {
                    key: &key,
                    permutation: None,
                    addends: [Addend::Lifted(&moved[0]), Addend::Nothing],
                };
                self.ctx.key_switch_ext(&moved[1], &switch)?
            }
        };
        Ok(ExtCiphertext {
            c0,
            c1,
            level: a.level,
            scale: a.scale,
        })
    }

    /// Rotates an extended ciphertext: only the second component goes through ModDown and a key switch,
    /// the first stays modulo QP.
    pub fn rotate_extended(
        &self,
        a: &ExtCiphertext,
        steps: i64,
    ) -> Result<ExtCiphertext, CkksError> {
        let steps = self.reduced_steps(steps);
        if steps == 0 {
            return Ok(a.clone());
        }
        self.automorphism_extended(a, KeyId::Rot(steps))
    }

    /// Conjugates an extended ciphertext, as `rotate_extended`.
    pub fn conjugate_extended(&self, a: &ExtCiphertext) -> Result<ExtCiphertext, CkksError> {
        self.automorphism_extended(a, KeyId::Conj)
    }

    fn automorphism_extended(
        &self,
        a: &ExtCiphertext,
        id: KeyId,
    ) -> Result<ExtCiphertext, CkksError> {
        let key = self.keys.key(id)?;
        let table = self.ctx.automorphism(self.galois(id));
        let [low] = self.ctx.mod_down([&a.c1]);
        let [low_data, data] = self.ctx.permute([&low.data, &a.c0.data], &table);
        let low = Poly {
            data: low_data,
            ..low
        };
        let (n, limbs) = (a.c0.n, a.c0.limbs);
        let moved = ExtPoly { n, limbs, data };
        let switch = Switch {
            key: &key,
            permutation: None,
            addends: [Addend::Extended(&moved), Addend::Nothing],
        };
        let (c0, c1) = self.ctx.key_switch_ext(&low, &switch)?;
        Ok(ExtCiphertext {
            c0,
            c1,
            level: a.level,
            scale: a.scale,
        })
    }

    /// x += y for extended ciphertexts of one level.
    pub fn add_extended(&self, x: &mut ExtCiphertext, y: &ExtCiphertext) -> Result<(), CkksError> {
        if x.level != y.level || x.scale != y.scale {
            return Err(CkksError::ScaleMismatch(x.scale, y.scale));
        }
        self.ctx.add_ext(&mut x.c0, &y.c0);
        self.ctx.add_ext(&mut x.c1, &y.c1);
        Ok(())
    }

    /// Divides an extended product by P: still to be rescaled.
    pub fn mod_down_product(&self, x: &ExtCiphertext) -> Product {
        Product(self.ctx.mod_down_ciphertext(x))
    }

    /// Divides an extended product by P and rescales it, in one rounding.
    pub fn mod_down_rescale(&self, x: &ExtCiphertext) -> Result<Ciphertext, CkksError> {
        if x.level == 0 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        self.ctx.scale_of(x.scale, x.level - 1)?;
        let (c0, c1) = self.ctx.mod_down_rescale_both(&x.c0, &x.c1);
        Ok(Ciphertext {
            c0,
            c1,
            level: x.level - 1,
            scale: x.scale,
        })
    }
}
