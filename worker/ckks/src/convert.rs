//! Exact centred base conversion between residue bases (Bajard et al. 2016; Halevi, Polyakov, Shoup 2019),
//! with the overflow counted in 60-bit fixed point instead of floating point: the count is off by one only
//! within 2^-57 of a tie, where either answer is a valid representative, and it is the same everywhere.

use crate::modular::{Modulus, Shoup};

/// Constants to convert from the base {d_0 .. d_(k-1)}, D their product, to any modulus of the chain.
#[derive(Debug)]
pub(crate) struct BaseConverter {
    pub(crate) sources: Vec<SourceConstants>,
    /// target t: k residues of D/d_i modulo t, then t - (D mod t)
    targets: Vec<u64>,
    /// D^-1 modulo t, or 0 where t divides D
    pub(crate) inverse: Vec<Shoup>,
    /// D modulo t
    pub(crate) product: Vec<Shoup>,
}

/// One modulus of the base that is converted from.
#[derive(Debug, Clone, Copy)]
pub struct SourceConstants {
    pub(crate) modulus: Modulus,
    /// (D/d_i)^-1 modulo d_i
    pub(crate) hat_inverse: Shoup,
    /// floor(2^(63 + bit length of d_i) / d_i)
    pub(crate) reciprocal: u64,
    /// takes x * reciprocal to 60 fractional bits
    pub(crate) shift: u32,
}

pub(crate) const FRACTION_BITS: u32 = 60;

/// Most moduli in a source base: a digit of 8, or the special primes with one ciphertext prime.
pub(crate) const MAX_SOURCES: usize = 9;

impl BaseConverter {
    /// `sources` are positions in `moduli`.
    pub(crate) fn new(moduli: &[Modulus], sources: &[usize]) -> BaseConverter {
        debug_assert!(!sources.is_empty() && sources.len() <= MAX_SOURCES);
        let product_without = |skip: Option<usize>, m: &Modulus| {
            sources
                .iter()
                .filter(|&&s| Some(s) != skip)
                .fold(1, |acc, &s| m.mul(acc, m.reduce(moduli[s].value())))
        };
        let constants = sources
            .iter()
            .map(|&s| {
                let m = moduli[s];
                let bits = 64 - m.value().leading_zeros();
                SourceConstants {
                    modulus: m,
                    hat_inverse: m.shoup(m.inv(product_without(Some(s), &m))),
                    reciprocal: ((1u128 << (64 + bits - 1)) / m.value() as u128) as u64,
                    shift: 64 + bits - 1 - FRACTION_BITS,
                }
            })
            .collect();
        let mut targets = Vec::with_capacity(moduli.len() * (sources.len() + 1));
        let (mut inverse, mut product) = (Vec::new(), Vec::new());
        for m in moduli {
            targets.extend(sources.iter().map(|&s| product_without(Some(s), m)));
            let d = product_without(None, m);
            targets.push(m.value() - d);
            product.push(m.shoup(d));
            inverse.push(m.shoup(if d == 0 { 0 } else { m.inv(d) }));
        }
        BaseConverter {
            sources: constants,
            targets,
            inverse,
            product,
        }
    }

    /// Number of source moduli.
    pub(crate) fn len(&self) -> usize {
        self.sources.len()
    }

    /// Constants of target modulus number `index`: k residues, then the negated product.
    pub(crate) fn target(&self, index: usize) -> &[u64] {
        let stride = self.len() + 1;
        &self.targets[index * stride..(index + 1) * stride]
    }
}

/// How many times D has to be taken off for the centred representative, from the scaled limbs
/// x_i * (D/d_i)^-1 mod d_i: the reference for `Kernel::count_overflow`.
pub(crate) fn count_overflow(sources: &[SourceConstants], hats: &[&[u64]], overflow: &mut [u64]) {
    for (k, v) in overflow.iter_mut().enumerate() {
        *v = overflow_at(sources, hats, k);
    }
}

#[inline(always)]
pub(crate) fn overflow_at(sources: &[SourceConstants], hats: &[&[u64]], k: usize) -> u64 {
    let mut sum = 1u64 << (FRACTION_BITS - 1);
    for (c, hat) in sources.iter().zip(hats) {
        sum += ((hat[k] as u128 * c.reciprocal as u128) >> c.shift) as u64;
    }
    sum >> FRACTION_BITS
}

fn convert_k<const K: usize>(
    m: &Modulus,
    w: &[u64],
    hats: &[u64],
    overflow: &[u64],
    out: &mut [u64],
) {
    let n = out.len();
    let mut limbs = [&hats[..0]; K];
    for (i, limb) in limbs.iter_mut().enumerate() {
        *limb = &hats[i * n..(i + 1) * n];
    }
    let mut weights = [0u64; K];
    weights.copy_from_slice(&w[..K]);
    let negated = w[K];
    for (c, (o, v)) in out.iter_mut().zip(overflow).enumerate() {
        let mut acc = (*v * negated) as u128;
        for i in 0..K {
            acc += limbs[i][c] as u128 * weights[i] as u128;
        }
        *o = m.reduce_u128(acc);
    }
}

/// The reference for `Kernel::convert`.
pub(crate) fn convert_scalar(
    m: &Modulus,
    weights: &[u64],
    hats: &[u64],
    overflow: &[u64],
    out: &mut [u64],
) {
    match weights.len() - 1 {
        1 => convert_k::<1>(m, weights, hats, overflow, out),
        2 => convert_k::<2>(m, weights, hats, overflow, out),
        3 => convert_k::<3>(m, weights, hats, overflow, out),
        4 => convert_k::<4>(m, weights, hats, overflow, out),
        5 => convert_k::<5>(m, weights, hats, overflow, out),
        6 => convert_k::<6>(m, weights, hats, overflow, out),
        7 => convert_k::<7>(m, weights, hats, overflow, out),
        8 => convert_k::<8>(m, weights, hats, overflow, out),
        _ => convert_k::<9>(m, weights, hats, overflow, out),
    }
}

#[cfg(test)]
mod tests;
