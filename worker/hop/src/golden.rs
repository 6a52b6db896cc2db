//! Self-test of byte equality: one small hop whose keys, input, weights and polynomials all come from a fixed
//! integer generator. The plaintext is noise, the bytes are not: every machine must get the same digest.

use std::sync::Arc;

use cipherhop_ckks::{Ciphertext, EvalKey, EvalKeys, Params, ScaleId};
use sha2::{Digest, Sha256};

use crate::circuit::Circuit;
use crate::ckks_backend::Engine;
use crate::error::HopError;
use crate::layout::{Layout, Shape};
use crate::plan::{Approx, LayerPlan, Levels, place_refreshes};
use crate::program::merge_keys;
use crate::record::Record;
use crate::tensors::{PackedLayer, Rope};

/// What [`golden_digest`] returns on a machine that computes correctly.
pub const GOLDEN: &str = "745536112a773ee785c8e49173ca8ba4aa417c117ab4f0b0390eb792b322bec3";

/// Multiples of 2^-16 in [-1, 1), from SplitMix64.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut s = self.0;
        s = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        s = (s ^ (s >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        s ^= s >> 31;
        f64::from((s >> 47) as u32) / 65536.0 - 1.0
    }

    fn values(&mut self, len: usize) -> Vec<f64> {
        (0..len).map(|_| self.next()).collect()
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        self.values(len).into_iter().map(|v| v as f32).collect()
    }

    fn approx(&mut self, degree: usize) -> Approx {
        Approx {
            lo: 0.5,
            hi: 4.0,
            coeffs: self.values(degree + 1),
        }
    }
}

/// Runs the hop on `threads` threads; SHA-256 over the engine's tables and all registers. A few seconds.
pub fn golden_digest(threads: usize) -> Result<[u8; 32], HopError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .build()
        .map_err(|e| HopError::Internal(e.to_string()))?;
    pool.install(compute)
}

fn compute() -> Result<[u8; 32], HopError> {
    let params = Params::by_name("n10-INSECURE").map_err(cipherhop_ckks::CkksError::from)?;
    let engine = Engine::new(params.clone())?;
    let mut s = Stream(2026);
    let shape = Shape {
        d: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        mlp: 192,
        qk_norm: true,
    };
    let layout = Layout::new(shape, params.slots(), 1, 2)?;
    let (low, top) = (params.boot_in_level(), params.boot_out_level());
    let mut plan = LayerPlan {
        lift: [8, 4],
        norms: [s.approx(15), s.approx(31)],
        qk: Some([s.approx(15), s.approx(15)]),
        raw_private: 4.0,
        raw_public: 4.0,
        score: 8.0,
        sigmoid: s.values(64),
        softplus: s.values(64),
        silu: s.approx(63),
        o: 4.0,
        up: 4.0,
        down: 4.0,
        refresh: Vec::new(),
    };
    let levels = Levels::count(0, &plan, low, top)?;
    plan.refresh = place_refreshes(0, &layout, &plan, &levels)?;
    let (d, kv, mlp) = (shape.d, shape.kv_heads * shape.head_dim, shape.mlp);
    let weights = PackedLayer {
        q: s.floats(d * d),
        k: s.floats(kv * d),
        v: s.floats(kv * d),
        o: s.floats(d * d),
        gate: s.floats(mlp * d),
        up: s.floats(mlp * d),
        down: s.floats(d * mlp),
        q_gain: s.floats(shape.head_dim),
        k_gain: s.floats(shape.head_dim),
        pub_k: s.floats(2 * kv),
        pub_v: s.floats(2 * kv),
    };
    let rope = Rope {
        cos: s.values(shape.head_dim / 2),
        sin: s.values(shape.head_dim / 2),
        interleaved: false,
    };
    let circuit = Circuit {
        layout: &layout,
        plan: &plan,
        levels,
        f: 64.0,
        eps: 1.0 / 65536.0,
        weights: &weights,
        rope: &rope,
    };
    let record = Record::new(params.slots(), low, top);
    circuit.run(&record, top)?;
    let mut specs = record.key_specs();
    specs.extend(engine.boot.key_specs());
    let mut keys = EvalKeys::new();
    for spec in merge_keys(specs) {
        keys.insert(EvalKey::pseudorandom(&engine.ctx, spec, &[1; 32])?);
    }
    let input = Ciphertext::pseudorandom(&engine.ctx, top, ScaleId::Message, &[2; 32])?;
    let mut hash = Sha256::new();
    hash.update(engine.ctx.tables_digest());
    circuit.run_observed(
        &engine.backend(Arc::new(keys)),
        input,
        &mut |ct: &Ciphertext| {
            hash.update(ct.digest(&engine.ctx));
        },
    )?;
    Ok(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_hop_gives_the_committed_digest_on_one_and_two_threads() {
        for threads in [1, 2] {
            assert_eq!(hex::encode(golden_digest(threads).unwrap()), GOLDEN);
        }
    }
}
