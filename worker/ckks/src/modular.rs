//! Arithmetic modulo a prime below 2^50. All public functions take and return canonical residues unless
//! the name says `lazy`; fourteen bits of headroom above the modulus are what the lazy kernels live on.

/// Largest bit length of a modulus.
pub const MAX_MODULUS_BITS: u32 = 50;

/// A prime modulus q < 2^50 with the constants for Barrett reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modulus {
    q: u64,
    /// bit length of q, minus 2
    shift: u32,
    /// floor(2^(shift + 64) / q)
    mu: u64,
    /// floor(2^64 / q)
    mu64: u64,
    /// 2^64 mod q with its Shoup quotient
    r64: Shoup,
}

/// A constant factor w < q with floor(w * 2^64 / q).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shoup {
    /// The factor.
    pub w: u64,
    /// floor(w * 2^64 / q).
    pub quotient: u64,
}

#[inline(always)]
pub(crate) fn mul_hi(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

impl Shoup {
    /// w * x mod q in [0, 2q), for any 64-bit x.
    #[inline(always)]
    pub fn mul_lazy(self, x: u64, q: u64) -> u64 {
        let h = mul_hi(x, self.quotient);
        self.w.wrapping_mul(x).wrapping_sub(h.wrapping_mul(q))
    }
}

impl Modulus {
    /// Constants for `q`; `None` unless 2 < q < 2^50 and q is odd.
    pub fn new(q: u64) -> Option<Modulus> {
        if q < 3 || q >> MAX_MODULUS_BITS != 0 || q & 1 == 0 {
            return None;
        }
        let bits = 64 - q.leading_zeros();
        let shift = bits - 2;
        let mu = ((1u128 << (shift + 64)) / q as u128) as u64;
        let mu64 = ((1u128 << 64) / q as u128) as u64;
        let r = ((1u128 << 64) % q as u128) as u64;
        let r64 = Shoup {
            w: r,
            quotient: (((r as u128) << 64) / q as u128) as u64,
        };
        Some(Modulus {
            q,
            shift,
            mu,
            mu64,
            r64,
        })
    }

    /// The modulus.
    #[inline(always)]
    pub fn value(&self) -> u64 {
        self.q
    }

    /// a + b mod q.
    #[inline(always)]
    pub fn add(&self, a: u64, b: u64) -> u64 {
        self.fold(a + b)
    }

    /// a - b mod q.
    #[inline(always)]
    pub fn sub(&self, a: u64, b: u64) -> u64 {
        self.fold(a + self.q - b)
    }

    /// -a mod q.
    #[inline(always)]
    pub fn neg(&self, a: u64) -> u64 {
        if a == 0 { 0 } else { self.q - a }
    }

    /// Subtracts q once if the value is not below it.
    #[inline(always)]
    pub fn fold(&self, a: u64) -> u64 {
        a.min(a.wrapping_sub(self.q))
    }

    /// a * b mod q for a, b < q.
    #[inline(always)]
    pub fn mul(&self, a: u64, b: u64) -> u64 {
        let p = a as u128 * b as u128;
        // quotient estimate is at most one too small: 2^shift / q <= 1/2, plus the two floors
        let h = mul_hi((p >> self.shift) as u64, self.mu);
        self.fold((p as u64).wrapping_sub(h.wrapping_mul(self.q)))
    }

    /// x mod q in [0, 2q) for any 64-bit x.
    #[inline(always)]
    pub fn reduce_lazy(&self, x: u64) -> u64 {
        x - mul_hi(x, self.mu64).wrapping_mul(self.q)
    }

    /// x mod q for any 64-bit x.
    #[inline(always)]
    pub fn reduce(&self, x: u64) -> u64 {
        self.fold(self.reduce_lazy(x))
    }

    /// x mod q for any 128-bit x.
    #[inline(always)]
    pub fn reduce_u128(&self, x: u128) -> u64 {
        let hi = self.r64.mul_lazy((x >> 64) as u64, self.q);
        self.reduce(hi + self.reduce_lazy(x as u64))
    }

    /// Residue of a signed integer.
    #[inline(always)]
    pub fn from_i64(&self, x: i64) -> u64 {
        let r = self.reduce(x.unsigned_abs());
        if x < 0 { self.neg(r) } else { r }
    }

    /// Residue of a signed integer.
    pub fn from_i128(&self, x: i128) -> u64 {
        let r = self.reduce_u128(x.unsigned_abs());
        if x < 0 { self.neg(r) } else { r }
    }

    /// Representative in (-q/2, q/2).
    #[inline(always)]
    pub fn centre(&self, a: u64) -> i64 {
        if a > self.q / 2 {
            a as i64 - self.q as i64
        } else {
            a as i64
        }
    }

    /// a^e mod q.
    pub fn pow(&self, mut a: u64, mut e: u64) -> u64 {
        let mut r = 1;
        while e != 0 {
            if e & 1 == 1 {
                r = self.mul(r, a);
            }
            a = self.mul(a, a);
            e >>= 1;
        }
        r
    }

    /// Inverse of a nonzero residue.
    pub fn inv(&self, a: u64) -> u64 {
        self.pow(a, self.q - 2)
    }

    /// Prepares a constant factor w < q.
    pub fn shoup(&self, w: u64) -> Shoup {
        debug_assert!(w < self.q);
        Shoup {
            w,
            quotient: (((w as u128) << 64) / self.q as u128) as u64,
        }
    }

    /// w * x mod q for any 64-bit x.
    #[inline(always)]
    pub fn mul_shoup(&self, w: Shoup, x: u64) -> u64 {
        self.fold(w.mul_lazy(x, self.q))
    }
}

/// Deterministic Miller-Rabin, exact for 64-bit integers with these bases.
pub fn is_prime(n: u64) -> bool {
    const BASES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];
    if n < 2 {
        return false;
    }
    for p in BASES {
        if n.is_multiple_of(p) {
            return n == p;
        }
    }
    let mul = |a: u64, b: u64| (a as u128 * b as u128 % n as u128) as u64;
    let s = (n - 1).trailing_zeros();
    let d = (n - 1) >> s;
    'bases: for a in BASES {
        let (mut x, mut base, mut e) = (1u64, a, d);
        while e != 0 {
            if e & 1 == 1 {
                x = mul(x, base);
            }
            base = mul(base, base);
            e >>= 1;
        }
        if x == 1 || x == n - 1 {
            continue;
        }
        for _ in 1..s {
            x = mul(x, x);
            if x == n - 1 {
                continue 'bases;
            }
        }
        return false;
    }
    true
}

#[cfg(test)]
mod tests;
