//! The operations the circuit is written in. The same circuit runs on the plaintext simulation, on the
//! recorder that counts levels and keys, and on ciphertexts.

use std::sync::Arc;

use cipherhop_ckks::Complex;

use crate::error::HopError;
use crate::lin::LinearSpec;

/// Polynomial in the Chebyshev basis on [-1, 1], optionally with a factor per slot.
#[derive(Debug, Clone, PartialEq)]
pub struct Poly {
    /// Name used in error messages.
    pub name: &'static str,
    /// Coefficients of T_0, T_1, ...
    pub coeffs: Vec<f64>,
    /// Factor per slot (period B, or all slots); costs no level.
    pub mask: Option<Arc<Vec<f64>>>,
}

impl Poly {
    /// Coefficients times a constant.
    pub fn scaled(name: &'static str, coeffs: &[f64], by: f64) -> Poly {
        Poly {
            name,
            coeffs: coeffs.iter().map(|c| c * by).collect(),
            mask: None,
        }
    }

    /// The same polynomial with a factor per slot.
    pub fn masked(mut self, mask: Vec<f64>) -> Poly {
        self.mask = Some(Arc::new(mask));
        self
    }
}

/// Levels a polynomial with these Chebyshev coefficients uses.
pub fn poly_depth(coeffs: &[f64]) -> usize {
    cipherhop_ckks::cheb_depth(coeffs.iter().rposition(|c| *c != 0.0).unwrap_or(0))
}

/// Arithmetic on slot vectors with levels. Binary operations lower the higher operand by themselves.
/// Plaintext vectors have the period B or span all slots.
pub trait Backend {
    /// A ciphertext, or what stands for one.
    type Ct: Clone;

    /// Level left.
    fn level(&self, a: &Self::Ct) -> usize;
    /// a + b.
    fn add(&self, a: &Self::Ct, b: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// a - b.
    fn sub(&self, a: &Self::Ct, b: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// a + plaintext; no level.
    fn add_plain(&self, a: &Self::Ct, v: &[Complex]) -> Result<Self::Ct, HopError>;
    /// a * plaintext; one level.
    fn mul_plain(&self, a: &Self::Ct, v: &[Complex]) -> Result<Self::Ct, HopError>;
    /// a * integer; no level.
    fn mul_int(&self, a: &Self::Ct, by: i64) -> Result<Self::Ct, HopError>;
    /// i * a; no level.
    fn mul_i(&self, a: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// a * b; one level.
    fn mul(&self, a: &Self::Ct, b: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// a * a; one level.
    fn square(&self, a: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// out[p] = a[p + steps].
    fn rotate(&self, a: &Self::Ct, steps: i64) -> Result<Self::Ct, HopError>;
    /// Several rotations of one ciphertext (hoisted).
    fn rotate_many(&self, a: &Self::Ct, steps: &[i64]) -> Result<Vec<Self::Ct>, HopError>;
    /// Complex conjugate of every slot.
    fn conj(&self, a: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// Lowers the level.
    fn drop_to(&self, a: &Self::Ct, level: usize) -> Result<Self::Ct, HopError>;
    /// A linear map; one level. `weight(output, input)` gives its entries.
    fn linear(
        &self,
        a: &Self::Ct,
        map: &LinearSpec,
        weight: &(dyn Fn(usize, usize) -> Complex + Sync),
    ) -> Result<Self::Ct, HopError>;
    /// Polynomials of one argument in [-1, 1]; they share the powers.
    fn polys(&self, a: &Self::Ct, polys: &[Poly]) -> Result<Vec<Self::Ct>, HopError>;

    /// Bootstrap, first stage: slots to coefficients. Values within [-1, 1]; imaginary parts are ignored
    /// unless the bootstrap is complex.
    fn boot_stc(&self, a: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// Sparse encapsulation and modulus raising.
    fn boot_raise(&self, a: &Self::Ct) -> Result<Self::Ct, HopError>;
    /// Coefficients to slots: one ciphertext, or real and imaginary part.
    fn boot_cts(&self, a: &Self::Ct, complex: bool) -> Result<Vec<Self::Ct>, HopError>;
    /// Reduction modulo q0; multiplies the values by `gain` on the way.
    fn boot_evalmod(&self, a: &Self::Ct, gain: f64) -> Result<Self::Ct, HopError>;
}

/// Sum of a[p + c*step] over 0 <= c < count, by doubling.
pub fn span_sum<B: Backend>(b: &B, a: &B::Ct, step: i64, count: usize) -> Result<B::Ct, HopError> {
    let mut power = a.clone();
    let (mut width, mut rest) = (1usize, count);
    let mut total: Option<(B::Ct, usize)> = None;
    loop {
        if rest & 1 == 1 {
            total = Some(match total {
                None => (power.clone(), width),
                Some((sum, done)) => {
                    let moved = b.rotate(&power, step * done as i64)?;
                    (b.add(&sum, &moved)?, done + width)
                }
            });
        }
        rest >>= 1;
        if rest == 0 {
            break;
        }
        power = b.add(&power, &b.rotate(&power, step * width as i64)?)?;
        width *= 2;
    }
    total
        .map(|t| t.0)
        .ok_or_else(|| HopError::Internal("empty sum".into()))
}

/// Sum over c of rot(terms[c], c*step), by Horner's rule.
pub fn horner<B: Backend>(b: &B, terms: &[B::Ct], step: i64) -> Result<B::Ct, HopError> {
    let mut acc: Option<B::Ct> = None;
    for term in terms.iter().rev() {
        acc = Some(match acc {
            None => term.clone(),
            Some(sum) => b.add(term, &b.rotate(&sum, step)?)?,
        });
    }
    acc.ok_or_else(|| HopError::Internal("empty sum".into()))
}
