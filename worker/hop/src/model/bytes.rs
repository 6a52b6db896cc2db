//! Bounded reading of foreign binary headers: a lying length never allocates more than the file could hold.

use std::io::Read;

use super::{ModelError, error::malformed};

/// Little-endian reader that knows how many bytes are left.
pub(crate) struct Bounded<R> {
    inner: R,
    left: u64,
    read: u64,
}

impl<R: Read> Bounded<R> {
    pub(crate) fn new(inner: R, length: u64) -> Self {
        Self {
            inner,
            left: length,
            read: 0,
        }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.read
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), ModelError> {
        let wanted = out.len() as u64;
        if wanted > self.left {
            return Err(malformed("the header ends too early"));
        }
        self.inner
            .read_exact(out)
            .map_err(|e| malformed(format!("the header ends too early: {e}")))?;
        self.left -= wanted;
        self.read += wanted;
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A UTF-8 string with a 64-bit length in front, at most `most` bytes.
    pub(crate) fn string(&mut self, most: u64) -> Result<String, ModelError> {
        let length = self.u64()?;
        if length > most || length > self.left {
            return Err(malformed(format!("a string claims {length} bytes")));
        }
        let mut out = vec![0; length as usize];
        self.fill(&mut out)?;
        String::from_utf8(out).map_err(|_| malformed("a string is not UTF-8"))
    }
}
