//! What the engine tests share: a seeded owner with keys.

#![allow(dead_code, clippy::unwrap_used)]

use cipherhop_ckks::*;
use cipherhop_owner::{Cryptor, EvalKeyGen, SecretKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use std::sync::Arc;

pub struct Owner {
    pub ctx: Arc<Context>,
    pub secret: SecretKey,
    pub cryptor: Cryptor,
    pub rng: ChaCha20Rng,
}

impl Owner {
    pub fn new(name: &str, seed: u64) -> Owner {
        let ctx = Context::new(Params::by_name(name).unwrap()).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let secret = SecretKey::generate(ctx.params(), &mut rng);
        let cryptor = Cryptor::new(ctx.clone(), &secret).unwrap();
        Owner {
            ctx,
            secret,
            cryptor,
            rng,
        }
    }

    pub fn keys(&mut self, specs: &[KeySpec]) -> EvalKeys {
        let generator = EvalKeyGen::new(self.ctx.clone(), &self.secret).unwrap();
        let mut keys = EvalKeys::new();
        for spec in specs {
            keys.insert(generator.generate(spec, &mut self.rng).unwrap());
        }
        keys
    }

    pub fn evaluator(&mut self, specs: &[KeySpec]) -> Evaluator {
        let keys = self.keys(specs);
        Evaluator::new(self.ctx.clone(), Arc::new(keys))
    }

    pub fn encrypt(&mut self, v: &[Complex], level: usize) -> Ciphertext {
        self.cryptor.encrypt(v, level, &mut self.rng).unwrap()
    }

    pub fn decrypt(&self, ct: &Ciphertext) -> Vec<Complex> {
        self.cryptor.decrypt(ct).unwrap()
    }
}

pub fn spec(id: KeyId, limbs: usize) -> KeySpec {
    KeySpec { id, limbs }
}

/// Values in [-1, 1], both parts.
pub fn values(len: usize, seed: u64) -> Vec<Complex> {
    let mut x = seed.wrapping_mul(0x9E3779B97F4A7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..len).map(|_| Complex::new(next(), next())).collect()
}

pub fn reals(len: usize, seed: u64) -> Vec<Complex> {
    values(len, seed)
        .iter()
        .map(|v| Complex::real(v.re))
        .collect()
}

/// (worst, average) of -log2 of the error, over the slots of `have`; `want` is repeated.
pub fn bits(have: &[Complex], want: &[Complex]) -> (f64, f64) {
    let errors: Vec<f64> = have
        .iter()
        .enumerate()
        .map(|(i, h)| (*h - want[i % want.len()]).abs())
        .collect();
    let worst = errors.iter().cloned().fold(0.0, f64::max);
    let average = errors.iter().sum::<f64>() / errors.len() as f64;
    (-worst.log2(), -average.log2())
}
