//! Residues as bit strings: each takes as many bits as its modulus, least significant bit first, one after the
//! other. A limb has a power of two of at least 8 residues, so it always fills whole bytes and there is no
//! padding.

use std::array;

/// Residues that together fill as many words as one of them has bits.
const GROUP: usize = 64;
/// A residue and the bit it starts at fit in one 8-byte word up to this width.
pub(crate) const MAX_WIDTH: usize = 57;

/// Bits of a residue modulo `q`.
pub fn residue_bits(q: u64) -> usize {
    (64 - q.leading_zeros()) as usize
}

/// Bytes of `n` residues modulo `q`; `n` is a multiple of 8.
pub fn packed_size(n: usize, q: u64) -> usize {
    n * residue_bits(q) / 8
}

/// Appends residues modulo `q`; their number is a multiple of 8 and each is below `q`.
pub fn pack(residues: &[u64], q: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + packed_size(residues.len(), q), 0);
    pack_into(residues, q, &mut out[start..]);
}

/// The same into bytes of the packed size.
pub(crate) fn pack_into(residues: &[u64], q: u64, out: &mut [u8]) {
    debug_assert!(residues.len().is_multiple_of(8) && residues.iter().all(|&r| r < q));
    debug_assert_eq!(out.len(), packed_size(residues.len(), q));
    match residue_bits(q) {
        42 => pack_groups(residues, 42, out),
        50 => pack_groups(residues, 50, out),
        width => pack_groups(residues, width, out),
    }
}

#[inline(always)]
fn pack_groups(residues: &[u64], width: usize, out: &mut [u8]) {
    let mut words = [0u64; GROUP];
    let groups = out.chunks_mut(GROUP / 8 * width);
    for (group, out) in residues.chunks(GROUP).zip(groups) {
        let (mut word, mut at, mut k) = (0u64, 0usize, 0usize);
        for &r in group {
            word |= r << at;
            at += width;
            if at >= 64 {
                words[k] = word;
                k += 1;
                at -= 64;
                word = if at == 0 { 0 } else { r >> (width - at) };
            }
        }
        let (whole, rest) = out.split_at_mut(8 * k);
        for (out, word) in whole.chunks_exact_mut(8).zip(&words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        // a group of fewer residues ends at a whole byte, not always at a whole word
        rest.copy_from_slice(&word.to_le_bytes()[..at / 8]);
    }
}

/// Reads residues modulo `q` into `out`; `bytes` has their packed size. Returns the position of the first that is
/// not below `q`.
pub fn unpack(bytes: &[u8], q: u64, out: &mut [u64]) -> Result<(), usize> {
    debug_assert_eq!(bytes.len(), packed_size(out.len(), q));
    match residue_bits(q) {
        42 => unpack_groups::<42>(bytes, out),
        50 => unpack_groups::<50>(bytes, out),
        width => unpack_any(bytes, width, out),
    }
    // all of them first: finding none out of range is the rule, and a sum has no branches
    if out.iter().map(|&r| u64::from(r >= q)).sum::<u64>() == 0 {
        return Ok(());
    }
    out.iter().position(|&r| r >= q).map_or(Ok(()), Err)
}

/// Eight residues of `WIDTH` bits are `WIDTH` bytes; constant shifts make this loop several times faster.
#[inline(always)]
fn unpack_groups<const WIDTH: usize>(bytes: &[u8], out: &mut [u64]) {
    let mask = (1u64 << WIDTH) - 1;
    // the last group's words would reach beyond the end
    let fast = (out.len() / 8).saturating_sub(1);
    let (head, tail) = out.split_at_mut(fast * 8);
    for (k, eight) in head.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let group = &bytes[k * WIDTH..k * WIDTH + WIDTH + 8];
        *eight = array::from_fn(|i| {
            let (at, shift) = (i * WIDTH / 8, i * WIDTH % 8);
            let word: [u8; 8] = array::from_fn(|b| group[at + b]);
            (u64::from_le_bytes(word) >> shift) & mask
        });
    }
    unpack_any(&bytes[fast * WIDTH..], WIDTH, tail);
}

fn unpack_any(bytes: &[u8], width: usize, out: &mut [u64]) {
    debug_assert!(width <= MAX_WIDTH);
    let mask = u64::MAX >> (64 - width);
    for (i, r) in out.iter_mut().enumerate() {
        let (at, shift) = (i * width / 8, i * width % 8);
        let mut word = [0u8; 8];
        let take = (bytes.len() - at).min(8);
        word[..take].copy_from_slice(&bytes[at..at + take]);
        *r = (u64::from_le_bytes(word) >> shift) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;
    use proptest::prelude::*;

    fn moduli() -> Vec<u64> {
        let p = Params::by_name("n10-INSECURE").unwrap();
        let mut all: Vec<u64> = p.q.iter().chain(&p.p).copied().collect();
        // other widths take the general loops
        all.extend([3, 257, (1 << 17) + 29, (1 << 33) - 9, (1 << 57) - 13]);
        all
    }

    #[test]
    fn edge_values_survive_at_every_position() {
        for q in moduli() {
            for n in [8, 16, 64, 72, 1024] {
                for at in [0, 1, 7, n / 2, n - 2, n - 1] {
                    for (rest, r) in [(0, q - 1), (q - 1, 0), (q - 1, 1)] {
                        let mut v = vec![rest; n];
                        v[at] = r;
                        let mut bytes = Vec::new();
                        pack(&v, q, &mut bytes);
                        assert_eq!(bytes.len(), packed_size(n, q));
                        let mut back = vec![7; n];
                        assert_eq!(unpack(&bytes, q, &mut back), Ok(()));
                        assert_eq!(back, v);
                    }
                }
            }
        }
    }

    #[test]
    fn the_bit_order_is_the_documented_one() {
        // 1, 2, 0.. of 42 bits: bit 0, and bit 42 + 1
        let q = (1 << 42) - 11;
        let mut bytes = Vec::new();
        pack(&[1, 2, 0, 0, 0, 0, 0, q - 1], q, &mut bytes);
        let mut want = vec![0u8; 42];
        want[0] = 1;
        want[43 / 8] = 1 << (43 % 8);
        for bit in (0..42).filter(|b| (q - 1) >> b & 1 == 1) {
            let at = 7 * 42 + bit;
            want[at / 8] |= 1 << (at % 8);
        }
        assert_eq!(bytes, want);
    }

    proptest! {
        #[test]
        fn packing_is_a_bijection_on_residues(
            seed in any::<u64>(), which in 0..42usize, groups in 1..40usize, flip in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let all = moduli();
            let q = all[which % all.len()];
            let mut s = seed;
            let v: Vec<u64> = (0..groups * 8)
                .map(|_| {
                    s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (s >> 5) % q
                })
                .collect();
            let mut bytes = Vec::new();
            pack(&v, q, &mut bytes);
            let mut back = vec![0; v.len()];
            prop_assert_eq!(unpack(&bytes, q, &mut back), Ok(()));
            prop_assert_eq!(&back, &v);
            // A flipped bit changes one residue, and is refused exactly if that leaves the range.
            let at = flip.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            let read = unpack(&bytes, q, &mut back);
            let changed: Vec<usize> = (0..v.len()).filter(|&i| back[i] != v[i]).collect();
            prop_assert_eq!(changed.len(), 1);
            let position = changed[0];
            prop_assert_eq!(read, if back[position] < q { Ok(()) } else { Err(position) });
            if read.is_ok() {
                let mut again = Vec::new();
                pack(&back, q, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
