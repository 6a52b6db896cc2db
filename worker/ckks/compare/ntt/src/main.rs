//! Forward NTT of one limb, N = 2^16, q0 (50 bits), one thread, of the engine and of tfhe-ntt, alternating in
//! one run; one JSON object a line. Arguments: runs (default 15), instruction set (default the best here).

use std::error::Error;
use std::time::Instant;

use cipherhop_ckks::{Context, Isa, KeyId, Params, expand_uniform, kernel_for};

/// Transforms of one run.
const REPEATS: usize = 64;

fn seconds(limb: &mut [u64], mut transform: impl FnMut(&mut [u64])) -> f64 {
    let start = Instant::now();
    for _ in 0..REPEATS {
        transform(std::hint::black_box(limb));
    }
    start.elapsed().as_secs_f64() / REPEATS as f64
}

fn print(name: &str, kernel: &str, mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        r#"{{"name":"{name}","kernel":"{kernel}","runs":{},"min_s":{:e},"median_s":{median:e},"max_s":{:e}}}"#,
        times.len(),
        times[0],
        times[times.len() - 1]
    );
    median
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let runs: usize = args.next().map_or(Ok(15), |a| a.parse())?;
    let isa = args.next().map_or(Ok(Isa::best()), |a| a.parse())?;
    if !(1..=1000).contains(&runs) {
        return Err("between 1 and 1000 runs".into());
    }
    let params = Params::by_name("n16-128")?;
    let ctx = Context::with_kernel(params, kernel_for(isa)?)?;
    let q = ctx.modulus(0).value();
    let plan = tfhe_ntt::prime64::Plan::try_new(ctx.n(), q).ok_or("tfhe-ntt takes no such prime")?;
    let random = || expand_uniform(&[3; 32], KeyId::Conj, 0, 0, q, ctx.n());
    let (mut ours, mut theirs) = (random(), random());
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let a = seconds(&mut ours, |limb| ctx.ntt_forward(0, limb));
        let b = seconds(&mut theirs, |limb| plan.fwd(limb));
        // the first run warms up
        if run > 0 {
            our_times.push(a);
            their_times.push(b);
        }
    }
    let kernel = if plan.use_ifma() { "avx512ifma" } else { "best of this processor" };
    let ours = print("cipherhop", isa.name(), our_times);
    let theirs = print("tfhe-ntt 0.7", kernel, their_times);
    println!(r#"{{"name":"ratio","cipherhop_over_tfhe_ntt":{:.3}}}"#, ours / theirs);
    Ok(())
}
