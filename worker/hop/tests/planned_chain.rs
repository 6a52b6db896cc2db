//! From a model file through calibration and planning to a whole chain on the plaintext simulation.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/chain.rs"]
mod support;

use cipherhop_ckks::Params;
use cipherhop_hop::error::PlanError;
use cipherhop_hop::fold::Rotator;
use cipherhop_hop::model::NextToken;
use cipherhop_hop::program::{Program, tokens_that_fit};
use cipherhop_hop::sim::Sim;
use support::{Chain, chain};

/// Runs all layers; returns the worst relative rms of a token after the last layer, and the two next tokens.
fn run(c: &Chain, params: &str, prompt: &[u32]) -> (f64, NextToken, NextToken) {
    let params = Params::by_name(params).unwrap();
    let (packs, plain) = c.packs(prompt);
    let program = c.program(&params, prompt.len(), &packs).unwrap();
    let bytes = program.to_bytes().unwrap();
    assert_eq!(Program::parse(&bytes).unwrap(), program);
    let layout = program.layout().unwrap();
    let rotator = Rotator::new(program.rotation, c.model.config.d).unwrap();
    let sim = Sim::new(
        params.slots(),
        params.boot_in_level(),
        params.boot_out_level(),
    )
    .with_noise(2f64.powi(-18), 2f64.powi(-29));
    let d = layout.d;
    let mut x = sim.input(
        program
            .encode_residual(&rotator.rotate(&plain.residuals[0]))
            .unwrap(),
        params.boot_out_level(),
    );
    let mut worst = 0.0f64;
    for (layer, pack) in packs.iter().enumerate() {
        let weights = program.weights(layer, pack).unwrap();
        x = program
            .with_circuit(layer, &layout, &weights, |circuit| circuit.run(&sim, x))
            .unwrap()
            .unwrap();
        let got = rotator.unrotate(&program.decode_residual(&x.slots).unwrap());
        let want = &plain.residuals[layer + 1];
        worst = 0.0;
        let mut max = 0.0f64;
        for (g, w) in got.chunks_exact(d).zip(want.chunks_exact(d)) {
            let e: f64 = g.iter().zip(w).map(|(a, b)| (a - b) * (a - b)).sum();
            worst = worst.max((e / w.iter().map(|v| v * v).sum::<f64>()).sqrt());
            max = g
                .iter()
                .zip(w)
                .map(|(a, b)| (a - b).abs())
                .fold(max, f64::max);
        }
        println!(
            "layer {layer}: rel rms {worst:.2e}, max/F {:.2e}, {} steps, refreshes {:?}",
            max / c.calibration.layers[layer].f,
            program.layers[layer].steps.len(),
            program.layers[layer].plan.refresh
        );
    }
    let got = rotator.unrotate(&program.decode_residual(&x.slots).unwrap());
    let next = |x: &[f64]| NextToken::of(&c.model.logits(&x[x.len() - d..]));
    (worst, next(&got), next(&plain.last))
}

#[test]
fn a_chain_of_each_tiny_model_gives_the_plain_next_token() {
    for name in ["tiny-llama", "tiny-qwen3"] {
        let c = chain(name, 3);
        for text in ["abc", "x+1", "The"] {
            let prompt = c.model.tokenizer.encode_private(text).unwrap();
            let (rms, got, want) = run(&c, "n11-INSECURE", &prompt);
            println!("{name} {text:?}: {rms:.2e}, token {} ({})", got.id, want.id);
            assert!(rms < 1e-2);
            assert!(got.id == want.id || want.margin < 0.05);
        }
    }
}

#[test]
fn programs_that_were_tampered_with_are_refused() {
    let c = chain("tiny-llama", 3);
    let prompt = c.model.tokenizer.encode_private("abc").unwrap();
    let params = Params::by_name("n11-INSECURE").unwrap();
    let (packs, _) = c.packs(&prompt);
    let good = c.program(&params, 3, &packs).unwrap();
    let text = String::from_utf8(good.to_bytes().unwrap()).unwrap();
    for (from, to) in [
        ("\"tokens\":3", "\"tokens\":2"),
        ("\"tokens\":3", "\"tokens\": 3"),
        ("\"tokens\":3", "\"tokens\":3000000000"),
        ("\"tokens\":3", "\"tokens\":18446744073709551615"),
        ("\"tokens\":3", "\"tokens\":0"),
        ("\"mlp\":192", "\"mlp\":262144"),
        ("\"d\":64", "\"d\":65536"),
        ("cipherhop-program/1", "cipherhop-program/2"),
        ("n11-INSECURE", "n10-INSECURE"),
        ("[false,false", "[true,false"),
        ("norm1.stat", "norm1.stats"),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        assert!(
            matches!(
                Program::parse(changed.as_bytes()),
                Err(PlanError::BadProgram(_)
                    | PlanError::TooLarge { .. }
                    | PlanError::Inconsistent(_)
                    | PlanError::Levels { .. })
            ),
            "{from} -> {to}"
        );
    }
    assert!(good.weights(1, &packs[0]).is_err());
    assert!(good.weights(0, &packs[0][1..]).is_err());
}

#[test]
fn what_does_not_fit_is_refused_with_advice() {
    let c = chain("tiny-llama", 5);
    let prompt = c.model.tokenizer.encode_private("abcde").unwrap();
    let (packs, _) = c.packs(&prompt);
    let small = Params::by_name("n11-INSECURE").unwrap();
    let error = c.program(&small, 5, &packs).unwrap_err().to_string();
    assert!(error.contains("at most 4 private tokens fit"), "{error}");
    assert_eq!(tokens_that_fit(&small, &c.model.config, 2), 4);
    let error = c.program(&small, 6, &packs).unwrap_err().to_string();
    assert!(error.contains("calibrate for more"), "{error}");
    let mut broad = c;
    let long = vec![0.01; 1000];
    broad.calibration.layers[1].silu.degree = 999;
    broad.calibration.layers[1].silu.coeffs = long.clone();
    assert!(
        broad.program(&small, 3, &packs).is_ok(),
        "degree 1023 takes 10 of 15 levels"
    );
    broad.calibration.layers[1].inv_sqrt1.degree = 999;
    broad.calibration.layers[1].inv_sqrt1.coeffs = long;
    let error = broad.program(&small, 3, &packs).unwrap_err().to_string();
    assert!(
        error.contains("layer 1") && error.contains("17 levels needed, 15 available"),
        "{error}"
    );
}

/// Needs the real model: SMOLLM2_GGUF=path cargo test ... -- --ignored
#[test]
#[ignore = "needs the SmolLM2 file"]
fn smollm2_gives_the_plain_next_token() {
    let path = std::env::var("SMOLLM2_GGUF").unwrap();
    let c = chain(&path, 3);
    for text in ["The capital of", "def main("] {
        let mut prompt = c.model.tokenizer.encode_private(text).unwrap();
        prompt.truncate(3);
        let (rms, got, want) = run(&c, "n14-INSECURE", &prompt);
        println!(
            "{text:?}: {rms:.2e}, token {} ({}, margin {:.3})",
            got.id, want.id, want.margin
        );
        assert!(rms < 1e-2);
        assert!(got.id == want.id || want.margin < 0.05);
    }
}

/// All layers at 128 bits for several prompt lengths. CIPHERHOP_SMOLLM2=path cargo test ... -- --ignored --nocapture
#[test]
#[ignore = "needs the SmolLM2 file"]
fn smollm2_is_planned_at_n16_and_gives_the_plain_next_token() {
    let path = std::env::var("CIPHERHOP_SMOLLM2").unwrap();
    let c = chain(&path, 6);
    for (tokens, text) in [
        (3, "The capital of"),
        (5, "The capital of France is"),
        (6, "def main(args):\n"),
    ] {
        let mut prompt = c.model.tokenizer.encode_private(text).unwrap();
        prompt.truncate(tokens);
        let (rms, got, want) = run(&c, "n16-128", &prompt);
        println!(
            "{} tokens of {text:?}: {rms:.2e}, token {} ({}, margin {:.3})",
            prompt.len(),
            got.id,
            want.id,
            want.margin
        );
        assert!(rms < 1e-2);
        assert!(got.id == want.id || want.margin < 0.05);
    }
}
