//! Eight 64-bit lanes with 52-bit multiply-add: the instructions that the kernel is written in, and the same
//! in portable code.

use pulp::NullaryFnOnce;

/// Operations on vectors of eight 64-bit integers. Sums and differences wrap.
pub(super) trait Lanes: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// Name of a kernel on these lanes.
    const NAME: &'static str;

    /// The vector.
    type V: Copy;

    /// Runs code with the instructions enabled; it has to be inlined.
    fn run<Op: NullaryFnOnce<Output = ()>>(self, op: Op);

    fn splat(self, x: u64) -> Self::V;
    fn load(self, x: &[u64; 8]) -> Self::V;
    fn store(self, x: Self::V, out: &mut [u64; 8]);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller of two unsigned integers.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    /// x / 2^52
    fn shift(self, x: Self::V) -> Self::V;
    /// sum + (low 52 bits of a) * (low 52 bits of b) mod 2^52
    fn madd_lo(self, sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// sum + (low 52 bits of a) * (low 52 bits of b) / 2^52
    fn madd_hi(self, sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Lanes of `x` (0 to 7) by index.
    fn permute(self, x: Self::V, index: &[u64; 8]) -> Self::V;
    /// Lanes of `a` (0 to 7) and `b` (8 to 15) by index.
    fn select(self, a: Self::V, b: Self::V, index: &[u64; 8]) -> Self::V;
}

pub(super) const MASK52: u64 = (1 << 52) - 1;

/// Exact emulation on arrays.
#[derive(Debug, Clone, Copy)]
pub(super) struct Emulated;

fn zip(a: [u64; 8], b: [u64; 8], f: impl Fn(u64, u64) -> u64) -> [u64; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a & MASK52) * u128::from(b & MASK52)
}

impl Lanes for Emulated {
    const NAME: &'static str = "avx512ifma, emulated";

    type V = [u64; 8];

    fn run<Op: NullaryFnOnce<Output = ()>>(self, op: Op) {
        op.call();
    }

    fn splat(self, x: u64) -> [u64; 8] {
        [x; 8]
    }

    fn load(self, x: &[u64; 8]) -> [u64; 8] {
        *x
    }

    fn store(self, x: [u64; 8], out: &mut [u64; 8]) {
        *out = x;
    }

    fn add(self, a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(a, b, u64::wrapping_add)
    }

    fn sub(self, a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(a, b, u64::wrapping_sub)
    }

    fn min(self, a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(a, b, u64::min)
    }

    fn and(self, a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(a, b, |a, b| a & b)
    }

    fn shift(self, x: [u64; 8]) -> [u64; 8] {
        x.map(|x| x >> 52)
    }

    fn madd_lo(self, sum: [u64; 8], a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(
            sum,
            zip(a, b, |a, b| product(a, b) as u64 & MASK52),
            u64::wrapping_add,
        )
    }

    fn madd_hi(self, sum: [u64; 8], a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
        zip(
            sum,
            zip(a, b, |a, b| (product(a, b) >> 52) as u64),
            u64::wrapping_add,
        )
    }

    fn permute(self, x: [u64; 8], index: &[u64; 8]) -> [u64; 8] {
        index.map(|i| x[i as usize % 8])
    }

    fn select(self, a: [u64; 8], b: [u64; 8], index: &[u64; 8]) -> [u64; 8] {
        index.map(|i| {
            let i = i as usize % 16;
            if i < 8 { a[i] } else { b[i - 8] }
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod real {
    use super::Lanes;
    use crate::isa::Isa;
    use pulp::{NullaryFnOnce, cast};
    use std::arch::x86_64::__m512i;

    pulp::simd_type!({
        /// AVX-512 with 52-bit multiply-add, present on this processor.
        pub(crate) struct Avx512 {
            sse: f!("sse"),
            sse2: f!("sse2"),
            avx: f!("avx"),
            avx2: f!("avx2"),
            bmi1: f!("bmi1"),
            bmi2: f!("bmi2"),
            avx512f: f!("avx512f"),
            avx512dq: f!("avx512dq"),
            avx512vl: f!("avx512vl"),
            avx512ifma: f!("avx512ifma"),
        }
    });

    impl Lanes for Avx512 {
        const NAME: &'static str = Isa::Avx512Ifma.name();

        type V = __m512i;

        #[inline(always)]
        fn run<Op: NullaryFnOnce<Output = ()>>(self, op: Op) {
            self.vectorize(op);
        }

        #[inline(always)]
        fn splat(self, x: u64) -> __m512i {
            self.avx512f._mm512_set1_epi64(x.cast_signed())
        }

        #[inline(always)]
        fn load(self, x: &[u64; 8]) -> __m512i {
            cast(*x)
        }

        #[inline(always)]
        fn store(self, x: __m512i, out: &mut [u64; 8]) {
            *out = cast(x);
        }

        #[inline(always)]
        fn add(self, a: __m512i, b: __m512i) -> __m512i {
            self.avx512f._mm512_add_epi64(a, b)
        }

        #[inline(always)]
        fn sub(self, a: __m512i, b: __m512i) -> __m512i {
            self.avx512f._mm512_sub_epi64(a, b)
        }

        #[inline(always)]
        fn min(self, a: __m512i, b: __m512i) -> __m512i {
            self.avx512f._mm512_min_epu64(a, b)
        }

        #[inline(always)]
        fn and(self, a: __m512i, b: __m512i) -> __m512i {
            self.avx512f._mm512_and_si512(a, b)
        }

        #[inline(always)]
        fn shift(self, x: __m512i) -> __m512i {
            self.avx512f._mm512_srli_epi64::<52>(x)
        }

        #[inline(always)]
        fn madd_lo(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            self.avx512ifma._mm512_madd52lo_epu64(sum, a, b)
        }

        #[inline(always)]
        fn madd_hi(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
            self.avx512ifma._mm512_madd52hi_epu64(sum, a, b)
        }

        #[inline(always)]
        fn permute(self, x: __m512i, index: &[u64; 8]) -> __m512i {
            self.avx512f._mm512_permutexvar_epi64(cast(*index), x)
        }

        #[inline(always)]
        fn select(self, a: __m512i, b: __m512i, index: &[u64; 8]) -> __m512i {
            self.avx512f._mm512_permutex2var_epi64(a, cast(*index), b)
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use real::Avx512;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const EDGES: [u64; 8] = [
        0,
        1,
        MASK52,
        1 << 52,
        u64::MAX,
        (1 << 50) - 27,
        1 << 51,
        0x0123_4567_89ab_cdef,
    ];

    #[test]
    fn multiply_add_reads_52_bits_and_wraps_at_64() {
        let l = Emulated;
        let all = l.splat(u64::MAX);
        // (2^52 - 1)^2 = 2^104 - 2^53 + 1
        assert_eq!(l.madd_lo([5; 8], all, all), [6; 8]);
        assert_eq!(l.madd_hi([5; 8], all, all), [MASK52 + 4; 8]);
        assert_eq!(l.madd_lo(all, [1; 8], [1; 8]), [0; 8]);
        assert_eq!(l.madd_hi([7; 8], [1 << 52; 8], all), [7; 8]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_emulation_is_the_instructions() {
        let Some(real) = Avx512::try_new() else {
            eprintln!("skipped: no 52-bit multiply-add here");
            return;
        };
        struct Compare<'a, L: Lanes>(L, [[u64; 8]; 3], &'a mut Vec<[u64; 8]>);
        impl<L: Lanes> NullaryFnOnce for Compare<'_, L> {
            type Output = ();

            #[inline(always)]
            fn call(self) {
                let Compare(l, input, out) = self;
                let [a, b, c] = [l.load(&input[0]), l.load(&input[1]), l.load(&input[2])];
                for v in [
                    l.splat(input[0][3]),
                    l.add(a, b),
                    l.sub(a, b),
                    l.min(a, b),
                    l.and(a, b),
                    l.shift(a),
                    l.madd_lo(a, b, c),
                    l.madd_hi(a, b, c),
                    l.permute(a, &[6, 0, 3, 3, 7, 1, 9, 2]),
                    l.select(a, b, &[0, 8, 3, 15, 7, 7, 9, 1]),
                ] {
                    let mut x = [0; 8];
                    l.store(v, &mut x);
                    out.push(x);
                }
            }
        }
        for i in 0..8 {
            for j in 0..8 {
                let mut input = [EDGES; 3];
                input[1].rotate_left(i);
                input[2].rotate_left(j);
                let (mut x, mut y) = (Vec::new(), Vec::new());
                real.run(Compare(real, input, &mut x));
                Emulated.run(Compare(Emulated, input, &mut y));
                assert_eq!(x, y);
            }
        }
    }
}
