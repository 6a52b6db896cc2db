//! Tables of the negacyclic number-theoretic transform (Longa and Naehrig 2016, Harvey 2014).
//! Forward: natural order in, bit-reversed order out, entry k = a(psi^(2*rev(k)+1)).

use crate::error::ParamError;
use crate::ifma::Roots52;
use crate::modular::{Modulus, Shoup};
use std::sync::OnceLock;

/// Roots of one modulus for one ring degree.
#[derive(Debug, Clone, PartialEq)]
pub struct NttTable {
    pub(crate) modulus: Modulus,
    pub(crate) n: usize,
    /// psi^rev(i), 0 <= i < n. The first m entries serve the sub-ring of degree m.
    pub(crate) forward: Vec<Shoup>,
    /// psi^-rev(i)
    pub(crate) inverse: Vec<Shoup>,
    /// the same roots as integers in (-q/2, q/2), for kernels on f64
    pub(crate) forward_f64: Vec<f64>,
    pub(crate) inverse_f64: Vec<f64>,
    /// the same roots with 52-bit quotients, made when a kernel first asks for them
    roots_52: OnceLock<[Roots52; 2]>,
    /// n^-1, and n^-1 times the root of the last inverse layer
    pub(crate) n_inv: Shoup,
    pub(crate) n_inv_root: Shoup,
    /// psi^(N/2), a square root of -1: the value of X^(N/2) on the first half of the transform
    pub(crate) imaginary: Shoup,
}

/// Reverses the lowest `bits` bits.
pub(crate) fn reverse_bits(x: usize, bits: u32) -> usize {
    if bits == 0 {
        0
    } else {
        x.reverse_bits() >> (usize::BITS - bits)
    }
}

impl NttTable {
    /// Tables for a prime q = 1 mod 2n. The root is the power of the smallest possible base, so that the
    /// tables are the same on every machine.
    pub fn new(modulus: Modulus, n: usize) -> Result<NttTable, ParamError> {
        let q = modulus.value();
        if !n.is_power_of_two() || n < 8 || q % (2 * n as u64) != 1 {
            return Err(ParamError::BadModulus(q));
        }
        let psi = (2..1000u64)
            .map(|g| modulus.pow(g, (q - 1) / (2 * n as u64)))
            .find(|&x| modulus.pow(x, n as u64) == q - 1)
            .ok_or(ParamError::BadModulus(q))?;
        let bits = n.trailing_zeros();
        let powers = |root: u64| {
            let mut out = vec![Shoup::default(); n];
            let mut x = 1;
            for i in 0..n {
                out[reverse_bits(i, bits)] = modulus.shoup(x);
                x = modulus.mul(x, root);
            }
            out
        };
        let forward = powers(psi);
        let inverse = powers(modulus.inv(psi));
        let n_inv = modulus.inv(n as u64);
        let centred = |roots: &[Shoup]| roots.iter().map(|r| modulus.centre(r.w) as f64).collect();
        Ok(NttTable {
            modulus,
            n,
            n_inv: modulus.shoup(n_inv),
            n_inv_root: modulus.shoup(modulus.mul(n_inv, inverse[1].w)),
            imaginary: forward[1],
            roots_52: OnceLock::new(),
            forward_f64: centred(&forward),
            inverse_f64: centred(&inverse),
            forward,
            inverse,
        })
    }

    /// Forward and inverse roots with 52-bit quotients.
    pub(crate) fn roots_52(&self) -> &[Roots52; 2] {
        self.roots_52.get_or_init(|| {
            [&self.forward, &self.inverse].map(|roots| Roots52::new(&self.modulus, roots))
        })
    }

    /// The modulus.
    pub fn modulus(&self) -> &Modulus {
        &self.modulus
    }
}

/// Permutation of NTT entries under X -> X^galois (galois odd): out[k] = in[table[k]].
pub(crate) fn automorphism_table(n: usize, galois: usize) -> Vec<u32> {
    let bits = n.trailing_zeros();
    (0..n)
        .map(|k| {
            let e = (2 * reverse_bits(k, bits) + 1) * galois % (2 * n);
            reverse_bits((e - 1) / 2, bits) as u32
        })
        .collect()
}

#[cfg(test)]
mod tests;
