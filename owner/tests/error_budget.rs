//! Where the error of a hop comes from: polynomials in place of functions, bootstraps, and the rest of the
//! encrypted arithmetic (encoding, rescaling, key switching), segment by segment. Tables: docs/precision.md.
//!
//! A layer is run encrypted, step by step. After every segment all live registers are decrypted and the layer is
//! finished in the noise-free simulation: the difference of two consecutive finishes is what the segment between
//! them adds to the layer's output. So the shares add up to the whole error exactly.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../worker/hop/tests/support/chain.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use cipherhop_ckks::{Complex, EvalKeys, Params};
use cipherhop_hop::backend::Backend;
use cipherhop_hop::calib::Calibration;
use cipherhop_hop::circuit::{Circuit, Step};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::fold::Rotator;
use cipherhop_hop::model::Model;
use cipherhop_hop::plan::{Approx, LayerPlan};
use cipherhop_hop::sim::{ExactFunction, Sim};
use cipherhop_owner::{Cryptor, EvalKeyGen, SecretKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use support::{Chain, chain};

type Registers<C> = BTreeMap<String, C>;

/// Runs `steps` from these registers.
fn advance<B: Backend>(c: &Circuit<'_>, b: &B, steps: &[Step], regs: &mut Registers<B::Ct>) {
    for step in steps {
        let inputs: Vec<B::Ct> = step.reads.iter().map(|r| regs[r].clone()).collect();
        let outputs = c.exec(b, &step.op, &inputs).unwrap();
        regs.extend(step.writes.iter().cloned().zip(outputs));
    }
}

fn segment(step: &str) -> String {
    let (first, rest) = step.split_once('.').unwrap_or((step, ""));
    if matches!(
        rest,
        "stc" | "modraise" | "cts" | "evalmod" | "evalmod-re" | "evalmod-im"
    ) {
        return format!("bootstrap {first}");
    }
    match first {
        "norm1" => "norm 1",
        "qkv" | "heads" | "scores" | "leaves" => "Q, K, V and scores",
        "spread" | "values" | "out" => "values and output product",
        "residual1" | "norm2" => "norm 2",
        "gate-up" => "gate and up",
        "act" | "down" => "SiLU and down",
        "residual2" => "residual",
        _ => "softmax",
    }
    .into()
}

/// The functions that the polynomials of a layer approximate, all but those named.
fn functions(plan: &LayerPlan, f: f64, but: &[&'static str]) -> ExactFunction {
    let inverse_root = |a: &Approx, by: f64| {
        let (lo, hi) = (a.lo, a.hi);
        move |u: f64| by / ((u * (hi - lo) + lo + hi) / 2.0).sqrt()
    };
    let norms = [0, 1].map(|i| inverse_root(&plan.norms[i], f / plan.lift[i] as f64));
    let qk = plan.qk.as_ref().map(|q| {
        let unit = plan.raw_private / plan.score;
        (inverse_root(&q[0], 1.0), inverse_root(&q[1], unit))
    });
    let (score, lo, hi) = (plan.score, plan.silu.lo, plan.silu.hi);
    let but = but.to_vec();
    Box::new(move |name, u| {
        if but.contains(&name) {
            return None;
        }
        Some(match name {
            "norm1" => norms[0](u),
            "norm2" => norms[1](u),
            "q norm" => qk.as_ref()?.0(u),
            "k norm" => qk.as_ref()?.1(u),
            "sigmoid" => 1.0 / (1.0 + (-u * score).exp()),
            "softplus" => {
                let x = u * score;
                (x.max(0.0) + (-x.abs()).exp().ln_1p()) / score
            }
            "silu" => {
                let x = (u * (hi - lo) + lo + hi) / 2.0;
                x / (1.0 + (-x).exp())
            }
            _ => return None,
        })
    })
}

/// Share of the error of a layer's output, in units of the layer's F.
#[derive(Clone)]
struct Share(Vec<f64>);

impl Share {
    fn add(&mut self, other: &[f64]) {
        self.0.resize(other.len(), 0.0);
        self.0.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    }

    fn max(&self) -> f64 {
        self.0.iter().fold(0.0, |m: f64, e| m.max(e.abs()))
    }

    fn rms(&self) -> f64 {
        (self.0.iter().map(|e| e * e).sum::<f64>() / self.0.len() as f64).sqrt()
    }
}

#[derive(Default)]
struct Budget(Vec<(String, Share)>);

impl Budget {
    fn add(&mut self, what: &str, error: &[f64]) {
        match self.0.iter_mut().find(|(w, _)| w == what) {
            Some((_, share)) => share.add(error),
            None => self.0.push((what.into(), Share(error.to_vec()))),
        }
    }

    fn sum(&self, of: impl Fn(&str) -> bool) -> Share {
        let mut sum = Share(Vec::new());
        for (what, share) in &self.0 {
            if of(what) {
                sum.add(&share.0);
            }
        }
        sum
    }

    fn print(&self) {
        println!("| share | max / F | rms / F |\n|---|---|---|");
        for (what, s) in &self.0 {
            println!("| {what} | {:.1e} | {:.1e} |", s.max(), s.rms());
        }
    }
}

struct Measured {
    weights: Share,
    approximation: Share,
    input: Share,
    bootstraps: Share,
    arithmetic: Share,
    total: Share,
}

fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn measure(chain: &Chain, params: &str, text: &str, layer: usize) -> Measured {
    let params = Params::by_name(params).unwrap();
    let mut prompt = chain.model.tokenizer.encode_private(text).unwrap();
    prompt.truncate(3);
    let (packs, plain) = chain.packs(&prompt);
    let program = chain.program(&params, prompt.len(), &packs).unwrap();
    let engine = Engine::new(params.clone()).unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(11);
    let secret = SecretKey::generate(&params, &mut rng);
    let cryptor = Cryptor::new(engine.ctx.clone(), &secret).unwrap();
    let generator = EvalKeyGen::new(engine.ctx.clone(), &secret).unwrap();
    let mut keys = EvalKeys::new();
    for spec in program.key_specs().unwrap() {
        keys.insert(generator.generate(&spec, &mut rng).unwrap());
    }
    let ckks = engine.backend(Arc::new(keys));

    let rotator = Rotator::new(program.rotation, chain.model.config.d).unwrap();
    let unit = chain.calibration.layers[layer].f;
    // slots of the last register to the residual over F, in the model's own basis
    let residual = |slots: &[Complex]| -> Vec<f64> {
        let y = rotator.unrotate(&program.decode_residual(slots).unwrap());
        y.iter().map(|v| v / unit).collect()
    };
    let exact: Vec<f64> = plain.residuals[layer + 1]
        .iter()
        .map(|v| v / unit)
        .collect();
    let slots = program
        .encode_residual(&rotator.rotate(&plain.residuals[layer]))
        .unwrap();
    let sim = || {
        Sim::new(
            params.slots(),
            params.boot_in_level(),
            params.boot_out_level(),
        )
    };
    let top = params.boot_out_level();
    let layout = program.layout().unwrap();
    let weights = program.weights(layer, &packs[layer]).unwrap();
    let measured = program.with_circuit(layer, &layout, &weights, |c| {
        let steps = c.steps();
        let last = &steps.last().unwrap().writes[0];
        let finish = |sim: &Sim, from: usize, mut regs: Registers<_>| {
            advance(c, sim, &steps[from..], &mut regs);
            residual(&regs[last].slots)
        };
        let start = |sim: &Sim| Registers::from([("x".to_string(), sim.input(slots.clone(), top))]);
        let with = |but: &[&'static str]| {
            let sim = sim().with_exact(functions(c.plan, c.f, but));
            finish(&sim, 0, start(&sim))
        };
        let mut budget = Budget::default();
        let functions = with(&[]);
        budget.add("weights and folding in f32", &minus(&functions, &exact));
        let quiet = sim();
        let mut before = finish(&quiet, 0, start(&quiet));
        let approximation = Share(minus(&before, &functions));
        let names: &[&'static str] = match c.plan.qk {
            None => &["norm1", "sigmoid", "softplus", "norm2", "silu"],
            Some(_) => &[
                "norm1", "q norm", "k norm", "sigmoid", "softplus", "norm2", "silu",
            ],
        };
        for name in names {
            budget.add(
                &format!("polynomial {name}"),
                &minus(&with(&[name]), &functions),
            );
        }

        // the encrypted run; registers that no later step reads are dropped
        let input = cryptor.encrypt(&slots, top, &mut rng).unwrap();
        let mut regs = Registers::from([("x".to_string(), input)]);
        let mut at = 0;
        let mut what = "encryption of the input".to_string();
        loop {
            regs.retain(|r, _| r == last || steps[at..].iter().any(|s| s.reads.contains(r)));
            let plain = regs.iter().map(|(name, ct)| {
                let slots = cryptor.decrypt(ct).unwrap();
                (name.clone(), quiet.input(slots, ct.level()))
            });
            let now = finish(&quiet, at, plain.collect());
            budget.add(&what, &minus(&now, &before));
            before = now;
            let Some(next) = steps.get(at) else { break };
            what = segment(&next.name);
            let end = steps[at..].iter().take_while(|s| segment(&s.name) == what);
            let end = at + end.count();
            advance(c, &ckks, &steps[at..end], &mut regs);
            at = end;
        }
        budget.print();
        let is_polynomial = |w: &str| w.starts_with("polynomial");
        let is_boot = |w: &str| w.starts_with("bootstrap");
        let before_arithmetic = ["weights and folding in f32", "encryption of the input"];
        Measured {
            weights: budget.sum(|w| w == before_arithmetic[0]),
            approximation,
            input: budget.sum(|w| w == before_arithmetic[1]),
            bootstraps: budget.sum(is_boot),
            arithmetic: budget
                .sum(|w| !is_polynomial(w) && !is_boot(w) && !before_arithmetic.contains(&w)),
            total: Share(minus(&before, &exact)),
        }
    });
    let m = measured.unwrap();
    for (what, s) in [
        ("weights and folding in f32", &m.weights),
        ("all polynomials", &m.approximation),
        ("encryption of the input", &m.input),
        ("all bootstraps", &m.bootstraps),
        ("encoding, rescaling, key switching", &m.arithmetic),
        ("total", &m.total),
    ] {
        println!("{what:36} max/F {:.1e} rms/F {:.1e}", s.max(), s.rms());
    }
    m
}

#[test]
fn every_share_of_a_tiny_layers_error_keeps_its_bound() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        println!("{model}");
        let m = measure(&chain(model, 3), "n11-INSECURE", "abc", 0);
        assert!(m.weights.max() < 1e-7);
        assert!(m.approximation.max() < 3e-5);
        assert!(m.input.max() < 1e-8);
        assert!(m.bootstraps.max() < 2e-5);
        assert!(m.arithmetic.max() < 1e-7);
        // nothing is counted twice or left out
        let mut sum = Share(Vec::new());
        for s in [
            &m.weights,
            &m.approximation,
            &m.input,
            &m.bootstraps,
            &m.arithmetic,
        ] {
            sum.add(&s.0);
        }
        assert!(Share(minus(&sum.0, &m.total.0)).max() < 1e-12);
    }
}

/// CIPHERHOP_SMOLLM2=model.gguf CIPHERHOP_CALIBRATION=calib.json PARAMS=n14-INSECURE LAYER=0 cargo test --release
/// -p cipherhop-owner --test error_budget -- --ignored --nocapture
#[test]
#[ignore = "needs the SmolLM2 file, its calibration and minutes"]
fn measure_smollm2() {
    let file = std::fs::read(std::env::var("CIPHERHOP_CALIBRATION").unwrap()).unwrap();
    let calibration = Calibration::parse(&file).unwrap();
    let chain = Chain {
        model: Model::open(&std::env::var("CIPHERHOP_SMOLLM2").unwrap()).unwrap(),
        prefix: calibration.prefix.clone(),
        calibration,
    };
    let params = std::env::var("PARAMS").unwrap_or("n14-INSECURE".into());
    let layer = std::env::var("LAYER").map_or(0, |v| v.parse().unwrap());
    measure(&chain, &params, "The capital of", layer);
}
