//! Evaluation keys of a chain, by what they are used for and in all, without making them:
//! `cargo run --release -p cipherhop-hop --example key_totals -- [n16-128]`. Levels follow from typical degrees.

use std::collections::BTreeMap;

use cipherhop_ckks::{KeySpec, Params, expanded_key_size, key_size};
use cipherhop_hop::circuit::Circuit;
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::error::HopError;
use cipherhop_hop::layout::{Layout, Shape};
use cipherhop_hop::plan::{Approx, LayerPlan, Levels, place_refreshes};
use cipherhop_hop::program::merge_keys;
use cipherhop_hop::schedule::step_keys;
use cipherhop_hop::tensors::{PackedLayer, Rope};

fn approx(degree: usize) -> Approx {
    Approx {
        lo: 0.5,
        hi: 4.0,
        coeffs: vec![1.0; degree + 1],
    }
}

fn totals(engine: &Engine, what: &str, shape: Shape, tokens: usize) -> Result<(), HopError> {
    let params: &Params = engine.ctx.params();
    let layout = Layout::new(shape, params.slots(), tokens, 2)?;
    let norm = || approx(63);
    let mut plan = LayerPlan {
        lift: [8, 4],
        norms: [norm(), norm()],
        qk: shape.qk_norm.then(|| [norm(), norm()]),
        raw_private: 4.0,
        raw_public: 4.0,
        score: 8.0,
        sigmoid: approx(127).coeffs,
        softplus: approx(127).coeffs,
        silu: approx(127),
        o: 4.0,
        up: 4.0,
        down: 4.0,
        refresh: Vec::new(),
    };
    let levels = Levels::count(
        0,
        &layout,
        &plan,
        params.boot_in_level(),
        params.boot_out_level(),
    )?;
    plan.refresh = place_refreshes(0, &layout, &plan, &levels)?;
    let half = tokens * shape.head_dim / 2;
    let rope = Rope {
        cos: vec![1.0; half],
        sin: vec![0.0; half],
        interleaved: !shape.qk_norm,
    };
    let weights = PackedLayer::blank(&layout);
    let circuit = Circuit {
        layout: &layout,
        plan: &plan,
        levels,
        f: 64.0,
        eps: 1.0 / 65536.0,
        weights: &weights,
        rope: &rope,
    };
    let used: Vec<KeySpec> = step_keys(&circuit, &engine.boot)?
        .into_iter()
        .flatten()
        .collect();
    let uses = used.len();
    let keys = merge_keys(used);
    let mut by_limbs: BTreeMap<usize, usize> = BTreeMap::new();
    for key in &keys {
        *by_limbs.entry(key.limbs).or_default() += 1;
    }
    let sum = |f: fn(&Params, KeySpec) -> usize| -> f64 {
        keys.iter().map(|k| f(params, *k)).sum::<usize>() as f64 / (1u64 << 30) as f64
    };
    println!(
        "{what}, {tokens} tokens, {}: {} keys, {uses} uses, download {:.3} GiB, expanded {:.3} GiB; limbs: {by_limbs:?}",
        params.name,
        keys.len(),
        sum(key_size),
        sum(expanded_key_size),
    );
    Ok(())
}

fn main() -> Result<(), HopError> {
    let name = std::env::args().nth(1);
    let engine = Engine::new(
        Params::by_name(name.as_deref().unwrap_or("n16-128"))
            .map_err(cipherhop_ckks::CkksError::from)?,
    )?;
    let smollm2 = Shape {
        d: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        mlp: 1536,
        qk_norm: false,
    };
    let qwen3 = Shape {
        d: 2048,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        mlp: 6144,
        qk_norm: true,
    };
    for tokens in [3, 6] {
        totals(&engine, "SmolLM2-135M", smollm2, tokens)?;
    }
    for tokens in [3, 4] {
        if let Err(error) = totals(&engine, "Qwen3-2B shape", qwen3, tokens) {
            println!("Qwen3-2B shape, {tokens} tokens: {error}");
        }
    }
    Ok(())
}
