//! Self-test of byte equality: one small hop whose keys, input, weights and polynomials all come from a fixed
//! integer generator. The plaintext is noise, the bytes are not: every machine must get the same digest.

use std::sync::Arc;

use cipherhop_ckks::{
    Ciphertext, CkksError, EvalKey, EvalKeys, Isa, KeySource, KeySpec, Params, ScaleId,
};
use sha2::{Digest, Sha256};

use crate::circuit::Circuit;
use crate::ckks_backend::Engine;
use crate::error::HopError;
use crate::layout::{Layout, Shape};
use crate::plan::{Approx, LayerPlan, Levels, place_refreshes};
use crate::program::merge_keys;
use crate::record::Record;
use crate::tensors::{PackedLayer, Rope};

/// What [`golden_digest`] returns on a machine that computes correctly; tests/golden.rs says how to write it anew.
pub const GOLDEN: &str = include_str!("../../golden/hop-n10-INSECURE").trim_ascii();

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

/// Degrees of the polynomials of a synthetic layer.
#[derive(Debug, Clone, Copy)]
pub struct Degrees {
    /// Inverse square roots.
    pub norm: usize,
    /// Sigmoid and softplus.
    pub score: usize,
    /// SiLU.
    pub silu: usize,
}

/// A layer of any shape with pseudorandom weights, polynomials, keys and input.
pub struct Synthetic {
    engine: Engine,
    layout: Layout,
    plan: LayerPlan,
    levels: Levels,
    weights: PackedLayer,
    rope: Rope,
    keys: Arc<dyn KeySource>,
}

impl Synthetic {
    /// Makes the layer and its keys.
    pub fn new(
        params: Params,
        shape: Shape,
        tokens: usize,
        degrees: Degrees,
    ) -> Result<Synthetic, HopError> {
        let engine = Engine::new(params)?;
        Synthetic::with_engine(engine, shape, tokens, degrees)
    }

    /// The same on an engine made before.
    pub fn with_engine(
        engine: Engine,
        shape: Shape,
        tokens: usize,
        degrees: Degrees,
    ) -> Result<Synthetic, HopError> {
        let mut layer = Synthetic::planned(engine, shape, tokens, degrees)?;
        let mut keys = EvalKeys::new();
        for spec in layer.key_specs()? {
            keys.insert(EvalKey::pseudorandom(&layer.engine.ctx, spec, &[1; 32])?);
        }
        layer.set_keys(Arc::new(keys));
        Ok(layer)
    }

    /// The layer without keys.
    pub fn planned(
        engine: Engine,
        shape: Shape,
        tokens: usize,
        degrees: Degrees,
    ) -> Result<Synthetic, HopError> {
        let params = engine.ctx.params().clone();
        let mut s = Stream(2026);
        let layout = Layout::new(shape, params.slots(), tokens, 2)?;
        let (low, top) = (params.boot_in_level(), params.boot_out_level());
        let mut plan = LayerPlan {
            lift: [8, 4],
            norms: [s.approx(degrees.norm), s.approx(degrees.norm)],
            qk: shape
                .qk_norm
                .then(|| [s.approx(degrees.norm), s.approx(degrees.norm)]),
            raw_private: 4.0,
            raw_public: 4.0,
            score: 8.0,
            sigmoid: s.values(degrees.score + 1),
            softplus: s.values(degrees.score + 1),
            silu: s.approx(degrees.silu),
            o: 4.0,
            up: 4.0,
            down: 4.0,
            refresh: Vec::new(),
        };
        let levels = Levels::count(0, &layout, &plan, low, top)?;
        plan.refresh = place_refreshes(0, &layout, &plan, &levels)?;
        let (d, kv, mlp) = (shape.d, shape.kv_heads * shape.head_dim, shape.mlp);
        let gains = if shape.qk_norm { shape.head_dim } else { 0 };
        let weights = PackedLayer {
            q: s.floats(d * d),
            k: s.floats(kv * d),
            v: s.floats(kv * d),
            o: s.floats(d * d),
            gate: s.floats(mlp * d),
            up: s.floats(mlp * d),
            down: s.floats(d * mlp),
            q_gain: s.floats(gains),
            k_gain: s.floats(gains),
            pub_k: s.floats(2 * kv),
            pub_v: s.floats(2 * kv),
        };
        let rope = Rope {
            cos: s.values(tokens * shape.head_dim / 2),
            sin: s.values(tokens * shape.head_dim / 2),
            interleaved: !shape.qk_norm,
        };
        Ok(Synthetic {
            engine,
            layout,
            plan,
            levels,
            weights,
            rope,
            keys: Arc::new(EvalKeys::new()),
        })
    }

    /// The keys it needs, each for the most limbs it is used at.
    pub fn key_specs(&self) -> Result<Vec<KeySpec>, HopError> {
        let params = self.engine.ctx.params();
        let (low, top) = (params.boot_in_level(), params.boot_out_level());
        let record = Record::new(params.slots(), low, top);
        self.circuit().run(&record, top)?;
        let mut specs = record.key_specs();
        specs.extend(self.engine.boot.key_specs());
        Ok(merge_keys(specs))
    }

    /// Sets where [`Synthetic::run`] finds its keys.
    pub fn set_keys(&mut self, keys: Arc<dyn KeySource>) {
        self.keys = keys;
    }

    fn circuit(&self) -> Circuit<'_> {
        Circuit {
            layout: &self.layout,
            plan: &self.plan,
            levels: self.levels,
            f: 64.0,
            eps: 1.0 / 65536.0,
            weights: &self.weights,
            rope: &self.rope,
        }
    }

    /// Names of the registers in the order in which they are written.
    pub fn registers(&self) -> Vec<String> {
        self.circuit()
            .steps()
            .into_iter()
            .flat_map(|s| s.writes)
            .collect()
    }

    /// Runs the hop, showing every register; SHA-256 over the engine's tables and all registers.
    pub fn run(&self, see: &mut dyn FnMut(&Ciphertext)) -> Result<[u8; 32], HopError> {
        let ctx = &self.engine.ctx;
        let top = ctx.params().boot_out_level();
        let input = Ciphertext::pseudorandom(ctx, top, ScaleId::Message, &[2; 32])?;
        let mut hash = Sha256::new();
        hash.update(ctx.tables_digest());
        let backend = self.engine.backend(self.keys.clone());
        self.circuit()
            .run_observed(&backend, input, &mut |ct: &Ciphertext| {
                hash.update(ct.digest(ctx));
                see(ct);
            })?;
        Ok(hash.finalize().into())
    }
}

/// Runs the golden hop on `threads` threads; SHA-256 over the engine's tables and all registers. A few seconds.
pub fn golden_digest(threads: usize) -> Result<[u8; 32], HopError> {
    golden_digest_on(Isa::best(), threads)
}

/// The same with the kernel of that instruction set.
pub fn golden_digest_on(isa: Isa, threads: usize) -> Result<[u8; 32], HopError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .build()
        .map_err(|e| HopError::Internal(e.to_string()))?;
    let shape = Shape {
        d: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        mlp: 192,
        qk_norm: true,
    };
    let degrees = Degrees {
        norm: 15,
        score: 63,
        silu: 63,
    };
    pool.install(|| {
        let params = Params::by_name("n10-INSECURE").map_err(CkksError::from)?;
        let engine = Engine::on(isa, params)?;
        Synthetic::with_engine(engine, shape, 1, degrees)?.run(&mut |_| {})
    })
}
