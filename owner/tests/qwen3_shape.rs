//! One layer of the Qwen3-2B shape with random weights on real ciphertexts.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../worker/hop/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cipherhop_ckks::{Bootstrapper, Complex, EvalKeys, Params};
use cipherhop_hop::circuit::Circuit;
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::program::merge_keys;
use cipherhop_hop::record::Record;
use cipherhop_owner::{Cryptor, EvalKeyGen, SecretKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use support::{Options, case, qwen3_2b, tiny};

/// A field of this process's status in MiB.
fn memory(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Largest error relative to F of an encrypted layer.
fn encrypted(o: &Options, params: &str) -> f64 {
    let params = Params::by_name(params).unwrap();
    let c = case(o, 1);
    let circuit = Circuit {
        layout: &c.layout,
        plan: &c.plan,
        levels: c.levels,
        f: c.f,
        eps: c.eps,
        weights: &c.weights,
        rope: &c.rope,
    };
    let (low, top) = (params.boot_in_level(), params.boot_out_level());
    let record = Record::new(params.slots(), low, top);
    circuit.run(&record, top).unwrap();
    println!("{:?}", record.counts());

    let engine = Engine::new(params.clone()).unwrap();
    let mut specs = Bootstrapper::new(engine.ctx.clone()).unwrap().key_specs();
    specs.extend(record.key_specs());
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let secret = SecretKey::generate(&params, &mut rng);
    let generator = EvalKeyGen::new(engine.ctx.clone(), &secret).unwrap();
    let mut keys = EvalKeys::new();
    for spec in merge_keys(specs) {
        keys.insert(generator.generate(&spec, &mut rng).unwrap());
    }
    let mib = keys.bytes() as f64 / (1 << 20) as f64;
    println!(
        "{} keys, {mib:.0} MiB expanded; {:.0} MiB resident",
        keys.len(),
        memory("VmRSS")
    );

    let cryptor = Cryptor::new(engine.ctx.clone(), &secret).unwrap();
    let scaled = |v: &[f64]| v.iter().map(|a| a / c.f).collect::<Vec<_>>();
    let x = cryptor
        .encrypt(&c.layout.pack(&scaled(&c.x)), top, &mut rng)
        .unwrap();
    let backend = engine.backend(Arc::new(keys));
    let steps = circuit.steps();
    let mut regs = BTreeMap::from([("x".to_string(), x)]);
    let mut stages: BTreeMap<String, f64> = BTreeMap::new();
    let all = Instant::now();
    for (index, step) in steps.iter().enumerate() {
        let inputs: Vec<_> = step.reads.iter().map(|r| regs[r].clone()).collect();
        let start = Instant::now();
        let outputs = circuit.exec(&backend, &step.op, &inputs).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!("{index:3} {:18} {seconds:8.3} s", step.name);
        let stage = step.name.rsplit('.').next().unwrap().to_string();
        *stages.entry(stage).or_default() += seconds;
        regs.extend(step.writes.iter().cloned().zip(outputs));
        // Only what later steps read stays in memory.
        regs.retain(|name, _| {
            name == "out" || steps[index + 1..].iter().any(|s| s.reads.contains(name))
        });
    }
    println!(
        "{:.1} s; peak memory {:.0} MiB; by stage {stages:.1?}",
        all.elapsed().as_secs_f64(),
        memory("VmHWM")
    );
    let got = cryptor.decrypt(&regs["out"]).unwrap();
    let want = c.layout.pack(&scaled(&c.y));
    let far = |(a, b): (&Complex, &Complex)| (*a - *b).abs();
    let error = got.iter().zip(&want).map(far).fold(0.0, f64::max);
    println!(
        "max|err|/F {error:.2e}, bootstraps before rounds {:?}",
        c.plan.refresh
    );
    error
}

#[test]
fn the_tiny_qwen3_shape_without_a_spare_token_block_agrees() {
    let o = Options {
        tokens: 4,
        ..tiny(true)
    };
    assert!(encrypted(&o, "n11-INSECURE") < 1e-3);
}

/// cargo test --release -p cipherhop-owner --test qwen3_shape -- --ignored --nocapture
#[test]
#[ignore = "needs 16 GiB and minutes"]
fn the_qwen3_2b_shape_at_n16_agrees() {
    assert!(encrypted(&qwen3_2b(), "n16-128") < 1e-3);
}
