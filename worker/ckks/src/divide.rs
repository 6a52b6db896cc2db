//! Divisions by primes, and ModRaise: what changes the modulus of a polynomial without a key.

use crate::buffer::Buffer;
use crate::cipher::{Ciphertext, ExtCiphertext, ScaleId};
use crate::context::Context;
use crate::convert::BaseConverter;
use crate::error::CkksError;
use crate::poly::{Domain, ExtPoly, Poly};
use rayon::prelude::*;

/// Limbs that one task divides: the source limbs are read once for all of them.
const GROUP: usize = 4;

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
        let mut hats = Buffer::scratch(C * k * n);
        {
            let mut by_source: Vec<Vec<&mut [u64]>> = Vec::new();
            by_source.resize_with(k, Vec::new);
            for (at, hat) in hats.chunks_exact_mut(n).enumerate() {
                by_source[at % k].push(hat);
            }
            by_source
                .into_par_iter()
                .enumerate()
                .for_each(|(i, components)| {
                    for (x, hat) in x.iter().zip(components) {
                        let special = x.total() - x.limbs;
                        let (limb, index) = if i < special {
                            (x.limbs + i, self.q_len() + i)
                        } else {
                            (keep + i - special, keep + i - special)
                        };
                        hat.copy_from_slice(x.limb(limb));
                        self.ntt_inverse(index, hat);
                        let w = conv.sources[i].hat_inverse;
                        self.kernel().scale(self.modulus(index), hat, w);
                    }
                });
        }
        let mut overflow = Buffer::scratch(C * n);
        for (hats, overflow) in hats.chunks_exact(k * n).zip(overflow.chunks_exact_mut(n)) {
            self.count_overflow(conv, hats, overflow);
        }
        let mut outs = x.map(|_| Poly::scratch(n, keep, Domain::Ntt));
        self.by_limbs(&mut outs, |first, outs| {
            let sources = hats.chunks_exact(k * n).zip(overflow.chunks_exact(n));
            for (out, (hats, overflow)) in outs.iter_mut().zip(sources) {
                let mut limbs: Vec<_> = out.chunks_exact_mut(n).collect();
                let targets: Vec<_> = (first..first + limbs.len())
                    .map(|i| (self.modulus(i), conv.target(i)))
                    .collect();
                self.kernel()
                    .convert_many(&targets, hats, overflow, &mut limbs);
            }
            self.finish(first, outs, |i, c| (x[c].limb(i), conv.inverse[i]));
        });
        outs
    }

    /// Runs a task for every `GROUP` limbs of the polynomials, with the number of the first limb.
    fn by_limbs<const C: usize>(
        &self,
        polys: &mut [Poly; C],
        task: impl Fn(usize, &mut [&mut [u64]]) + Send + Sync,
    ) {
        let n = self.n();
        let mut groups: Vec<Vec<&mut [u64]>> = Vec::new();
        for poly in polys {
            let parts = poly.data.chunks_mut(GROUP * n);
            groups.resize_with(parts.len(), Vec::new);
            for (group, part) in groups.iter_mut().zip(parts) {
                group.push(part);
            }
        }
        groups
            .into_par_iter()
            .enumerate()
            .for_each(|(g, mut parts)| task(g * GROUP, &mut parts));
    }

    /// From remainders in coefficients to quotients: (x - out) * w for each limb of each polynomial.
    fn finish<'a>(
        &self,
        first: usize,
        outs: &mut [&mut [u64]],
        x_and_w: impl Fn(usize, usize) -> (&'a [u64], crate::modular::Shoup),
    ) {
        let n = self.n();
        let count = outs.first().map_or(0, |out| out.len() / n);
        for l in 0..count {
            for (c, out) in outs.iter_mut().enumerate() {
                let (i, out) = (first + l, &mut out[l * n..(l + 1) * n]);
                self.ntt_forward(i, out);
                let (x, w) = x_and_w(i, c);
                self.kernel().sub_scale(self.modulus(i), out, x, w);
            }
        }
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
        for (poly, last) in polys.iter().zip(last.chunks_exact_mut(n)) {
            last.copy_from_slice(poly.limb(top));
            self.ntt_inverse(top, last);
        }
        let source = self.modulus(top).value();
        let mut outs = polys.map(|_| Poly::scratch(n, top, Domain::Ntt));
        self.by_limbs(&mut outs, |first, outs| {
            for (out, last) in outs.iter_mut().zip(last.chunks_exact(n)) {
                for (i, out) in (first..).zip(out.chunks_exact_mut(n)) {
                    self.kernel().lift(source, self.modulus(i), last, out);
                }
            }
            self.finish(first, outs, |i, c| {
                let m = self.modulus(i);
                (polys[c].limb(i), m.shoup(m.inv(m.reduce(source))))
            });
        });
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
