use super::*;
use crate::params::Params;
use proptest::prelude::*;

fn primes() -> Vec<u64> {
    let p = Params::by_name("n10-INSECURE").unwrap();
    p.q.iter().chain(&p.p).copied().chain([3, 12289]).collect()
}

/// A prime and two residues that are often at the edges.
fn operands() -> impl Strategy<Value = (Modulus, u64, u64)> {
    let residue = |q: u64| prop_oneof![Just(0), Just(1), Just(q - 1), Just(q / 2), 0..q];
    proptest::sample::select(primes()).prop_flat_map(move |q| {
        let m = Modulus::new(q).unwrap();
        (Just(m), residue(q), residue(q))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn residue_arithmetic_agrees_with_wide_integers((m, a, b) in operands(), x: u64, w: u128, e in -1i64..=1) {
        let q = m.value();
        let wide = |v: u128| (v % q as u128) as u64;
        prop_assert_eq!(m.add(a, b), wide(a as u128 + b as u128));
        prop_assert_eq!(m.sub(a, b), wide(a as u128 + q as u128 - b as u128));
        prop_assert_eq!(m.neg(a), (q - a) % q);
        prop_assert_eq!(m.mul(a, b), wide(a as u128 * b as u128));
        prop_assert_eq!(m.mul_shoup(m.shoup(a), b), wide(a as u128 * b as u128));
        prop_assert_eq!(m.mul_shoup(m.shoup(a), x), wide(a as u128 * x as u128));
        prop_assert!(m.shoup(a).mul_lazy(x, q) < 2 * q);
        prop_assert_eq!(m.reduce(x), x % q);
        prop_assert!(m.reduce_lazy(x) < 2 * q);
        prop_assert_eq!(m.reduce_u128(w), wide(w));
        let edge = m.centre(a) + e;
        prop_assert_eq!(m.from_i64(edge), (edge as i128).rem_euclid(q as i128) as u64);
        prop_assert_eq!(m.from_i128(-(w as i128 >> 1)), (-(w as i128 >> 1)).rem_euclid(q as i128) as u64);
        prop_assert!(m.centre(a).unsigned_abs() <= q / 2);
        prop_assert_eq!(m.from_i64(m.centre(a)), a);
        if a != 0 {
            prop_assert_eq!(m.mul(a, m.inv(a)), 1);
        }
    }
}

#[test]
fn extreme_words_reduce() {
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        assert_eq!(m.reduce(u64::MAX), u64::MAX % q);
        assert_eq!(m.reduce_u128(u128::MAX) as u128, u128::MAX % q as u128);
        assert_eq!(
            m.from_i64(i64::MIN),
            (i64::MIN as i128).rem_euclid(q as i128) as u64
        );
        assert_eq!(m.mul(q - 1, q - 1), 1);
    }
}

#[test]
fn unusable_moduli_are_refused() {
    for q in [0, 1, 2, 4, 1 << 50, (1 << 50) + 1, u64::MAX] {
        assert_eq!(Modulus::new(q), None);
    }
}

#[test]
fn primality_is_decided_correctly() {
    for (n, want) in [
        (0, false),
        (1, false),
        (2, true),
        (37, true),
        (561, false),
        (25326001, false),
        (3215031751, false),
        (1125899903827969, true),
        (1125899903827967, false),
        ((1 << 61) - 1, true),
    ] {
        assert_eq!(is_prime(n), want, "{n}");
    }
}
