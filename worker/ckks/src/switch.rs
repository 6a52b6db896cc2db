//! Hybrid key switching (Han and Ki 2020): digits of alpha limbs, raised to QP, multiplied with the key,
//! divided by P.

use crate::buffer::Buffer;
use crate::cipher::Ciphertext;
use crate::context::Context;
use crate::convert::BaseConverter;
use crate::error::CkksError;
use crate::kernel::{KeyProduct, Raise};
use crate::keys::{EvalKey, KeyId};
use crate::poly::{Domain, ExtPoly, Poly, most_limbs};
use rayon::prelude::*;
use std::ops::Range;

/// A polynomial cut into digits and raised to QP: the part of a key switch that all rotations of one
/// ciphertext share.
#[derive(Debug, Clone)]
pub struct Digits {
    pub(crate) limbs: usize,
    /// per digit (limbs + special) * N residues, NTT domain, q limbs first
    pub(crate) raised: Vec<Buffer>,
}

/// Most limbs that one task raises or divides: the source limbs, too many for the nearer caches, are read once for
/// all of them; the results should stay in the last one.
const GROUP: usize = 6;

/// Cuts limbs of `n` residues into groups that are done together, each with the number of its first limb: about as many
/// limbs in each, and as many groups for every thread.
fn cut_groups(limbs: &mut [u64], n: usize) -> Vec<(usize, &mut [u64])> {
    let threads = rayon::current_num_threads();
    let total = limbs.len() / n;
    let count = total.div_ceil(GROUP * threads) * threads;
    let count = count.clamp(1, total.max(1));
    let mut rest = limbs;
    let cut = |g: usize| {
        let (first, end) = (g * total / count, (g + 1) * total / count);
        let (group, tail) = std::mem::take(&mut rest).split_at_mut((end - first) * n);
        rest = tail;
        (first, group)
    };
    (0..count).map(cut).collect()
}

/// Runs a task for every group of limbs of polynomials of one shape, with the number of the first limb.
pub(crate) fn each_group<'a>(
    polys: impl IntoIterator<Item = &'a mut Buffer>,
    n: usize,
    task: impl Fn(usize, &mut [&mut [u64]]) + Send + Sync,
) {
    let mut groups: Vec<(usize, Vec<&mut [u64]>)> = Vec::new();
    for poly in polys {
        let parts = cut_groups(poly, n);
        groups.resize_with(parts.len(), Default::default);
        for (group, (first, part)) in groups.iter_mut().zip(parts) {
            group.0 = first;
            group.1.push(part);
        }
    }
    groups
        .into_par_iter()
        .with_max_len(1)
        .for_each(|(first, mut parts)| task(first, &mut parts));
}

/// What is added to one component of a key switch, before its automorphism.
#[derive(Clone, Copy)]
pub(crate) enum Addend<'a> {
    Nothing,
    /// P times a polynomial
    Lifted(&'a Poly),
    Extended(&'a ExtPoly),
}

/// A polynomial cut into digits, ready for base conversion: see `Kernel::prepare`.
struct Cut<'a> {
    poly: &'a Poly,
    prepared: Vec<Buffer>,
}

/// A key, how its digits are moved and what is added.
pub(crate) struct Switch<'a> {
    pub(crate) key: &'a EvalKey,
    pub(crate) permutation: Option<&'a [u32]>,
    pub(crate) addends: [Addend<'a>; 2],
}

impl<'a> Switch<'a> {
    pub(crate) fn plain(key: &'a EvalKey) -> Switch<'a> {
        Switch {
            key,
            permutation: None,
            addends: [Addend::Nothing; 2],
        }
    }
}

impl Context {
    fn digit_limbs(&self, limbs: usize, digit: usize) -> Range<usize> {
        let alpha = self.params().alpha;
        digit * alpha..limbs.min((digit + 1) * alpha)
    }

    fn digit_converter(&self, own: &Range<usize>) -> &BaseConverter {
        &self.converters().digits[own.start / self.params().alpha][own.len() - 1]
    }

    fn cut<'a>(&self, poly: &'a Poly) -> Cut<'a> {
        debug_assert_eq!(poly.domain, Domain::Ntt);
        let (n, limbs, alpha) = (poly.n, poly.limbs, self.params().alpha);
        let mut coefficients = Buffer::scratch(n * limbs);
        coefficients
            .par_chunks_exact_mut(n)
            .enumerate()
            .with_max_len(most_limbs(n))
            .for_each(|(i, limb)| {
                self.kernel()
                    .ntt_inverse_from(self.table(i), poly.limb(i), limb);
            });
        let digits: Vec<_> = (0..limbs.div_ceil(alpha))
            .map(|j| {
                let own = self.digit_limbs(limbs, j);
                let limbs = coefficients[own.start * n..own.end * n].chunks_exact(n);
                (self.digit_converter(&own), limbs.collect())
            })
            .collect();
        let prepared = self.prepare(&digits);
        Cut { poly, prepared }
    }

    /// Limbs in coefficients, each group with its converter, ready for base conversions.
    pub(crate) fn prepare(&self, groups: &[(&BaseConverter, Vec<&[u64]>)]) -> Vec<Buffer> {
        let n = self.n();
        let len = n.min(1 << 13);
        let mut prepared: Vec<Buffer> = groups
            .iter()
            .map(|(conv, _)| Buffer::scratch((conv.len() + 1) * n))
            .collect();
        let mut parts = Vec::new();
        for ((conv, limbs), out) in groups.iter().zip(&mut prepared) {
            let out = out.chunks_exact_mut((conv.len() + 1) * len);
            parts.extend(out.enumerate().map(|(c, out)| (conv, limbs, c, out)));
        }
        parts
            .into_par_iter()
            .with_max_len(most_limbs(len))
            .for_each(|(conv, limbs, c, out)| {
                let limbs: Vec<_> = limbs.iter().map(|l| &l[c * len..(c + 1) * len]).collect();
                self.kernel().prepare(&conv.sources, &limbs, out);
            });
        prepared
    }

    /// The limbs from `first` on of every digit, modulo QP and in the NTT domain. A digit's own limbs, which
    /// are those of the polynomial, are left out unless `copy` is set.
    fn raise(&self, cut: &Cut, first: usize, digits: &mut [&mut [u64]], copy: bool) {
        let (n, limbs) = (cut.poly.n, cut.poly.limbs);
        for (j, (raised, prepared)) in digits.iter_mut().zip(&cut.prepared).enumerate() {
            let own = self.digit_limbs(limbs, j);
            let conv = self.digit_converter(&own);
            let mut targets = Vec::new();
            for (i, out) in (first..).zip(raised.chunks_exact_mut(n)) {
                if own.contains(&i) {
                    if copy {
                        out.copy_from_slice(cut.poly.limb(i));
                    }
                } else {
                    let index = self.ext_index(limbs, i);
                    targets.push(Raise {
                        table: self.table(index),
                        weights: conv.target(index),
                        out,
                        finish: None,
                    });
                }
            }
            self.kernel().raise(prepared, &mut targets);
        }
    }

    /// Cuts `poly` (NTT domain) into digits and raises each to QP.
    pub(crate) fn decompose(&self, poly: &Poly) -> Digits {
        let (n, limbs) = (poly.n, poly.limbs);
        let cut = self.cut(poly);
        let total = limbs + self.p_len();
        let mut raised: Vec<Buffer> = (0..limbs.div_ceil(self.params().alpha))
            .map(|_| Buffer::scratch(n * total))
            .collect();
        each_group(&mut raised, n, |first, digits| {
            self.raise(&cut, first, digits, true);
        });
        Digits { limbs, raised }
    }

    fn check_key(&self, key: &EvalKey, limbs: usize) -> Result<(), CkksError> {
        if key.limbs < limbs {
            return Err(CkksError::KeyTooSmall {
                id: key.id,
                have: key.limbs,
                need: limbs,
            });
        }
        Ok(())
    }

    /// Both sums over the digits (limb `i` of each) of digit times key.
    fn product_limb(
        &self,
        limbs: usize,
        i: usize,
        digits: &[&[u64]],
        switch: &Switch,
        outs: (&mut [u64], &mut [u64]),
    ) {
        let key = switch.key;
        let m = self.modulus(self.ext_index(limbs, i));
        // limb i of the key sits higher when the key covers more q limbs
        let k = if i < limbs { i } else { i - limbs + key.limbs };
        let terms: Vec<_> = digits
            .iter()
            .zip(&key.digits)
            .map(|(d, key)| (*d, key.b.limb(k), key.a.limb(k)))
            .collect();
        let addends = switch.addends.map(|addend| match addend {
            Addend::Nothing => None,
            Addend::Lifted(_) if i >= limbs => None,
            Addend::Lifted(x) => Some((x.limb(i), self.converters().special.product[i])),
            Addend::Extended(x) => Some((x.limb(i), m.shoup(1))),
        });
        let product = KeyProduct {
            table: switch.permutation,
            terms: &terms,
            addends,
        };
        self.kernel().key_product(m, outs.0, outs.1, &product);
    }

    /// Sum over the digits of digit times key, both components, modulo QP. With a permutation the digits and
    /// the addends are first taken through an automorphism.
    pub(crate) fn inner_product(
        &self,
        digits: &Digits,
        switch: &Switch,
    ) -> Result<(ExtPoly, ExtPoly), CkksError> {
        let (n, limbs) = (self.n(), digits.limbs);
        self.check_key(switch.key, limbs)?;
        let mut c0 = ExtPoly::scratch(n, limbs, switch.key.special);
        let mut c1 = ExtPoly::scratch(n, limbs, switch.key.special);
        c0.data
            .par_chunks_exact_mut(n)
            .zip(c1.data.par_chunks_exact_mut(n))
            .enumerate()
            .with_max_len(most_limbs(n))
            .for_each(|(i, outs)| {
                let at = i * n..(i + 1) * n;
                let digits: Vec<&[u64]> = digits.raised.iter().map(|d| &d[at.clone()]).collect();
                self.product_limb(limbs, i, &digits, switch, outs);
            });
        Ok((c0, c1))
    }

    /// `decompose` and `inner_product` in one, the digits used while they are in the caches: the key switch
    /// of one polynomial, (c0, c1) modulo QP with c0 + c1*s = P * poly * t.
    pub(crate) fn key_switch_ext(
        &self,
        poly: &Poly,
        switch: &Switch,
    ) -> Result<(ExtPoly, ExtPoly), CkksError> {
        let (n, limbs) = (poly.n, poly.limbs);
        self.check_key(switch.key, limbs)?;
        let cut = self.cut(poly);
        let digits = limbs.div_ceil(self.params().alpha);
        let mut c0 = ExtPoly::scratch(n, limbs, self.p_len());
        let mut c1 = ExtPoly::scratch(n, limbs, self.p_len());
        cut_groups(&mut c0.data, n)
            .into_par_iter()
            .zip(cut_groups(&mut c1.data, n))
            .with_max_len(1)
            .for_each(|((first, c0), (_, c1))| {
                let mut scratch = Buffer::scratch(digits * c0.len());
                let mut raised: Vec<_> = scratch.chunks_exact_mut(c0.len()).collect();
                self.raise(&cut, first, &mut raised, false);
                let outs = c0.chunks_exact_mut(n).zip(c1.chunks_exact_mut(n));
                for (l, outs) in outs.enumerate() {
                    let i = first + l;
                    let digits: Vec<&[u64]> = raised
                        .iter()
                        .enumerate()
                        .map(|(j, raised)| {
                            if self.digit_limbs(limbs, j).contains(&i) {
                                poly.limb(i)
                            } else {
                                &raised[l * n..(l + 1) * n]
                            }
                        })
                        .collect();
                    self.product_limb(limbs, i, &digits, switch, outs);
                }
            });
        Ok((c0, c1))
    }

    /// Key switch of one polynomial, after ModDown.
    pub fn key_switch(&self, poly: &Poly, key: &EvalKey) -> Result<(Poly, Poly), CkksError> {
        let (c0, c1) = self.key_switch_ext(poly, &Switch::plain(key))?;
        Ok(self.mod_down_both(&c0, &c1))
    }

    /// P * poly modulo QP: zero on the special limbs.
    pub(crate) fn lift_ext(&self, poly: &Poly) -> ExtPoly {
        let mut out = ExtPoly::scratch(poly.n, poly.limbs, self.p_len());
        let n = poly.n;
        let product = &self.converters().special.product;
        out.data
            .par_chunks_exact_mut(n)
            .enumerate()
            .for_each(|(i, out)| {
                if i < poly.limbs {
                    out.copy_from_slice(poly.limb(i));
                    self.kernel().scale(self.modulus(i), out, product[i]);
                } else {
                    out.fill(0);
                }
            });
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
        let mut raised = Buffer::scratch(2 * n);
        let p0 = self.q_len();
        let (low, out) = raised.split_at_mut(n);
        low.copy_from_slice(&ct.c1.data);
        let q0 = self.modulus(0).value();
        self.kernel().lift(q0, self.modulus(p0), &coeff.data, out);
        self.ntt_forward(p0, out);
        let digits = Digits {
            limbs: 1,
            raised: vec![raised],
        };
        let (c0, c1) = self.inner_product(&digits, &Switch::plain(key))?;
        let (mut c0, c1) = self.mod_down_both(&c0, &c1);
        self.kernel()
            .add(self.modulus(0), &mut c0.data, &ct.c0.data);
        Ok(Ciphertext {
            c0,
            c1,
            level: 0,
            scale: ct.scale,
        })
    }

    /// Takes polynomials in the NTT domain, modulo Q or QP, through an automorphism.
    pub(crate) fn permute<const C: usize>(
        &self,
        polys: [&Buffer; C],
        table: &[u32],
    ) -> [Buffer; C] {
        let n = table.len();
        let mut moved = polys.map(|poly| Buffer::scratch(poly.len()));
        let limbs: Vec<_> = moved
            .iter_mut()
            .zip(polys)
            .flat_map(|(to, from)| to.chunks_exact_mut(n).zip(from.chunks_exact(n)))
            .collect();
        limbs
            .into_par_iter()
            .with_max_len(most_limbs(n))
            .for_each(|(to, from)| self.kernel().permute(table, from, to));
        moved
    }

    /// x += y, modulo QP.
    pub(crate) fn add_ext(&self, x: &mut ExtPoly, y: &ExtPoly) {
        debug_assert_eq!((x.limbs, x.data.len()), (y.limbs, y.data.len()));
        let (n, limbs) = (x.n, x.limbs);
        x.data
            .par_chunks_exact_mut(n)
            .zip(y.data.par_chunks_exact(n))
            .enumerate()
            .with_max_len(most_limbs(n))
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
            .with_max_len(most_limbs(n))
            .for_each(|(i, (a, b))| {
                self.kernel()
                    .sub(self.modulus(self.ext_index(limbs, i)), a, b)
            });
    }
}
