use super::*;

/// Moduli next to the bound and a small one.
const MODULI: [u64; 3] = [(1 << 50) - 27, (1 << 46) - 21, 12289];

#[test]
fn products_and_reductions_hold_their_bounds_on_every_factor_below_2_to_the_52() {
    for q in MODULI {
        let m = Modulus::new(q).unwrap();
        let f = Field::new(Emulated, &m);
        let xs = [0, 1, q - 1, q, 2 * q - 1, 4 * q - 1, MASK52 - 1, MASK52];
        for w in [0, 1, 2, q / 2, q - 2, q - 1] {
            let got = f.mul(xs, Factor::splat(Emulated, m.shoup(w)));
            for (x, r) in xs.iter().zip(got) {
                assert!(r < 2 * q, "{x} * {w} mod {q}");
                assert_eq!(m.reduce(r), m.reduce_u128(u128::from(*x) * u128::from(w)));
            }
        }
        for (x, r) in xs.iter().zip(f.reduce(xs)) {
            assert!(r < 2 * q);
            assert_eq!(r % q, x % q);
        }
        let low = [0, 1, q - 1, q, q + 1, 2 * q - 1, 2 * q - 2, 5];
        assert_eq!(f.fold(low), low.map(|x| x % q));
        assert_eq!(f.halve(low.map(|x| x + 2 * q)), low);
        assert_eq!(f.halve(low), low);
    }
}
