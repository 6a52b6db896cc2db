//! Uniform residues from a public seed: BLAKE3 in extendable-output mode with rejection sampling. Half of every
//! evaluation key is made this way whenever the key is loaded, which takes most of that time.

use crate::keys::KeyId;

/// Words of one output block.
const BLOCK: usize = 8;
/// Words made at a time.
const BATCH: usize = 64 * BLOCK;

/// `n` residues modulo `q`, uniform, determined by (seed, key, digit, modulus index). `modulus_index` is
/// the position in the list of all q, then all p.
pub fn expand_uniform(
    seed: &[u8; 32],
    id: KeyId,
    digit: usize,
    modulus_index: usize,
    q: u64,
    n: usize,
) -> Vec<u64> {
    let mut out = vec![0u64; n];
    Stream::new(seed, id, digit, modulus_index, q).fill(q, &mut out);
    out
}

/// What the output is computed from; it is shorter than a block of the hash, so that every block of the output is
/// one compression.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    seed: [u8; 32],
    message: [u8; MESSAGE],
}

const DOMAIN: &[u8; 41] = b"cipherhop evaluation key uniform half v1\0";
const MESSAGE: usize = DOMAIN.len() + 1 + 4 + 4 + 4 + 8;

impl Stream {
    pub(crate) fn new(
        seed: &[u8; 32],
        id: KeyId,
        digit: usize,
        modulus_index: usize,
        q: u64,
    ) -> Stream {
        let (tag, arg) = id.to_wire();
        let mut message = [0; MESSAGE];
        let mut rest = &mut message[..];
        for part in [
            &DOMAIN[..],
            &[tag],
            &arg.to_le_bytes(),
            &(digit as u32).to_le_bytes(),
            &(modulus_index as u32).to_le_bytes(),
            &q.to_le_bytes(),
        ] {
            let (head, tail) = rest.split_at_mut(part.len());
            head.copy_from_slice(part);
            rest = tail;
        }
        Stream {
            seed: *seed,
            message,
        }
    }

    /// Fills `out` with the stream's first residues modulo `q`.
    pub(crate) fn fill(&self, q: u64, out: &mut [u64]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(lanes) = lanes::Lanes::best() {
            return lanes.fill(self, q, out);
        }
        self.fill_by_library(q, out);
    }

    /// The reference; its own vector code makes several blocks at a time only with 512-bit vectors.
    fn fill_by_library(&self, q: u64, out: &mut [u64]) {
        let mut hash = blake3::Hasher::new_keyed(&self.seed);
        hash.update(&self.message);
        let mut xof = hash.finalize_xof();
        let mut bytes = [0u8; 8 * BATCH];
        sample(q, out, |words| {
            xof.fill(&mut bytes);
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        });
    }
}

/// Rejection sampling of residues from words.
#[inline(always)]
fn sample(q: u64, out: &mut [u64], mut next: impl FnMut(&mut [u64; BATCH])) {
    let mask = u64::MAX >> q.leading_zeros();
    let mut words = [0u64; BATCH];
    let mut filled = 0;
    while filled < out.len() {
        next(&mut words);
        for eight in words.as_chunks::<BLOCK>().0 {
            let eight = eight.map(|w| w & mask);
            let beyond: u64 = eight.iter().map(|&r| u64::from(r >= q)).sum();
            match out[filled..].first_chunk_mut::<BLOCK>() {
                // the rule: moduli are close below powers of two
                Some(room) if beyond == 0 => {
                    *room = eight;
                    filled += BLOCK;
                }
                _ => {
                    for r in eight {
                        if r < q && filled < out.len() {
                            out[filled] = r;
                            filled += 1;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    //! Eight output blocks at a time on 256-bit vectors, a word of each block in the lanes of one vector.

    use super::{BLOCK, MESSAGE, Stream, sample};
    use pulp::x86::V3;
    use pulp::{NullaryFnOnce, cast};
    use std::arch::x86_64::__m256i;

    const LANES: usize = 8;
    const IV: [u32; 4] = [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a];
    /// chunk start, chunk end, root, keyed
    const FLAGS: u32 = 1 | 2 | 8 | 16;
    const ORDER: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];

    #[derive(Debug, Clone, Copy)]
    pub(super) struct Lanes(V3);

    struct Fill<'a>(Lanes, &'a Stream, u64, &'a mut [u64]);

    impl NullaryFnOnce for Fill<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Fill(lanes, stream, q, out) = self;
            let state = lanes.start(stream);
            let mut counter = 0u64;
            sample(q, out, |words| {
                for blocks in words.as_chunks_mut::<{ LANES * BLOCK }>().0 {
                    lanes.blocks(&state, counter, blocks);
                    counter += LANES as u64;
                }
            });
        }
    }

    /// The seed and the message, each word in all lanes.
    struct Start {
        key: [__m256i; 8],
        message: [__m256i; 16],
    }

    impl Lanes {
        /// `None` without 256-bit vectors, or where the library's 512-bit code is faster.
        pub(super) fn best() -> Option<Lanes> {
            let wider = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512vl");
            if wider { None } else { Lanes::try_new() }
        }

        pub(super) fn try_new() -> Option<Lanes> {
            V3::try_new().map(Lanes)
        }

        pub(super) fn fill(self, stream: &Stream, q: u64, out: &mut [u64]) {
            self.0.vectorize(Fill(self, stream, q, out));
        }

        #[inline(always)]
        fn splat(self, x: u32) -> __m256i {
            self.0.avx._mm256_set1_epi32(x.cast_signed())
        }

        #[inline(always)]
        fn start(self, stream: &Stream) -> Start {
            let mut block = [0; 64];
            block[..MESSAGE].copy_from_slice(&stream.message);
            let word = |bytes: &[[u8; 4]], i: usize| self.splat(u32::from_le_bytes(bytes[i]));
            Start {
                key: std::array::from_fn(|i| word(stream.seed.as_chunks().0, i)),
                message: std::array::from_fn(|i| word(block.as_chunks().0, i)),
            }
        }

        #[inline(always)]
        fn add(self, a: __m256i, b: __m256i) -> __m256i {
            self.0.avx2._mm256_add_epi32(a, b)
        }

        #[inline(always)]
        fn xor(self, a: __m256i, b: __m256i) -> __m256i {
            self.0.avx2._mm256_xor_si256(a, b)
        }

        /// Rotation of every lane to the right by `R`, which is 32 - `L`.
        #[inline(always)]
        fn rotate<const R: i32, const L: i32>(self, x: __m256i) -> __m256i {
            let avx2 = self.0.avx2;
            avx2._mm256_or_si256(
                avx2._mm256_srli_epi32::<R>(x),
                avx2._mm256_slli_epi32::<L>(x),
            )
        }

        #[inline(always)]
        fn shuffle(self, x: __m256i, order: [u8; 16]) -> __m256i {
            self.0.avx2._mm256_shuffle_epi8(x, cast([order, order]))
        }

        #[inline(always)]
        fn mix(self, v: &mut [__m256i; 16], [a, b, c, d]: [usize; 4], x: __m256i, y: __m256i) {
            const BY_16: [u8; 16] = [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13];
            const BY_8: [u8; 16] = [1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12];
            v[a] = self.add(self.add(v[a], x), v[b]);
            v[d] = self.shuffle(self.xor(v[d], v[a]), BY_16);
            v[c] = self.add(v[c], v[d]);
            v[b] = self.rotate::<12, 20>(self.xor(v[b], v[c]));
            v[a] = self.add(self.add(v[a], y), v[b]);
            v[d] = self.shuffle(self.xor(v[d], v[a]), BY_8);
            v[c] = self.add(v[c], v[d]);
            v[b] = self.rotate::<7, 25>(self.xor(v[b], v[c]));
        }

        /// The output blocks from number `counter` on.
        #[inline(always)]
        fn blocks(self, start: &Start, counter: u64, out: &mut [u64; LANES * BLOCK]) {
            let numbers: [u64; LANES] = std::array::from_fn(|i| counter + i as u64);
            let (key, m) = (&start.key, &start.message);
            let iv = |i: usize| self.splat(IV[i]);
            let mut v = [
                key[0],
                key[1],
                key[2],
                key[3],
                key[4],
                key[5],
                key[6],
                key[7],
                iv(0),
                iv(1),
                iv(2),
                iv(3),
                cast(numbers.map(|n| n as u32)),
                cast(numbers.map(|n| (n >> 32) as u32)),
                self.splat(MESSAGE as u32),
                self.splat(FLAGS),
            ];
            let mut order: [usize; 16] = std::array::from_fn(|i| i);
            for _ in 0..7 {
                let m = |i: usize| m[order[i]];
                self.mix(&mut v, [0, 4, 8, 12], m(0), m(1));
                self.mix(&mut v, [1, 5, 9, 13], m(2), m(3));
                self.mix(&mut v, [2, 6, 10, 14], m(4), m(5));
                self.mix(&mut v, [3, 7, 11, 15], m(6), m(7));
                self.mix(&mut v, [0, 5, 10, 15], m(8), m(9));
                self.mix(&mut v, [1, 6, 11, 12], m(10), m(11));
                self.mix(&mut v, [2, 7, 8, 13], m(12), m(13));
                self.mix(&mut v, [3, 4, 9, 14], m(14), m(15));
                order = ORDER.map(|i| order[i]);
            }
            let low: [__m256i; 8] = std::array::from_fn(|i| self.xor(v[i], v[i + 8]));
            let high: [__m256i; 8] = std::array::from_fn(|i| self.xor(v[i + 8], key[i]));
            let halves = [self.transposed(low), self.transposed(high)];
            for (lane, block) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                let words: [[u64; 4]; 2] = [cast(halves[0][lane]), cast(halves[1][lane])];
                block[..4].copy_from_slice(&words[0]);
                block[4..].copy_from_slice(&words[1]);
            }
        }

        /// Rows to columns.
        #[inline(always)]
        fn transposed(self, r: [__m256i; 8]) -> [__m256i; 8] {
            let avx2 = self.0.avx2;
            let pair = |i: usize| {
                let (a, b) = (r[2 * i], r[2 * i + 1]);
                [
                    avx2._mm256_unpacklo_epi32(a, b),
                    avx2._mm256_unpackhi_epi32(a, b),
                ]
            };
            // [k]: columns 0 and 1, or 2 and 3, of both halves in rows 2k and 2k + 1
            let pairs: [[__m256i; 2]; 4] = std::array::from_fn(pair);
            let four = |upper: usize, column: usize| {
                let (a, b) = (
                    pairs[2 * upper][column / 2],
                    pairs[2 * upper + 1][column / 2],
                );
                if column.is_multiple_of(2) {
                    avx2._mm256_unpacklo_epi64(a, b)
                } else {
                    avx2._mm256_unpackhi_epi64(a, b)
                }
            };
            std::array::from_fn(|column| {
                let (a, b) = (four(0, column % 4), four(1, column % 4));
                if column < 4 {
                    avx2._mm256_permute2x128_si256::<0x20>(a, b)
                } else {
                    avx2._mm256_permute2x128_si256::<0x31>(a, b)
                }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[cfg(target_arch = "x86_64")]
    fn by_lanes(stream: &Stream, q: u64, len: usize) -> Option<Vec<u64>> {
        let mut out = vec![7; len];
        lanes::Lanes::try_new()?.fill(stream, q, &mut out);
        Some(out)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn by_lanes(_: &Stream, _: u64, _: usize) -> Option<Vec<u64>> {
        None
    }

    proptest! {
        /// I1: the same bytes on every processor.
        #[test]
        fn the_vector_code_gives_the_bytes_of_the_library(
            seed in any::<[u8; 32]>(), arg in 1..u32::MAX, digit in 0..40usize, index in 0..40usize,
            q in prop_oneof![Just((1u64 << 50) - 27), Just((1 << 42) - 11), 3..1u64 << 50, Just((1 << 49) + 9)],
            len in 0..3000usize,
        ) {
            let stream = Stream::new(&seed, KeyId::Rot(arg), digit, index, q);
            let mut want = vec![0; len];
            stream.fill_by_library(q, &mut want);
            prop_assert!(want.iter().all(|&r| r < q));
            if let Some(got) = by_lanes(&stream, q, len) {
                prop_assert_eq!(&got, &want);
            }
            let mut got = vec![0; len];
            stream.fill(q, &mut got);
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn the_residues_are_those_of_the_documented_hash() {
        let (seed, q) = ([5; 32], (1u64 << 42) - 11);
        let mut hash = blake3::Hasher::new_keyed(&seed);
        hash.update(b"cipherhop evaluation key uniform half v1\0");
        hash.update(&[2]);
        for word in [77u32, 3, 9] {
            hash.update(&word.to_le_bytes());
        }
        hash.update(&q.to_le_bytes());
        let mut bytes = vec![0; 8 * 70_000];
        hash.finalize_xof().fill(&mut bytes);
        let words = bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b));
        let want: Vec<u64> = words
            .map(|w| w & ((1 << 42) - 1))
            .filter(|&r| r < q)
            .take(65_536)
            .collect();
        assert_eq!(expand_uniform(&seed, KeyId::Rot(77), 3, 9, q, 65_536), want);
    }
}
