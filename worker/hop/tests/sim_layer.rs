//! The whole circuit on the plaintext simulation against a plain layer.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use cipherhop_hop::backend::Backend;
use cipherhop_hop::circuit::Circuit;
use cipherhop_hop::sim::Sim;
use support::{Case, FLOOR, Options, TOP, case, qwen3_2b, smol, tiny};

/// Largest error of the layer's output relative to F, over all copies of all private tokens.
fn error(c: &Case, sim: &Sim) -> f64 {
    let circuit = Circuit {
        layout: &c.layout,
        plan: &c.plan,
        levels: c.levels,
        f: c.f,
        eps: c.eps,
        weights: &c.weights,
        rope: &c.rope,
    };
    let scaled = |v: &[f64]| v.iter().map(|a| a / c.f).collect::<Vec<_>>();
    let x = sim.input(c.layout.pack(&scaled(&c.x)), TOP);
    let out = circuit.run(sim, x).unwrap();
    assert_eq!(sim.level(&out), TOP);
    let wanted = c.layout.pack(&scaled(&c.y));
    let worst = |(a, b): (&cipherhop_ckks::Complex, &cipherhop_ckks::Complex)| (*a - *b).abs();
    out.slots.iter().zip(&wanted).map(worst).fold(0.0, f64::max)
}

fn exact(o: &Options, seed: u64) -> f64 {
    let c = case(o, seed);
    let sim = Sim::new(o.slots, FLOOR, TOP);
    let e = error(&c, &sim);
    println!("error / F {e:.2e}, refreshes {:?}", c.plan.refresh);
    e
}

#[test]
fn the_tiny_llama_layer_agrees_with_the_plain_layer() {
    for seed in 1..4 {
        assert!(exact(&tiny(false), seed) < 1e-3);
    }
}

#[test]
fn the_tiny_qwen3_layer_agrees_with_the_plain_layer() {
    for seed in 1..4 {
        assert!(exact(&tiny(true), seed) < 1e-3);
    }
}

#[test]
fn other_prompt_and_prefix_lengths_agree_too() {
    for (tokens, prefix) in [(1, 1), (1, 2), (2, 2), (3, 4), (3, 1)] {
        for qk_norm in [false, true] {
            let o = Options {
                tokens,
                prefix,
                ..tiny(qk_norm)
            };
            assert!(exact(&o, 7) < 1e-3, "T={tokens} P={prefix} {qk_norm}");
        }
    }
}

#[test]
fn a_layer_of_smollm2_width_agrees_with_the_plain_layer() {
    assert!(exact(&smol(8192, 3), 1) < 1e-3);
}

#[test]
fn six_and_seven_tokens_fit_the_production_ring() {
    for tokens in [6, 7] {
        let o = Options {
            norm_degree: 63,
            ..smol(32768, tokens)
        };
        assert!(exact(&o, 2) < 1e-3);
    }
}

#[test]
fn a_layer_whose_norm_takes_all_levels_goes_without_split_maps() {
    let o = Options {
        norm_degree: 255,
        ..smol(32768, 6)
    };
    let c = case(&o, 2);
    assert_eq!((c.layout.qkv_splits, c.layout.gate_splits), (1, 2));
    assert!(exact(&o, 2) < 1e-3);
}

#[test]
fn bootstrap_noise_of_the_real_engine_is_harmless() {
    for qk_norm in [false, true] {
        let o = tiny(qk_norm);
        let c = case(&o, 5);
        let sim = Sim::new(o.slots, FLOOR, TOP).with_noise(2f64.powi(-18), 2f64.powi(-28));
        assert!(error(&c, &sim) < 1e-3);
    }
}

#[test]
fn a_full_ring_without_an_empty_token_block_agrees_too() {
    for qk_norm in [false, true] {
        for tokens in [1, 2, 4] {
            let o = Options {
                tokens,
                ..tiny(qk_norm)
            };
            assert_eq!(case(&o, 1).layout.blocks, tokens);
            assert!(exact(&o, 8) < 1e-3, "T={tokens} {qk_norm}");
        }
    }
}

#[test]
fn a_layer_of_the_qwen3_2b_shape_fits_and_agrees_with_the_plain_layer() {
    assert!(exact(&qwen3_2b(), 1) < 1e-3);
}
