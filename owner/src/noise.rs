//! Secret randomness: the generator, the discrete Gaussian of every key and ciphertext, and uniform
//! residues. Everything is drawn from ChaCha20 seeded by the operating system; tests inject a seed.

use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use rand::{CryptoRng, SeedableRng};
use rand_chacha::ChaCha20Rng;
use zeroize::Zeroizing;

/// Cumulative distribution of |X| for the discrete Gaussian of standard deviation 3.19: entry k is
/// floor(2^63 * P(|X| <= k)). The tail beyond 29 has probability below 2^-61.
const GAUSSIAN_CDT: [u64; 29] = [
    0x1001f9a1b2ca9468,
    0x2e7cf3ef07836cb5,
    0x48ca7e85d834a579,
    0x5d5d51778f760880,
    0x6bf35598550421b0,
    0x7552dc90807bbed5,
    0x7ac8820561a4c974,
    0x7daa6596524b7ffd,
    0x7f0b8114bba4ecb9,
    0x7fa4a9fc5ea574e8,
    0x7fe0e1077aef3919,
    0x7ff6563f810f15d0,
    0x7ffd4490999bc594,
    0x7fff4c0804cd386d,
    0x7fffd5e18e7fda18,
    0x7ffff709c679c2ed,
    0x7ffffe445c790f6b,
    0x7fffffb20f7aa54a,
    0x7ffffff3903d235d,
    0x7ffffffe32b06d1d,
    0x7fffffffc35125cc,
    0x7ffffffff8c11764,
    0x7fffffffff36fe33,
    0x7fffffffffec3bf7,
    0x7ffffffffffe3c8b,
    0x7fffffffffffdb75,
    0x7ffffffffffffd51,
    0x7fffffffffffffd2,
    0x7ffffffffffffffd,
];

/// Standard deviation that the table implements.
pub const SIGMA: f64 = 3.19;

/// A fresh generator seeded by the operating system.
pub fn os_rng() -> ChaCha20Rng {
    ChaCha20Rng::from_rng(&mut UnwrapErr(SysRng))
}

/// Discrete Gaussian coefficients. Every table entry is compared for every sample, so the time does not
/// depend on the values.
pub fn gaussian<R: CryptoRng>(rng: &mut R, n: usize) -> Zeroizing<Vec<i8>> {
    let mut out = Zeroizing::new(vec![0i8; n]);
    for x in out.iter_mut() {
        let word = rng.next_u64();
        let u = word >> 1;
        let magnitude: i8 = GAUSSIAN_CDT.iter().map(|&c| (u >= c) as i8).sum();
        let sign = -((word & 1) as i8);
        *x = (magnitude ^ sign) - sign;
    }
    out
}

/// Uniform ternary coefficients.
pub fn ternary<R: CryptoRng>(rng: &mut R, n: usize) -> Zeroizing<Vec<i8>> {
    let mut out = Zeroizing::new(Vec::with_capacity(n));
    while out.len() < n {
        let mut word = rng.next_u64();
        for _ in 0..32 {
            let pair = (word & 3) as i8;
            word >>= 2;
            if pair != 3 && out.len() < n {
                out.push(pair - 1);
            }
        }
    }
    out
}

/// Exactly `weight` coefficients +-1 at uniform positions, the others 0.
pub fn sparse_ternary<R: CryptoRng>(rng: &mut R, n: usize, weight: usize) -> Zeroizing<Vec<i8>> {
    debug_assert!(n.is_power_of_two() && weight <= n);
    let mut out = Zeroizing::new(vec![0i8; n]);
    let mut placed = 0;
    while placed < weight {
        let word = rng.next_u64();
        let position = (word >> 1) as usize & (n - 1);
        if out[position] == 0 {
            out[position] = if word & 1 == 0 { 1 } else { -1 };
            placed += 1;
        }
    }
    out
}

/// Uniform residues modulo q, by rejection.
pub fn uniform<R: CryptoRng>(rng: &mut R, q: u64, out: &mut [u64]) {
    let mask = u64::MAX >> q.leading_zeros();
    for x in out {
        *x = loop {
            let r = rng.next_u64() & mask;
            if r < q {
                break r;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_discrete_gaussian() {
        let rho = |k: usize| (-((k * k) as f64) / (2.0 * SIGMA * SIGMA)).exp();
        let total: f64 = rho(0) + 2.0 * (1..200).map(rho).sum::<f64>();
        let mut sum = 0.0;
        for (k, &entry) in GAUSSIAN_CDT.iter().enumerate() {
            sum += if k == 0 { rho(0) } else { 2.0 * rho(k) } / total;
            let have = entry as f64 / (1u64 << 63) as f64;
            assert!(
                (have - sum).abs() < 1e-15,
                "entry {k}: {have} against {sum}"
            );
        }
    }

    #[test]
    fn the_generator_is_cryptographic_and_never_starts_twice_at_the_same_seed() {
        fn cryptographic<R: CryptoRng>(mut rng: R) -> [u8; 32] {
            let mut out = [0; 32];
            rng.fill_bytes(&mut out);
            out
        }
        assert_ne!(cryptographic(os_rng()), cryptographic(os_rng()));
    }

    #[test]
    fn samples_have_the_right_mean_and_variance() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let n = 1 << 18;
        let x = gaussian(&mut rng, n);
        let mean = x.iter().map(|&v| v as f64).sum::<f64>() / n as f64;
        let var = x.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((var.sqrt() - SIGMA).abs() < 0.03, "sigma {}", var.sqrt());
    }

    #[test]
    fn the_sparse_secret_has_its_weight_and_the_dense_one_is_balanced() {
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let s = sparse_ternary(&mut rng, 1024, 32);
        assert_eq!(s.iter().filter(|&&v| v != 0).count(), 32);
        let d = ternary(&mut rng, 30000);
        for v in -1..=1 {
            let count = d.iter().filter(|&&x| x == v).count();
            assert!((9500..10500).contains(&count), "{v}: {count}");
        }
    }
}
