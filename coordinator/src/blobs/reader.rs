//! Ranged reads as a stream of frames.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt as _};

use super::{BlobError, FRAME_BYTES, io};

/// A blob being read.
pub struct BlobReader {
    /// Size of the whole blob, bytes.
    pub size: u64,
    /// The bytes of the range, in frames of at most 1 MiB.
    pub frames: Pin<Box<dyn Stream<Item = Result<Vec<u8>, BlobError>> + Send>>,
}

/// End of the range `offset..offset + length` in a blob of `size` bytes; a length of 0 means "to the end".
pub fn check_range(size: u64, offset: u64, length: u64) -> Result<u64, BlobError> {
    let outside = BlobError::OutOfRange {
        offset,
        length,
        size,
    };
    let end = if length == 0 {
        Some(size)
    } else {
        offset.checked_add(length)
    };
    match end {
        Some(end) if offset <= size && end <= size => Ok(end),
        _ => Err(outside),
    }
}

impl BlobReader {
    pub(super) fn of_file(file: File, size: u64, offset: u64, end: u64) -> BlobReader {
        let file = Arc::new(file);
        let frame = FRAME_BYTES as u64;
        let starts = (0..(end - offset).div_ceil(frame)).map(move |n| offset + n * frame);
        let reads = stream::iter(starts).map(move |at| {
            let file = file.clone();
            tokio::task::spawn_blocking(move || {
                let wanted =
                    usize::try_from(end - at).map_or(FRAME_BYTES, |left| left.min(FRAME_BYTES));
                let mut frame = vec![0; wanted];
                file.read_exact_at(&mut frame, at).map(|()| frame)
            })
        });
        // The next frame is read while one is sent.
        let frames = reads.buffered(2).map(|read| {
            read.unwrap_or_else(|e| Err(std::io::Error::other(e)))
                .map_err(io("read a blob"))
        });
        BlobReader {
            size,
            frames: Box::pin(frames),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        assert_eq!(check_range(10, 3, 0).unwrap(), 10);
        assert_eq!(check_range(10, 3, 4).unwrap(), 7);
        assert_eq!(check_range(10, 10, 0).unwrap(), 10);
        assert!(check_range(10, 11, 0).is_err());
        assert!(check_range(10, 3, 8).is_err());
        assert!(check_range(10, 3, u64::MAX).is_err());
    }
}
