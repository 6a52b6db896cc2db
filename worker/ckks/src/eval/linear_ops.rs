//! Sums, and products with plaintexts and constants.

use super::{Constant, Evaluator};
use crate::cipher::{Ciphertext, ExtCiphertext, PlainKind, Plaintext, Product};
use crate::complex::Complex;
use crate::error::CkksError;
use crate::poly::{Domain, ExtPoly, Poly, most_limbs};
use rayon::prelude::*;

impl Evaluator {
    /// a + b.
    pub fn add(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, CkksError> {
        let (a, b) = self.align(a, b)?;
        let mut out = a.into_owned();
        self.add_poly(&mut out.c0, &b.c0);
        self.add_poly(&mut out.c1, &b.c1);
        Ok(out)
    }

    /// a += b, without a copy when the levels agree.
    pub fn add_assign(&self, a: &mut Ciphertext, b: &Ciphertext) -> Result<(), CkksError> {
        if a.level != b.level || a.scale != b.scale {
            *a = self.add(a, b)?;
            return Ok(());
        }
        self.add_poly(&mut a.c0, &b.c0);
        self.add_poly(&mut a.c1, &b.c1);
        Ok(())
    }

    /// a - b.
    pub fn sub(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext, CkksError> {
        let (a, b) = self.align(a, b)?;
        let mut out = a.into_owned();
        self.sub_poly(&mut out.c0, &b.c0);
        self.sub_poly(&mut out.c1, &b.c1);
        Ok(out)
    }

    /// -a.
    pub fn neg(&self, a: &Ciphertext) -> Ciphertext {
        let mut out = a.clone();
        for c in [&mut out.c0, &mut out.c1] {
            self.each_limb(c, |i, limb| {
                self.ctx.kernel().neg(self.ctx.modulus(i), limb)
            });
        }
        out
    }

    /// a + p; the plaintext was encoded for a sum at the level of `a`.
    pub fn add_plain(&self, a: &Ciphertext, p: &Plaintext) -> Result<Ciphertext, CkksError> {
        self.check_plain(a, p, PlainKind::Add)?;
        let mut out = a.clone();
        self.each_limb(&mut out.c0, |i, limb| {
            let m = self.ctx.modulus(i);
            let run = limb.len() / p.len;
            for (run, &y) in limb.chunks_exact_mut(run).zip(p.limb(i)) {
                for x in run {
                    *x = m.add(*x, y);
                }
            }
        });
        Ok(out)
    }

    /// a + c in every slot.
    pub fn add_const(&self, a: &Ciphertext, c: Complex) -> Result<Ciphertext, CkksError> {
        let scale = self.ctx.scale_of(a.scale, a.level)?;
        let c = self.constant(c, scale)?;
        let mut out = a.clone();
        self.add_constant(&mut out.c0, &c);
        Ok(out)
    }

    fn add_constant(&self, x: &mut Poly, c: &Constant) {
        let ctx = &self.ctx;
        self.each_limb(x, |i, limb| {
            let m = ctx.modulus(i);
            let re = m.from_i64(c.re);
            let im = m.mul_shoup(ctx.table(i).imaginary, m.from_i64(c.im));
            let (lo, hi) = limb.split_at_mut(limb.len() / 2);
            for (half, c) in [(lo, m.add(re, im)), (hi, m.sub(re, im))] {
                for x in half {
                    *x = m.add(*x, c);
                }
            }
        });
    }

    /// a * k for a small integer, at no level; noise and value grow by |k|.
    pub fn mul_int(&self, a: &Ciphertext, k: i64) -> Ciphertext {
        let mut out = a.clone();
        for c in [&mut out.c0, &mut out.c1] {
            self.scale_poly(c, &Constant { re: k, im: 0 });
        }
        out
    }

    /// a * i, at no level.
    pub fn mul_i(&self, a: &Ciphertext) -> Ciphertext {
        let mut out = a.clone();
        for c in [&mut out.c0, &mut out.c1] {
            self.scale_poly(c, &Constant { re: 0, im: 1 });
        }
        out
    }

    /// a * c in every slot, one level.
    pub fn mul_const(&self, a: &Ciphertext, c: Complex) -> Result<Ciphertext, CkksError> {
        let product = self.mul_const_no_rescale(a, c)?;
        self.rescale(&product)
    }

    /// a * c before its rescale.
    pub fn mul_const_no_rescale(&self, a: &Ciphertext, c: Complex) -> Result<Product, CkksError> {
        let c = self.constant(c, self.ctx.factor_scale(a.scale, a.level)?)?;
        let mut out = a.clone();
        self.scale_poly(&mut out.c0, &c);
        self.scale_poly(&mut out.c1, &c);
        Ok(Product(out))
    }

    /// a * p, one level; the plaintext was encoded for a product at the level of `a`.
    pub fn mul_plain(&self, a: &Ciphertext, p: &Plaintext) -> Result<Ciphertext, CkksError> {
        let product = self.mul_plain_no_rescale(a, p)?;
        self.rescale(&product)
    }

    /// a * p before its rescale.
    pub fn mul_plain_no_rescale(
        &self,
        a: &Ciphertext,
        p: &Plaintext,
    ) -> Result<Product, CkksError> {
        self.dot_plain_no_rescale(&[(a, p)])
    }

    /// Sum of a * p over the terms (all at one level), one level.
    pub fn dot_plain(&self, terms: &[(&Ciphertext, &Plaintext)]) -> Result<Ciphertext, CkksError> {
        let product = self.dot_plain_no_rescale(terms)?;
        self.rescale(&product)
    }

    /// Sum of a * p over the terms before the one rescale; one reduction per residue.
    pub fn dot_plain_no_rescale(
        &self,
        terms: &[(&Ciphertext, &Plaintext)],
    ) -> Result<Product, CkksError> {
        let (first, _) = terms.first().ok_or(CkksError::Empty)?;
        for (a, p) in terms {
            self.check_plain(a, p, PlainKind::Mul)?;
            if a.level != first.level || a.scale != first.scale {
                return Err(CkksError::ScaleMismatch(first.scale, a.scale));
            }
        }
        if first.level == 0 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        let dot = |part: fn(&Ciphertext) -> &Poly| {
            let mut out = Poly::scratch(self.ctx.n(), first.level + 1, Domain::Ntt);
            self.each_limb(&mut out, |i, limb| {
                let operands: Vec<_> = terms
                    .iter()
                    .map(|(a, p)| (part(a).limb(i), p.limb(i)))
                    .collect();
                self.ctx.kernel().dot(self.ctx.modulus(i), limb, &operands);
            });
            out
        };
        Ok(Product(Ciphertext {
            c0: dot(|a| &a.c0),
            c1: dot(|a| &a.c1),
            level: first.level,
            scale: first.scale,
        }))
    }

    /// Sum of a * p over extended operands, before ModDown and rescale.
    pub fn dot_plain_ext(
        &self,
        terms: &[(&ExtCiphertext, &Plaintext)],
    ) -> Result<ExtCiphertext, CkksError> {
        let (first, _) = terms.first().ok_or(CkksError::Empty)?;
        let ctx = &self.ctx;
        for (a, p) in terms {
            if a.level != first.level || a.scale != first.scale || p.scale != a.scale {
                return Err(CkksError::ScaleMismatch(a.scale, p.scale));
            }
            if p.limbs != a.level + 1 || p.special != ctx.p_len() || p.kind == PlainKind::Add {
                return Err(CkksError::PlaintextMismatch(
                    "not an extended factor of this level",
                ));
            }
        }
        let dot = |part: fn(&ExtCiphertext) -> &ExtPoly| {
            let limbs = first.level + 1;
            let mut out = ExtPoly::scratch(ctx.n(), limbs, ctx.p_len());
            out.data
                .par_chunks_exact_mut(ctx.n())
                .enumerate()
                .with_max_len(most_limbs(ctx.n()))
                .for_each(|(i, limb)| {
                    let operands: Vec<_> = terms
                        .iter()
                        .map(|(a, p)| (part(a).limb(i), p.limb(i)))
                        .collect();
                    let m = ctx.modulus(ctx.ext_index(limbs, i));
                    ctx.kernel().dot(m, limb, &operands);
                });
            out
        };
        Ok(ExtCiphertext {
            c0: dot(|a| &a.c0),
            c1: dot(|a| &a.c1),
            level: first.level,
            scale: first.scale,
        })
    }

    /// Divides a product by its top prime: the result is one level lower and on scale.
    pub fn rescale(&self, a: &Product) -> Result<Ciphertext, CkksError> {
        let a = &a.0;
        if a.level == 0 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        self.ctx.scale_of(a.scale, a.level - 1)?;
        let [c0, c1] = self.ctx.rescale_polys([&a.c0, &a.c1])?;
        Ok(Ciphertext {
            c0,
            c1,
            level: a.level - 1,
            scale: a.scale,
        })
    }

    /// x += y for products of one level.
    pub fn add_product(&self, x: &mut Product, y: &Product) -> Result<(), CkksError> {
        if x.0.level != y.0.level || x.0.scale != y.0.scale {
            return Err(CkksError::ScaleMismatch(x.0.scale, y.0.scale));
        }
        self.add_poly(&mut x.0.c0, &y.0.c0);
        self.add_poly(&mut x.0.c1, &y.0.c1);
        Ok(())
    }
}
