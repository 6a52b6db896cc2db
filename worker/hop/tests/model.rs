//! Model import and the plain forward pass against independent values.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use cipherhop_hop::model::{Model, ModelError, PlainRun};
use serde_json::Value;

fn floats(v: &Value) -> Vec<f64> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

fn close(a: f64, b: f64, what: &str) {
    assert!(
        (a - b).abs() <= 1e-4 * b.abs().max(1e-2),
        "{what}: {a} against {b}"
    );
}

/// Values come from oracle/gguf_forward.py (numpy). Run with CIPHERHOP_SMOLLM2 naming the GGUF file.
#[test]
#[ignore = "needs the SmolLM2 file named by CIPHERHOP_SMOLLM2"]
fn smollm2_agrees_with_the_numpy_oracle() {
    let model = Model::open(&std::env::var("CIPHERHOP_SMOLLM2").unwrap()).unwrap();
    assert_eq!(
        model.weights_sha256,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    );
    let prefix = model.default_prefix().unwrap();
    assert_eq!(prefix, [1, 198]);
    let cases: Value = serde_json::from_str(include_str!("data/smollm2_oracle.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let ids = model
            .tokenizer
            .encode_private(case["text"].as_str().unwrap())
            .unwrap();
        let expected: Vec<u32> = floats(&case["ids"]).iter().map(|v| *v as u32).collect();
        assert_eq!(ids, expected);
        let mut at = 0;
        let run = PlainRun::run::<ModelError>(
            &model,
            &prefix,
            std::slice::from_ref(&ids),
            false,
            |l, _, _, run| {
                for (a, b) in run.ms1.iter().zip(floats(&case["ms1"][l])) {
                    close(*a, b, "ms1");
                }
                for (a, b) in run.ms2.iter().zip(floats(&case["ms2"][l])) {
                    close(*a, b, "ms2");
                }
                at += 1;
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(at, 30);
        let d = model.config.d;
        for (a, b) in run.last[(ids.len() - 1) * d..]
            .iter()
            .zip(floats(&case["last"]))
        {
            close(*a, b, "residual");
        }
        let next = run.next_token(&model, 0, ids.len());
        println!(
            "{:?} -> {:?}",
            case["text"],
            model.tokenizer.decode(&[next.id])
        );
        for ((id, logit), (want, value)) in next
            .top
            .iter()
            .zip(floats(&case["top"]).iter().zip(floats(&case["logits"])))
        {
            assert_eq!(*id, *want as u32);
            close(*logit, value, "logit");
        }
    }
}

#[test]
fn the_built_in_models_behave() {
    for name in cipherhop_hop::model::TINY_NAMES {
        let model = Model::open(name).unwrap();
        let prefix = model.default_prefix().unwrap();
        assert_eq!(prefix, [256, 10]);
        let mut seen = BTreeMap::new();
        for text in ["abc", "1+1", "The", "  \n", "xyz"] {
            let ids = model.tokenizer.encode_private(text).unwrap();
            let run = PlainRun::run::<ModelError>(&model, &prefix, &[ids], false, |l, _, _, run| {
                let top = |v: &[f64]| v.iter().filter(|x| x.is_finite()).fold(0.0f64, |a, b| a.max(b.abs()));
                println!(
                    "{name} {l} ms1 {:.2?} score {:.2} attn {:.2} gate {:.2} up {:.2} act {:.2} mlp {:.2} y {:.2}",
                    run.ms1, top(&run.scores), top(&run.attn), top(&run.gate), top(&run.up), top(&run.act), top(&run.mlp), top(&run.y)
                );
                assert!(top(&run.scores) < 20.0 && top(&run.gate) < 20.0 && top(&run.y) < 20.0);
                Ok(())
            })
            .unwrap();
            let next = run.next_token(&model, 0, 3);
            println!(
                "{name} {text:?} -> {} {:?} margin {:.3}",
                next.id,
                model.tokenizer.decode(&[next.id]),
                next.margin
            );
            *seen.entry(next.id).or_insert(0) += 1;
        }
        assert!(seen.len() > 1, "the next token must depend on the prompt");
    }
}
