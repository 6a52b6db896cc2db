//! Linear maps against the clear computation.

mod common;

use cipherhop_ckks::*;
use common::*;

/// A dense block map with diagonals on both sides of zero.
fn sample(period: usize, offsets: &[i64], seed: u64) -> LinearMap {
    let mut map = LinearMap::new(period);
    let w = values(period * offsets.len(), seed);
    for (k, &r) in offsets.iter().enumerate() {
        for p in 0..period {
            map.add(p, r, w[k * period + p]);
        }
    }
    map
}

fn rotation_specs(map: &LinearMap, slots: usize, limbs: usize) -> Vec<KeySpec> {
    map.rotations(slots)
        .into_iter()
        .map(|r| spec(KeyId::Rot(r), limbs))
        .collect()
}

#[test]
fn linear_maps_agree_with_the_clear_computation() {
    let mut owner = Owner::new("n10-INSECURE", 20);
    let slots = owner.ctx.slots();
    let dense: Vec<i64> = (-17..23).collect();
    let strided: Vec<i64> = (-15..16).map(|k| 16 * k).collect();
    let sparse = [-30, 0, 1, 100, 101];
    // (period, offsets, n1, base, level)
    let cases: [(usize, &[i64], usize, i64, usize); 5] = [
        (64, &dense, 8, 0, 5),
        (slots, &dense, 4, -17, 12),
        (256, &strided, 8, -240, 18),
        (32, &sparse, 16, 0, 3),
        (128, &[7], 1, 0, 1),
    ];
    for (period, offsets, n1, base, level) in cases {
        let mut map = sample(period, offsets, 21);
        (map.n1, map.base) = (n1, base);
        let ev = owner.evaluator(&rotation_specs(&map, slots, level + 1));
        let v = values(slots, 22);
        let ct = owner.encrypt(&v, level);
        let y = ev.linear(&ct, &map).unwrap();
        assert_eq!(y.level(), level - 1);
        let (worst, _) = bits(&owner.decrypt(&y), &map.apply(&v));
        assert!(
            worst > 22.0,
            "period {period} at level {level}: {worst} bits"
        );
        let prepared = map.prepare(&owner.ctx, ScaleId::Message, level).unwrap();
        assert_eq!(ev.linear_prepared(&ct, &prepared).unwrap(), y);
    }
}

#[test]
fn partial_sums_give_the_same_bytes_however_they_are_cut() {
    let mut owner = Owner::new("n10-INSECURE", 23);
    let slots = owner.ctx.slots();
    for (count, level) in [(128i64, 4), (24, 9)] {
        let offsets: Vec<i64> = (-count / 2..count / 2).collect();
        let mut map = sample(slots, &offsets, 24);
        map.n1 = 4;
        map.segment = 2;
        let ev = owner.evaluator(&rotation_specs(&map, slots, level + 1));
        let ct = owner.encrypt(&values(slots, 25), level);
        let whole = ev.linear(&ct, &map).unwrap();
        let n = map.segments();
        assert!(n >= 3);
        for cut in 1..n.min(4) {
            let mut sum = ev.linear_partial(&ct, &map, cut..n).unwrap();
            let head = ev.linear_partial(&ct, &map, 0..cut).unwrap();
            ev.add_extended(&mut sum, &head).unwrap();
            assert_eq!(ev.mod_down_rescale(&sum).unwrap(), whole, "cut at {cut}");
        }
        assert!(ev.linear_partial(&ct, &map, n..n + 1).is_err());
    }
}

#[test]
fn masks_multiply_the_input_or_the_output() {
    let mut owner = Owner::new("n10-INSECURE", 26);
    let slots = owner.ctx.slots();
    let v = values(slots, 27);
    let mask: Vec<f64> = (0..128).map(|p| f64::from(p % 3 == 0)).collect();
    let offsets = [-3, 0, 2];
    let plain = sample(32, &offsets, 28);
    let (mut on_input, mut on_output) = (plain.clone(), plain.clone());
    on_input.mask_input(&mask).unwrap();
    on_output.mask_output(&mask).unwrap();
    assert!(on_input.mask_input(&mask[..3]).is_err());
    let masked = |v: &[Complex]| -> Vec<Complex> {
        let m = mask.iter().cycle();
        v.iter().zip(m).map(|(x, &m)| x.scale(m)).collect()
    };
    let ev = owner.evaluator(&rotation_specs(&plain, slots, 5));
    let ct = owner.encrypt(&v, 4);
    let y = ev.linear(&ct, &on_input).unwrap();
    assert!(bits(&owner.decrypt(&y), &plain.apply(&masked(&v))).0 > 25.0);
    let y = ev.linear(&ct, &on_output).unwrap();
    assert!(bits(&owner.decrypt(&y), &masked(&plain.apply(&v))).0 > 25.0);
}

#[test]
fn bad_maps_and_missing_keys_are_refused() {
    let mut owner = Owner::new("n10-INSECURE", 29);
    let ct = owner.encrypt(&[Complex::real(0.5)], 3);
    let ev = owner.evaluator(&[spec(KeyId::Rot(1), 2)]);
    assert_eq!(ev.linear(&ct, &LinearMap::new(8)), Err(CkksError::Empty));
    let mut map = LinearMap::new(8);
    map.add(0, 2, Complex::real(1.0));
    assert_eq!(
        ev.linear(&ct, &map),
        Err(CkksError::MissingKey(KeyId::Rot(2)))
    );
    let mut map = LinearMap::new(8);
    map.add(0, 1, Complex::real(1.0));
    assert!(matches!(
        ev.linear(&ct, &map),
        Err(CkksError::KeyTooSmall { .. })
    ));
    map.diagonals.insert(0, vec![Complex::ZERO; 7]);
    assert_eq!(ev.linear(&ct, &map), Err(CkksError::BadSlotCount(8)));
    let mut map = LinearMap::new(1024);
    map.add(0, 0, Complex::real(1.0));
    assert_eq!(ev.linear(&ct, &map), Err(CkksError::BadSlotCount(1024)));
    for (r, base, n1) in [
        (i64::MIN, 0, 4),
        (i64::MAX, 0, 4),
        (1, i64::MIN, 4),
        (1, 0, usize::MAX),
    ] {
        let mut map = LinearMap::new(8);
        map.diagonals.insert(r, vec![Complex::ZERO; 8]);
        (map.base, map.n1) = (base, n1);
        assert!(matches!(
            ev.linear(&ct, &map),
            Err(CkksError::ShapeMismatch(_))
        ));
    }
    let low = owner.encrypt(&[Complex::real(0.5)], 0);
    let mut map = LinearMap::new(8);
    map.add(0, 0, Complex::real(1.0));
    assert!(ev.linear(&low, &map).is_err());
}
