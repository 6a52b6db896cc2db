//! `bench`: precision of a bootstrap, which only a holder of the secret key can see. The key is made here and
//! forgotten at the end. `cipherhop-worker bench bootstrap` runs this and adds the figures to its times.

use std::sync::Arc;

use cipherhop_ckks::{
    Bootstrapper, Complex, Context, EvalKeys, EvalModSetting, Evaluator, Isa, Params, kernel_for,
};
use rand::Rng;
use serde::Serialize;

use crate::{
    Cryptor, EvalKeyGen, SecretKey,
    cli::Bench,
    noise::os_rng,
    report::{Outcome, Output},
};

/// -log2 of the error of slots whose values lie in [-1, 1].
#[derive(Clone, Copy, Debug, Serialize)]
struct Bits {
    worst_bits: f64,
    average_bits: f64,
}

impl Bits {
    fn of(errors: impl Iterator<Item = f64> + Clone) -> Bits {
        let count = errors.clone().count().max(1) as f64;
        let worst = errors.clone().fold(0.0, f64::max);
        let average = errors.sum::<f64>() / count;
        Bits {
            worst_bits: -worst.log2(),
            average_bits: -average.log2(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    params: String,
    insecure: bool,
    isa: &'static str,
    slots: usize,
    real: Bits,
    complex: Bits,
    /// Real data, precise setting of the modular reduction.
    precise: Bits,
}

/// Runs the command.
pub fn run(args: &Bench, out: &Output) -> anyhow::Result<Outcome> {
    let params = Params::by_name(&args.params)
        .map_err(|e| anyhow::anyhow!("{e}; parameter sets: {}", Params::names().join(", ")))?;
    let isa = args.isa.unwrap_or_else(Isa::best);
    let kernel = kernel_for(isa)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.into())
        .build()?;
    let report = pool.install(|| measure(Context::with_kernel(params, kernel)?, isa))?;
    let insecure = if report.insecure {
        " (INSECURE, for tests only)"
    } else {
        ""
    };
    let text = format!(
        "Bootstrap of {} slots on {}{insecure}, values in [-1, 1], bits of the error:\n\
         real: {:.2} worst, {:.2} average\ncomplex: {:.2} worst, {:.2} average\n\
         real, precise: {:.2} worst, {:.2} average",
        report.slots,
        report.params,
        report.real.worst_bits,
        report.real.average_bits,
        report.complex.worst_bits,
        report.complex.average_bits,
        report.precise.worst_bits,
        report.precise.average_bits,
    );
    out.result(&report, &text)?;
    Ok(Outcome::Success)
}

fn measure(ctx: Arc<Context>, isa: Isa) -> anyhow::Result<Report> {
    let mut rng = os_rng();
    let params = ctx.params();
    let secret = SecretKey::generate(params, &mut rng);
    let boot = Bootstrapper::new(ctx.clone())?;
    let generator = EvalKeyGen::new(ctx.clone(), &secret)?;
    let mut keys = EvalKeys::new();
    for spec in boot.key_specs() {
        keys.insert(generator.generate(&spec, &mut rng)?);
    }
    drop(generator);
    let ev = Evaluator::new(ctx.clone(), Arc::new(keys));
    let cryptor = Cryptor::new(ctx.clone(), &secret)?;
    let mut unit = || f64::from(rng.next_u32()) / f64::from(1u32 << 31) - 1.0;
    let values: Vec<Complex> = (0..ctx.slots())
        .map(|_| Complex::new(unit(), unit()))
        .collect();
    let ct = cryptor.encrypt(&values, params.boot_in_level(), &mut rng)?;

    let real = cryptor.decrypt(&boot.real(&ev, &ct, None)?.0)?;
    let (re, im, _) = boot.complex(&ev, &ct, None)?;
    let boot = boot.with_setting(EvalModSetting::Precise);
    let precise = cryptor.decrypt(&boot.real(&ev, &ct, None)?.0)?;
    let (re, im) = (cryptor.decrypt(&re)?, cryptor.decrypt(&im)?);
    let re_error = |(x, v): (&Complex, &Complex)| (x.re - v.re).abs();
    let im_error = |(x, v): (&Complex, &Complex)| (x.re - v.im).abs();
    let real = real.iter().zip(&values).map(re_error);
    let precise = precise.iter().zip(&values).map(re_error);
    let re = re.iter().zip(&values).map(re_error);
    let im = im.iter().zip(&values).map(im_error);
    Ok(Report {
        params: params.name.clone(),
        insecure: params.is_insecure(),
        isa: isa.name(),
        slots: ctx.slots(),
        real: Bits::of(real),
        complex: Bits::of(re.chain(im)),
        precise: Bits::of(precise),
    })
}
