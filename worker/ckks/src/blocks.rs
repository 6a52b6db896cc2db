//! Memory of evaluation keys, in blocks of a few limbs: keys of any size can use each other's.

use crate::keys::KeySpec;
use crate::params::Params;
use rayon::prelude::*;

/// Words of a block, 2 MiB: one huge page where the system has them. A limb is not split.
const WORDS: usize = 1 << 18;

/// Words of the blocks that hold `limbs` limbs of `n` words: all the same but for the last.
fn lengths(n: usize, limbs: usize) -> impl Iterator<Item = usize> {
    let most = (WORDS / n).max(1);
    (0..limbs)
        .step_by(most)
        .map(move |first| most.min(limbs - first) * n)
}

/// Limbs of N words each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limbs {
    n: usize,
    blocks: Vec<Vec<u64>>,
}

impl Limbs {
    /// Any content; from spare memory as far as it goes.
    pub(crate) fn scratch(n: usize, limbs: usize, spare: &mut SpareBlocks) -> Limbs {
        let blocks = lengths(n, limbs).map(|len| spare.take(len)).collect();
        Limbs { n, blocks }
    }

    /// Whole limbs, one after another.
    pub(crate) fn copy_of(n: usize, words: &[u64]) -> Limbs {
        let mut limbs = Limbs::scratch(n, words.len() / n, &mut SpareBlocks::default());
        for (to, from) in limbs.iter_mut().zip(words.chunks_exact(n)) {
            to.copy_from_slice(from);
        }
        limbs
    }

    pub(crate) fn limb(&self, i: usize) -> &[u64] {
        let most = (WORDS / self.n).max(1);
        let at = i % most * self.n;
        &self.blocks[i / most][at..at + self.n]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u64]> {
        self.blocks.iter().flat_map(|b| b.chunks_exact(self.n))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u64]> {
        self.blocks
            .iter_mut()
            .flat_map(|b| b.chunks_exact_mut(self.n))
    }

    pub(crate) fn par_iter_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [u64]> {
        let limbs: Vec<_> = self.iter_mut().collect();
        limbs.into_par_iter()
    }

    /// Words held.
    pub(crate) fn words(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }
}

/// Memory of keys that were dropped, for keys about to be read: fresh memory has to be cleared by the system first,
/// which takes as long as filling it.
#[derive(Debug, Default)]
pub struct SpareBlocks(Vec<Vec<u64>>);

impl SpareBlocks {
    pub(crate) fn put(&mut self, limbs: Limbs) {
        self.0.extend(limbs.blocks);
    }

    /// A block of exactly that length with any content.
    fn take(&mut self, len: usize) -> Vec<u64> {
        match self.0.iter().position(|block| block.len() == len) {
            Some(at) => self.0.swap_remove(at),
            None => vec![0; len],
        }
    }

    /// Takes out what that key can use; its spec must be valid.
    pub fn split_for(&mut self, params: &Params, spec: KeySpec) -> SpareBlocks {
        let limbs = spec.limbs + spec.special_of(params);
        self.split(params.n(), limbs, 2 * spec.digits_of(params))
    }

    /// Takes out what `count` times `limbs` limbs of `n` words can use.
    fn split(&mut self, n: usize, limbs: usize, count: usize) -> SpareBlocks {
        let mut taken = Vec::new();
        for len in (0..count).flat_map(|_| lengths(n, limbs)) {
            if let Some(at) = self.0.iter().position(|block| block.len() == len) {
                taken.push(self.0.swap_remove(at));
            }
        }
        SpareBlocks(taken)
    }

    /// Frees blocks until at most that many bytes are left.
    pub fn shrink_to(&mut self, bytes: u64) {
        while self.bytes() > bytes {
            self.0.pop();
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|block| block.len() as u64 * 8).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbs_lie_in_blocks_of_one_length_and_keep_their_order() {
        for (n, limbs, blocks) in [
            (1 << 16, 38, 10),
            (1 << 14, 33, 3),
            (1 << 19, 3, 3),
            (1 << 10, 38, 1),
        ] {
            let lens: Vec<usize> = lengths(n, limbs).collect();
            assert_eq!(
                (lens.len(), lens.iter().sum::<usize>()),
                (blocks, limbs * n)
            );
            assert!(lens[1..].iter().all(|len| *len <= lens[0]));
            let words: Vec<u64> = (0..limbs * n).map(|i| (i / n) as u64).collect();
            let copy = Limbs::copy_of(n, &words);
            assert!((0..limbs).all(|i| copy.limb(i) == &words[i * n..(i + 1) * n]));
            assert_eq!(copy.iter().flatten().copied().collect::<Vec<_>>(), words);
            assert_eq!(copy.words(), words.len());
        }
    }

    #[test]
    fn a_smaller_key_leaves_the_rest_of_a_larger_ones_memory_for_the_next() {
        let n = 1 << 16;
        let mut spare = SpareBlocks::default();
        spare.put(Limbs::copy_of(n, &vec![7; 38 * n]));
        let mut mine = spare.split(n, 9, 2);
        // two full blocks of four limbs each; the last block, of two limbs, does not serve for one
        assert_eq!((mine.bytes(), spare.bytes()), (16 << 19, 22 << 19));
        let again = Limbs::scratch(n, 9, &mut mine);
        assert_eq!(again.limb(7)[5], 7, "not cleared: used again");
        assert_eq!((again.limb(8)[5], again.words()), (0, 9 * n));
        assert_eq!(mine.bytes(), 8 << 19);
        spare.shrink_to(5 << 21);
        assert!(spare.bytes() <= 5 << 21 && spare.bytes() > 4 << 20);
    }
}
