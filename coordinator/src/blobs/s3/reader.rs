//! Ranged reads in pieces: each is a request of its own, which is tried again alone, and which a slow reader cannot let
//! run into a time-out.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt as _};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};

use super::super::{BlobError, FRAME_BYTES};
use super::Inner;

/// How much is asked for at once.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// One request, bytes.
    piece: u64,
    /// Requests under way ahead of the reader.
    ahead: usize,
}

/// For one of many clients: a few MiB of memory each.
pub(super) const CLIENT: Pace = Pace {
    piece: 2 << 20,
    ahead: 2,
};

/// For Finish, whose caller waits.
pub(super) const HASH: Pace = Pace {
    piece: 8 << 20,
    ahead: 4,
};

pub(super) type Frames = Pin<Box<dyn Stream<Item = Result<Vec<u8>, BlobError>> + Send>>;

/// Bytes `from..end` of an object. The first piece is read before this returns, so that a missing object is told.
pub(super) async fn open(
    inner: Arc<Inner>,
    path: Path,
    from: u64,
    end: u64,
    Pace { piece, ahead }: Pace,
) -> Result<Frames, Error> {
    if from == end {
        return Ok(Box::pin(stream::empty()));
    }
    let second = end.min(from + piece);
    let first = inner.client.get_range(&path, from..second).await?;
    let starts = (0..(end - second).div_ceil(piece)).map(move |n| second + n * piece);
    let rest = stream::iter(starts).map(move |at| {
        let (inner, path) = (inner.clone(), path.clone());
        async move {
            let read = inner.client.get_range(&path, at..end.min(at + piece)).await;
            read.map_err(inner.failed("read a blob"))
        }
    });
    let pieces = stream::once(async { Ok(first) }).chain(rest.buffered(ahead));
    let frames = pieces.flat_map(|piece| {
        let frames: Vec<Result<Vec<u8>, BlobError>> = match piece {
            Ok(piece) => piece.chunks(FRAME_BYTES).map(|f| Ok(f.to_vec())).collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(frames)
    });
    Ok(Box::pin(frames))
}
