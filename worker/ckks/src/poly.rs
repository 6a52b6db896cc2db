//! RNS polynomials of Z_Q[X]/(X^N + 1), limb-major.

use crate::buffer::Buffer;
use crate::context::Context;
use crate::error::CkksError;
use rayon::prelude::*;

/// Most limbs that a thread takes at a time, so that none waits long for the others at the end of a loop.
pub(crate) fn most_limbs(n: usize) -> usize {
    ((1 << 15) / n).max(1)
}

/// Representation of a polynomial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Coefficients, natural order.
    Coeff,
    /// Values at the odd powers of a primitive 2N-th root, bit-reversed order.
    Ntt,
}

/// A polynomial modulo q_0 .. q_(limbs-1). Residues are canonical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poly {
    pub(crate) n: usize,
    pub(crate) limbs: usize,
    pub(crate) domain: Domain,
    /// limb i is data[i*n .. (i+1)*n]
    pub(crate) data: Buffer,
}

impl Poly {
    /// The zero polynomial.
    pub fn zero(n: usize, limbs: usize, domain: Domain) -> Poly {
        Poly {
            n,
            limbs,
            domain,
            data: Buffer::zeroed(n * limbs),
        }
    }

    /// A polynomial of unspecified residues, for what is overwritten as a whole.
    pub(crate) fn scratch(n: usize, limbs: usize, domain: Domain) -> Poly {
        Poly {
            n,
            limbs,
            domain,
            data: Buffer::scratch(n * limbs),
        }
    }

    /// Ring degree N.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of limbs.
    pub fn limbs(&self) -> usize {
        self.limbs
    }

    /// Representation.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Residues modulo q_i.
    pub fn limb(&self, i: usize) -> &[u64] {
        &self.data[i * self.n..(i + 1) * self.n]
    }

    /// Residues modulo q_i; the caller keeps them canonical.
    pub fn limb_mut(&mut self, i: usize) -> &mut [u64] {
        &mut self.data[i * self.n..(i + 1) * self.n]
    }

    /// Takes limb-major data of `limbs` * N residues; they must be canonical.
    pub fn from_data(
        ctx: &Context,
        limbs: usize,
        domain: Domain,
        data: Vec<u64>,
    ) -> Result<Poly, CkksError> {
        if limbs == 0 || limbs > ctx.q_len() || data.len() != limbs * ctx.n() {
            return Err(CkksError::ShapeMismatch("limbs"));
        }
        let poly = Poly {
            n: ctx.n(),
            limbs,
            domain,
            data: data.into(),
        };
        poly.check_canonical(ctx)?;
        Ok(poly)
    }

    /// Fails with the first residue that is not below its modulus.
    pub(crate) fn check_canonical(&self, ctx: &Context) -> Result<(), CkksError> {
        if self.limbs > ctx.q_len() {
            return Err(CkksError::ShapeMismatch("limbs"));
        }
        for limb in 0..self.limbs {
            let q = ctx.modulus(limb).value();
            if let Some(index) = self.limb(limb).iter().position(|&r| r >= q) {
                return Err(CkksError::ResidueOutOfRange { limb, index });
            }
        }
        Ok(())
    }

    /// Transforms every limb to the NTT domain.
    pub fn to_ntt(&mut self, ctx: &Context) {
        if self.domain == Domain::Coeff {
            self.data
                .par_chunks_exact_mut(self.n)
                .enumerate()
                .with_max_len(most_limbs(self.n))
                .for_each(|(i, limb)| ctx.ntt_forward(i, limb));
            self.domain = Domain::Ntt;
        }
    }

    /// Transforms every limb to coefficients.
    pub fn to_coeff(&mut self, ctx: &Context) {
        if self.domain == Domain::Ntt {
            self.data
                .par_chunks_exact_mut(self.n)
                .enumerate()
                .with_max_len(most_limbs(self.n))
                .for_each(|(i, limb)| ctx.ntt_inverse(i, limb));
            self.domain = Domain::Coeff;
        }
    }

    /// Copy of the lowest limbs.
    pub(crate) fn lowest(&self, limbs: usize) -> Poly {
        debug_assert!(limbs <= self.limbs);
        Poly {
            n: self.n,
            limbs,
            domain: self.domain,
            data: Buffer::copy_of(&self.data[..limbs * self.n]),
        }
    }
}

/// A polynomial modulo q_0 .. q_(limbs-1) and all special primes, NTT domain; limbs of q first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtPoly {
    pub(crate) n: usize,
    /// number of q limbs; the special limbs follow them
    pub(crate) limbs: usize,
    pub(crate) data: Buffer,
}

impl ExtPoly {
    /// The zero polynomial with `limbs` q limbs and `special` p limbs.
    pub fn zero(n: usize, limbs: usize, special: usize) -> ExtPoly {
        ExtPoly {
            n,
            limbs,
            data: Buffer::zeroed(n * (limbs + special)),
        }
    }
}

impl ExtPoly {
    /// Unspecified residues, for what is overwritten as a whole.
    pub(crate) fn scratch(n: usize, limbs: usize, special: usize) -> ExtPoly {
        ExtPoly {
            n,
            limbs,
            data: Buffer::scratch(n * (limbs + special)),
        }
    }

    /// Number of limbs, q and special together.
    pub(crate) fn total(&self) -> usize {
        self.data.len() / self.n
    }

    pub(crate) fn limb(&self, i: usize) -> &[u64] {
        &self.data[i * self.n..(i + 1) * self.n]
    }
}
