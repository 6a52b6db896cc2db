//! Processor time of the linear maps: the stages of a bootstrap and dense matrices encoded on the way, with
//! pseudorandom keys. `cargo run --release --example maps -- n16-128 [boot|dense]`.

mod clock;

use cipherhop_ckks::{
    Bootstrapper, Ciphertext, CkksError, Complex, Context, EvalKey, EvalKeys, Evaluator, KeyId,
    KeySpec, LinearMap, Params, ScaleId,
};
use clock::cpu_seconds;
use std::sync::Arc;

/// Smallest processor time of some rounds.
fn time<T>(
    what: &str,
    rounds: u32,
    mut f: impl FnMut() -> Result<T, CkksError>,
) -> Result<T, CkksError> {
    let mut best = f64::MAX;
    let mut last = None;
    for _ in 0..rounds.max(1) {
        let start = cpu_seconds();
        last = Some(f()?);
        best = best.min(cpu_seconds() - start);
    }
    println!("{what:<52} {:>9.1} ms", best * 1e3);
    last.ok_or(CkksError::Empty)
}

fn keys(ctx: &Context, specs: &[KeySpec]) -> Result<Arc<EvalKeys>, CkksError> {
    let mut keys = EvalKeys::new();
    for &spec in specs {
        keys.insert(EvalKey::pseudorandom(ctx, spec, &[7; 32])?);
    }
    println!("{} keys, {} MiB in memory", keys.len(), keys.bytes() >> 20);
    Ok(Arc::new(keys))
}

fn boot(ctx: &Arc<Context>) -> Result<(), CkksError> {
    let boot = Bootstrapper::new(ctx.clone())?;
    println!("matrices {} MiB", boot.bytes() >> 20);
    let ev = Evaluator::new(ctx.clone(), keys(ctx, &boot.key_specs())?);
    let level = ctx.params().boot_in_level();
    let ct = Ciphertext::pseudorandom(ctx, level, ScaleId::Message, &[1; 32])?;
    let x = time("slots to coefficients", 2, || boot.stc(&ev, &ct, None))?;
    let mut x = time("modulus raising", 2, || boot.mod_raise(&ev, &x))?;
    for stage in 0..boot.cts_stages() - 1 {
        let what = format!("coefficients to slots, stage {stage}");
        x = time(&what, 2, || boot.cts(&ev, &x, stage))?;
    }
    let x = time("coefficients to slots, last stage", 2, || {
        boot.cts_last_real(&ev, &x)
    })?;
    time("modular reduction", 1, || boot.evalmod(&ev, &x))?;
    time("bootstrap, real", 2, || boot.real(&ev, &ct, None))?;
    Ok(())
}

/// `count` diagonals of period `period` at `limbs` limbs.
fn dense(
    ctx: &Arc<Context>,
    period: usize,
    count: usize,
    n1: usize,
    limbs: usize,
) -> Result<(), CkksError> {
    if period > ctx.slots() {
        return Ok(());
    }
    let mut map = LinearMap::new(period);
    map.n1 = n1;
    for r in 0..count as i64 {
        let value = |p: usize| Complex::real(((p as i64 * 31 + r * 17) % 61) as f64 / 61.0 - 0.5);
        map.diagonals.insert(r, (0..period).map(value).collect());
    }
    let specs: Vec<KeySpec> = map
        .rotations(ctx.slots())
        .into_iter()
        .map(|r| KeySpec {
            id: KeyId::Rot(r),
            limbs,
        })
        .collect();
    let ev = Evaluator::new(ctx.clone(), keys(ctx, &specs)?);
    let ct = Ciphertext::pseudorandom(ctx, limbs - 1, ScaleId::Message, &[1; 32])?;
    let name = format!("{count} diagonals of period {period}, {limbs} limbs");
    time(&format!("{name}, encoded"), 1, || ev.linear(&ct, &map))?;
    let ready = map.prepare(ctx, ScaleId::Message, limbs - 1)?;
    println!("plaintexts {} MiB", ready.bytes() >> 20);
    time(&format!("{name}, ready"), 2, || {
        ev.linear_prepared(&ct, &ready)
    })?;
    Ok(())
}

fn main() -> Result<(), CkksError> {
    let name = std::env::args().nth(1);
    let ctx = Context::new(Params::by_name(name.as_deref().unwrap_or("n14-INSECURE"))?)?;
    let which = std::env::args().nth(2);
    if which.as_deref() != Some("dense") {
        boot(&ctx)?;
    }
    if which.as_deref() != Some("boot") {
        // one vector of 2048 in 16 copies, sixteen vectors side by side, the same with paired diagonals
        dense(&ctx, 32768, 128, 16, 10)?;
        dense(&ctx, 2048, 2048, 64, 10)?;
        dense(&ctx, 2048, 1024, 32, 10)?;
        // a quarter of a layer map of SmolLM2
        dense(&ctx, 4096, 256, 32, 8)?;
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|l| l.starts_with("VmHWM"));
        println!("peak memory: {}", peak.unwrap_or("unknown"));
    }
    Ok(())
}
