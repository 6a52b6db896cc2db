//! Encryption and decryption with the secret key.

use crate::keygen::small_ntt_limbs;
use crate::noise;
use crate::secret::{SecretError, SecretKey};
use cipherhop_ckks::{Ciphertext, Complex, Context, Domain, Poly, ScaleId};
use rand::CryptoRng;
use rayon::prelude::*;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Encrypts and decrypts under one secret.
pub struct Cryptor {
    ctx: Arc<Context>,
    /// the dense secret modulo all q, NTT domain
    dense: Zeroizing<Vec<u64>>,
}

impl std::fmt::Debug for Cryptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cryptor(..)")
    }
}

impl Cryptor {
    /// Prepares the secret; fails if it belongs to another parameter set.
    pub fn new(ctx: Arc<Context>, secret: &SecretKey) -> Result<Cryptor, SecretError> {
        secret.check(ctx.params())?;
        if ctx.params().sigma != noise::SIGMA {
            return Err(SecretError::UnsupportedNoise(ctx.params().sigma));
        }
        let all: Vec<usize> = (0..ctx.q_len()).collect();
        let dense = small_ntt_limbs(&ctx, &all, secret.dense());
        Ok(Cryptor { ctx, dense })
    }

    /// Encrypts slot values (a power of two of them, up to N/2, repeated over all slots) at a level of the
    /// message row: c1 uniform, c0 = -c1*s + e + m.
    pub fn encrypt<R: CryptoRng>(
        &self,
        values: &[Complex],
        level: usize,
        rng: &mut R,
    ) -> Result<Ciphertext, SecretError> {
        let ctx = &*self.ctx;
        let scale = ctx.scale_of(ScaleId::Message, level)?;
        let limbs = level + 1;
        let n = ctx.n();
        let message = ctx.encode_poly(values, limbs, scale)?;
        let error = noise::gaussian(rng, n);
        let moduli: Vec<usize> = (0..limbs).collect();
        let error = small_ntt_limbs(ctx, &moduli, &error);
        let mut c1 = vec![0u64; limbs * n];
        for (i, limb) in c1.chunks_exact_mut(n).enumerate() {
            noise::uniform(rng, ctx.modulus(i).value(), limb);
        }
        let mut c0 = vec![0u64; limbs * n];
        c0.par_chunks_exact_mut(n).enumerate().for_each(|(i, out)| {
            let m = ctx.modulus(i);
            let at = i * n..(i + 1) * n;
            let (a, s, e) = (&c1[at.clone()], &self.dense[at.clone()], &error[at]);
            let message = message.limb(i);
            for (k, x) in out.iter_mut().enumerate() {
                *x = m.add(m.add(message[k], e[k]), m.neg(m.mul(a[k], s[k])));
            }
        });
        let c0 = Poly::from_data(ctx, limbs, Domain::Ntt, c0)?;
        let c1 = Poly::from_data(ctx, limbs, Domain::Ntt, c1)?;
        Ok(Ciphertext::from_parts(ctx, c0, c1, ScaleId::Message)?)
    }

    /// Slot values of a ciphertext, all N/2.
    pub fn decrypt(&self, ct: &Ciphertext) -> Result<Vec<Complex>, SecretError> {
        let ctx = &*self.ctx;
        let scale = ctx.scale_of(ct.scale_id(), ct.level())?;
        Ok(ctx.decode(&self.phase(ct, (ct.level() + 1).min(2))?, scale)?)
    }

    /// c0 + c1*s on the lowest `limbs` limbs.
    fn phase(&self, ct: &Ciphertext, limbs: usize) -> Result<Poly, SecretError> {
        let ctx = &*self.ctx;
        let n = ctx.n();
        let (c0, c1) = ct.parts();
        if c0.n() != n || c0.limbs() < limbs || c1.limbs() < limbs {
            return Err(cipherhop_ckks::CkksError::ShapeMismatch("ciphertext").into());
        }
        let mut data = vec![0u64; limbs * n];
        for (i, out) in data.chunks_exact_mut(n).enumerate() {
            let m = ctx.modulus(i);
            let s = &self.dense[i * n..(i + 1) * n];
            let parts = c0.limb(i).iter().zip(c1.limb(i));
            for ((x, (&a, &b)), &s) in out.iter_mut().zip(parts).zip(s) {
                *x = m.add(a, m.mul(b, s));
            }
        }
        Ok(Poly::from_data(ctx, limbs, Domain::Ntt, data)?)
    }
}
