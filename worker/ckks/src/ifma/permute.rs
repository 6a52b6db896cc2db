//! Automorphisms of the NTT domain, eight entries at a time: as in `fma/permute.rs`, with blocks of eight. An odd
//! exponent g takes an aligned block of eight to one, and within it adds to a three-bit number (the bits of the
//! entry reversed) a number of the block, after a multiplication with g modulo 8.

use super::lanes::Lanes;
use pulp::NullaryFnOnce;

/// Where the eight entries of a block come from, by where the first one comes from.
#[inline(always)]
pub(super) fn shuffles(block: Option<&[u32; 8]>) -> [[u64; 8]; 8] {
    const REVERSED: [u64; 8] = [0, 4, 2, 6, 1, 5, 3, 7];
    let reversed = |k: u64| REVERSED[(k % 8) as usize];
    let Some(block) = block else {
        return [[0; 8]; 8];
    };
    // the fifth entry is a step of one after the first
    let g = (reversed(block[4].into()) + 8 - reversed(block[0].into())) % 8;
    std::array::from_fn(|start| {
        std::array::from_fn(|k| reversed(reversed(start as u64) + g * reversed(k as u64)))
    })
}

/// The block of x whose first entry comes from `start`; with `MOVED` in the order of the automorphism.
#[inline(always)]
pub(super) fn moved<L: Lanes, const MOVED: bool>(
    l: L,
    x: &[[u64; 8]],
    start: u32,
    shuffles: &[[u64; 8]; 8],
) -> L::V {
    let block = l.load(&x[(start / 8) as usize]);
    if MOVED {
        l.permute(block, &shuffles[(start % 8) as usize])
    } else {
        block
    }
}

/// Whole limbs through an automorphism.
pub(super) struct Permute<'a, L> {
    pub(super) l: L,
    pub(super) table: &'a [u32],
    pub(super) x: &'a [u64],
    pub(super) out: &'a mut [u64],
}

impl<L: Lanes> NullaryFnOnce for Permute<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (l, table, x) = (self.l, self.table.as_chunks().0, self.x.as_chunks().0);
        let shuffles = shuffles(table.first());
        for (out, block) in self.out.as_chunks_mut().0.iter_mut().zip(table) {
            l.store(moved::<L, true>(l, x, block[0], &shuffles), out);
        }
    }
}
