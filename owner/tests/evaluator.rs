//! What the evaluator computes, seen by the key holder.

mod common;

use cipherhop_ckks::*;
use common::{Owner, spec, values};

const RINGS: [&str; 2] = ["n10-INSECURE", "n11-INSECURE"];

fn close(got: &[Complex], want: impl Fn(usize) -> Complex, tolerance: f64) {
    for (p, g) in got.iter().enumerate() {
        let w = want(p);
        assert!((*g - w).abs() < tolerance, "slot {p}: {g:?}, not {w:?}");
    }
}

fn keys_for(rotations: &[u32], limbs: usize) -> Vec<KeySpec> {
    let mut specs = vec![spec(KeyId::Relin, limbs), spec(KeyId::Conj, limbs)];
    specs.extend(rotations.iter().map(|&r| spec(KeyId::Rot(r), limbs)));
    specs
}

#[test]
fn encryption_is_undone_by_decryption_at_every_level() {
    let mut o = Owner::new(RINGS[0], 1);
    let v = values(o.ctx.slots(), 1);
    for level in [0, 1, 3, 9, 18] {
        let ct = o.encrypt(&v, level);
        assert_eq!(ct.level(), level);
        close(&o.decrypt(&ct), |p| v[p], 1e-9);
    }
}

#[test]
fn sums_differences_and_constants() {
    for ring in RINGS {
        let mut o = Owner::new(ring, 2);
        let ev = o.evaluator(&[]);
        let (v, w) = (values(o.ctx.slots(), 1), values(o.ctx.slots(), 2));
        let (a, b) = (o.encrypt(&v, 9), o.encrypt(&w, 5));
        let c = Complex::new(0.25, -3.5);
        let sum = ev.add(&a, &b).unwrap();
        assert_eq!(sum.level(), 5);
        close(&o.decrypt(&sum), |p| v[p] + w[p], 1e-8);
        close(&o.decrypt(&ev.sub(&a, &b).unwrap()), |p| v[p] - w[p], 1e-8);
        close(&o.decrypt(&ev.sub(&b, &a).unwrap()), |p| w[p] - v[p], 1e-8);
        close(&o.decrypt(&ev.neg(&a)), |p| -v[p], 1e-8);
        close(
            &o.decrypt(&ev.add_const(&a, c).unwrap()),
            |p| v[p] + c,
            1e-8,
        );
        close(&o.decrypt(&ev.mul_i(&a)), |p| v[p] * Complex::I, 1e-8);
        close(&o.decrypt(&ev.mul_int(&a, -7)), |p| v[p].scale(-7.0), 1e-7);
        let product = ev.mul_const(&a, c).unwrap();
        assert_eq!(product.level(), 8);
        close(&o.decrypt(&product), |p| v[p] * c, 1e-8);
        let mut total = a.clone();
        ev.add_assign(&mut total, &a).unwrap();
        close(&o.decrypt(&total), |p| v[p].scale(2.0), 1e-8);
        let plain = o.ctx.encode_add(&w[..16], 9).unwrap();
        close(
            &o.decrypt(&ev.add_plain(&a, &plain).unwrap()),
            |p| v[p] + w[p % 16],
            1e-8,
        );
    }
}

#[test]
fn products_stay_on_scale_from_the_top_to_the_bottom() {
    for ring in RINGS {
        let mut o = Owner::new(ring, 3);
        let ev = o.evaluator(&keys_for(&[], 19));
        let v = values(o.ctx.slots(), 3);
        let w: Vec<_> = values(o.ctx.slots(), 4)
            .iter()
            .map(|x| x.scale(0.7))
            .collect();
        let (mut a, b) = (o.encrypt(&v, 18), o.encrypt(&w, 18));
        let mut want = v.clone();
        for level in (1..=18).rev() {
            a = ev.mul(&a, &b).unwrap();
            assert_eq!(a.level(), level - 1);
            for (x, y) in want.iter_mut().zip(&w) {
                *x = *x * *y;
            }
            close(&o.decrypt(&a), |p| want[p], 1e-7);
        }
        assert!(matches!(
            ev.mul(&a, &b),
            Err(CkksError::LevelTooLow { have: 0, need: 1 })
        ));
        let square = ev.square(&b).unwrap();
        close(&o.decrypt(&square), |p| w[p] * w[p], 1e-8);
        let sum = ev.mul_sum(&[(&b, &b), (&b, &square)]).unwrap();
        assert_eq!(sum.level(), 16);
        close(&o.decrypt(&sum), |p| w[p] * w[p] + w[p] * w[p] * w[p], 1e-7);
    }
}

#[test]
fn lowering_keeps_the_value_at_every_level() {
    let mut o = Owner::new(RINGS[0], 4);
    let ev = o.evaluator(&[]);
    let v = values(o.ctx.slots(), 5);
    let a = o.encrypt(&v, 18);
    for level in 0..=18 {
        let b = ev.drop_to(&a, level).unwrap();
        assert_eq!(b.level(), level);
        close(&o.decrypt(&b), |p| v[p], 1e-8);
    }
    assert!(ev.drop_to(&ev.drop_to(&a, 4).unwrap(), 5).is_err());
}

#[test]
fn rotation_moves_slots_to_the_left_and_hoisting_changes_no_byte() {
    for ring in RINGS {
        let mut o = Owner::new(ring, 5);
        let slots = o.ctx.slots() as i64;
        let ev = o.evaluator(&keys_for(&[1, 7, slots as u32 - 3], 19));
        let v = values(slots as usize, 6);
        for level in [18, 9, 7, 0] {
            let a = o.encrypt(&v, level);
            let steps = [1, 7, -3, 0, slots];
            let hoisted = ev.rotate_hoisted(&a, &steps).unwrap();
            for (r, h) in steps.into_iter().zip(&hoisted) {
                let single = ev.rotate(&a, r).unwrap();
                assert_eq!(single.to_bytes(&o.ctx), h.to_bytes(&o.ctx));
                let at = |p: usize| v[(p as i64 + r).rem_euclid(slots) as usize];
                close(&o.decrypt(&single), at, 1e-8);
            }
            let c = ev.conjugate(&a).unwrap();
            close(&o.decrypt(&c), |p| v[p].conj(), 1e-8);
        }
        let a = o.encrypt(&v, 3);
        assert_eq!(ev.rotate(&a, 2), Err(CkksError::MissingKey(KeyId::Rot(2))));
    }
}

#[test]
fn a_key_cut_to_fewer_limbs_serves_lower_levels_only() {
    let mut o = Owner::new(RINGS[0], 6);
    let ev = o.evaluator(&[spec(KeyId::Rot(1), 8), spec(KeyId::Relin, 5)]);
    let v = values(o.ctx.slots(), 7);
    let a = o.encrypt(&v, 7);
    let b = ev.rotate(&a, 1).unwrap();
    close(&o.decrypt(&b), |p| v[(p + 1) % v.len()], 1e-8);
    let a = o.encrypt(&v, 8);
    assert!(matches!(
        ev.rotate(&a, 1),
        Err(CkksError::KeyTooSmall {
            have: 8,
            need: 9,
            ..
        })
    ));
    let a = o.encrypt(&v, 4);
    close(&o.decrypt(&ev.square(&a).unwrap()), |p| v[p] * v[p], 1e-8);
}

#[test]
fn a_periodic_plaintext_gives_the_bytes_of_its_repetition() {
    for ring in RINGS {
        let mut o = Owner::new(ring, 7);
        let ev = o.evaluator(&[]);
        let v = values(o.ctx.slots(), 8);
        let a = o.encrypt(&v, 6);
        for period in [1, 2, 32, 256, o.ctx.slots()] {
            let w = values(period, 9);
            let full: Vec<Complex> = (0..v.len()).map(|p| w[p % period]).collect();
            let short = o.ctx.encode_mul(&w, 6).unwrap();
            let long = o.ctx.encode_mul(&full, 6).unwrap();
            assert_eq!(short.bytes() * (v.len() / period), long.bytes());
            let x = ev.mul_plain(&a, &short).unwrap();
            let y = ev.mul_plain(&a, &long).unwrap();
            assert_eq!(x.to_bytes(&o.ctx), y.to_bytes(&o.ctx));
            assert_eq!(x.level(), 5);
            close(&o.decrypt(&x), |p| v[p] * full[p], 1e-8);
        }
    }
}

#[test]
fn sums_of_plain_products_split_anywhere_give_the_same_bytes() {
    let mut o = Owner::new(RINGS[1], 8);
    let ev = o.evaluator(&[]);
    let slots = o.ctx.slots();
    let v: Vec<_> = (0..9).map(|i| values(slots, 20 + i)).collect();
    let w: Vec<_> = (0..9).map(|i| values(64, 40 + i)).collect();
    let cts: Vec<_> = v.iter().map(|v| o.encrypt(v, 4)).collect();
    let pts: Vec<_> = w.iter().map(|w| o.ctx.encode_mul(w, 4).unwrap()).collect();
    let terms: Vec<_> = cts.iter().zip(&pts).collect();
    let whole = ev.dot_plain(&terms).unwrap();
    let mut parts = ev.dot_plain_no_rescale(&terms[..2]).unwrap();
    for range in [2..3, 3..9] {
        let part = ev.dot_plain_no_rescale(&terms[range]).unwrap();
        ev.add_product(&mut parts, &part).unwrap();
    }
    assert_eq!(ev.rescale(&parts).unwrap(), whole);
    let sum = |p: usize| {
        v.iter()
            .zip(&w)
            .fold(Complex::ZERO, |acc, (v, w)| acc + v[p] * w[p % 64])
    };
    close(&o.decrypt(&whole), sum, 1e-7);
}

#[test]
fn double_hoisting_computes_the_same_values() {
    let mut o = Owner::new(RINGS[1], 9);
    let ev = o.evaluator(&keys_for(&[1, 2, 5], 19));
    let slots = o.ctx.slots();
    let v = values(slots, 10);
    let w: Vec<_> = (0..3).map(|i| values(128, 50 + i)).collect();
    let a = o.encrypt(&v, 9);
    let digits = ev.hoist(&a);
    let babies: Vec<_> = [0, 1, 2]
        .iter()
        .map(|&r| ev.rotate_ext(&a, &digits, r).unwrap())
        .collect();
    let factors: Vec<_> = w
        .iter()
        .map(|w| o.ctx.encode_mul_ext(w, ScaleId::Message, 9).unwrap())
        .collect();
    let terms: Vec<_> = babies.iter().zip(&factors).collect();
    let inner = ev.dot_plain_ext(&terms).unwrap();
    let value =
        |p: usize| (0..3).fold(Complex::ZERO, |s, r| s + w[r][p % 128] * v[(p + r) % slots]);
    let direct = ev.mod_down_rescale(&inner).unwrap();
    assert_eq!(direct.level(), 8);
    close(&o.decrypt(&direct), value, 1e-8);
    let two_steps = ev.rescale(&ev.mod_down_product(&inner)).unwrap();
    close(&o.decrypt(&two_steps), value, 1e-8);
    // a giant step on top, still modulo QP
    let mut outer = ev.rotate_extended(&inner, 5).unwrap();
    ev.add_extended(&mut outer, &inner).unwrap();
    let got = ev.mod_down_rescale(&outer).unwrap();
    close(
        &o.decrypt(&got),
        |p| value(p) + value((p + 5) % slots),
        1e-8,
    );
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let mut o = Owner::new(RINGS[1], 10);
            let ev = o.evaluator(&keys_for(&[3], 19));
            let v = values(o.ctx.slots(), 11);
            let a = o.encrypt(&v, 18);
            let b = ev.mul(&a, &ev.rotate(&a, 3).unwrap()).unwrap();
            let p = o.ctx.encode_mul(&v[..64], 17).unwrap();
            let c = ev.conjugate(&ev.mul_plain(&b, &p).unwrap()).unwrap();
            ev.drop_to(&c, 4).unwrap().to_bytes(&o.ctx)
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(4));
}

#[test]
fn rows_levels_and_plaintexts_that_do_not_fit_are_refused() {
    let mut o = Owner::new(RINGS[0], 12);
    let ev = o.evaluator(&[]);
    let v = values(o.ctx.slots(), 12);
    let a = o.encrypt(&v, 5);
    let mul = o.ctx.encode_mul(&v, 5).unwrap();
    let add = o.ctx.encode_add(&v, 5).unwrap();
    let other = o.ctx.encode_mul(&v, 4).unwrap();
    assert!(matches!(
        ev.mul_plain(&a, &add),
        Err(CkksError::PlaintextMismatch(_))
    ));
    assert!(matches!(
        ev.add_plain(&a, &mul),
        Err(CkksError::PlaintextMismatch(_))
    ));
    assert!(matches!(
        ev.mul_plain(&a, &other),
        Err(CkksError::PlaintextMismatch(_))
    ));
    assert_eq!(ev.dot_plain(&[]), Err(CkksError::Empty));
    assert!(ev.mul_const(&a, Complex::real(f64::NAN)).is_err());
    assert!(ev.add_const(&a, Complex::real(1e30)).is_err());
    let ground = o.encrypt(&v, 0);
    assert!(ev.mul_const(&ground, Complex::real(1.0)).is_err());
    assert!(ev.square(&ground).is_err());
}
