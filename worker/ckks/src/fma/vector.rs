//! Vectors of four f64.

/// Operations on vectors of four f64.
pub(super) trait Vectors: Copy {
    /// Four f64.
    type V: Copy;

    fn splat(self, x: f64) -> Self::V;
    /// From bits.
    fn load(self, x: [u64; 4]) -> Self::V;
    fn load_f64(self, x: [f64; 4]) -> Self::V;
    /// To bits.
    fn store(self, x: Self::V) -> [u64; 4];
    fn add(self, x: Self::V, y: Self::V) -> Self::V;
    fn sub(self, x: Self::V, y: Self::V) -> Self::V;
    fn mul(self, x: Self::V, y: Self::V) -> Self::V;
    /// x * y + z, rounded once
    fn mul_add(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// x * y - z, rounded once
    fn mul_sub(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// z - x * y, rounded once
    fn sub_mul(self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, x: Self::V) -> Self::V;
    fn max(self, x: Self::V, y: Self::V) -> Self::V;
    /// x + y where x is negative
    fn add_to_negative(self, x: Self::V, y: Self::V) -> Self::V;
    /// Rows to columns.
    fn transpose(self, x: [Self::V; 4]) -> [Self::V; 4];
    /// The values at even and at odd places.
    fn unzip(self, x: [Self::V; 2]) -> [Self::V; 2];
    /// Of the bits.
    fn or(self, x: Self::V, y: Self::V) -> Self::V;
    /// Of the bits.
    fn xor(self, x: Self::V, y: Self::V) -> Self::V;
}

/// Arrays, for processors without vectors of our own and as a reference.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
pub(super) struct Arrays;

#[inline(always)]
fn each(f: impl Fn(usize) -> f64) -> [f64; 4] {
    [f(0), f(1), f(2), f(3)]
}

impl Vectors for Arrays {
    type V = [f64; 4];

    #[inline(always)]
    fn splat(self, x: f64) -> [f64; 4] {
        [x; 4]
    }
    #[inline(always)]
    fn load(self, x: [u64; 4]) -> [f64; 4] {
        x.map(f64::from_bits)
    }
    #[inline(always)]
    fn load_f64(self, x: [f64; 4]) -> [f64; 4] {
        x
    }
    #[inline(always)]
    fn store(self, x: [f64; 4]) -> [u64; 4] {
        x.map(f64::to_bits)
    }
    #[inline(always)]
    fn add(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| x[i] + y[i])
    }
    #[inline(always)]
    fn sub(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| x[i] - y[i])
    }
    #[inline(always)]
    fn mul(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| x[i] * y[i])
    }
    #[inline(always)]
    fn mul_add(self, x: [f64; 4], y: [f64; 4], z: [f64; 4]) -> [f64; 4] {
        each(|i| x[i].mul_add(y[i], z[i]))
    }
    #[inline(always)]
    fn mul_sub(self, x: [f64; 4], y: [f64; 4], z: [f64; 4]) -> [f64; 4] {
        each(|i| x[i].mul_add(y[i], -z[i]))
    }
    #[inline(always)]
    fn sub_mul(self, x: [f64; 4], y: [f64; 4], z: [f64; 4]) -> [f64; 4] {
        each(|i| (-x[i]).mul_add(y[i], z[i]))
    }
    #[inline(always)]
    fn round(self, x: [f64; 4]) -> [f64; 4] {
        each(|i| x[i].round_ties_even())
    }
    #[inline(always)]
    fn max(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| x[i].max(y[i]))
    }
    #[inline(always)]
    fn add_to_negative(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| x[i] + if x[i] < 0.0 { y[i] } else { 0.0 })
    }
    #[inline(always)]
    fn transpose(self, x: [[f64; 4]; 4]) -> [[f64; 4]; 4] {
        std::array::from_fn(|i| each(|j| x[j][i]))
    }
    #[inline(always)]
    fn unzip(self, [x, y]: [[f64; 4]; 2]) -> [[f64; 4]; 2] {
        [[x[0], x[2], y[0], y[2]], [x[1], x[3], y[1], y[3]]]
    }
    #[inline(always)]
    fn or(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| f64::from_bits(x[i].to_bits() | y[i].to_bits()))
    }
    #[inline(always)]
    fn xor(self, x: [f64; 4], y: [f64; 4]) -> [f64; 4] {
        each(|i| f64::from_bits(x[i].to_bits() ^ y[i].to_bits()))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vectors;
    use pulp::x86::V3;
    use std::arch::x86_64::{__m256d, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT};

    impl Vectors for V3 {
        type V = __m256d;

        #[inline(always)]
        fn splat(self, x: f64) -> __m256d {
            self.avx._mm256_set1_pd(x)
        }
        #[inline(always)]
        fn load(self, x: [u64; 4]) -> __m256d {
            pulp::bytemuck::cast(x)
        }
        #[inline(always)]
        fn load_f64(self, x: [f64; 4]) -> __m256d {
            pulp::bytemuck::cast(x)
        }
        #[inline(always)]
        fn store(self, x: __m256d) -> [u64; 4] {
            pulp::bytemuck::cast(x)
        }
        #[inline(always)]
        fn add(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_add_pd(x, y)
        }
        #[inline(always)]
        fn sub(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_sub_pd(x, y)
        }
        #[inline(always)]
        fn mul(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_mul_pd(x, y)
        }
        #[inline(always)]
        fn mul_add(self, x: __m256d, y: __m256d, z: __m256d) -> __m256d {
            self.fma._mm256_fmadd_pd(x, y, z)
        }
        #[inline(always)]
        fn mul_sub(self, x: __m256d, y: __m256d, z: __m256d) -> __m256d {
            self.fma._mm256_fmsub_pd(x, y, z)
        }
        #[inline(always)]
        fn sub_mul(self, x: __m256d, y: __m256d, z: __m256d) -> __m256d {
            self.fma._mm256_fnmadd_pd(x, y, z)
        }
        #[inline(always)]
        fn round(self, x: __m256d) -> __m256d {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            self.avx._mm256_round_pd::<NEAREST>(x)
        }
        #[inline(always)]
        fn max(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_max_pd(x, y)
        }
        #[inline(always)]
        fn add_to_negative(self, x: __m256d, y: __m256d) -> __m256d {
            let zero = self.avx._mm256_set1_pd(0.0);
            let negative = self.avx._mm256_cmp_pd::<_CMP_LT_OQ>(x, zero);
            self.add(x, self.avx._mm256_and_pd(negative, y))
        }
        #[inline(always)]
        fn transpose(self, x: [__m256d; 4]) -> [__m256d; 4] {
            let avx = self.avx;
            let (a, b) = (
                avx._mm256_unpacklo_pd(x[0], x[1]),
                avx._mm256_unpackhi_pd(x[0], x[1]),
            );
            let (c, d) = (
                avx._mm256_unpacklo_pd(x[2], x[3]),
                avx._mm256_unpackhi_pd(x[2], x[3]),
            );
            [
                avx._mm256_permute2f128_pd::<0x20>(a, c),
                avx._mm256_permute2f128_pd::<0x20>(b, d),
                avx._mm256_permute2f128_pd::<0x31>(a, c),
                avx._mm256_permute2f128_pd::<0x31>(b, d),
            ]
        }
        #[inline(always)]
        fn unzip(self, [x, y]: [__m256d; 2]) -> [__m256d; 2] {
            let avx = self.avx;
            let low = avx._mm256_permute2f128_pd::<0x20>(x, y);
            let high = avx._mm256_permute2f128_pd::<0x31>(x, y);
            [
                avx._mm256_unpacklo_pd(low, high),
                avx._mm256_unpackhi_pd(low, high),
            ]
        }
        #[inline(always)]
        fn or(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_or_pd(x, y)
        }
        #[inline(always)]
        fn xor(self, x: __m256d, y: __m256d) -> __m256d {
            self.avx._mm256_xor_pd(x, y)
        }
    }
}

/// The vectors of this machine.
#[cfg(target_arch = "x86_64")]
pub(super) type Native = pulp::x86::V3;
/// The vectors of this machine.
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Native = Arrays;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Three = [[f64; 4]; 3];

    /// All operations, as bits.
    fn all<S: Vectors>(s: S, rows: Three) -> Vec<[u64; 4]> {
        let [x, y, z] = rows.map(|row| s.load(row.map(f64::to_bits)));
        let mut results = vec![
            s.splat(rows[0][0]),
            s.load_f64(rows[1]),
            s.add(x, y),
            s.sub(x, y),
            s.mul(x, y),
            s.mul_add(x, y, z),
            s.mul_sub(x, y, z),
            s.sub_mul(x, y, z),
            s.round(x),
            s.max(x, y),
            s.add_to_negative(x, y),
            s.or(x, y),
            s.xor(x, y),
        ];
        results.extend(s.transpose([x, y, z, x]));
        results.extend(s.unzip([x, y]));
        results.into_iter().map(|x| s.store(x)).collect()
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-(1i64 << 53)..1i64 << 53).prop_map(|x| x as f64),
            (-64i64..64).prop_map(|x| x as f64 / 4.0),
        ]
    }

    proptest! {
        #[test]
        fn vectors_do_what_arrays_do(x in prop::array::uniform3(prop::array::uniform4(value()))) {
            if let Some(level) = pulp::x86::V3::try_new() {
                prop_assert_eq!(all(level, x), all(Arrays, x));
            }
        }
    }
}
