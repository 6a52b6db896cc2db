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

#[cfg(test)]
mod tests {
    use super::*;
    use cipherhop_ckks::{CkksError, Params};

    struct Fixture {
        ctx: Arc<Context>,
        secret: SecretKey,
    }

    fn fixture() -> Fixture {
        let params = Params::by_name("n10-INSECURE").unwrap();
        let secret = SecretKey::generate(&params, &mut ChaCha20Rng::seed_from_u64(3));
        let ctx = Context::new(params).unwrap();
        Fixture { ctx, secret }
    }

    /// b + a*s - gadget for every limb of a digit, as centred integers.
    fn noise_of(f: &Fixture, key: &EvalKey, digit: usize) -> Vec<Vec<i64>> {
        let ctx = &*f.ctx;
        let generator = EvalKeyGen::new(f.ctx.clone(), &f.secret).unwrap();
        let (spec, n) = (key.spec(), ctx.n());
        let special = spec.special(ctx);
        let moduli: Vec<usize> = (0..spec.limbs + special)
            .map(|i| ctx.ext_index(spec.limbs, i))
            .collect();
        let target = match spec.id {
            KeyId::ToSparse => small_ntt_limbs(ctx, &moduli, f.secret.sparse()),
            _ => small_ntt_limbs(ctx, &moduli, f.secret.dense()),
        };
        let source = generator.source(spec.id, &moduli[..spec.limbs]);
        let limbs = key.component(digit).unwrap();
        moduli
            .iter()
            .enumerate()
            .zip(limbs)
            .map(|((i, &index), (b, a))| {
                let m = ctx.modulus(index);
                let p = (0..special).fold(1, |p, k| {
                    m.mul(p, m.reduce(ctx.modulus(ctx.q_len() + k).value()))
                });
                let mut e: Vec<u64> = (0..n)
                    .map(|k| {
                        let phase = m.add(b[k], m.mul(a[k], target[i * n + k]));
                        if i < spec.limbs && i / ctx.params().alpha == digit {
                            m.sub(phase, m.mul(p, source[i * n + k]))
                        } else {
                            phase
                        }
                    })
                    .collect();
                ctx.ntt_inverse(index, &mut e);
                e.iter().map(|&x| m.centre(x)).collect()
            })
            .collect()
    }

    #[test]
    fn every_key_carries_gaussian_noise_and_the_right_message() {
        let f = fixture();
        let generator = EvalKeyGen::new(f.ctx.clone(), &f.secret).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(4);
        let all = [
            (KeyId::Relin, 26),
            (KeyId::Conj, 5),
            (KeyId::Rot(1), 29),
            (KeyId::Rot(511), 9),
            (KeyId::ToSparse, 1),
            (KeyId::FromSparse, 29),
        ];
        for (id, limbs) in all {
            let key = generator
                .generate(&KeySpec { id, limbs }, &mut rng)
                .unwrap();
            let digits = limbs.div_ceil(8);
            assert!(key.component(digits).is_none());
            for digit in 0..digits {
                let noise = noise_of(&f, &key, digit);
                let n = noise[0].len() as f64;
                for limb in &noise {
                    assert_eq!(limb, &noise[0], "{id}: one integer polynomial on all limbs");
                }
                let sigma = (noise[0].iter().map(|&e| (e * e) as f64).sum::<f64>() / n).sqrt();
                assert!(
                    (sigma - 3.19).abs() < 0.4,
                    "{id} digit {digit}: sigma {sigma}"
                );
                assert!(noise[0].iter().all(|e| e.abs() <= 29));
            }
        }
    }

    #[test]
    fn a_key_to_the_sparse_secret_exists_only_at_one_limb() {
        let f = fixture();
        let generator = EvalKeyGen::new(f.ctx.clone(), &f.secret).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        for limbs in [0, 2, 8, 29] {
            let id = KeyId::ToSparse;
            assert!(
                generator
                    .generate(&KeySpec { id, limbs }, &mut rng)
                    .is_err()
            );
        }
        let spec = KeySpec {
            id: KeyId::ToSparse,
            limbs: 1,
        };
        let key = generator.generate(&spec, &mut rng).unwrap();
        assert_eq!(key.component(0).unwrap().len(), 2, "q0 and p0 only");
        for (id, limbs) in [(KeyId::Rot(0), 4), (KeyId::Rot(512), 4), (KeyId::Relin, 30)] {
            let refused = generator.generate(&KeySpec { id, limbs }, &mut rng);
            assert!(matches!(
                refused,
                Err(SecretError::Ckks(CkksError::BadHeader(_)))
            ));
        }
    }

    #[test]
    fn keys_never_repeat_their_randomness() {
        let f = fixture();
        let generator = EvalKeyGen::new(f.ctx.clone(), &f.secret).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        let spec = KeySpec {
            id: KeyId::Rot(3),
            limbs: 9,
        };
        let a = generator.generate(&spec, &mut rng).unwrap();
        let b = generator.generate(&spec, &mut rng).unwrap();
        assert!(a.component(0).unwrap().ne(b.component(0).unwrap()));
        assert_ne!(noise_of(&f, &a, 0)[0], noise_of(&f, &b, 0)[0]);
        assert_ne!(noise_of(&f, &a, 0)[0], noise_of(&f, &a, 1)[0]);
    }
}
