use super::*;
use crate::params::Params;

fn context() -> std::sync::Arc<Context> {
    Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap()
}

fn values(len: usize) -> Vec<Complex> {
    let mut x = 12345u64;
    let mut next = || {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 40) as f64 / (1 << 23) as f64 - 1.0
    };
    (0..len).map(|_| Complex::new(next(), next())).collect()
}

#[test]
fn encoding_matches_the_naive_embedding() {
    let ctx = context();
    let (n, slots) = (ctx.n(), ctx.slots());
    let v = values(slots);
    let c = ctx.embed(&v, (1u64 << 42) as f64).unwrap();
    let mut power = 1usize;
    for (j, want) in v.iter().enumerate() {
        if j % 37 == 0 {
            let mut sum = Complex::ZERO;
            for (k, &x) in c.iter().enumerate() {
                let angle = std::f64::consts::PI * ((k * power) % (2 * n)) as f64 / n as f64;
                sum = sum + Complex::new(angle.cos(), angle.sin()).scale(x as f64);
            }
            let got = sum.scale(1.0 / (1u64 << 42) as f64);
            assert!((got - *want).abs() < 1e-10, "slot {j}: {got:?} {want:?}");
        }
        power = power * 5 % (2 * n);
    }
}

#[test]
fn decoding_inverts_encoding() {
    let ctx = context();
    let v = values(ctx.slots());
    for limbs in [1, 2, 19] {
        let poly = ctx.encode_poly(&v, limbs, (1u64 << 42) as f64).unwrap();
        let w = ctx.decode(&poly, (1u64 << 42) as f64).unwrap();
        for (a, b) in v.iter().zip(&w) {
            assert!((*a - *b).abs() < 1e-10);
        }
    }
}

#[test]
fn a_periodic_vector_encodes_to_the_same_polynomial_as_its_repetition() {
    let ctx = context();
    for period in [1, 2, 8, 64, 256] {
        let v = values(period);
        let full: Vec<_> = v.iter().copied().cycle().take(ctx.slots()).collect();
        let scale = (1u64 << 42) as f64;
        let short = ctx.encode_poly(&v, 3, scale).unwrap();
        let long = ctx.encode_poly(&full, 3, scale).unwrap();
        // the layers that see the repetition only double and cancel, so this is exact
        assert_eq!(short, long);
    }
}

#[test]
fn ties_round_to_even_and_large_values_are_refused() {
    for (x, want) in [
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (-2.4, -2),
    ] {
        assert_eq!(round_to_i64(x), Some(want));
    }
    assert_eq!(round_to_i64(4503599627370497.0), Some(4503599627370497));
    assert_eq!(round_to_i64(-(2f64.powi(61))), Some(-(1 << 61)));
    assert_eq!(round_to_i64(2f64.powi(62)), None);
    assert_eq!(round_constant(f64::NAN), Err(CkksError::NotFinite));
    assert_eq!(round_constant(1e300), Err(CkksError::ValueTooLarge));
}

#[test]
fn wrong_lengths_and_levels_are_refused() {
    let ctx = context();
    let one = Complex::real(1.0);
    assert_eq!(ctx.encode_mul(&[], 3), Err(CkksError::BadSlotCount(0)));
    assert_eq!(
        ctx.encode_mul(&[one; 3], 3),
        Err(CkksError::BadSlotCount(3))
    );
    assert_eq!(
        ctx.encode_mul(&vec![one; 1024], 3),
        Err(CkksError::BadSlotCount(1024))
    );
    assert!(ctx.encode_mul(&[one], 0).is_err());
    assert!(ctx.encode_mul(&[one], 19).is_err());
    assert!(ctx.encode_add(&[one], 99).is_err());
}
