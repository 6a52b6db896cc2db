//! One hop of a model's shape under a memory budget, with pseudorandom keys read from files: loads, the processor time
//! they take, and the most memory in use after every step.
//!
//! cargo run --release -p cipherhop-hop --example hop_budget PARAMS MODEL TOKENS MEMORY_MIB THREADS [KEY_FOLDER]
//!
//! MODEL is smollm2, qwen3 or tiny. Keys stay in KEY_FOLDER for the next run; 0 MiB prints the estimate and the loads
//! of several budgets and computes nothing.

#[path = "../../ckks/examples/clock/mod.rs"]
mod clock;

use clock::cpu_seconds;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cipherhop_ckks::{
    Ciphertext, EvalKey, KeyId, KeySpec, Params, ScaleId, expanded_key_size, key_size,
};
use cipherhop_hop::calib::RopeRow;
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::fold::{LayerPack, Rotation};
use cipherhop_hop::keys::{DirKeys, KEYS_FORMAT, KeyEntry, KeyManifest};
use cipherhop_hop::memory::HopMemory;
use cipherhop_hop::model::{Architecture, Matrix, ModelConfig, RopeLayout};
use cipherhop_hop::plan::{Approx, LayerPlan, Levels, place_refreshes};
use cipherhop_hop::program::{ENGINE, PROGRAM_FORMAT, Program, ProgramLayer};
use cipherhop_hop::run::{HopEvent, HopJob, run_hop_on};
use cipherhop_hop::schedule::step_keys;
use cipherhop_hop::tensors::PackedLayer;
use sha2::{Digest, Sha256};

type Failed = Box<dyn std::error::Error>;

/// Numbers in [-1, 1) of no meaning.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.next() / count as f64).collect()
    }

    fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        let data = (0..rows * cols).map(|_| self.next() as f32).collect();
        Matrix { rows, cols, data }
    }

    fn approx(&mut self, degree: usize) -> Approx {
        let coeffs = self.values(degree + 1);
        Approx {
            lo: 0.5,
            hi: 4.0,
            coeffs,
        }
    }
}

fn model(name: &str) -> Result<ModelConfig, Failed> {
    let (arch, d, heads, kv_heads, head_dim, mlp) = match name {
        "smollm2" => (Architecture::Llama, 576, 9, 3, 64, 1536),
        "qwen3" => (Architecture::Qwen3, 2048, 16, 8, 128, 6144),
        "tiny" => (Architecture::Qwen3, 64, 4, 2, 16, 192),
        _ => return Err("smollm2, qwen3 or tiny".into()),
    };
    let rope_layout = match arch {
        Architecture::Llama => RopeLayout::Interleaved,
        Architecture::Qwen3 => RopeLayout::HalfSplit,
    };
    Ok(ModelConfig {
        arch,
        d,
        heads,
        kv_heads,
        head_dim,
        mlp,
        layers: 1,
        vocab: 1000,
        eps: 1.0 / 65536.0,
        rope_theta: 10000.0,
        rope_layout,
        tied: true,
    })
}

/// A chain of one layer with random weights, and the layer's weight pack.
fn program(
    params: &Params,
    model: ModelConfig,
    tokens: usize,
) -> Result<(Program, Vec<u8>), Failed> {
    let mut s = Noise(2026);
    let (q, kv, d, mlp) = (
        model.q_width(),
        model.kv_heads * model.head_dim,
        model.d,
        model.mlp,
    );
    let gamma = |s: &mut Noise| {
        model.qk_norm().then(|| {
            s.values(model.head_dim)
                .into_iter()
                .map(|v| v as f32)
                .collect()
        })
    };
    let pack = LayerPack {
        layer: 0,
        q: s.matrix(q, d),
        k: s.matrix(kv, d),
        v: s.matrix(kv, d),
        o: s.matrix(d, q),
        gate: s.matrix(mlp, d),
        up: s.matrix(mlp, d),
        down: s.matrix(d, mlp),
        head_dim: model.head_dim,
        q_gamma: gamma(&mut s),
        k_gamma: gamma(&mut s),
        public: 2,
        public_k: s.matrix(2, kv).data,
        public_v: s.matrix(2, kv).data,
    }
    .to_bytes();
    let mut plan = LayerPlan {
        lift: [8, 4],
        norms: [s.approx(31), s.approx(31)],
        qk: model.qk_norm().then(|| [s.approx(31), s.approx(31)]),
        raw_private: 4.0,
        raw_public: 4.0,
        score: 8.0,
        sigmoid: s.values(128),
        softplus: s.values(128),
        silu: s.approx(63),
        o: 4.0,
        up: 4.0,
        down: 4.0,
        refresh: Vec::new(),
    };
    let half = model.head_dim / 2;
    let row = |position| RopeRow {
        position,
        cos: vec![0.6; half],
        sin: vec![0.8; half],
    };
    let mut program = Program {
        format: PROGRAM_FORMAT.into(),
        engine: ENGINE.into(),
        params: params.name.clone(),
        params_digest: hex::encode(params.digest()),
        rotation: Rotation::for_width(d),
        prefix: vec![1, 2],
        tokens,
        f: 64.0,
        rope: (2..2 + tokens).map(row).collect(),
        calibration_sha256: hex::encode([0; 32]),
        layers: Vec::new(),
        model,
    };
    let layout = program.layout()?;
    let (low, top) = (params.boot_in_level(), params.boot_out_level());
    let levels = Levels::count(0, &layout.for_plan(&plan, low, top), &plan, low, top)?;
    plan.refresh = place_refreshes(0, &layout, &plan, &levels)?;
    program.layers.push(ProgramLayer {
        weights_sha256: hex::encode(Sha256::digest(&pack)),
        plan,
        steps: Vec::new(),
    });
    let blank = PackedLayer::blank(&layout);
    let steps = program.with_circuit(0, &layout, &blank, |c| c.steps())?;
    program.layers[0].steps = steps.into_iter().map(|s| s.name).collect();
    Ok((program, pack))
}

/// Writes the keys that are not there yet.
fn manifest(engine: &Engine, specs: &[KeySpec], dir: &Path) -> Result<KeyManifest, Failed> {
    let ctx = &engine.ctx;
    std::fs::create_dir_all(dir)?;
    let mut keys = Vec::new();
    for &spec in specs {
        let size = key_size(ctx.params(), spec) as u64;
        // found again by its name
        let note = dir.join(format!("{}.{}", spec.id, spec.limbs));
        let digest = match std::fs::read_to_string(&note) {
            Ok(digest) => digest,
            Err(_) => {
                let bytes = EvalKey::pseudorandom(ctx, spec, &[1; 32])?.to_bytes(ctx);
                let digest = hex::encode(Sha256::digest(&bytes));
                std::fs::write(dir.join(&digest), &bytes)?;
                std::fs::write(note, &digest)?;
                digest
            }
        };
        keys.push(KeyEntry {
            id: spec.id.to_string(),
            limbs: spec.limbs,
            digest,
            size,
        });
    }
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(ctx.params_digest()),
        keys,
    })
}

fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(field));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) >> 10
}

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, or: &str| args.get(i).cloned().unwrap_or_else(|| or.to_string());
    let params = Params::by_name(&arg(0, "n14-INSECURE"))?;
    let model = model(&arg(1, "tiny"))?;
    let (tokens, memory, threads): (usize, u64, usize) = (
        arg(2, "3").parse()?,
        arg(3, "0").parse()?,
        arg(4, "1").parse()?,
    );
    let (program, pack) = program(&params, model, tokens)?;
    let specs = program.key_specs()?;
    let estimate = HopMemory::on_threads(&program, specs.iter().copied(), threads)?;
    let mib = |b: u64| b >> 20;
    println!(
        "{} keys; MiB: fixed {}, least keys {}, all keys {}",
        specs.len(),
        mib(estimate.fixed),
        mib(estimate.least_keys),
        mib(estimate.all_keys)
    );
    let engine = Engine::new(params.clone())?;
    println!(
        "matrices {} MiB, resident with tables {} MiB",
        mib(engine.boot.bytes() as u64),
        status("VmRSS:")
    );
    if memory == 0 {
        let layout = program.layout()?;
        let blank = PackedLayer::blank(&layout);
        let steps = program.with_circuit(0, &layout, &blank, |c| step_keys(c, &engine.boot))??;
        let steps: Vec<Vec<KeyId>> = steps
            .iter()
            .map(|keys| keys.iter().map(|k| k.id).collect())
            .collect();
        for key_mib in (2000..7600).step_by(250) {
            let size = |id: KeyId| {
                let spec = specs.iter().find(|s| s.id == id).copied();
                spec.map_or(0, |s| expanded_key_size(&params, s) as u64)
            };
            let (loads, bytes) = belady(&steps, &size, key_mib << 20);
            println!(
                "{key_mib} MiB of keys: {loads} loads, {} MiB expanded",
                mib(bytes)
            );
        }
        return Ok(());
    }
    let dir = arg(5, "/tmp/hop_budget_keys");
    let manifest = manifest(&engine, &specs, Path::new(&dir))?;
    let budget = estimate
        .key_budget(memory << 20)
        .ok_or("too little memory")?;
    let keys = DirKeys::open(engine.ctx.clone(), dir.into(), manifest)?;
    let keys = Arc::new(keys.with_budget(budget));
    let level = params.boot_out_level();
    let input = Ciphertext::pseudorandom(&engine.ctx, level, ScaleId::Message, &[2; 32])?;
    let work = tempfile::tempdir()?;
    let job = HopJob {
        program: program.to_bytes()?,
        layer: 0,
        weights: pack,
        input: input.to_bytes(&engine.ctx),
        keys: keys.clone(),
        work_dir: work.path().into(),
        threads,
    };
    std::fs::write("/proc/self/clear_refs", "5")?;
    let (begin, mut last) = (cpu_seconds(), cpu_seconds());
    let mut peak = 0;
    let mut on_event = |event| {
        if let HopEvent::StepDone { name, .. } = event {
            let (now, high) = (cpu_seconds(), status("VmHWM:"));
            peak = peak.max(high);
            println!(
                "{name:24} {:6.2} s  peak {high} MiB, after {} MiB, {} loads",
                now - last,
                status("VmRSS:"),
                keys.usage().loads
            );
            let _ = std::fs::write("/proc/self/clear_refs", "5");
            last = now;
        }
    };
    let out = run_hop_on(
        &engine,
        &program,
        &job,
        &mut on_event,
        &AtomicBool::new(false),
    )?;
    let used = keys.usage();
    println!(
        "{:.1} processor s; peak {peak} MiB of {memory} MiB; without keys {} of {} MiB; {used:?}\noutput {}",
        cpu_seconds() - begin,
        peak.saturating_sub(mib(used.peak_bytes)),
        mib(estimate.fixed),
        hex::encode(out.digest)
    );
    Ok(())
}

/// Loads when what is used last always goes first, each key being needed at once.
fn belady(steps: &[Vec<KeyId>], size: &dyn Fn(KeyId) -> u64, budget: u64) -> (u64, u64) {
    let uses: Vec<KeyId> = steps.iter().flatten().copied().collect();
    let mut held: std::collections::HashMap<KeyId, u64> = Default::default();
    let (mut loads, mut bytes) = (0, 0);
    for (at, &id) in uses.iter().enumerate() {
        if held.contains_key(&id) {
            continue;
        }
        let need = size(id);
        while held.values().sum::<u64>() + need > budget && !held.is_empty() {
            let next = |id: KeyId| {
                uses[at..]
                    .iter()
                    .position(|u| *u == id)
                    .unwrap_or(usize::MAX)
            };
            let gone = held.keys().copied().max_by_key(|k| next(*k));
            gone.map(|k| held.remove(&k));
        }
        held.insert(id, need);
        loads += 1;
        bytes += need;
    }
    (loads, bytes)
}
