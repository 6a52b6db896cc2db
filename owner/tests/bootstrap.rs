//! Bootstrapping end to end, with its precision. The ignored tests are the measurements:
//! `cargo test --release -p cipherhop-owner --test bootstrap -- --ignored --nocapture measure_n14`.

#![allow(clippy::unwrap_used)]

#[path = "../../worker/ckks/examples/clock/mod.rs"]
mod clock;
mod common;

use cipherhop_ckks::*;
use clock::cpu_seconds;
use common::*;
use std::sync::Arc;

/// Errors in the real part only: the imaginary part of a real result is noise that circuits ignore.
fn real_bits(have: &[Complex], want: &[f64]) -> (f64, f64) {
    let have: Vec<_> = have.iter().map(|v| Complex::real(v.re)).collect();
    let want: Vec<_> = want.iter().map(|&v| Complex::real(v)).collect();
    bits(&have, &want)
}

fn parts(v: &[Complex]) -> (Vec<f64>, Vec<f64>) {
    (
        v.iter().map(|x| x.re).collect(),
        v.iter().map(|x| x.im).collect(),
    )
}

/// One row of the table in docs/precision.md: worst and average bits of the worst of three real results.
struct Row {
    what: String,
    out_level: usize,
    worst: f64,
    average: f64,
    real: BootProfile,
    /// processor seconds of the real and of the complex bootstrap
    seconds: [f64; 2],
}

fn print(rows: &[Row], params: &Params) {
    println!(
        "| EvalMod | levels | usable levels left | worst / average bits | processor seconds, real (share of evalmod) | complex |"
    );
    for r in rows {
        let p = &r.real;
        println!(
            "| {} | {} | {} | {:.2} / {:.2} | {:.2} ({:.0} %) | {:.2} |",
            r.what,
            params.evalmod_levels + params.boot_out_level() - r.out_level,
            r.out_level - params.stc_levels,
            r.worst,
            r.average,
            r.seconds[0],
            100.0 * p.evalmod_s / p.total_s,
            r.seconds[1],
        );
    }
}

/// Runs a real and a complex bootstrap with every setting, in one pass and in two passes with the factors given.
fn run(name: &str, log_factors: &[u32]) -> Vec<Row> {
    let mut owner = Owner::new(name, 1);
    let mut boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let keys = owner.keys(&boot.key_specs());
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    println!(
        "{name}: {} keys {:.1} MiB, matrices {:.1} MiB",
        keys.len(),
        mib(keys.bytes()),
        mib(boot.bytes())
    );
    let ev = Evaluator::new(owner.ctx.clone(), Arc::new(keys));
    let v = values(owner.ctx.slots(), 5);
    let (re, im) = parts(&v);
    let ct = owner.encrypt(&v, owner.ctx.params().boot_in_level());
    let mut rows = Vec::new();
    for setting in EvalModSetting::ALL {
        boot = boot.with_setting(setting);
        let passes = std::iter::once(None).chain(log_factors.iter().map(Some));
        for log_factor in passes {
            let start = cpu_seconds();
            let (a, real) = match log_factor {
                None => boot.real(&ev, &ct, None).unwrap(),
                Some(&k) => boot.real_refined(&ev, &ct, k).unwrap(),
            };
            let middle = cpu_seconds();
            let (b, c, _) = match log_factor {
                None => boot.complex(&ev, &ct, None).unwrap(),
                Some(&k) => boot.complex_refined(&ev, &ct, k).unwrap(),
            };
            let seconds = [middle - start, cpu_seconds() - middle];
            let (mut worst, mut average) = (f64::MAX, f64::MAX);
            for (out, want) in [(&a, &re), (&b, &re), (&c, &im)] {
                assert_eq!(out.level(), boot.out_level());
                assert_eq!(out.scale_id(), ScaleId::Message);
                let (w, avg) = real_bits(&owner.decrypt(out), want);
                worst = worst.min(w);
                average = average.min(avg);
            }
            let passes = match log_factor {
                None => String::new(),
                Some(k) => format!(", two passes, 2^{k}"),
            };
            rows.push(Row {
                what: format!("{}{passes}", setting.name()),
                out_level: boot.out_level(),
                worst,
                average,
                real,
                seconds,
            });
        }
    }
    print(&rows, owner.ctx.params());
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find(|l| l.starts_with("VmHWM"));
        println!("peak memory {}", peak.unwrap_or("unknown"));
    }
    rows
}

#[test]
fn every_setting_returns_the_values_as_precisely_as_it_promises() {
    for ring in ["n10-INSECURE", "n11-INSECURE"] {
        let top = Params::by_name(ring).unwrap().boot_out_level();
        let rows = run(ring, &[12]);
        let bounds = [
            (top, 18.8, 19.7),
            (top, 27.0, 29.0),
            (top - 1, 21.5, 23.0),
            (top - 1, 27.0, 29.0),
        ];
        assert_eq!(rows.len(), bounds.len());
        for (row, (level, worst, average)) in rows.iter().zip(bounds) {
            assert_eq!(row.out_level, level);
            assert!(
                row.worst > worst && row.average > average,
                "{ring} {}: {} {}",
                row.what,
                row.worst,
                row.average
            );
            assert!(row.real.key_bytes > 0);
        }
    }
}

#[test]
fn a_factor_that_the_error_could_exceed_is_refused() {
    let mut owner = Owner::new("n10-INSECURE", 9);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let ev = owner.evaluator(&boot.key_specs());
    let ct = owner.encrypt(&[Complex::real(0.5)], 3);
    for k in [0, Bootstrapper::MAX_LOG_FACTOR + 1] {
        assert!(boot.real_refined(&ev, &ct, k).is_err());
        assert!(boot.complex_refined(&ev, &ct, k).is_err());
    }
}

#[test]
fn small_values_and_higher_input_levels_are_as_good() {
    let mut owner = Owner::new("n10-INSECURE", 2);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let ev = owner.evaluator(&boot.key_specs());
    let v: Vec<_> = reals(owner.ctx.slots(), 6)
        .iter()
        .map(|x| x.scale(0.05))
        .collect();
    for level in [3, 4, 11] {
        let ct = owner.encrypt(&v, level);
        let (out, _) = boot.real(&ev, &ct, None).unwrap();
        let (worst, average) = real_bits(&owner.decrypt(&out), &parts(&v).0);
        assert!(worst > 20.5 && average > 22.5, "{worst} {average}");
    }
}

#[test]
fn a_mask_clears_slots_at_no_level() {
    let mut owner = Owner::new("n10-INSECURE", 3);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let ev = owner.evaluator(&boot.key_specs());
    let v = reals(owner.ctx.slots(), 7);
    let ct = owner.encrypt(&v, 3);
    for period in [4, 64, owner.ctx.slots()] {
        let mask: Vec<f64> = (0..period).map(|p| f64::from(p % 4 != 1)).collect();
        let (out, _) = boot.real(&ev, &ct, Some(&mask)).unwrap();
        let want: Vec<f64> = v
            .iter()
            .enumerate()
            .map(|(p, x)| x.re * mask[p % period])
            .collect();
        let (worst, average) = real_bits(&owner.decrypt(&out), &want);
        assert!(worst > 18.8 && average > 19.7, "{worst} {average}");
    }
    assert!(boot.real(&ev, &ct, Some(&[1.0; 3])).is_err());
}

#[test]
fn the_stages_give_the_same_bytes_apart_together_and_on_two_threads() {
    let mut owner = Owner::new("n10-INSECURE", 4);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let ev = owner.evaluator(&boot.key_specs());
    let ct = owner.encrypt(&values(owner.ctx.slots(), 8), 3);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| boot.complex(&ev, &ct, None).unwrap())
    };
    let (re, im, profile) = on(1);
    let (re2, im2, _) = on(2);
    assert_eq!((&re, &im), (&re2, &im2));
    let sum = profile.stc_s + profile.modraise_s + profile.cts_s + profile.evalmod_s;
    assert!(profile.stc_s > 0.0 && sum <= profile.total_s && profile.key_bytes > 0);

    let x = boot.stc(&ev, &ct, None).unwrap();
    assert_eq!(x.level(), 0);
    let mut x = boot.mod_raise(&ev, &x).unwrap();
    for stage in 0..boot.cts_stages() - 1 {
        x = boot.cts(&ev, &x, stage).unwrap();
    }
    assert!(boot.cts(&ev, &x, boot.cts_stages() - 1).is_err());
    let (a, b) = boot.cts_last_complex(&ev, &x).unwrap();
    assert_eq!(boot.evalmod(&ev, &a).unwrap(), re);
    assert_eq!(boot.evalmod(&ev, &b).unwrap(), im);
    let a = boot.cts_last_real(&ev, &x).unwrap();
    assert_eq!(
        boot.evalmod(&ev, &a).unwrap(),
        boot.real(&ev, &ct, None).unwrap().0
    );
}

#[test]
fn wrong_inputs_and_missing_keys_are_refused() {
    let mut owner = Owner::new("n10-INSECURE", 5);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let ct = owner.encrypt(&[Complex::real(0.5)], 2);
    let ev = owner.evaluator(&[]);
    assert!(matches!(
        boot.real(&ev, &ct, None),
        Err(CkksError::LevelTooLow { .. })
    ));
    let ct = owner.encrypt(&[Complex::real(0.5)], 3);
    assert!(matches!(
        boot.real(&ev, &ct, None),
        Err(CkksError::MissingKey(_))
    ));
    assert!(boot.mod_raise(&ev, &ct).is_err());
    assert!(boot.evalmod(&ev, &ct).is_err());
    let needed = boot.key_specs();
    assert!(needed.contains(&spec(KeyId::ToSparse, 1)));
    assert!(needed.contains(&spec(KeyId::FromSparse, 29)));
    assert!(needed.contains(&spec(KeyId::Relin, 26)));
    assert!(needed.contains(&spec(KeyId::Conj, 27)));
}

#[test]
#[ignore = "measurement"]
fn measure_n14() {
    run("n14-INSECURE", &[8, 12]);
}

#[test]
#[ignore = "measurement: 6 GiB"]
fn measure_n16() {
    run("n16-128", &[12]);
}
