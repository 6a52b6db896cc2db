//! Hybrid key switching (Han and Ki 2020): digits of alpha limbs, raised to QP, multiplied with the key,
//! divided by P. Also rescaling and ModRaise, which share the base conversions.

use crate::cipher::{Ciphertext, ExtCiphertext, ScaleId};
use crate::context::Context;
use crate::convert::{BaseConverter, Prepared, prepare};
use crate::error::CkksError;
use crate::keys::{EvalKey, KeyId};
use crate::poly::{Domain, ExtPoly, Poly};
use rayon::prelude::*;

/// A polynomial cut into digits and raised to QP: the part of a key switch that all rotations of one
/// ciphertext share.
#[derive(Debug, Clone)]
pub struct Digits {
    pub(crate) limbs: usize,
    /// per digit (limbs + special) * N residues, NTT domain, q limbs first
    pub(crate) raised: Vec<Vec<u64>>,
}

impl Context {
    /// Cuts `poly` (NTT domain) into digits and raises each to QP.
    pub(crate) fn decompose(&self, poly: &Poly) -> Digits {
        let (n, limbs, alpha) = (poly.n, poly.limbs, self.params().alpha);
        debug_assert_eq!(poly.domain, Domain::Ntt);
        let mut coeff = poly.clone();
        coeff.to_coeff(self);
        let raised = (0..limbs.div_ceil(alpha))
            .map(|j| {
                let own = j * alpha..limbs.min((j + 1) * alpha);
                let conv = &self.converters().digits[j][own.len() - 1];
                let prepared = self.prepare(conv, coeff.data[own.start * n..own.end * n].to_vec());
                let mut out = vec![0u64; (limbs + self.p_len()) * n];
                out.par_chunks_exact_mut(n)
                    .enumerate()
                    .for_each(|(i, out)| {
                        if own.contains(&i) {
                            out.copy_from_slice(poly.limb(i));
                        } else {
                            let index = self.ext_index(limbs, i);
                            self.convert(conv, index, &prepared, out);
                            self.ntt_forward(index, out);
                        }
                    });
                out
            })
            .collect();
        Digits { limbs, raised }
    }

    /// One target limb (modulus number `index`) of a prepared conversion.
    pub(crate) fn convert(
        &self,
        conv: &BaseConverter,
        index: usize,
        prepared: &Prepared,
        out: &mut [u64],
    ) {
        let (m, weights) = (self.modulus(index), conv.target(index));
        self.kernel()
            .convert(m, weights, &prepared.hats, &prepared.overflow, out);
    }

    fn prepare(&self, conv: &BaseConverter, limbs: Vec<u64>) -> Prepared {
        prepare(conv, self.n(), limbs)
    }

    /// Sum over the digits of digit times key, both components, modulo QP. With `permutation` the digits
    /// are first taken through an automorphism.
    pub(crate) fn inner_product(
        &self,
        digits: &Digits,
        key: &EvalKey,
        permutation: Option<&[u32]>,
    ) -> Result<(ExtPoly, ExtPoly), CkksError> {
        let (n, limbs, special) = (self.n(), digits.limbs, key.special);
        if key.limbs < limbs {
            return Err(CkksError::KeyTooSmall {
                id: key.id,
                have: key.limbs,
                need: limbs,
            });
        }
        let mut c0 = ExtPoly::zero(n, limbs, special);
        let mut c1 = ExtPoly::zero(n, limbs, special);
        let kernel = self.kernel();
        c0.data
            .par_chunks_exact_mut(n)
            .zip(c1.data.par_chunks_exact_mut(n))
            .enumerate()
            .for_each(|(i, (o0, o1))| {
                let m = self.modulus(self.ext_index(limbs, i));
                // limb i of the key sits higher when the key covers more q limbs
                let k = if i < limbs { i } else { i - limbs + key.limbs };
                let used = key.digits.iter().zip(&digits.raised);
                let at = |v: &[u64], i: usize| i * n..i * n + n.min(v.len());
                let terms = |half: fn(&crate::keys::KeyDigit) -> &Vec<u64>| {
                    used.clone()
                        .map(|(kd, d)| (&d[at(d, i)], &half(kd)[at(half(kd), k)]))
                        .collect::<Vec<_>>()
                };
                let (b, a) = (terms(|kd| &kd.b), terms(|kd| &kd.a));
                match permutation {
                    None => {
                        kernel.dot(m, o0, &b);
                        kernel.dot(m, o1, &a);
                    }
                    Some(table) => kernel.dot_permuted(m, o0, o1, table, &b, &a),
                }
            });
        Ok((c0, c1))
    }

    /// Divides by the special primes, rounding to nearest: one component, modulo QP to modulo Q.
    pub(crate) fn mod_down(&self, x: &ExtPoly) -> Poly {
        let special = x.total() - x.limbs;
        let conv = if special == 1 {
            &self.converters().special_one
        } else {
            &self.converters().special
        };
        self.divide(x, conv, x.limbs)
    }

    /// Divides by the special primes and by the top ciphertext prime at once.
    pub(crate) fn mod_down_rescale(&self, x: &ExtPoly) -> Poly {
        let top = x.limbs - 1;
        self.divide(x, &self.converters().special_and[top], top)
    }

    /// (x - [x]_D) / D on the lowest `keep` limbs, D the product of the converter's base, which is the
    /// special primes and then the limbs from `keep` up.
    fn divide(&self, x: &ExtPoly, conv: &BaseConverter, keep: usize) -> Poly {
        let n = x.n;
        let special = x.total() - x.limbs;
        let mut sources = x.data[x.limbs * n..].to_vec();
        sources.extend_from_slice(&x.data[keep * n..x.limbs * n]);
        sources
            .par_chunks_exact_mut(n)
            .enumerate()
            .for_each(|(i, limb)| {
                let index = if i < special {
                    self.q_len() + i
                } else {
                    keep + i - special
                };
                self.ntt_inverse(index, limb);
            });
        let prepared = self.prepare(conv, sources);
        let mut out = Poly::zero(n, keep, Domain::Ntt);
        out.data
            .par_chunks_exact_mut(n)
            .enumerate()
            .for_each(|(i, out)| {
                let m = self.modulus(i);
                self.convert(conv, i, &prepared, out);
                self.ntt_forward(i, out);
                self.kernel().sub_scale(m, out, x.limb(i), conv.inverse[i]);
            });
        out
    }

    /// P * poly modulo QP: zero on the special limbs.
    pub(crate) fn lift_ext(&self, poly: &Poly) -> ExtPoly {
        let mut out = ExtPoly::zero(poly.n, poly.limbs, self.p_len());
        self.add_lifted(&mut out, poly);
        out
    }

    /// x += P * poly.
    pub(crate) fn add_lifted(&self, x: &mut ExtPoly, poly: &Poly) {
        debug_assert_eq!(x.limbs, poly.limbs);
        let n = poly.n;
        let product = &self.converters().special.product;
        x.data
            .par_chunks_exact_mut(n)
            .zip(poly.data.par_chunks_exact(n))
            .enumerate()
            .for_each(|(i, (out, limb))| {
                let m = self.modulus(i);
                self.kernel().add_scaled(m, out, limb, product[i]);
            });
    }

    /// Divides by the top prime, rounding to nearest.
    pub(crate) fn rescale_poly(&self, poly: &Poly) -> Result<Poly, CkksError> {
        if poly.limbs < 2 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        let (n, top) = (poly.n, poly.limbs - 1);
        let mut last = poly.limb(top).to_vec();
        self.ntt_inverse(top, &mut last);
        let source = *self.modulus(top);
        let mut out = Poly::zero(n, top, Domain::Ntt);
        out.data
            .par_chunks_exact_mut(n)
            .enumerate()
            .for_each(|(i, out)| {
                let m = self.modulus(i);
                self.kernel().lift(source.value(), m, &last, out);
                self.ntt_forward(i, out);
                let w = m.shoup(m.inv(m.reduce(source.value())));
                self.kernel().sub_scale(m, out, poly.limb(i), w);
            });
        Ok(out)
    }

    /// Reads residues modulo q_0 as integers in (-q_0/2, q_0/2) and reduces them modulo `limbs` primes.
    pub(crate) fn mod_raise(&self, poly: &Poly, limbs: usize) -> Poly {
        let n = poly.n;
        let mut low = poly.lowest(1);
        low.to_coeff(self);
        let mut out = Poly::zero(n, limbs, Domain::Ntt);
        let q0 = self.modulus(0).value();
        out.data
            .par_chunks_exact_mut(n)
            .enumerate()
            .for_each(|(i, out)| {
                if i == 0 {
                    out.copy_from_slice(&low.data);
                } else {
                    self.kernel().lift(q0, self.modulus(i), &low.data, out);
                }
                self.ntt_forward(i, out);
            });
        out
    }

    /// Takes a polynomial in the NTT domain through an automorphism.
    pub(crate) fn permute(&self, poly: &Poly, table: &[u32]) -> Poly {
        let mut out = Poly::zero(poly.n, poly.limbs, Domain::Ntt);
        permute_limbs(poly.n, &poly.data, &mut out.data, table);
        out
    }

    /// The same modulo QP.
    pub(crate) fn permute_ext(&self, poly: &ExtPoly, table: &[u32]) -> ExtPoly {
        let mut out = ExtPoly {
            n: poly.n,
            limbs: poly.limbs,
            data: vec![0; poly.data.len()],
        };
        permute_limbs(poly.n, &poly.data, &mut out.data, table);
        out
    }

    /// Switches a ciphertext at level 0 to the sparse secret, which exists only modulo q0*p0.
    pub(crate) fn switch_to_sparse(
        &self,
        ct: &Ciphertext,
        key: &EvalKey,
    ) -> Result<Ciphertext, CkksError> {
        if key.id != KeyId::ToSparse || key.special != 1 || key.limbs != 1 {
            return Err(CkksError::SparseKeyTooLarge);
        }
        if ct.level != 0 {
            return Err(CkksError::BadLevel(ct.level));
        }
        // one limb is its own digit: centred lift to p0
        let n = self.n();
        let mut coeff = ct.c1.clone();
        coeff.to_coeff(self);
        let mut raised = ct.c1.data.clone();
        raised.resize(2 * n, 0);
        let p0 = self.q_len();
        let out = &mut raised[n..];
        let q0 = self.modulus(0).value();
        self.kernel().lift(q0, self.modulus(p0), &coeff.data, out);
        self.ntt_forward(p0, out);
        let digits = Digits {
            limbs: 1,
            raised: vec![raised],
        };
        let (c0, c1) = self.inner_product(&digits, key, None)?;
        let mut c0 = self.mod_down(&c0);
        self.kernel()
            .add(self.modulus(0), &mut c0.data, &ct.c0.data);
        Ok(Ciphertext {
            c0,
            c1: self.mod_down(&c1),
            level: 0,
            scale: ct.scale,
        })
    }

    /// Raises a ciphertext from level 0 to the top: the message becomes m + q_0 * I. The result is read on
    /// the EvalMod row, so its value is m / E_top.
    pub(crate) fn mod_raise_ciphertext(&self, ct: &Ciphertext) -> Ciphertext {
        let limbs = self.q_len();
        Ciphertext {
            c0: self.mod_raise(&ct.c0, limbs),
            c1: self.mod_raise(&ct.c1, limbs),
            level: limbs - 1,
            scale: ScaleId::EvalMod,
        }
    }

    /// Key switch of one polynomial: (c0, c1) modulo QP with c0 + c1*s = P * poly * t.
    pub(crate) fn key_switch_ext(
        &self,
        poly: &Poly,
        key: &EvalKey,
    ) -> Result<(ExtPoly, ExtPoly), CkksError> {
        self.inner_product(&self.decompose(poly), key, None)
    }

    /// Key switch of one polynomial, after ModDown.
    pub(crate) fn key_switch(&self, poly: &Poly, key: &EvalKey) -> Result<(Poly, Poly), CkksError> {
        let (c0, c1) = self.key_switch_ext(poly, key)?;
        Ok((self.mod_down(&c0), self.mod_down(&c1)))
    }

    /// x += y, modulo QP.
    pub(crate) fn add_ext(&self, x: &mut ExtPoly, y: &ExtPoly) {
        debug_assert_eq!((x.limbs, x.data.len()), (y.limbs, y.data.len()));
        let (n, limbs) = (x.n, x.limbs);
        x.data
            .par_chunks_exact_mut(n)
            .zip(y.data.par_chunks_exact(n))
            .enumerate()
            .for_each(|(i, (a, b))| {
                self.kernel()
                    .add(self.modulus(self.ext_index(limbs, i)), a, b)
            });
    }

    /// x -= y, modulo QP.
    pub(crate) fn sub_ext(&self, x: &mut ExtPoly, y: &ExtPoly) {
        debug_assert_eq!((x.limbs, x.data.len()), (y.limbs, y.data.len()));
        let (n, limbs) = (x.n, x.limbs);
        x.data
            .par_chunks_exact_mut(n)
            .zip(y.data.par_chunks_exact(n))
            .enumerate()
            .for_each(|(i, (a, b))| {
                self.kernel()
                    .sub(self.modulus(self.ext_index(limbs, i)), a, b)
            });
    }

    /// Divides an extended ciphertext by P.
    pub(crate) fn mod_down_ciphertext(&self, x: &ExtCiphertext) -> Ciphertext {
        Ciphertext {
            c0: self.mod_down(&x.c0),
            c1: self.mod_down(&x.c1),
            level: x.level,
            scale: x.scale,
        }
    }
}

fn permute_limbs(n: usize, from: &[u64], to: &mut [u64], table: &[u32]) {
    to.par_chunks_exact_mut(n)
        .zip(from.par_chunks_exact(n))
        .for_each(|(to, from)| {
            for (t, &k) in to.iter_mut().zip(table) {
                *t = from[k as usize];
            }
        });
}
