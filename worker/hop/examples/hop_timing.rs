//! Times one hop of SmolLM2's shape with pseudorandom keys, step by step, in CPU seconds of this process.
//!
//! cargo run --release -p cipherhop-hop --example hop_timing [PARAMS] [TOKENS] [THREADS]

#[path = "../../ckks/examples/clock/mod.rs"]
mod clock;

use clock::cpu_seconds;
use std::time::Instant;

use cipherhop_ckks::Params;
use cipherhop_hop::error::HopError;
use cipherhop_hop::golden::{Degrees, GOLDEN, Synthetic, golden_digest};
use cipherhop_hop::layout::Shape;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, or: &str| args.get(i).cloned().unwrap_or_else(|| or.to_string());
    let params = Params::by_name(&arg(0, "n14-INSECURE"))?;
    let (tokens, threads): (usize, usize) = (arg(1, "3").parse()?, arg(2, "1").parse()?);
    let golden = hex::encode(golden_digest(threads)?);
    println!(
        "golden digest {golden}: {}",
        if golden == GOLDEN {
            "as committed"
        } else {
            "DIFFERS"
        }
    );
    let shape = Shape {
        d: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        mlp: 1536,
        qk_norm: false,
    };
    let degrees = Degrees {
        norm: 31,
        score: 127,
        silu: 63,
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    pool.install(|| -> Result<(), HopError> {
        let layer = Synthetic::new(params, shape, tokens, degrees)?;
        println!("{} keys", layer.key_specs()?.len());
        let mut names = layer.registers().into_iter();
        let (start, begin) = (Instant::now(), cpu_seconds());
        let mut last = begin;
        layer.run(&mut |_| {
            let now = cpu_seconds();
            println!(
                "{:20} {:8.2} s",
                names.next().unwrap_or_default(),
                now - last
            );
            last = now;
        })?;
        println!(
            "one hop: {:.1} CPU s, {:.1} s",
            last - begin,
            start.elapsed().as_secs_f64()
        );
        Ok(())
    })?;
    Ok(())
}
