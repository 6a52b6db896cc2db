//! Evaluation keys. Each component is an encryption under the target secret of P times the source secret
//! on the limbs of its digit, with fresh Gaussian noise; the uniform half comes from a public seed.

use crate::noise;
use crate::secret::{SecretError, SecretKey};
use cipherhop_ckks::{Context, EvalKey, KeyId, KeySpec};
use rand::{CryptoRng, SeedableRng};
use rand_chacha::ChaCha20Rng;
use rayon::prelude::*;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Generates evaluation keys from one secret.
pub struct EvalKeyGen<'a> {
    ctx: Arc<Context>,
    secret: &'a SecretKey,
    /// the dense secret modulo every modulus (all q, then all p), NTT domain
    dense: Zeroizing<Vec<u64>>,
}

/// Small integer coefficients modulo modulus number `index`, NTT domain.
pub(crate) fn small_ntt(ctx: &Context, index: usize, coefficients: &[i8], out: &mut [u64]) {
    let m = ctx.modulus(index);
    for (o, &c) in out.iter_mut().zip(coefficients) {
        *o = m.from_i64(c as i64);
    }
    ctx.ntt_forward(index, out);
}

/// Small integer coefficients modulo each of the listed moduli, NTT domain, one limb after the other.
pub(crate) fn small_ntt_limbs(
    ctx: &Context,
    moduli: &[usize],
    coefficients: &[i8],
) -> Zeroizing<Vec<u64>> {
    let n = ctx.n();
    let mut out = Zeroizing::new(vec![0u64; moduli.len() * n]);
    out.par_chunks_exact_mut(n)
        .zip(moduli)
        .for_each(|(limb, &index)| small_ntt(ctx, index, coefficients, limb));
    out
}

/// The polynomial under X -> X^galois.
fn automorphism(coefficients: &[i8], galois: usize) -> Zeroizing<Vec<i8>> {
    let n = coefficients.len();
    let mut out = Zeroizing::new(vec![0i8; n]);
    for (i, &c) in coefficients.iter().enumerate() {
        let e = i * galois % (2 * n);
        if e < n {
            out[e] = c;
        } else {
            out[e - n] = -c;
        }
    }
    out
}

impl<'a> EvalKeyGen<'a> {
    /// Prepares generation; fails if the secret belongs to another parameter set.
    pub fn new(ctx: Arc<Context>, secret: &'a SecretKey) -> Result<EvalKeyGen<'a>, SecretError> {
        secret.check(ctx.params())?;
        if ctx.params().sigma != noise::SIGMA {
            return Err(SecretError::UnsupportedNoise(ctx.params().sigma));
        }
        let all: Vec<usize> = (0..ctx.moduli_len()).collect();
        let dense = small_ntt_limbs(&ctx, &all, secret.dense());
        Ok(EvalKeyGen { ctx, secret, dense })
    }

    /// Generates one key. The generator gives the public seed and the seed of the noise stream.
    pub fn generate<R: CryptoRng>(
        &self,
        spec: &KeySpec,
        rng: &mut R,
    ) -> Result<EvalKey, SecretError> {
        let ctx = &*self.ctx;
        spec.check(ctx)?;
        let n = ctx.n();
        let special = spec.special(ctx);
        let moduli: Vec<usize> = (0..spec.limbs + special)
            .map(|i| ctx.ext_index(spec.limbs, i))
            .collect();
        let mut seed = [0u8; 32];
        rng.fill_bytes(&mut seed);
        let mut noise_seed = Zeroizing::new([0u8; 32]);
        rng.fill_bytes(&mut noise_seed[..]);
        let mut noise_rng = ChaCha20Rng::from_seed(*noise_seed);

        let source = self.source(spec.id, &moduli[..spec.limbs]);
        let sparse_target = (spec.id == KeyId::ToSparse)
            .then(|| small_ntt_limbs(ctx, &moduli, self.secret.sparse()));
        // limb i of the target secret
        let target = |i: usize| match &sparse_target {
            Some(s) => &s[i * n..(i + 1) * n],
            None => &self.dense[moduli[i] * n..(moduli[i] + 1) * n],
        };
        let alpha = ctx.params().alpha;
        let mut halves = Vec::with_capacity(spec.digits(ctx));
        for digit in 0..spec.digits(ctx) {
            let a = EvalKey::uniform_half(ctx, *spec, &seed, digit);
            let noise = noise::gaussian(&mut noise_rng, n);
            let mut b = vec![0u64; a.len()];
            b.par_chunks_exact_mut(n).enumerate().for_each(|(i, b)| {
                let m = ctx.modulus(moduli[i]);
                small_ntt(ctx, moduli[i], &noise, b);
                for ((x, &a), &s) in b.iter_mut().zip(&a[i * n..]).zip(target(i)) {
                    *x = m.sub(*x, m.mul(a, s));
                }
                if i < spec.limbs && i / alpha == digit {
                    let p = (0..special).fold(1, |p, k| {
                        m.mul(p, m.reduce(ctx.modulus(ctx.q_len() + k).value()))
                    });
                    for (x, &t) in b.iter_mut().zip(&source[i * n..(i + 1) * n]) {
                        *x = m.add(*x, m.mul(p, t));
                    }
                }
            });
            halves.push(b);
        }
        Ok(EvalKey::from_parts(ctx, *spec, seed, halves)?)
    }

    /// The secret that the key switches from, on the given q limbs.
    fn source(&self, id: KeyId, moduli: &[usize]) -> Zeroizing<Vec<u64>> {
        let ctx = &*self.ctx;
        let n = ctx.n();
        let rotated =
            |galois| small_ntt_limbs(ctx, moduli, &automorphism(self.secret.dense(), galois));
        match id {
            KeyId::Relin => {
                let mut square = Zeroizing::new(self.dense[..moduli.len() * n].to_vec());
                for (i, limb) in square.chunks_exact_mut(n).enumerate() {
                    let m = ctx.modulus(moduli[i]);
                    limb.iter_mut().for_each(|x| *x = m.mul(*x, *x));
                }
                square
            }
            KeyId::Conj => rotated(ctx.galois_conjugation()),
            KeyId::Rot(r) => rotated(ctx.galois_rotation(r as usize)),
            KeyId::ToSparse => Zeroizing::new(self.dense[..moduli.len() * n].to_vec()),
            KeyId::FromSparse => small_ntt_limbs(ctx, moduli, self.secret.sparse()),
        }
    }
}
