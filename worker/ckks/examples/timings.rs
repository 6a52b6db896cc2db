//! Prints how long the basic operations take: `cargo run --release --example timings -- n14-INSECURE [scalar]` (or
//! another instruction set).
//! Keys and ciphertexts are random residues: the arithmetic does not care.

mod clock;

use cipherhop_ckks::{
    Ciphertext, CkksError, Complex, Context, EvalKey, EvalKeys, Evaluator, KeyId, KeySpec, Params,
    ScaleId, expand_uniform, kernel_for,
};
use clock::cpu_seconds;
use std::sync::Arc;
use std::time::Instant;

/// Smallest processor time of some rounds.
fn time<T>(what: &str, rounds: u32, mut f: impl FnMut() -> T) {
    let best = (0..=rounds)
        .map(|_| {
            let start = cpu_seconds();
            std::hint::black_box(f());
            cpu_seconds() - start
        })
        .fold(f64::MAX, f64::min);
    println!("{what:<44} {:>10.3} ms", best * 1e3);
}

fn main() -> Result<(), CkksError> {
    let name = std::env::args().nth(1);
    let name = name.as_deref().unwrap_or("n14-INSECURE");
    let start = Instant::now();
    let params = Params::by_name(name)?;
    let ctx = match std::env::args().nth(2) {
        Some(isa) => Context::with_kernel(params, kernel_for(isa.parse()?)?)?,
        None => Context::new(params)?,
    };
    println!(
        "{name}, kernel {}, context {:.2} s",
        ctx.kernel().name(),
        start.elapsed().as_secs_f64()
    );
    let mut keys = EvalKeys::new();
    for id in [KeyId::Relin, KeyId::Rot(1), KeyId::Rot(2)] {
        let spec = KeySpec {
            id,
            limbs: ctx.q_len(),
        };
        keys.insert(EvalKey::pseudorandom(&ctx, spec, &[7; 32])?);
    }
    let ev = Evaluator::new(ctx.clone(), Arc::new(keys));

    let mut limb = expand_uniform(&[3; 32], KeyId::Conj, 0, 0, ctx.modulus(0).value(), ctx.n());
    time("forward NTT, 100 limbs", 5, || {
        for _ in 0..100 {
            ctx.ntt_forward(0, &mut limb);
        }
    });
    time("inverse NTT, 100 limbs", 5, || {
        for _ in 0..100 {
            ctx.ntt_inverse(0, &mut limb);
        }
    });
    let v: Vec<Complex> = (0..2048.min(ctx.slots()))
        .map(|i| Complex::real((i % 17) as f64 / 17.0))
        .collect();
    time("encode 2048 slots at level 7", 50, || ctx.encode_mul(&v, 7));

    for level in [28, 18, 8, 5] {
        let row = if level > 18 {
            ScaleId::EvalMod
        } else {
            ScaleId::Message
        };
        let a = Ciphertext::pseudorandom(&ctx, level, row, &[1; 32])?;
        let digits = ev.hoist(&a);
        time(&format!("level {level}: hoist"), 5, || ev.hoist(&a));
        time(&format!("level {level}: hoisted rotation, QP"), 5, || {
            ev.rotate_ext(&a, &digits, 1)
        });
        time(&format!("level {level}: rotate"), 5, || ev.rotate(&a, 1));
        time(&format!("level {level}: two hoisted rotations"), 5, || {
            ev.rotate_hoisted(&a, &[1, 2])
        });
        time(&format!("level {level}: mul"), 5, || ev.mul(&a, &a));
        let p = ctx.encode_mul_on(&v, row, level)?;
        let terms = vec![(&a, &p); 32];
        time(
            &format!("level {level}: 32 plain products, one sum"),
            3,
            || ev.dot_plain_no_rescale(&terms),
        );
        let product = ev.mul_plain_no_rescale(&a, &p)?;
        time(&format!("level {level}: rescale"), 5, || {
            ev.rescale(&product)
        });
    }
    Ok(())
}
