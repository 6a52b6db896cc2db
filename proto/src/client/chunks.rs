//! Which chunks of a blob are damaged: the coordinator's digests beside those of a local file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{ClientError, Connection, UNARY_DEADLINE};
use crate::v1::{ListChunksRequest, ListChunksResponse};

/// Chunk sizes that are believed, bytes.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 16..=64 << 20;
/// Longest wait for the first digest; a store far away reads a whole chunk for it.
const FIRST: Duration = UNARY_DEADLINE;

/// A part of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The chunks in which the file of `size` bytes and the coordinator's differ.
pub(super) async fn differing(
    connection: &Connection,
    request: ListChunksRequest,
    file: File,
    size: u64,
    idle: Duration,
) -> Result<Vec<Chunk>, ClientError> {
    let late = |limit| move |_| ClientError::Timeout(limit);
    let mut client = connection.blob();
    let answers = timeout(FIRST.max(idle), client.list_chunks(request)).await;
    let mut answers = answers.map_err(late(FIRST))??.into_inner();
    let mut file = file;
    let mut found = Vec::new();
    let (mut chunk_bytes, mut offset) = (0, 0);
    loop {
        let answer = timeout(idle, answers.message())
            .await
            .map_err(late(idle))??;
        let Some(ListChunksResponse {
            chunk_bytes: told,
            digests,
        }) = answer
        else {
            break;
        };
        if chunk_bytes == 0 {
            chunk_bytes = told;
        }
        if !SIZES.contains(&chunk_bytes) {
            return Err(ClientError::Protocol("chunks of an unusual size"));
        }
        for digest in digests {
            if offset >= size {
                return Err(ClientError::Protocol("more chunks than the blob has"));
            }
            let length = chunk_bytes.min(size - offset);
            let here = tokio::task::spawn_blocking(move || {
                let here = hash(&file, offset, length);
                (file, here)
            });
            let here = here
                .await
                .map_err(|_| ClientError::Protocol("a file task was broken off"))?;
            file = here.0;
            // What cannot be read back here is damaged too.
            if here.1.is_none_or(|here| here[..] != digest[..]) {
                found.push(Chunk { offset, length });
            }
            offset += length;
        }
    }
    if offset < size {
        return Err(ClientError::Protocol("fewer chunks than the blob has"));
    }
    Ok(found)
}

fn hash(file: &File, offset: u64, length: u64) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = offset;
    while at < offset + length {
        let wanted = usize::try_from(offset + length - at)
            .map_or(buffer.len(), |left| left.min(buffer.len()));
        file.read_exact_at(&mut buffer[..wanted], at).ok()?;
        hash.update(&buffer[..wanted]);
        at += wanted as u64;
    }
    Some(hash.finalize().into())
}
