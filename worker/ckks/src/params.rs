//! Parameter sets: the same primes in five ring degrees. Only `n16-128` is secure; every other set says
//! INSECURE in its name. Figures and sources: CIRCUIT.md section 5.

use crate::error::ParamError;
use crate::modular::is_prime;
use sha2::{Digest, Sha256};

const Q0: u64 = 1125899903827969;
const MESSAGE_PRIMES: [u64; 18] = [
    4398044938241,
    4398043496449,
    4398042972161,
    4398042185729,
    4398052147201,
    4398052540417,
    4398053588993,
    4398054506497,
    4398054899713,
    4398055555073,
    4398058045441,
    4398034845697,
    4398063157249,
    4398029340673,
    4398028029953,
    4398065909761,
    4398070628353,
    4398070890497,
];
const EVALMOD_PRIMES: [u64; 7] = [
    1125899882987521,
    1125899879710721,
    1125899877875713,
    1125899870404609,
    1125899870011393,
    1125899865948161,
    1125899864506369,
];
const CTS_PRIMES: [u64; 3] = [1125899862016001, 1125899861753857, 1125899859263489];
const SPECIAL_PRIMES: [u64; 8] = [
    1125899902124033,
    1125899887312897,
    1125899886395393,
    1125899885740033,
    1125899884167169,
    1125899884036097,
    1125899883642881,
    1125899883380737,
];

const SETS: [(&str, u32); 5] = [
    ("n10-INSECURE", 10),
    ("n11-INSECURE", 11),
    ("n14-INSECURE", 14),
    ("n15-INSECURE", 15),
    ("n16-128", 16),
];

/// Largest log2(QP) that keeps 128 bits with a uniform ternary secret, by log2(N).
/// Source: Security Guidelines for Implementing Homomorphic Encryption (2024), table of ternary secrets;
/// the values of N = 2^14 and 2^15 are lowered to what the lattice estimator confirms today.
const BOUNDS_128: [(u32, f64); 7] = [
    (10, 26.0),
    (11, 53.0),
    (12, 106.0),
    (13, 214.0),
    (14, 430.0),
    (15, 868.0),
    (16, 1747.0),
];

/// What the estimates assume besides the bound: noise, and the sparse ephemeral secret modulo q0*p0.
const ESTIMATED_SIGMA: f64 = 3.19;
const ESTIMATED_SPARSE_H: usize = 32;
const ESTIMATED_SPARSE_LOG_Q: f64 = 100.0;

/// How secure a parameter set is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Security {
    /// Estimated at or above 128 bits.
    Estimated {
        /// Bits of the cheapest known attack on the dense key.
        bits: f64,
        /// log2 of the largest modulus any key material uses.
        log_qp: f64,
        /// Largest log2(QP) allowed for 128 bits at this ring degree.
        bound_log_qp: f64,
        /// Bits of the cheapest known attack on the sparse ephemeral key, modulo q0*p0.
        sparse_bits: f64,
        /// Where the figures come from.
        source: &'static str,
    },
    /// For tests only: offers no security.
    Insecure,
}

/// A parameter set. Level l uses the limbs q[0..=l].
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Name, part of the digest.
    pub name: String,
    /// log2 of the ring degree N.
    pub log_n: u32,
    /// Ciphertext primes, bottom first.
    pub q: Vec<u64>,
    /// Special primes of key switching.
    pub p: Vec<u64>,
    /// Limbs per digit in key switching.
    pub alpha: usize,
    /// Levels of slots-to-coefficients, above q[0].
    pub stc_levels: usize,
    /// Levels free for a circuit.
    pub usable_levels: usize,
    /// Levels of the modular reduction.
    pub evalmod_levels: usize,
    /// Levels of coefficients-to-slots.
    pub cts_levels: usize,
    /// Hamming weight of the sparse ephemeral secret.
    pub sparse_h: usize,
    /// Standard deviation of the noise in keys and fresh ciphertexts.
    pub sigma: f64,
    /// Bound on the overflow of ModRaise, in multiples of q0.
    pub k_bound: u32,
    /// Security figure.
    pub security: Security,
}

impl Params {
    /// The set of that name, checked.
    pub fn by_name(name: &str) -> Result<Params, ParamError> {
        let (name, log_n) = SETS
            .into_iter()
            .find(|(n, _)| *n == name)
            .ok_or_else(|| ParamError::Unknown(name.chars().take(64).collect()))?;
        let mut q = vec![Q0];
        q.extend(MESSAGE_PRIMES);
        q.extend(EVALMOD_PRIMES);
        q.extend(CTS_PRIMES);
        let mut params = Params {
            name: name.to_string(),
            log_n,
            q,
            p: SPECIAL_PRIMES.to_vec(),
            alpha: 8,
            stc_levels: 3,
            usable_levels: 15,
            evalmod_levels: 7,
            cts_levels: 3,
            sparse_h: 32,
            sigma: 3.19,
            k_bound: 14,
            security: Security::Insecure,
        };
        if log_n == 16 {
            params.security = Security::Estimated {
                bits: 130.7,
                log_qp: params.log_qp(),
                bound_log_qp: bound_128(log_n).unwrap_or(0.0),
                sparse_bits: 169.9,
                source: "lattice-estimator 27a581bb, MATZOV/GSA, min over usvp, bdd, hybrid, dual, dual_hybrid",
            };
        }
        params.check()?;
        Ok(params)
    }

    /// Names of all sets.
    pub fn names() -> [&'static str; 5] {
        SETS.map(|(n, _)| n)
    }

    /// The set whose digest is given.
    pub fn by_digest(digest: &[u8; 32]) -> Option<Params> {
        SETS.iter()
            .filter_map(|(n, _)| Params::by_name(n).ok())
            .find(|p| p.digest() == *digest)
    }

    /// Checks the primes, the level counts and the security rule: 128 bits, or INSECURE in the name.
    pub fn check(&self) -> Result<(), ParamError> {
        if !(4..=16).contains(&self.log_n) {
            return Err(ParamError::Inconsistent("ring degree out of range"));
        }
        if self.q.len()
            != 1 + self.stc_levels + self.usable_levels + self.evalmod_levels + self.cts_levels
        {
            return Err(ParamError::Inconsistent("level counts and primes disagree"));
        }
        if self.alpha == 0 || self.alpha > 8 || self.p.len() != self.alpha || self.q.len() < 2 {
            return Err(ParamError::Inconsistent(
                "digit size and special primes disagree",
            ));
        }
        if self.sparse_h == 0
            || self.sparse_h > self.n()
            || self.sigma.is_nan()
            || self.sigma <= 0.0
        {
            return Err(ParamError::Inconsistent("secret or noise distribution"));
        }
        let mut seen: Vec<u64> = Vec::new();
        for &m in self.q.iter().chain(&self.p) {
            if m >> 50 != 0 || m % (2 << self.log_n) != 1 || seen.contains(&m) || !is_prime(m) {
                return Err(ParamError::BadModulus(m));
            }
            seen.push(m);
        }
        let bound = bound_128(self.log_n).unwrap_or(0.0);
        let named_insecure = self.name.ends_with("-INSECURE");
        let consistent = match self.security {
            Security::Estimated {
                bits, sparse_bits, ..
            } => {
                self.log_qp() <= bound
                    && self.fits_sparse_estimate()
                    && self.sigma >= ESTIMATED_SIGMA
                    && bits >= 128.0
                    && sparse_bits >= 128.0
                    && !named_insecure
            }
            Security::Insecure => named_insecure,
        };
        if !consistent {
            return Err(ParamError::BelowSecurity {
                name: self.name.clone(),
                log_qp: self.log_qp(),
                bound,
            });
        }
        Ok(())
    }

    /// True if the sparse secret is at least as heavy and its modulus q0*p0 at most as large as estimated.
    fn fits_sparse_estimate(&self) -> bool {
        let log_q0p0 = (self.q[0] as f64).log2() + (self.p[0] as f64).log2();
        self.sparse_h >= ESTIMATED_SPARSE_H && log_q0p0 <= ESTIMATED_SPARSE_LOG_Q
    }

    /// SHA-256 over every field that influences a computed byte.
    pub fn digest(&self) -> [u8; 32] {
        let mut h = Sha256::new();
        h.update(b"cipherhop ckks params v1\0");
        h.update((self.name.len() as u64).to_le_bytes());
        h.update(self.name.as_bytes());
        let numbers = [
            self.log_n as u64,
            self.alpha as u64,
            self.stc_levels as u64,
            self.usable_levels as u64,
            self.evalmod_levels as u64,
            self.cts_levels as u64,
            self.sparse_h as u64,
            self.sigma.to_bits(),
            self.k_bound as u64,
            self.q.len() as u64,
            self.p.len() as u64,
        ];
        for x in numbers.iter().chain(&self.q).chain(&self.p) {
            h.update(x.to_le_bytes());
        }
        h.finalize().into()
    }

    /// Ring degree N.
    pub fn n(&self) -> usize {
        1 << self.log_n
    }

    /// Number of complex slots, N/2.
    pub fn slots(&self) -> usize {
        self.n() / 2
    }

    /// Highest level.
    pub fn max_level(&self) -> usize {
        self.q.len() - 1
    }

    /// Level of a ciphertext that comes out of a bootstrap, and highest level of the message scale row.
    pub fn boot_out_level(&self) -> usize {
        self.stc_levels + self.usable_levels
    }

    /// Lowest level at which a ciphertext can enter a bootstrap.
    pub fn boot_in_level(&self) -> usize {
        self.stc_levels
    }

    /// log2 of the product of all primes.
    pub fn log_qp(&self) -> f64 {
        self.q
            .iter()
            .chain(&self.p)
            .map(|&m| (m as f64).log2())
            .sum()
    }

    /// True for the test sets, which offer no security.
    pub fn is_insecure(&self) -> bool {
        matches!(self.security, Security::Insecure)
    }
}

/// Largest log2(QP) for 128 bits at ring degree 2^log_n.
pub fn bound_128(log_n: u32) -> Option<f64> {
    BOUNDS_128
        .iter()
        .find(|(n, _)| *n == log_n)
        .map(|(_, b)| *b)
}

#[cfg(test)]
mod tests;
