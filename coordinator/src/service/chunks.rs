//! Digests of a blob's chunks, made while it is read.

use std::pin::Pin;

use cipherhop_proto::{CHUNK_BYTES, Hasher, v1};
use futures::{Stream, StreamExt as _, stream};
use tonic::Status;

use super::error::of_blob;
use crate::blobs::{BlobError, BlobReader};

/// A stream of answers.
pub(super) type Answers =
    Pin<Box<dyn Stream<Item = Result<v1::ListChunksResponse, Status>> + Send>>;

type Frames = Pin<Box<dyn Stream<Item = Result<Vec<u8>, BlobError>> + Send>>;

/// One answer for each chunk.
pub(super) fn digests(reader: BlobReader) -> Answers {
    let begin = (reader.frames, Vec::new(), true);
    Box::pin(stream::try_unfold(
        begin,
        |(mut frames, rest, first)| async move {
            let Some((digest, rest)) = next(&mut frames, rest).await.map_err(of_blob)? else {
                return Ok(None);
            };
            let answer = v1::ListChunksResponse {
                chunk_bytes: if first { CHUNK_BYTES } else { 0 },
                digests: vec![digest],
            };
            Ok(Some((answer, (frames, rest, false))))
        },
    ))
}

/// The next chunk's digest and what was read beyond it; `None` at the end.
async fn next(
    frames: &mut Frames,
    mut data: Vec<u8>,
) -> Result<Option<(Vec<u8>, Vec<u8>)>, BlobError> {
    let mut hash = Hasher::new();
    let mut left = CHUNK_BYTES;
    loop {
        let take = usize::try_from(left).map_or(data.len(), |left| data.len().min(left));
        hash.update(&data[..take]);
        left -= take as u64;
        if left == 0 {
            return Ok(Some((hash.finish().to_vec(), data.split_off(take))));
        }
        match frames.next().await {
            Some(frame) => data = frame?,
            None if left == CHUNK_BYTES => return Ok(None),
            None => return Ok(Some((hash.finish().to_vec(), Vec::new()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use cipherhop_proto::Digest;

    use super::*;

    async fn of(bytes: &[u8], frame: usize) -> Vec<Vec<u8>> {
        let frames: Vec<_> = bytes.chunks(frame).map(|f| Ok(f.to_vec())).collect();
        let reader = BlobReader {
            size: bytes.len() as u64,
            frames: Box::pin(stream::iter(frames)),
        };
        let answers: Vec<_> = digests(reader).map(Result::unwrap).collect().await;
        assert!(answers.first().is_none_or(|a| a.chunk_bytes == CHUNK_BYTES));
        answers.into_iter().flat_map(|a| a.digests).collect()
    }

    #[tokio::test]
    async fn every_chunk_has_its_digest_however_the_frames_fall() {
        let chunk = CHUNK_BYTES as usize;
        let bytes: Vec<u8> = (0..2 * chunk as u32 + 5)
            .map(|i| (i * 7 % 253) as u8)
            .collect();
        for (length, frame) in [
            (0, 1),
            (5, 3),
            (chunk, 1 << 20),
            (chunk + 1, chunk - 1),
            (2 * chunk + 5, 3 * chunk),
        ] {
            let expected: Vec<Vec<u8>> = bytes[..length]
                .chunks(chunk)
                .map(|c| Digest::of(c).to_vec())
                .collect();
            assert_eq!(
                of(&bytes[..length], frame).await,
                expected,
                "{length} {frame}"
            );
        }
    }
}
