//! Ciphertexts and plaintexts. A ciphertext carries its level and its scale row; the scale itself is a
//! table entry, so no bookkeeping travels with the data.

use crate::buffer::Buffer;
use crate::context::Context;
use crate::error::CkksError;
use crate::keys::KeyId;
use crate::poly::{Domain, ExtPoly, Poly};
use crate::uniform::expand_uniform;

/// The two rows of the scale table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ScaleId {
    /// Near 2^42, levels 0 to 18: what circuits compute on and what crosses a hop boundary.
    Message = 0,
    /// Near 2^50, levels 18 to 28: inside a bootstrap.
    EvalMod = 1,
}

impl ScaleId {
    pub(crate) fn from_u8(x: u8) -> Option<ScaleId> {
        match x {
            0 => Some(ScaleId::Message),
            1 => Some(ScaleId::EvalMod),
            _ => None,
        }
    }
}

/// An encryption (c0, c1) with c0 + c1*s = message + noise; NTT domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ciphertext {
    pub(crate) c0: Poly,
    pub(crate) c1: Poly,
    pub(crate) level: usize,
    pub(crate) scale: ScaleId,
}

impl Ciphertext {
    /// Assembles a ciphertext from two components in the NTT domain with equal limbs and canonical residues.
    pub fn from_parts(
        ctx: &Context,
        c0: Poly,
        c1: Poly,
        scale: ScaleId,
    ) -> Result<Ciphertext, CkksError> {
        for c in [&c0, &c1] {
            if c.n != ctx.n() || c.limbs != c0.limbs || c.limbs == 0 || c.domain != Domain::Ntt {
                return Err(CkksError::ShapeMismatch("ciphertext components"));
            }
            c.check_canonical(ctx)?;
        }
        let level = c0.limbs - 1;
        ctx.scale_of(scale, level)?;
        Ok(Ciphertext {
            c0,
            c1,
            level,
            scale,
        })
    }

    /// A ciphertext of pseudorandom residues, for self-tests and timings.
    pub fn pseudorandom(
        ctx: &Context,
        level: usize,
        scale: ScaleId,
        seed: &[u8; 32],
    ) -> Result<Ciphertext, CkksError> {
        ctx.scale_of(scale, level)?;
        let poly = |part: usize| {
            let limb =
                |i| expand_uniform(seed, KeyId::Relin, part, i, ctx.modulus(i).value(), ctx.n());
            Poly::from_data(
                ctx,
                level + 1,
                Domain::Ntt,
                (0..=level).flat_map(limb).collect(),
            )
        };
        Ciphertext::from_parts(ctx, poly(0)?, poly(1)?, scale)
    }

    /// Level: the limbs q_0 ..= q_level are present.
    pub fn level(&self) -> usize {
        self.level
    }

    /// Scale row.
    pub fn scale_id(&self) -> ScaleId {
        self.scale
    }

    /// The two components.
    pub fn parts(&self) -> (&Poly, &Poly) {
        (&self.c0, &self.c1)
    }
}

/// A product that has not been rescaled yet: its scale is that of its level times a factor scale. Sums of
/// products are formed here so that one rescale serves them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product(pub(crate) Ciphertext);

impl Product {
    /// Level of the factors; the rescaled result is one below.
    pub fn level(&self) -> usize {
        self.0.level
    }
}

/// P times a ciphertext, modulo QP: what key switching yields before ModDown. Products with extended
/// plaintexts and sums stay here (double hoisting, Bossuat et al. 2021).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtCiphertext {
    pub(crate) c0: ExtPoly,
    pub(crate) c1: ExtPoly,
    pub(crate) level: usize,
    pub(crate) scale: ScaleId,
}

/// What a plaintext may be used for; decides its scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainKind {
    /// For a product followed by a rescale.
    Mul,
    /// For a sum.
    Add,
    /// At a scale chosen by the caller, who accounts for it.
    Raw,
}

/// An encoded vector of period B slots: a polynomial of Z[X^(N/2B)], stored as 2B values per limb in the
/// NTT domain. Value k serves the N/2B consecutive entries from k*N/2B of the full transform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plaintext {
    /// values per limb, 2B
    pub(crate) len: usize,
    /// q limbs
    pub(crate) limbs: usize,
    /// special limbs after the q limbs (0, or all)
    pub(crate) special: usize,
    pub(crate) kind: PlainKind,
    pub(crate) scale: ScaleId,
    pub(crate) data: Buffer,
}

impl Plaintext {
    /// Slots per period, B.
    pub fn period(&self) -> usize {
        self.len / 2
    }

    /// Level it was made for.
    pub fn level(&self) -> usize {
        self.limbs - 1
    }

    /// Use it was made for.
    pub fn kind(&self) -> PlainKind {
        self.kind
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 8
    }

    pub(crate) fn limb(&self, i: usize) -> &[u64] {
        &self.data[i * self.len..(i + 1) * self.len]
    }
}
