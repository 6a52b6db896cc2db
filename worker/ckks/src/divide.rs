//! Divisions by primes, and ModRaise: what changes the modulus of a polynomial without a key.

use crate::buffer::Buffer;
use crate::cipher::{Ciphertext, ExtCiphertext, ScaleId};
use crate::context::Context;
use crate::convert::BaseConverter;
use crate::error::CkksError;
use crate::kernel::Raise;
use crate::poly::{Domain, ExtPoly, Poly, most_limbs};
use crate::switch::each_group;
use rayon::prelude::*;

impl Context {
    /// Divides both components by the special primes, rounding to nearest: modulo QP to modulo Q.
    pub(crate) fn mod_down_both(&self, c0: &ExtPoly, c1: &ExtPoly) -> (Poly, Poly) {
        let [c0, c1] = self.mod_down([c0, c1]);
        (c0, c1)
    }

    /// The same for any number of polynomials of one shape.
    pub(crate) fn mod_down<const C: usize>(&self, x: [&ExtPoly; C]) -> [Poly; C] {
        let (special, limbs) = x.first().map_or((0, 0), |x| (x.total() - x.limbs, x.limbs));
        let conv = if special == 1 {
            &self.converters().special_one
        } else {
            &self.converters().special
        };
        self.divide(x, conv, limbs)
    }

    /// Divides both components by the special primes and by the top ciphertext prime at once.
    pub(crate) fn mod_down_rescale_both(&self, c0: &ExtPoly, c1: &ExtPoly) -> (Poly, Poly) {
        let top = c0.limbs - 1;
        let [c0, c1] = self.divide([c0, c1], &self.converters().special_and[top], top);
        (c0, c1)
    }

    /// (x - [x]_D) / D on the lowest `keep` limbs, D the product of the converter's base, which is the
    /// special primes and then the limbs from `keep` up.
    fn divide<const C: usize>(
        &self,
        x: [&ExtPoly; C],
        conv: &BaseConverter,
        keep: usize,
    ) -> [Poly; C] {
        let n = self.n();
        let k = conv.len();
        // both components side by side, so that the roots of each prime are read once
        let mut coefficients = Buffer::scratch(C * k * n);
        {
            let mut by_source: Vec<Vec<&mut [u64]>> = Vec::new();
            by_source.resize_with(k, Vec::new);
            for (at, limb) in coefficients.chunks_exact_mut(n).enumerate() {
                by_source[at % k].push(limb);
            }
            by_source
                .into_par_iter()
                .enumerate()
                .with_max_len(most_limbs(n))
                .for_each(|(i, components)| {
                    for (x, out) in x.iter().zip(components) {
                        let special = x.total() - x.limbs;
                        let (limb, index) = if i < special {
                            (x.limbs + i, self.q_len() + i)
                        } else {
                            (keep + i - special, keep + i - special)
                        };
                        self.kernel()
                            .ntt_inverse_from(self.table(index), x.limb(limb), out);
                    }
                });
        }
        let components: Vec<_> = coefficients
            .chunks_exact(k * n)
            .map(|limbs| (conv, limbs.chunks_exact(n).collect()))
            .collect();
        let prepared = self.prepare(&components);
        drop(components);
        drop(coefficients);
        let mut outs = x.map(|_| Poly::scratch(n, keep, Domain::Ntt));
        each_group(
            outs.iter_mut().map(|out| &mut out.data),
            n,
            |first, outs| {
                let components = outs.iter_mut().zip(&prepared).zip(x);
                for ((out, prepared), x) in components {
                    let limbs = (first..).zip(out.chunks_exact_mut(n));
                    let mut targets: Vec<_> = limbs
                        .map(|(i, out)| Raise {
                            table: self.table(i),
                            weights: conv.target(i),
                            out,
                            finish: Some((x.limb(i), conv.inverse[i])),
                        })
                        .collect();
                    self.kernel().raise(prepared, &mut targets);
                }
            },
        );
        outs
    }

    /// Divides polynomials of one shape by the top prime, rounding to nearest.
    pub(crate) fn rescale_polys<const C: usize>(
        &self,
        polys: [&Poly; C],
    ) -> Result<[Poly; C], CkksError> {
        let limbs = polys.first().map_or(0, |p| p.limbs);
        if limbs < 2 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        let (n, top) = (self.n(), limbs - 1);
        let mut last = Buffer::scratch(C * n);
        last.par_chunks_exact_mut(n)
            .zip(&polys[..])
            .for_each(|(last, poly)| {
                self.kernel()
                    .ntt_inverse_from(self.table(top), poly.limb(top), last);
            });
        let source = self.modulus(top).value();
        let mut outs = polys.map(|_| Poly::scratch(n, top, Domain::Ntt));
        each_group(
            outs.iter_mut().map(|out| &mut out.data),
            n,
            |first, outs| {
                let components = outs.iter_mut().zip(last.chunks_exact(n)).zip(polys);
                for ((out, last), poly) in components {
                    for (i, out) in (first..).zip(out.chunks_exact_mut(n)) {
                        let m = self.modulus(i);
                        self.kernel().lift(source, m, last, out);
                        self.ntt_forward(i, out);
                        let w = m.shoup(m.inv(m.reduce(source)));
                        self.kernel().sub_scale(m, out, poly.limb(i), w);
                    }
                }
            },
        );
        Ok(outs)
    }

    /// Reads residues modulo q_0 as integers in (-q_0/2, q_0/2) and reduces them modulo `limbs` primes.
    pub(crate) fn mod_raise(&self, poly: &Poly, limbs: usize) -> Poly {
        let n = poly.n;
        let mut low = poly.lowest(1);
        low.to_coeff(self);
        let mut out = Poly::scratch(n, limbs, Domain::Ntt);
        let q0 = self.modulus(0).value();
        out.data
            .par_chunks_exact_mut(n)
            .enumerate()
            .with_max_len(most_limbs(n))
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

    /// Divides an extended ciphertext by P.
    pub(crate) fn mod_down_ciphertext(&self, x: &ExtCiphertext) -> Ciphertext {
        let (c0, c1) = self.mod_down_both(&x.c0, &x.c1);
        Ciphertext {
            c0,
            c1,
            level: x.level,
            scale: x.scale,
        }
    }
}
