//! Chebyshev evaluation against f64.

mod common;

use cipherhop_ckks::*;
use common::*;

/// Chebyshev interpolation of `f` on [lo, hi].
fn interpolate(f: impl Fn(f64) -> f64, degree: usize, lo: f64, hi: f64) -> ChebPoly {
    let n = degree + 1;
    let angle = |k: usize| std::f64::consts::PI * (k as f64 + 0.5) / n as f64;
    let samples: Vec<f64> = (0..n)
        .map(|k| f((angle(k).cos() * (hi - lo) + hi + lo) / 2.0))
        .collect();
    let coeffs = (0..n)
        .map(|j| {
            let sum: f64 = (0..n)
                .map(|k| samples[k] * (j as f64 * angle(k)).cos())
                .sum();
            sum * if j == 0 { 1.0 } else { 2.0 } / n as f64
        })
        .collect();
    ChebPoly::new(coeffs, lo, hi)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn wanted(p: &ChebPoly, v: &[Complex]) -> Vec<Complex> {
    v.iter()
        .enumerate()
        .map(|(i, x)| {
            let x = (x.re * (p.hi - p.lo) + p.hi + p.lo) / 2.0;
            let m = p.mask.as_ref().map_or(1.0, |m| m[i % m.len()]);
            Complex::real(p.value(x) * m)
        })
        .collect()
}

#[test]
fn polynomials_agree_with_f64_and_use_the_promised_levels() {
    let mut owner = Owner::new("n10-INSECURE", 30);
    let ev = owner.evaluator(&[spec(KeyId::Relin, 19)]);
    let v = reals(owner.ctx.slots(), 31);
    let ct = owner.encrypt(&v, 18);
    let odd: Vec<f64> = (0..32)
        .map(|i| if i % 2 == 1 { 0.1 } else { 0.0 })
        .collect();
    let cases = [
        (interpolate(sigmoid, 63, -20.0, 20.0), 6),
        (interpolate(|x| (1.0 + x.exp()).ln(), 127, -40.0, 40.0), 7),
        (interpolate(|x| 1.0 / x.sqrt(), 31, 1.0 / 6.0, 6.0), 5),
        (interpolate(|x| x * sigmoid(x), 64, -8.0, 8.0), 7),
        (ChebPoly::new(odd, -1.0, 1.0), 5),
        (ChebPoly::new(vec![0.25, 0.5], -1.0, 1.0), 1),
        (ChebPoly::new(vec![0.0, 0.0, 1.0], -1.0, 1.0), 2),
        (ChebPoly::new(vec![0.75], -1.0, 1.0), 1),
    ];
    for (p, depth) in cases {
        assert_eq!(cheb_depth(p.degree()), depth);
        let y = ev.cheb(&ct, &[&p]).unwrap().remove(0);
        assert_eq!(y.level(), 18 - depth);
        let (worst, _) = bits(&owner.decrypt(&y), &wanted(&p, &v));
        assert!(worst > 20.0, "degree {}: {worst} bits", p.degree());
    }
}

#[test]
fn several_polynomials_share_a_basis_and_masks_cost_no_level() {
    let mut owner = Owner::new("n10-INSECURE", 32);
    let ev = owner.evaluator(&[spec(KeyId::Relin, 16)]);
    let slots = owner.ctx.slots();
    let v = reals(slots, 33);
    let ct = owner.encrypt(&v, 12);
    let a = interpolate(sigmoid, 31, -10.0, 10.0);
    let mut b = interpolate(|x| x.cos(), 15, -3.0, 3.0);
    b.mask = Some((0..16).map(|p| f64::from(p % 4 == 1)).collect());
    let mut c = interpolate(|x| x * sigmoid(x), 63, -10.0, 10.0);
    c.mask = Some((0..slots).map(|p| (p % 7) as f64 / 7.0).collect());
    let out = ev.cheb(&ct, &[&a, &b, &c]).unwrap();
    for (y, p) in out.iter().zip([&a, &b, &c]) {
        assert_eq!(y.level(), 12 - p.depth());
        let (worst, _) = bits(&owner.decrypt(y), &wanted(p, &v));
        assert!(worst > 20.0, "degree {}: {worst} bits", p.degree());
    }
    // alone it may take another plan but must say the same
    let alone = ev.cheb(&ct, &[&b]).unwrap().remove(0);
    assert!(bits(&owner.decrypt(&alone), &wanted(&b, &v)).0 > 20.0);
}

#[test]
fn polynomials_that_do_not_fit_are_refused() {
    let mut owner = Owner::new("n10-INSECURE", 34);
    let ev = owner.evaluator(&[spec(KeyId::Relin, 19)]);
    let ct = owner.encrypt(&[Complex::real(0.5)], 4);
    let p = |c: Vec<f64>| ChebPoly::new(c, -1.0, 1.0);
    let deep = interpolate(sigmoid, 31, -1.0, 1.0);
    assert!(matches!(
        ev.cheb(&ct, &[&deep]),
        Err(CkksError::LevelTooLow { .. })
    ));
    assert_eq!(ev.cheb(&ct, &[]), Err(CkksError::Empty));
    assert!(ev.cheb(&ct, &[&p(vec![f64::NAN, 1.0])]).is_err());
    assert!(ev.cheb(&ct, &[&p(vec![1e300, 1.0])]).is_err());
    let mut masked = p(vec![0.5, 0.5]);
    masked.mask = Some(vec![1.0; 3]);
    assert_eq!(ev.cheb(&ct, &[&masked]), Err(CkksError::BadSlotCount(3)));
}
