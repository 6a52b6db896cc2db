//! The encoder: slot values to polynomials and back (canonical embedding, Cheon-Kim-Kim-Song 2017). Slot j is
//! the value at zeta^(5^j). A fixed network of f64 + - * and a rounding to nearest even make it
//! deterministic. A vector of period B lives in Z[X^(N/2B)] and is encoded in the ring of degree 2B.

use crate::buffer::Buffer;
use crate::cipher::{PlainKind, Plaintext, ScaleId};
use crate::complex::Complex;
use crate::context::Context;
use crate::error::CkksError;
use crate::ntt::reverse_bits;
use crate::poly::{Domain, Poly};
use crate::roots::special_twiddles;
use rayon::prelude::*;

/// Tables of the special transform.
#[derive(Debug)]
pub(crate) struct Encoder {
    pub(crate) layers: Vec<Vec<Complex>>,
}

/// Coefficients before they are scaled and rounded: entry j is c_j + i*c_(j+B).
#[derive(Debug)]
pub(crate) struct Embedding(Vec<Complex>);

impl Embedding {
    /// Integer coefficients at a scale.
    pub(crate) fn scaled(&self, scale: f64) -> Result<Vec<i64>, CkksError> {
        let parts = self.0.iter().map(|x| x.re);
        let parts = parts.chain(self.0.iter().map(|x| x.im));
        parts.map(|x| round_constant(x * scale)).collect()
    }
}

fn bit_reverse(v: &mut [Complex]) {
    let bits = v.len().trailing_zeros();
    for i in 0..v.len() {
        let j = reverse_bits(i, bits);
        if i < j {
            v.swap(i, j);
        }
    }
}

impl Encoder {
    pub(crate) fn new(slots: usize) -> Encoder {
        Encoder {
            layers: special_twiddles(slots),
        }
    }

    /// Coefficients to slots: entry j of the input is c_j + i*c_(j+B).
    fn forward(&self, v: &mut [Complex]) {
        bit_reverse(v);
        let depth = v.len().trailing_zeros() as usize;
        for layer in &self.layers[..depth] {
            let half = layer.len();
            for block in v.chunks_exact_mut(2 * half) {
                let (lo, hi) = block.split_at_mut(half);
                for ((x, y), w) in lo.iter_mut().zip(hi).zip(layer) {
                    let (u, t) = (*x, *y * *w);
                    *x = u + t;
                    *y = u - t;
                }
            }
        }
    }

    /// Slots to coefficients, the inverse of `forward`.
    fn inverse(&self, v: &mut [Complex]) {
        let depth = v.len().trailing_zeros() as usize;
        for layer in self.layers[..depth].iter().rev() {
            let half = layer.len();
            for block in v.chunks_exact_mut(2 * half) {
                let (lo, hi) = block.split_at_mut(half);
                for ((x, y), w) in lo.iter_mut().zip(hi).zip(layer) {
                    let (u, t) = (*x, *y);
                    *x = u + t;
                    *y = (u - t) * w.conj();
                }
            }
        }
        bit_reverse(v);
        let by = 1.0 / v.len() as f64;
        for x in v {
            *x = x.scale(by);
        }
    }
}

/// Nearest integer, ties to even; `None` unless |x| < 2^62.
fn round_to_i64(x: f64) -> Option<i64> {
    const MAGIC: f64 = 4503599627370496.0; // 2^52: above it every f64 is an integer
    let a = x.abs();
    if a.is_nan() || a >= (1u64 << 62) as f64 {
        return None;
    }
    let r = if a < MAGIC { (a + MAGIC) - MAGIC } else { a } as i64;
    Some(if x < 0.0 { -r } else { r })
}

/// Nearest integer to a constant times a scale, ties to even.
pub(crate) fn round_constant(x: f64) -> Result<i64, CkksError> {
    if !x.is_finite() {
        return Err(CkksError::NotFinite);
    }
    round_to_i64(x).ok_or(CkksError::ValueTooLarge)
}

impl Context {
    fn check_values(&self, v: &[Complex]) -> Result<(), CkksError> {
        if !v.len().is_power_of_two() || v.len() > self.slots() {
            return Err(CkksError::BadSlotCount(v.len()));
        }
        if v.iter().any(|x| !x.is_finite()) {
            return Err(CkksError::NotFinite);
        }
        Ok(())
    }

    /// The coefficients of the polynomial of degree below 2B whose slots are `v` (length B), at scale 1.
    pub(crate) fn embedding(&self, v: &[Complex]) -> Result<Embedding, CkksError> {
        self.check_values(v)?;
        let mut w = v.to_vec();
        self.encoder().inverse(&mut w);
        Ok(Embedding(w))
    }

    /// Integer coefficients of the polynomial of degree below 2B whose slots are `v` (length B) times
    /// `scale`.
    pub(crate) fn embed(&self, v: &[Complex], scale: f64) -> Result<Vec<i64>, CkksError> {
        self.embedding(v)?.scaled(scale)
    }

    fn transform(&self, coefficients: &[i64], limbs: usize, special: usize) -> Buffer {
        let len = coefficients.len();
        let mut data = Buffer::scratch(len * (limbs + special));
        data.par_chunks_exact_mut(len)
            .enumerate()
            .with_min_len(1 + 4096 / len)
            .for_each(|(i, out)| self.transform_limb(self.ext_index(limbs, i), coefficients, out));
        data
    }

    /// Coefficients modulo modulus number `index`, transformed.
    pub(crate) fn transform_limb(&self, index: usize, coefficients: &[i64], out: &mut [u64]) {
        self.kernel()
            .residues(self.modulus(index), coefficients, out);
        self.ntt_forward(index, out);
    }

    fn check_limbs(&self, limbs: usize) -> Result<(), CkksError> {
        if limbs == 0 || limbs > self.q_len() {
            return Err(CkksError::BadLevel(limbs.wrapping_sub(1)));
        }
        Ok(())
    }

    fn encode(
        &self,
        v: &[Complex],
        limbs: usize,
        special: usize,
        scale: f64,
        kind: PlainKind,
        row: ScaleId,
    ) -> Result<Plaintext, CkksError> {
        self.check_limbs(limbs)?;
        let coefficients = self.embed(v, scale)?;
        Ok(self.plaintext(&coefficients, limbs, special, kind, row))
    }

    /// Encodes an embedding at a scale of the caller's choice.
    pub(crate) fn encode_embedding(
        &self,
        v: &Embedding,
        limbs: usize,
        scale: f64,
        row: ScaleId,
    ) -> Result<Plaintext, CkksError> {
        self.check_limbs(limbs)?;
        Ok(self.plaintext(&v.scaled(scale)?, limbs, 0, PlainKind::Raw, row))
    }

    fn plaintext(
        &self,
        coefficients: &[i64],
        limbs: usize,
        special: usize,
        kind: PlainKind,
        row: ScaleId,
    ) -> Plaintext {
        Plaintext {
            len: coefficients.len(),
            limbs,
            special,
            kind,
            scale: row,
            data: self.transform(coefficients, limbs, special),
        }
    }

    /// Scale of a factor at `level` such that product and rescale land on the scale of `level - 1`:
    /// q_l * D_(l-1) / D_l.
    pub fn factor_scale(&self, row: ScaleId, level: usize) -> Result<f64, CkksError> {
        if level == 0 {
            return Err(CkksError::LevelTooLow { have: 0, need: 1 });
        }
        let (here, below) = (self.scale_of(row, level)?, self.scale_of(row, level - 1)?);
        Ok(self.modulus(level).value() as f64 * below / here)
    }

    /// Encodes a factor for message ciphertexts at `level`; `v` has B values, B a power of two up to N/2,
    /// and stands for its repetition over all slots.
    pub fn encode_mul(&self, v: &[Complex], level: usize) -> Result<Plaintext, CkksError> {
        self.encode_mul_on(v, ScaleId::Message, level)
    }

    /// The same on either scale row.
    pub fn encode_mul_on(
        &self,
        v: &[Complex],
        row: ScaleId,
        level: usize,
    ) -> Result<Plaintext, CkksError> {
        let scale = self.factor_scale(row, level)?;
        self.encode(v, level + 1, 0, scale, PlainKind::Mul, row)
    }

    /// A factor that also has the special limbs, for products before ModDown (double hoisting).
    pub fn encode_mul_ext(
        &self,
        v: &[Complex],
        row: ScaleId,
        level: usize,
    ) -> Result<Plaintext, CkksError> {
        let scale = self.factor_scale(row, level)?;
        self.encode(v, level + 1, self.p_len(), scale, PlainKind::Mul, row)
    }

    /// Encodes a summand for message ciphertexts at `level`.
    pub fn encode_add(&self, v: &[Complex], level: usize) -> Result<Plaintext, CkksError> {
        self.encode_add_on(v, ScaleId::Message, level)
    }

    /// The same on either scale row.
    pub fn encode_add_on(
        &self,
        v: &[Complex],
        row: ScaleId,
        level: usize,
    ) -> Result<Plaintext, CkksError> {
        let scale = self.scale_of(row, level)?;
        self.encode(v, level + 1, 0, scale, PlainKind::Add, row)
    }

    /// Encodes at a scale of the caller's choice, with the special limbs if `extended`.
    pub fn encode_at_scale(
        &self,
        v: &[Complex],
        limbs: usize,
        extended: bool,
        scale: f64,
        row: ScaleId,
    ) -> Result<Plaintext, CkksError> {
        let special = if extended { self.p_len() } else { 0 };
        self.encode(v, limbs, special, scale, PlainKind::Raw, row)
    }

    /// Encodes into a full polynomial (NTT domain), for encryption.
    pub fn encode_poly(&self, v: &[Complex], limbs: usize, scale: f64) -> Result<Poly, CkksError> {
        let p = self.encode(v, limbs, 0, scale, PlainKind::Raw, ScaleId::Message)?;
        let repeat = self.n() / p.len;
        Ok(Poly {
            n: self.n(),
            limbs,
            domain: Domain::Ntt,
            data: p
                .data
                .iter()
                .flat_map(|&x| std::iter::repeat_n(x, repeat))
                .collect(),
        })
    }

    /// Centred coefficients of a polynomial as f64, from its lowest two limbs (so they must be below
    /// q_0*q_1/2 in absolute value, or q_0/2 if there is one limb).
    pub fn centred_coefficients(&self, poly: &Poly) -> Result<Vec<f64>, CkksError> {
        if poly.n != self.n() || poly.limbs == 0 {
            return Err(CkksError::ShapeMismatch("polynomial"));
        }
        let mut low = poly.lowest(poly.limbs.min(2));
        low.to_coeff(self);
        let m0 = self.modulus(0);
        if low.limbs == 1 {
            return Ok(low.limb(0).iter().map(|&x| m0.centre(x) as f64).collect());
        }
        let m1 = self.modulus(1);
        let inv = m1.shoup(m1.inv(m1.reduce(m0.value())));
        let product = m0.value() as i128 * m1.value() as i128;
        let lift = |(&x, &y): (&u64, &u64)| {
            let k = m1.mul_shoup(inv, m1.sub(y, m1.reduce(x)));
            let value = x as i128 + m0.value() as i128 * k as i128;
            (if value > product / 2 {
                value - product
            } else {
                value
            }) as f64
        };
        Ok(low.limb(0).iter().zip(low.limb(1)).map(lift).collect())
    }

    /// Slot values of a message polynomial carried at `scale`; all N/2 slots.
    pub fn decode(&self, poly: &Poly, scale: f64) -> Result<Vec<Complex>, CkksError> {
        let c = self.centred_coefficients(poly)?;
        let (lo, hi) = c.split_at(self.slots());
        let mut v: Vec<Complex> = lo
            .iter()
            .zip(hi)
            .map(|(&re, &im)| Complex::new(re / scale, im / scale))
            .collect();
        self.encoder().forward(&mut v);
        Ok(v)
    }
}

#[cfg(test)]
mod tests;
