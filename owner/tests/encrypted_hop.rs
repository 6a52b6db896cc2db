//! One layer on real ciphertexts: it agrees with the plaintext simulation and with the plain layer, its bytes do
//! not depend on threads or on interruptions.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../worker/ckks/examples/clock/mod.rs"]
mod clock;
#[path = "../../worker/hop/tests/support/chain.rs"]
mod support;

use clock::cpu_seconds;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cipherhop_ckks::{Ciphertext, Complex, EvalKeys, KeySource, Params};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::error::HopError;
use cipherhop_hop::fold::Rotator;
use cipherhop_hop::model::{Model, PlainRun};
use cipherhop_hop::program::Program;
use cipherhop_hop::run::{HopEvent, HopJob, HopOutput, run_hop_on};
use cipherhop_hop::sim::Sim;
use cipherhop_owner::{Cryptor, EvalKeyGen, SecretKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use support::{Chain, chain};

struct Setup {
    chain: Chain,
    engine: Engine,
    program: Program,
    packs: Vec<Vec<u8>>,
    plain: PlainRun,
    cryptor: Cryptor,
    keys: Arc<dyn KeySource>,
    input: Vec<u8>,
}

fn setup(model: &str, params: &str, text: &str) -> Setup {
    setup_at(model, params, text, 3, 0)
}

/// Peak memory of this process in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// A chain of at most `most` private tokens; the input is the plain residual before layer `first`.
fn setup_at(model: &str, params: &str, text: &str, most: usize, first: usize) -> Setup {
    let start = Instant::now();
    let params = Params::by_name(params).unwrap();
    let mut prompt = Model::open(model)
        .unwrap()
        .tokenizer
        .encode_private(text)
        .unwrap();
    prompt.truncate(most);
    let chain = chain(model, prompt.len());
    let (packs, plain) = chain.packs(&prompt);
    let program = chain.program(&params, prompt.len(), &packs).unwrap();
    let engine = Engine::new(params.clone()).unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let secret = SecretKey::generate(&params, &mut rng);
    let generator = EvalKeyGen::new(engine.ctx.clone(), &secret).unwrap();
    let specs = program.key_specs().unwrap();
    let mut keys = EvalKeys::new();
    for spec in &specs {
        keys.insert(generator.generate(spec, &mut rng).unwrap());
    }
    println!(
        "{} keys, {:.1} MiB expanded",
        keys.len(),
        keys.bytes() as f64 / (1 << 20) as f64
    );
    let cryptor = Cryptor::new(engine.ctx.clone(), &secret).unwrap();
    let rotator = Rotator::new(program.rotation, chain.model.config.d).unwrap();
    let slots = program
        .encode_residual(&rotator.rotate(&plain.residuals[first]))
        .unwrap();
    let input = cryptor
        .encrypt(&slots, params.boot_out_level(), &mut rng)
        .unwrap()
        .to_bytes(&engine.ctx);
    println!("setup {:.1} s", start.elapsed().as_secs_f64());
    Setup {
        chain,
        engine,
        program,
        packs,
        plain,
        cryptor,
        keys: Arc::new(keys),
        input,
    }
}

impl Setup {
    fn job(&self, layer: usize, input: &[u8], dir: &Path, threads: usize) -> HopJob {
        HopJob {
            program: self.program.to_bytes().unwrap(),
            layer: layer as u32,
            weights: self.packs[layer].clone(),
            input: input.to_vec(),
            keys: self.keys.clone(),
            work_dir: dir.to_path_buf(),
            threads,
        }
    }

    fn run(&self, layer: usize, input: &[u8], threads: usize, verbose: bool) -> HopOutput {
        let dir = tempfile::tempdir().unwrap();
        let job = self.job(layer, input, dir.path(), threads);
        let mut cpu = cpu_seconds();
        let mut show = |e: HopEvent| {
            let now = cpu_seconds();
            let spent = now - std::mem::replace(&mut cpu, now);
            if let (
                true,
                HopEvent::StepDone {
                    index,
                    name,
                    seconds,
                    ..
                },
            ) = (verbose, e)
            {
                println!("{index:3} {name:18} {seconds:8.3} s, CPU {spent:8.2} s");
            }
        };
        run_hop_on(
            &self.engine,
            &self.program,
            &job,
            &mut show,
            &AtomicBool::new(false),
        )
        .unwrap()
    }

    fn slots(&self, bytes: &[u8]) -> Vec<Complex> {
        let ct = Ciphertext::from_bytes(&self.engine.ctx, bytes).unwrap();
        assert_eq!(ct.level(), self.engine.ctx.params().boot_out_level());
        self.cryptor.decrypt(&ct).unwrap()
    }

    /// Largest error of a layer's output relative to the layer's F and worst relative rms of a token.
    fn error(&self, layer: usize, bytes: &[u8]) -> (f64, f64) {
        let d = self.chain.model.config.d;
        let rotator = Rotator::new(self.program.rotation, d).unwrap();
        let got = rotator.unrotate(&self.program.decode_residual(&self.slots(bytes)).unwrap());
        let want = &self.plain.residuals[layer + 1];
        let (mut max, mut rms) = (0.0f64, 0.0f64);
        for (g, w) in got.chunks_exact(d).zip(want.chunks_exact(d)) {
            let e: f64 = g.iter().zip(w).map(|(a, b)| (a - b) * (a - b)).sum();
            rms = rms.max((e / w.iter().map(|v| v * v).sum::<f64>()).sqrt());
            max = g
                .iter()
                .zip(w)
                .map(|(a, b)| (a - b).abs())
                .fold(max, f64::max);
        }
        (max / self.chain.calibration.layers[layer].f, rms)
    }

    /// Largest distance to the simulation of the same layer on the same input, in units of F.
    fn distance_to_simulation(&self, layer: usize, input: &[u8], output: &[u8]) -> f64 {
        let p = self.engine.ctx.params();
        let sim = Sim::new(p.slots(), p.boot_in_level(), p.boot_out_level());
        let x = sim.input(self.slots(input), p.boot_out_level());
        let layout = self.program.layout().unwrap();
        let weights = self.program.weights(layer, &self.packs[layer]).unwrap();
        let y = self
            .program
            .with_circuit(layer, &layout, &weights, |c| c.run(&sim, x))
            .unwrap()
            .unwrap();
        let far = |(a, b): (&Complex, &Complex)| (*a - *b).abs();
        let worst = y
            .slots
            .iter()
            .zip(&self.slots(output))
            .map(far)
            .fold(0.0, f64::max);
        worst * self.program.f / self.chain.calibration.layers[layer].f
    }
}

#[test]
fn an_encrypted_tiny_layer_agrees_with_simulation_and_plain_layer() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        let s = setup(model, "n11-INSECURE", "abc");
        let out = s.run(0, &s.input, 2, true);
        let (max, rms) = s.error(0, &out.output);
        let sim = s.distance_to_simulation(0, &s.input, &out.output);
        println!(
            "{model}: max/F {max:.2e}, rel rms {rms:.2e}, to simulation {sim:.2e}, {:.1} s",
            out.compute_seconds
        );
        assert!(max < 1e-3 && sim < 1e-3, "{max} {sim}");
        assert!(rms < 1e-2);
    }
}

#[test]
fn threads_and_interruptions_do_not_change_the_bytes() {
    let s = setup("tiny-llama", "n11-INSECURE", "abc");
    let one = s.run(0, &s.input, 1, false);
    let two = s.run(0, &s.input, 2, false);
    assert_eq!(one.digest, two.digest);
    assert_eq!(one.trace_root, two.trace_root);

    let dir = tempfile::tempdir().unwrap();
    let job = s.job(0, &s.input, dir.path(), 2);
    let stop = AtomicBool::new(false);
    let run =
        |events: &mut dyn FnMut(HopEvent)| run_hop_on(&s.engine, &s.program, &job, events, &stop);
    let stopped = run(&mut |e| {
        if matches!(e, HopEvent::StepDone { index: 9, .. }) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(stopped, Err(HopError::Cancelled)));
    stop.store(false, Ordering::Relaxed);
    // The newest register is damaged and the last line of the trace is torn, as after a power cut.
    let regs: Vec<_> = std::fs::read_dir(dir.path().join("regs"))
        .unwrap()
        .map(|e| e.unwrap())
        .collect();
    let newest = regs
        .iter()
        .max_by_key(|e| e.metadata().unwrap().modified().unwrap())
        .unwrap();
    let mut bytes = std::fs::read(newest.path()).unwrap();
    bytes[200] ^= 1;
    std::fs::write(newest.path(), bytes).unwrap();
    let trace = dir.path().join("trace.jsonl");
    let mut text = std::fs::read(&trace).unwrap();
    text.extend(b"{\"step\":10,\"na");
    std::fs::write(&trace, text).unwrap();
    let mut resumed = None;
    let out = run(&mut |e| {
        if let HopEvent::Started { steps_done, .. } = e {
            resumed = Some(steps_done);
        }
    })
    .unwrap();
    assert_eq!(
        resumed,
        Some(9),
        "step 9 is made again, the nine before it are kept"
    );
    assert_eq!(out.digest, one.digest);
    assert_eq!(out.trace_root, one.trace_root);
    // Run again in the finished folder: nothing is computed.
    let mut steps = 0;
    let again = run(&mut |e| steps += usize::from(matches!(e, HopEvent::StepDone { .. }))).unwrap();
    assert_eq!((steps, again.digest), (0, one.digest));
}

#[test]
fn inputs_of_another_kind_are_refused() {
    let s = setup("tiny-llama", "n11-INSECURE", "a");
    let dir = tempfile::tempdir().unwrap();
    let refuse = |job: HopJob| {
        run_hop_on(
            &s.engine,
            &s.program,
            &job,
            &mut |_| {},
            &AtomicBool::new(false),
        )
        .unwrap_err()
    };
    let good = s.job(0, &s.input, dir.path(), 1);
    let low = s
        .cryptor
        .encrypt(&[Complex::ZERO], 5, &mut ChaCha20Rng::seed_from_u64(3))
        .unwrap();
    let input = low.to_bytes(&s.engine.ctx);
    assert!(matches!(
        refuse(HopJob {
            input,
            ..good.clone()
        }),
        HopError::BadInput(_)
    ));
    let input = s.input[..s.input.len() - 1].to_vec();
    assert!(matches!(
        refuse(HopJob {
            input,
            ..good.clone()
        }),
        HopError::Engine(_)
    ));
    let weights = s.packs[1].clone();
    assert!(matches!(
        refuse(HopJob {
            weights,
            ..good.clone()
        }),
        HopError::Plan(_)
    ));
    let layer = 7;
    assert!(matches!(
        refuse(HopJob {
            layer,
            ..good.clone()
        }),
        HopError::Plan(_)
    ));
    let keys: Arc<dyn KeySource> = Arc::new(EvalKeys::new());
    assert!(matches!(
        refuse(HopJob { keys, ..good }),
        HopError::Engine(_)
    ));
}

/// `SMOLLM2_GGUF=path cargo test --release -p cipherhop-owner --test encrypted_hop -- --ignored --nocapture smollm2`.
/// LAYERS layers from FIRST on, on THREADS threads.
fn smollm2_layers(params: &str, text: &str, most: usize) {
    let path = std::env::var("SMOLLM2_GGUF").unwrap();
    let number = |name: &str, or: usize| std::env::var(name).map_or(or, |v| v.parse().unwrap());
    let (first, layers, threads) = (
        number("FIRST", 0),
        number("LAYERS", 1),
        number("THREADS", 1),
    );
    let s = setup_at(&path, params, text, most, first);
    println!("peak memory after setup {:.0} MiB", peak_mib());
    let mut input = s.input.clone();
    for layer in first..first + layers {
        let cpu = cpu_seconds();
        let out = s.run(layer, &input, threads, layer == first);
        let cpu = cpu_seconds() - cpu;
        let (max, rms) = s.error(layer, &out.output);
        println!(
            "layer {layer}: max/F {max:.2e}, rel rms {rms:.2e}, CPU {cpu:.1} s, {:.1} s (lay {:.1}, boot {:.1}), bootstraps {:.1?}, peak memory {:.0} MiB",
            out.compute_seconds,
            out.lay_seconds,
            out.boot_seconds,
            out.boot_profile,
            peak_mib()
        );
        assert!(max < 3e-2 && rms < 1e-2);
        input = out.output;
    }
}

#[test]
#[ignore = "needs the SmolLM2 file and minutes"]
fn smollm2_layers_at_n14() {
    smollm2_layers("n14-INSECURE", "The capital of", 3);
}

#[test]
#[ignore = "needs the SmolLM2 file, 10 GiB and minutes"]
fn smollm2_layers_at_n16() {
    smollm2_layers("n16-128", "The capital of France is the", 6);
}
