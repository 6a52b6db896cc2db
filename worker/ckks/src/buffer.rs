//! Memory of polynomials, kept for reuse: a fresh block of megabytes comes from the system page by page and
//! zeroed, which costs as much as a transform of what is written into it.

use rayon::prelude::*;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Blocks below this many words are left to the allocator.
const SMALLEST: usize = 1 << 14;

/// Words by which kept blocks may raise the most memory taken, 128 MiB: the phases of a key switch take blocks of
/// different lengths, and without this allowance each drops the blocks of the one before.
const SLACK: usize = 1 << 24;

/// Free blocks, the longest unused first. Blocks in use and free ones together take no more than those in use once
/// did, an eighth more or `SLACK` more, whichever is less, and what the caller allows on top.
struct Pool {
    free: Vec<Vec<u64>>,
    /// Words of the free blocks.
    words: usize,
    /// Words of the blocks in use, and the most there were.
    used: usize,
    most: usize,
    /// Words that free blocks may take beyond the usual.
    allowed: usize,
}

/// Allows memory of polynomials that are gone, `bytes` of it beyond the usual 128 MiB, to be kept for the next ones.
/// A hop that computes on several threads gains from up to about 2 GiB: its phases take blocks of different lengths,
/// and what was given back to the system has to be cleared by it before it comes again.
pub fn keep_free_memory(bytes: u64) {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.allowed = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

impl Pool {
    const fn new() -> Pool {
        Pool {
            free: Vec::new(),
            words: 0,
            used: 0,
            most: 0,
            allowed: 0,
        }
    }

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
        self.used += block.len();
        Some(block)
    }

    /// Counts a block that was not taken from here; returns those that have to go for it.
    fn note(&mut self, len: usize) -> Vec<Vec<u64>> {
        self.used += len;
        self.most = self.most.max(self.used);
        self.trim()
    }

    /// Keeps a block; returns those that have to go for it.
    fn give(&mut self, block: Vec<u64>) -> Vec<Vec<u64>> {
        self.used = self.used.saturating_sub(block.len());
        self.words += block.len();
        self.free.push(block);
        self.trim()
    }

    fn trim(&mut self) -> Vec<Vec<u64>> {
        let mut gone = 0;
        let most = (self.most + SLACK.min(self.most / 8)).saturating_add(self.allowed);
        while self.used + self.words > most && gone < self.free.len() {
            self.words -= self.free[gone].len();
            gone += 1;
        }
        self.free.drain(..gone).collect()
    }
}

/// Words that a thread copies at a time.
const PIECE: usize = 1 << 16;

/// Copies words, on all threads where they are at hand.
fn copy(to: &mut [u64], from: &[u64]) {
    if rayon::current_thread_index().is_none() {
        return to.copy_from_slice(from);
    }
    to.par_chunks_mut(PIECE)
        .zip(from.par_chunks(PIECE))
        .with_max_len(1)
        .for_each(|(to, from)| to.copy_from_slice(from));
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
        Buffer::recycled(len).unwrap_or_else(|| Buffer::fresh(len, || vec![0; len]))
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Buffer {
        match Buffer::recycled(len) {
            Some(mut buffer) => {
                buffer.fill(0);
                buffer
            }
            None => Buffer::fresh(len, || vec![0; len]),
        }
    }

    pub(crate) fn copy_of(words: &[u64]) -> Buffer {
        match Buffer::recycled(words.len()) {
            Some(mut buffer) => {
                copy(&mut buffer, words);
                buffer
            }
            None => Buffer::fresh(words.len(), || words.to_vec()),
        }
    }

    /// A new block, after room was made for it.
    fn fresh(len: usize, make: impl FnOnce() -> Vec<u64>) -> Buffer {
        if len >= SMALLEST {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = pool.note(len);
            drop(pool);
            drop(gone);
        }
        Buffer { block: make(), len }
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
        Buffer::fresh(block.len(), || block)
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
        let mut pool = Pool::new();
        assert!(pool.take(100).is_none());
        for len in [130, 110, 90] {
            assert!(pool.note(len).is_empty());
        }
        for len in [130, 110, 90] {
            assert!(pool.give(vec![7; len]).is_empty());
        }
        assert_eq!(pool.take(100).unwrap().len(), 110);
        assert!(pool.take(100).is_none(), "130 words waste too much");
        assert_eq!((pool.free.len(), pool.words, pool.used), (2, 220, 110));
    }

    #[test]
    fn free_blocks_raise_the_most_memory_taken_by_an_eighth_at_most() {
        let mut pool = Pool::new();
        for len in [100, 50] {
            pool.note(len);
        }
        for len in [100, 50] {
            assert!(pool.give(vec![0; len]).is_empty());
        }
        // another size: there is room for 18 more than 150, and the block unused for the longest time goes
        assert!(pool.note(18).is_empty());
        let gone = pool.note(62);
        assert_eq!(gone.iter().map(Vec::len).collect::<Vec<_>>(), [100]);
        assert_eq!((pool.words, pool.used, pool.most), (50, 80, 150));
        // more in use than ever: little is kept
        assert_eq!(pool.note(90).len(), 1);
        assert_eq!((pool.words, pool.used, pool.most), (0, 170, 170));
    }

    #[test]
    fn what_is_allowed_on_top_is_kept_and_no_more() {
        let mut pool = Pool::new();
        pool.allowed = 150;
        assert!(pool.note(100).is_empty());
        assert!(pool.give(vec![0; 100]).is_empty());
        assert!(pool.note(162).is_empty(), "100 + 162 <= 162 + 20 + 150");
        assert!(pool.give(vec![0; 162]).is_empty());
        assert_eq!(pool.note(71).len(), 1, "262 + 71 > 162 + 20 + 150");
        assert_eq!((pool.words, pool.used), (162, 71));
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
