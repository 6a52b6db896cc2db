//! First inputs that take real computation: a calibration, a program, weight packs, keys. Usage: seeds CORPUS
#![allow(clippy::unwrap_used)]

#[path = "../../worker/hop/tests/support/chain.rs"]
mod support;

use std::path::Path;

use cipherhop_ckks::{Context, Params};
use cipherhop_hop::fold::LayerPack;
use cipherhop_hop::model::{Matrix, Model, ModelConfig};

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

fn main() {
    let corpus = std::env::args().nth(1).unwrap();
    let corpus = Path::new(&corpus);
    for name in cipherhop_hop::model::TINY_NAMES {
        let chain = support::chain(name, 1);
        put(
            &corpus.join("calibration"),
            name,
            &chain.calibration.to_bytes().unwrap(),
        );
        let (packs, _) = chain.packs(&[1]);
        let params = Params::by_name("n11-INSECURE").unwrap();
        let program = chain.program(&params, 1, &packs).unwrap();
        put(&corpus.join("program"), name, &program.to_bytes().unwrap());
    }
    // The shape that src/hop.rs takes.
    let shape = Model::open(cipherhop_hop::model::TINY_NAMES[0])
        .unwrap()
        .config;
    let cfg = ModelConfig {
        d: 4,
        heads: 2,
        kv_heads: 1,
        head_dim: 2,
        mlp: 4,
        ..shape
    };
    let matrix = |rows: usize, cols: usize| Matrix {
        rows,
        cols,
        data: vec![0.5; rows * cols],
    };
    let pack = LayerPack {
        layer: 0,
        q: matrix(4, 4),
        k: matrix(2, 4),
        v: matrix(2, 4),
        o: matrix(4, 4),
        gate: matrix(4, 4),
        up: matrix(4, 4),
        down: matrix(4, 4),
        head_dim: 2,
        q_gamma: cfg.qk_norm().then(|| vec![1.0; 2]),
        k_gamma: cfg.qk_norm().then(|| vec![1.0; 2]),
        public: 1,
        public_k: vec![0.5; 2],
        public_v: vec![0.5; 2],
    };
    let bytes = pack.to_bytes();
    put(
        &corpus.join("weight_pack"),
        "whole",
        &[&[0], &bytes[..]].concat(),
    );
    put(
        &corpus.join("weight_pack"),
        "body",
        &[&[1], &bytes[..bytes.len() - 32]].concat(),
    );
    let context = Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap();
    println!("{} slots", context.params().slots());
}
