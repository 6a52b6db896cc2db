//! Bootstrapping end to end, with its precision.

mod common;

use cipherhop_ckks::*;
use common::*;

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

/// Runs a real and a complex bootstrap; returns the worst and average bits of the worse of both.
fn run(name: &str, log: bool) -> (f64, f64) {
    let mut owner = Owner::new(name, 1);
    let boot = Bootstrapper::new(owner.ctx.clone()).unwrap();
    let specs = boot.key_specs();
    let keys = owner.keys(&specs);
    if log {
        let bytes = keys.bytes() as f64 / (1 << 20) as f64;
        println!(
            "{name}: {} keys {bytes:.1} MiB, matrices {:.1} MiB",
            keys.len(),
            boot.bytes() as f64 / (1 << 20) as f64
        );
    }
    let ev = Evaluator::new(owner.ctx.clone(), std::sync::Arc::new(keys));
    let v = values(owner.ctx.slots(), 5);
    let (re, im) = parts(&v);
    let ct = owner.encrypt(&v, owner.ctx.params().boot_in_level());
    let (out, profile) = boot.real(&ev, &ct, None).unwrap();
    assert_eq!(out.level(), owner.ctx.params().boot_out_level());
    assert_eq!(out.scale_id(), ScaleId::Message);
    let a = real_bits(&owner.decrypt(&out), &re);
    if log {
        println!(
            "{name} real: worst {:.1} average {:.1} bits, {profile:?}",
            a.0, a.1
        );
    }
    let (x, y, profile) = boot.complex(&ev, &ct, None).unwrap();
    let b = real_bits(&owner.decrypt(&x), &re);
    let c = real_bits(&owner.decrypt(&y), &im);
    if log {
        println!(
            "{name} complex: re {:.1}/{:.1} im {:.1}/{:.1} bits, {profile:?}",
            b.0, b.1, c.0, c.1
        );
    }
    (a.0.min(b.0).min(c.0), a.1.min(b.1).min(c.1))
}

#[test]
fn a_bootstrap_returns_the_values_at_full_level() {
    let (worst, average) = run("n10-INSECURE", true);
    assert!(worst > 18.8 && average > 19.7, "{worst} {average}");
}

#[test]
#[ignore]
fn measure_n11() {
    run("n11-INSECURE", true);
}

#[test]
#[ignore]
fn measure_n14() {
    run("n14-INSECURE", true);
}

#[test]
#[ignore]
fn measure_n16() {
    run("n16-128", true);
}
