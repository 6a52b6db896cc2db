//! The estimate of a hop's memory against what a hop takes. One test, so that the process measures nothing else.
//! Other rings and limits: `PARAMS=n14-INSECURE MEMORY_MIB=512 cargo test --release -p cipherhop-hop --test memory`.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/chain.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cipherhop_ckks::{Ciphertext, EvalKey, KeySpec, Params, ScaleId, keep_free_memory};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::keys::{DirKeys, KEYS_FORMAT, KeyEntry, KeyManifest};
use cipherhop_hop::memory::HopMemory;
use cipherhop_hop::run::{HopJob, run_hop_on};
use sha2::{Digest, Sha256};

/// Most memory since the last call of `forget_peak`, bytes.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            * 1024,
    )
}

fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

#[test]
fn the_estimate_bounds_the_peak_and_a_small_budget_gives_the_same_bytes() {
    let set = std::env::var("PARAMS").unwrap_or("n11-INSECURE".into());
    let params = Params::by_name(&set).unwrap();
    let chain = support::chain("tiny-llama", 3);
    let (packs, _) = chain.packs(&[65, 66, 67]);
    let program = chain.program(&params, 3, &packs).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let specs = program.key_specs().unwrap();
    let engine = Engine::new(params.clone()).unwrap();
    let mut keys: Vec<KeyEntry> = specs
        .iter()
        .map(|&spec: &KeySpec| {
            let key = EvalKey::pseudorandom(&engine.ctx, spec, &[1; 32]).unwrap();
            let bytes = key.to_bytes(&engine.ctx);
            let digest = hex::encode(Sha256::digest(&bytes));
            std::fs::write(dir.path().join(&digest), &bytes).unwrap();
            KeyEntry {
                id: spec.id.to_string(),
                limbs: spec.limbs,
                digest,
                size: bytes.len() as u64,
            }
        })
        .collect();
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    let manifest = KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(params.digest()),
        keys,
    };
    let memory = HopMemory::estimate(&program, manifest.specs().unwrap()).unwrap();
    assert!(memory.key_budget(memory.least() - 1).is_none());
    assert_eq!(memory.key_budget(memory.least()), Some(memory.least_keys));
    let level = params.boot_out_level();
    let input = Ciphertext::pseudorandom(&engine.ctx, level, ScaleId::Message, &[2; 32]).unwrap();
    let matrices = engine.boot.bytes();
    let mib = |b: u64| b as f64 / (1 << 20) as f64;
    println!(
        "{set}: {memory:?}, matrices {:.1} MiB",
        mib(matrices as u64)
    );
    let mut digests: Vec<[u8; 32]> = Vec::new();
    let mut limits = vec![memory.least(), (memory.least() + memory.best()) / 2];
    limits.push(memory.best() + (32 << 20));
    if let Ok(text) = std::env::var("MEMORY_MIB") {
        limits = vec![text.parse::<u64>().unwrap() << 20];
    }
    for allowed in limits {
        let budget = memory.key_budget(allowed).unwrap();
        keep_free_memory(memory.to_spare(allowed));
        let keys = DirKeys::open(engine.ctx.clone(), dir.path().into(), manifest.clone());
        let keys = Arc::new(keys.unwrap().with_budget(budget));
        let work = tempfile::tempdir().unwrap();
        let job = HopJob {
            program: program.to_bytes().unwrap(),
            layer: 0,
            weights: packs[0].clone(),
            input: input.to_bytes(&engine.ctx),
            keys: keys.clone(),
            work_dir: work.path().into(),
            threads: 1,
        };
        let measured = forget_peak();
        let out = run_hop_on(
            &engine,
            &program,
            &job,
            &mut |_| {},
            &AtomicBool::new(false),
        );
        digests.push(out.unwrap().digest);
        let used = keys.usage();
        assert!(used.peak_bytes <= budget, "{used:?}");
        let (true, Some(peak)) = (measured, peak()) else {
            continue;
        };
        println!(
            "allowed {:.1} MiB, peak {:.1} MiB, without keys {:.1} of {:.1} MiB, {used:?}",
            mib(allowed),
            mib(peak),
            mib(peak.saturating_sub(used.peak_bytes)),
            mib(memory.fixed)
        );
        assert!(peak <= allowed, "{peak} of {allowed} bytes");
        assert!(
            peak >= allowed / 4,
            "{peak} of {allowed} bytes: a useless estimate"
        );
    }
    digests.dedup();
    assert_eq!(digests.len(), 1);
}
