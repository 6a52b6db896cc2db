//! Prints how long a bootstrap takes with every setting: `cargo run --release --example bootstrap -- n14-INSECURE`.
//! Keys and ciphertexts are random residues: the arithmetic does not care. Precision: docs/precision.md.

mod clock;

use cipherhop_ckks::{
    BootProfile, Bootstrapper, Ciphertext, CkksError, Context, EvalKey, EvalKeys, EvalModSetting,
    Evaluator, Params, ScaleId,
};
use clock::cpu_seconds;
use std::sync::Arc;

fn main() -> Result<(), CkksError> {
    let name = std::env::args().nth(1);
    let ctx = Context::new(Params::by_name(name.as_deref().unwrap_or("n14-INSECURE"))?)?;
    let mut boot = Bootstrapper::new(ctx.clone())?;
    let mut keys = EvalKeys::new();
    for spec in boot.key_specs() {
        keys.insert(EvalKey::pseudorandom(&ctx, spec, &[7; 32])?);
    }
    let ev = Evaluator::new(ctx.clone(), Arc::new(keys));
    let level = ctx.params().boot_in_level();
    let ct = Ciphertext::pseudorandom(&ctx, level, ScaleId::Message, &[8; 32])?;
    let show = |what: &str, f: &dyn Fn() -> Result<BootProfile, CkksError>| {
        let start = cpu_seconds();
        let p = f()?;
        let seconds = cpu_seconds() - start;
        println!(
            "{what:<28} {seconds:8.2} s of processor time, evalmod {:.0} %, keys read {:.1} GiB",
            100.0 * p.evalmod_s / p.total_s,
            p.key_bytes as f64 / f64::from(1 << 30)
        );
        Ok::<(), CkksError>(())
    };
    for setting in EvalModSetting::ALL {
        boot = boot.with_setting(setting);
        let name = setting.name();
        show(&format!("{name}, real"), &|| {
            Ok(boot.real(&ev, &ct, None)?.1)
        })?;
        show(&format!("{name}, complex"), &|| {
            Ok(boot.complex(&ev, &ct, None)?.2)
        })?;
        show(&format!("{name}, real, two passes"), &|| {
            Ok(boot.real_refined(&ev, &ct, 12)?.1)
        })?;
    }
    Ok(())
}
