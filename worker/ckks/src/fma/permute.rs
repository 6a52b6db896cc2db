//! Automorphisms of the NTT domain, four entries at a time.
//!
//! Entry k of a transform is the value at the root to the power 2*rev(k) + 1, so the two lowest bits of k add
//! multiples of N/2 to the exponent. An odd exponent g therefore takes an aligned block of four to an aligned
//! block of four, and within it adds to a two-bit number (the bits of k reversed) a number of the block, after a
//! multiplication with g modulo 4: one vector and one of eight shuffles.

use super::vector::{Native, Vectors};
use pulp::NullaryFnOnce;

#[inline(always)]
fn one_by_one(out: &mut [u64], table: &[u32], x: &[u64]) {
    for (o, &k) in out.iter_mut().zip(table) {
        *o = x[k as usize];
    }
}

/// out[k] = x[table[k]], the table a part of an automorphism's that starts at a multiple of four.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn gather(_: Native, out: &mut [u64], table: &[u32], x: &[u64]) {
    one_by_one(out, table, x);
}

/// out[k] = x[table[k]], the table a part of an automorphism's that starts at a multiple of four.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn gather(native: Native, out: &mut [u64], table: &[u32], x: &[u64]) {
    use std::arch::x86_64::__m256i;
    let (tables, rest) = table.as_chunks::<4>();
    let Some(first) = tables.first().filter(|_| rest.is_empty()) else {
        return one_by_one(out, table, x);
    };
    let shuffles = shuffles(first);
    let x = x.as_chunks::<4>().0;
    for (out, table) in out.as_chunks_mut::<4>().0.iter_mut().zip(tables) {
        let block: __m256i = pulp::bytemuck::cast(x[(table[0] / 4) as usize]);
        let shuffle: __m256i = pulp::bytemuck::cast(shuffles[(table[0] % 4) as usize]);
        let moved = native.avx2._mm256_permutevar8x32_epi32(block, shuffle);
        *out = pulp::bytemuck::cast(moved);
    }
}

#[inline(always)]
fn floats_one_by_one<const D: usize, const N: usize>(
    out: &mut [[f64; N]; D],
    table: &[u32],
    x: [&[u64]; D],
) {
    for (out, x) in out.iter_mut().zip(x) {
        for (o, &k) in out.iter_mut().zip(table) {
            *o = super::load(x[k as usize]);
        }
    }
}

/// out[j][k] = x[j][table[k]] as f64.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn gather_f64<const D: usize, const N: usize>(
    _: Native,
    out: &mut [[f64; N]; D],
    table: &[u32],
    x: [&[u64]; D],
) {
    floats_one_by_one(out, table, x);
}

/// out[j][k] = x[j][table[k]] as f64, the table a part of an automorphism's that starts at a multiple of four.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn gather_f64<const D: usize, const N: usize>(
    native: Native,
    out: &mut [[f64; N]; D],
    table: &[u32],
    x: [&[u64]; D],
) {
    use std::arch::x86_64::__m256i;
    let (tables, rest) = table.as_chunks::<4>();
    let Some(first) = tables.first().filter(|_| rest.is_empty()) else {
        return floats_one_by_one(out, table, x);
    };
    let (magic, bits) = (
        native.splat(super::MAGIC),
        native.splat(f64::from_bits(super::MAGIC_BITS)),
    );
    let shuffles = shuffles(first);
    let blocks = x[0].len() / 4;
    let x = x.map(|x| &x.as_chunks::<4>().0[..blocks]);
    let out = out.each_mut().map(|x| x.as_chunks_mut::<4>().0);
    for (k, table) in tables.iter().enumerate() {
        let from = (table[0] / 4) as usize;
        let shuffle: __m256i = pulp::bytemuck::cast(shuffles[(table[0] % 4) as usize]);
        for j in 0..D {
            let block: __m256i = pulp::bytemuck::cast(x[j][from]);
            let moved = native.avx2._mm256_permutevar8x32_epi32(block, shuffle);
            let moved: [u64; 4] = pulp::bytemuck::cast(moved);
            let float = native.sub(native.or(native.load(moved), bits), magic);
            out[j][k] = native.store(float).map(f64::from_bits);
        }
    }
}

/// Where the four entries of a block come from, in halves of an entry, by where the first one comes from.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn shuffles(block: &[u32; 4]) -> [[u32; 8]; 4] {
    const REVERSED: [u32; 4] = [0, 2, 1, 3];
    let reversed = |k: u32| REVERSED[(k % 4) as usize];
    // the third entry is a step of one after the first
    let g = (reversed(block[2]) + 4 - reversed(block[0])) % 4;
    std::array::from_fn(|start| {
        std::array::from_fn(|half| {
            let entry = reversed(start as u32) + g * reversed(half as u32 / 2);
            2 * reversed(entry) + half as u32 % 2
        })
    })
}

/// Whole limbs through an automorphism.
pub(super) struct Permute<'a> {
    pub(super) native: Native,
    pub(super) table: &'a [u32],
    pub(super) x: &'a [u64],
    pub(super) out: &'a mut [u64],
}

impl NullaryFnOnce for Permute<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        gather(self.native, self.out, self.table, self.x);
    }
}
