//! The bytes of whole hops, pinned: every instruction set and any number of threads give the committed digests
//! in worker/golden/. When results are meant to change, write them anew and check them:
//!
//!     GOLDEN=write cargo test --release -p cipherhop-ckks -p cipherhop-hop --test golden
//!     cargo test --release -p cipherhop-ckks -p cipherhop-hop --test golden

#![allow(clippy::unwrap_used)]

use cipherhop_ckks::{Isa, Params};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::golden::{Degrees, Synthetic, golden_digest_on};
use cipherhop_hop::layout::Shape;

fn committed(name: &str, digest: [u8; 32]) {
    let digest = hex::encode(digest);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/");
    let path = format!("{folder}{name}");
    if std::env::var("GOLDEN").as_deref() == Ok("write") {
        std::fs::write(&path, format!("{digest}\n")).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert_eq!(digest, wanted.trim(), "{name}");
}

fn check(isa: Isa, threads: usize) {
    let begin = std::time::Instant::now();
    committed("hop-n10-INSECURE", golden_digest_on(isa, threads).unwrap());
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("{isa}, {threads} threads: {seconds:.1} s");
}

#[test]
fn golden_hop_on_every_instruction_set() {
    for isa in Isa::available() {
        check(isa, 2);
    }
}

#[test]
fn golden_hop_on_1_and_4_threads() {
    for threads in [1, 4] {
        check(Isa::best(), threads);
    }
}

/// A hop of another shape, more tokens, no normalisation of queries and keys.
fn check_larger(params: &str, tokens: usize, isa: Isa, threads: usize) {
    let begin = std::time::Instant::now();
    let shape = Shape {
        d: 64,
        heads: 4,
        kv_heads: 4,
        head_dim: 16,
        mlp: 128,
        qk_norm: false,
    };
    let degrees = Degrees {
        norm: 15,
        score: 31,
        silu: 31,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let digest = pool.build().unwrap().install(|| {
        let engine = Engine::on(isa, Params::by_name(params).unwrap()).unwrap();
        let hop = Synthetic::with_engine(engine, shape, tokens, degrees).unwrap();
        hop.run(&mut |_| {}).unwrap()
    });
    committed(&format!("hop-{params}"), digest);
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("{params}, {isa}, {threads} threads: {seconds:.1} s");
}

/// On every instruction set, and on the best one with fewer and more threads.
fn check_everywhere(params: &str, tokens: usize) {
    for isa in Isa::available() {
        check_larger(params, tokens, isa, 2);
    }
    for threads in [1, 4] {
        check_larger(params, tokens, Isa::best(), threads);
    }
}

#[test]
fn golden_hop_of_another_shape() {
    check_everywhere("n11-INSECURE", 2);
}

#[test]
fn golden_hop_on_a_large_ring() {
    check_everywhere("n14-INSECURE", 4);
}
