//! The engine's bytes, pinned: tables, encoded diagonals, a linear map and a bootstrap give the committed
//! digests on every instruction set and any number of threads. Keys and inputs are pseudorandom, so no secret is
//! needed: the messages are garbage, the arithmetic is the real one.
//!
//! The digests are in worker/golden/. When results are meant to change, write them anew and check them:
//!
//!     GOLDEN=write cargo test --release -p cipherhop-ckks -p cipherhop-hop --test golden
//!     cargo test --release -p cipherhop-ckks -p cipherhop-hop --test golden

#![allow(clippy::unwrap_used)]

use cipherhop_ckks::*;
use sha2::{Digest, Sha256};
use std::sync::Arc;

fn committed(name: &str, digest: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/");
    let path = format!("{folder}{name}");
    if std::env::var("GOLDEN").as_deref() == Ok("write") {
        std::fs::write(&path, format!("{digest}\n")).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert_eq!(digest, wanted.trim(), "{name}");
}

/// A multiple of 2^-16 in [-1, 1).
fn value(i: usize) -> f64 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    f64::from(((x ^ (x >> 29)) >> 40) as u16) / 32768.0 - 1.0
}

/// Diagonals as plaintext polynomials, at several periods, scales and numbers of limbs.
fn diagonals(ctx: &Context) -> String {
    let mut hash = Sha256::new();
    for (period, limbs, scale) in [(1, 3, 42), (8, 1, 30), (512, 19, 42), (512, 29, 50)] {
        let v: Vec<Complex> = (0..period)
            .map(|i| Complex::new(value(i), value(i + period)))
            .collect();
        let poly = ctx.encode_poly(&v, limbs, (1u64 << scale) as f64).unwrap();
        for x in (0..limbs).flat_map(|i| poly.limb(i)) {
            hash.update(x.to_le_bytes());
        }
    }
    hex::encode(hash.finalize())
}

fn evaluator(ctx: &Arc<Context>, specs: impl IntoIterator<Item = KeySpec>) -> Evaluator {
    let mut keys = EvalKeys::new();
    for spec in specs {
        keys.insert(EvalKey::pseudorandom(ctx, spec, &[7; 32]).unwrap());
    }
    Evaluator::new(ctx.clone(), Arc::new(keys))
}

/// A dense map of 24 diagonals of period 64 with wide giant steps.
fn linear(ctx: &Arc<Context>) -> String {
    let mut map = LinearMap::new(64);
    for r in 0..24 {
        for p in 0..64 {
            map.add(p, 2 * r - 10, Complex::new(value(64 * r as usize + p), 0.0));
        }
    }
    map.choose_n1(8);
    let limbs = 10;
    let rotations = map.rotations(ctx.slots()).into_iter();
    let ev = evaluator(
        ctx,
        rotations.map(|r| KeySpec {
            id: KeyId::Rot(r),
            limbs,
        }),
    );
    let ct = Ciphertext::pseudorandom(ctx, limbs - 1, ScaleId::Message, &[9; 32]).unwrap();
    hex::encode(ev.linear(&ct, &map).unwrap().digest(ctx))
}

fn bootstrap(ctx: &Arc<Context>) -> String {
    let boot = Bootstrapper::new(ctx.clone()).unwrap();
    let ev = evaluator(ctx, boot.key_specs());
    let level = ctx.params().boot_in_level();
    let ct = Ciphertext::pseudorandom(ctx, level, ScaleId::Message, &[8; 32]).unwrap();
    let mask: Vec<f64> = (0..8).map(|p| f64::from(p % 3 != 0)).collect();
    let (re, im, _) = boot.complex(&ev, &ct, Some(&mask)).unwrap();
    let mut hash = Sha256::new();
    hash.update(re.digest(ctx));
    hash.update(im.digest(ctx));
    hex::encode(hash.finalize())
}

fn check(set: &str, kernel: Arc<dyn Kernel>, threads: usize) {
    let begin = std::time::Instant::now();
    let name = kernel.name();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(|| {
        let ctx = Context::with_kernel(Params::by_name(set).unwrap(), kernel).unwrap();
        committed(&format!("tables-{set}"), &hex::encode(ctx.tables_digest()));
        committed(&format!("diagonals-{set}"), &diagonals(&ctx));
        committed(&format!("linear-{set}"), &linear(&ctx));
        committed(&format!("bootstrap-{set}"), &bootstrap(&ctx));
    });
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("{set}, {name}, {threads} threads: {seconds:.1} s");
}

#[test]
fn golden_digests_on_every_instruction_set() {
    for isa in Isa::ALL {
        match kernel_for(isa) {
            Ok(kernel) => check("n10-INSECURE", kernel, 2),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
    check("n10-INSECURE", emulated_ifma_kernel(), 2);
}

#[test]
fn golden_digests_on_1_2_and_4_threads() {
    for threads in [1, 2, 4] {
        check("n10-INSECURE", kernel_for(Isa::best()).unwrap(), threads);
    }
}

#[test]
fn golden_digests_of_a_larger_ring() {
    check("n14-INSECURE", kernel_for(Isa::best()).unwrap(), 2);
}
