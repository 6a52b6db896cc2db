//! Prints how long the whole-limb operations take: `cargo run --release --example kernels -- [NAME]`.

use cipherhop_ckks::{CkksError, Context, KeyId, KeyProduct, Params, expand_uniform};

/// Seconds of processor time of this thread (Linux).
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|x| x.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) * 1e-9
}

fn time(what: &str, mut f: impl FnMut()) {
    let only = std::env::args().nth(1);
    if only.is_some_and(|only| !what.contains(&only)) {
        return;
    }
    const ROUNDS: usize = 1000;
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = cpu();
        (0..ROUNDS).for_each(|_| f());
        best = best.min((cpu() - start) / ROUNDS as f64);
    }
    println!("{what:<40} {:>8.1} us", best * 1e6);
}

fn main() -> Result<(), CkksError> {
    let ctx = Context::new(Params::by_name("n16-128")?)?;
    let (n, k) = (ctx.n(), ctx.kernel());
    let m = ctx.modulus(0);
    let uniform = |i| expand_uniform(&[i; 32], KeyId::Relin, 0, i as usize, m.value(), n);
    let limbs: Vec<Vec<u64>> = (0..12).map(uniform).collect();
    let (mut out, mut out1) = (uniform(20), uniform(21));
    let table = ctx.automorphism(5);
    time("forward NTT", || ctx.ntt_forward(0, &mut out));
    time("inverse NTT", || ctx.ntt_inverse(0, &mut out));
    let all: Vec<u64> = limbs[..9].concat();
    let overflow: Vec<u64> = (0..n as u64).map(|i| i % 8).collect();
    let mut many = vec![0; 4 * n];
    for s in [1, 5, 8, 9] {
        let w: Vec<u64> = limbs[11][..=s].to_vec();
        time(&format!("convert, {s} sources"), || {
            k.convert(m, &w, &all[..s * n], &overflow, &mut out)
        });
        time(&format!("convert, {s} sources, 4 targets"), || {
            let mut outs: Vec<_> = many.chunks_exact_mut(n).collect();
            k.convert_many(&[(m, &w[..]); 4], &all[..s * n], &overflow, &mut outs)
        });
    }
    for terms in [1, 2, 4] {
        let b: Vec<_> = (0..terms)
            .map(|i| (&limbs[i][..], &limbs[i + 4][..]))
            .collect();
        let both: Vec<_> = (0..terms)
            .map(|i| (&limbs[i][..], &limbs[i + 4][..], &limbs[i + 8][..]))
            .collect();
        time(&format!("dot, {terms}"), || k.dot(m, &mut out, &b));
        for table in [None, Some(&table[..])] {
            let moved = if table.is_some() { ", permuted" } else { "" };
            let product = KeyProduct {
                table,
                terms: &both,
                addends: [Some((&limbs[11], m.shoup(limbs[0][0]))), None],
            };
            time(&format!("key product, {terms} digits{moved}"), || {
                k.key_product(m, &mut out, &mut out1, &product)
            });
        }
    }
    let w = m.shoup(limbs[0][0]);
    time("sub_scale", || k.sub_scale(m, &mut out, &out1, w));
    time("add_scaled", || k.add_scaled(m, &mut out, &out1, w));
    time("lift", || {
        k.lift(ctx.modulus(1).value(), m, &out1, &mut out)
    });
    time("add", || k.add(m, &mut out, &out1));
    time("copy", || out.copy_from_slice(std::hint::black_box(&out1)));
    Ok(())
}
