//! Memory of polynomials, kept for reuse: a fresh block of megabytes comes from the system page by page and
//! zeroed, which costs as much as a transform of what is written into it.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Blocks below this many words are left to the allocator.
const SMALLEST: usize = 1 << 14;

/// Most words kept: 512 MiB.
const MOST: usize = 1 << 26;

/// Free blocks, the longest unused first.
struct Pool {
    free: Vec<Vec<u64>>,
    words: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: Vec::new(),
    words: 0,
});

impl Pool {
    /// The smallest block of at least `len` words, unless it would waste more than a quarter.
    fn take(&mut self, len: usize) -> Option<Vec<u64>> {
        let fits = |block: &Vec<u64>| (len..=len + len / 4).contains(&block.len());
        let (at, _) = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, block)| fits(block))
            .min_by_key(|(_, block)| block.len())?;
        let block = self.free.remove(at);
        self.words -= block.len();
        Some(block)
    }

    /// Keeps a block; returns those that have to go for it.
    fn give(&mut self, block: Vec<u64>) -> Vec<Vec<u64>> {
        self.words += block.len();
        self.free.push(block);
        let mut gone = 0;
        while self.words > MOST && gone < self.free.len() {
            self.words -= self.free[gone].len();
            gone += 1;
        }
        self.free.drain(..gone).collect()
    }
}

/// A fixed number of words.
pub(crate) struct Buffer {
    /// at least `len` words
    block: Vec<u64>,
    len: usize,
}

impl Buffer {
    /// `len` words of unspecified content, for what is overwritten as a whole.
    pub(crate) fn scratch(len: usize) -> Buffer {
        Buffer::recycled(len).unwrap_or_else(|| Buffer::from(vec![0; len]))
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Buffer {
        match Buffer::recycled(len) {
            Some(mut buffer) => {
                buffer.fill(0);
                buffer
            }
            None => Buffer::from(vec![0; len]),
        }
    }

    pub(crate) fn copy_of(words: &[u64]) -> Buffer {
        match Buffer::recycled(words.len()) {
            Some(mut buffer) => {
                buffer.copy_from_slice(words);
                buffer
            }
            None => Buffer::from(words.to_vec()),
        }
    }

    fn recycled(len: usize) -> Option<Buffer> {
        if len < SMALLEST {
            return None;
        }
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.take(len).map(|block| Buffer { block, len })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.block.len() >= SMALLEST {
            let block = std::mem::take(&mut self.block);
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = pool.give(block);
            drop(pool);
            drop(gone);
        }
    }
}

impl From<Vec<u64>> for Buffer {
    fn from(block: Vec<u64>) -> Buffer {
        let len = block.len();
        Buffer { block, len }
    }
}

impl FromIterator<u64> for Buffer {
    fn from_iter<I: IntoIterator<Item = u64>>(words: I) -> Buffer {
        Buffer::from(Vec::from_iter(words))
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::copy_of(self)
    }
}

impl Deref for Buffer {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.block[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.block[..self.len]
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_and_its_length_is_the_one_asked_for() {
        let mut pool = Pool {
            free: Vec::new(),
            words: 0,
        };
        assert!(pool.take(100).is_none());
        for len in [130, 110, 90] {
            assert!(pool.give(vec![7; len]).is_empty());
        }
        assert_eq!(pool.take(100).unwrap().len(), 110);
        assert!(pool.take(100).is_none(), "130 words waste too much");
        assert_eq!((pool.free.len(), pool.words), (2, 220));
    }

    #[test]
    fn the_pool_is_bounded() {
        let mut pool = Pool {
            free: Vec::new(),
            words: MOST - 5,
        };
        assert!(pool.give(vec![0; 5]).is_empty());
        assert_eq!(pool.give(vec![0; 6]).len(), 2);
        assert_eq!(pool.words, MOST - 5);
    }

    #[test]
    fn recycled_words_are_zeroed_where_zeros_are_asked_for() {
        let mut dirty = Buffer::scratch(SMALLEST);
        dirty.fill(u64::MAX);
        drop(dirty);
        assert!(Buffer::zeroed(SMALLEST).iter().all(|x| *x == 0));
        let copy = Buffer::copy_of(&vec![3; SMALLEST - 1]);
        assert_eq!(copy, Buffer::from(vec![3; SMALLEST - 1]));
        assert_eq!(copy.clone().len(), SMALLEST - 1);
    }
}
