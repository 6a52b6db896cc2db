//! Built-in models of test size in both shapes: weights from a fixed seed, a byte vocabulary.

use sha2::{Digest, Sha256};

use super::{
    Architecture, LayerWeights, Matrix, Model, ModelConfig, ModelError, RopeLayout, SplitMix64,
    Tokenizer, weights::Store,
};

/// Names [`Model::open`] knows without a file.
pub const TINY_NAMES: [&str; 2] = ["tiny-llama", "tiny-qwen3"];

fn config(arch: Architecture) -> ModelConfig {
    let llama = arch == Architecture::Llama;
    ModelConfig {
        arch,
        d: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        mlp: 192,
        layers: 3,
        vocab: super::tokenizer::BYTE_VOCAB,
        eps: if llama { 1e-5 } else { 1e-6 },
        rope_theta: if llama { 1e4 } else { 1e6 },
        rope_layout: if llama {
            RopeLayout::Interleaved
        } else {
            RopeLayout::HalfSplit
        },
        tied: false,
    }
}

fn matrix(g: &mut SplitMix64, rows: usize, cols: usize, deviation: f64) -> Matrix {
    Matrix {
        rows,
        cols,
        data: (0..rows * cols)
            .map(|_| (g.normal() * deviation) as f32)
            .collect(),
    }
}

fn gammas(g: &mut SplitMix64, len: usize, centre: f64) -> Vec<f32> {
    (0..len)
        .map(|_| (centre * (1.0 + 0.2 * g.normal()).clamp(0.4, 1.6)) as f32)
        .collect()
}

/// Deviations follow oracle/slots.py (scores, gates and branches of ordinary size); 1/8 is 1/sqrt(64).
fn layer(g: &mut SplitMix64, cfg: &ModelConfig) -> LayerWeights {
    let (d, q, kv, mlp, unit) = (cfg.d, cfg.q_width(), cfg.kv_width(), cfg.mlp, 0.125);
    LayerWeights {
        attn_norm: gammas(g, d, 1.0),
        q: matrix(g, q, d, unit),
        k: matrix(g, kv, d, unit),
        v: matrix(g, kv, d, unit),
        o: matrix(g, d, q, 0.7 * unit),
        q_norm: cfg.qk_norm().then(|| gammas(g, cfg.head_dim, 1.25)),
        k_norm: cfg.qk_norm().then(|| gammas(g, cfg.head_dim, 1.25)),
        ffn_norm: gammas(g, d, 1.0),
        gate: matrix(g, mlp, d, 2.0 * unit),
        up: matrix(g, mlp, d, 1.3 * unit),
        down: matrix(g, d, mlp, 0.5 * unit),
    }
}

/// A built-in model, or `None` for another name.
pub(crate) fn by_name(name: &str) -> Result<Option<Model>, ModelError> {
    let (arch, seed) = match name {
        "tiny-llama" => (Architecture::Llama, 0x7469_6e79_0000_0001),
        "tiny-qwen3" => (Architecture::Qwen3, 0x7469_6e79_0000_0002),
        _ => return Ok(None),
    };
    let config = config(arch);
    config.check()?;
    let mut g = SplitMix64::new(seed);
    let embedding = matrix(&mut g, config.vocab, config.d, 1.0);
    let layers: Vec<LayerWeights> = (0..config.layers).map(|_| layer(&mut g, &config)).collect();
    let final_norm = gammas(&mut g, config.d, 1.0);
    let lm_head = matrix(&mut g, config.vocab, config.d, 0.3);
    let weights_sha256 = digest(&embedding, &layers, &final_norm, &lm_head);
    Ok(Some(Model {
        name: name.to_string(),
        config,
        tokenizer: Tokenizer::bytes(),
        weights_sha256,
        embedding,
        final_norm,
        lm_head: Some(lm_head),
        store: Store::Memory(layers),
    }))
}

fn digest(
    embedding: &Matrix,
    layers: &[LayerWeights],
    final_norm: &[f32],
    lm_head: &Matrix,
) -> String {
    let mut hash = Sha256::new();
    let mut add = |values: &[f32]| values.iter().for_each(|v| hash.update(v.to_le_bytes()));
    add(&embedding.data);
    for w in layers {
        for m in [&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down] {
            add(&m.data);
        }
        for n in [
            Some(&w.attn_norm),
            Some(&w.ffn_norm),
            w.q_norm.as_ref(),
            w.k_norm.as_ref(),
        ]
        .into_iter()
        .flatten()
        {
            add(n);
        }
    }
    add(final_norm);
    add(&lm_head.data);
    hex::encode(hash.finalize())
}
