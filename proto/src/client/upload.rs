//! Resumable upload: the coordinator says how many bytes it holds durably, the rest is sent in segments.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{
    AttemptRef, ClientError, Connection, Progress, Stalls, TransferPolicy, UNARY_DEADLINE, chunks,
    unary,
};
use crate::Reason;
use crate::v1::{AppendRequest, BlobRef, FinishRequest, ListChunksRequest, OpenUploadRequest};

/// Hashing gigabytes takes longer than an ordinary call.
const FINISH_DEADLINE: std::time::Duration = std::time::Duration::from_secs(300);

/// Where the bytes to send are.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A file that does not change while it is sent.
    File(&'a Path),
    /// Bytes in memory.
    Bytes(&'a [u8]),
}

/// Sends `blob` and returns once the coordinator has published it. Broken connections are resumed from the last
/// durable byte. The caller vouches that `source` has the digest and size of `blob`.
pub async fn upload(
    connection: &Connection,
    blob: &BlobRef,
    source: Source<'_>,
    attempt: Option<&AttemptRef>,
    policy: &TransferPolicy,
    progress: Progress<'_>,
) -> Result<(), ClientError> {
    let mut stalls = Stalls::new(policy);
    let mut best = 0;
    loop {
        let before = best;
        match upload_once(
            connection, blob, &source, attempt, policy, progress, &mut best,
        )
        .await
        {
            Ok(()) => return Ok(()),
            Err(error) => stalls.wait(error, best > before).await?,
        }
    }
}

async fn upload_once(
    connection: &Connection,
    blob: &BlobRef,
    source: &Source<'_>,
    attempt: Option<&AttemptRef>,
    policy: &TransferPolicy,
    progress: Progress<'_>,
    best: &mut u64,
) -> Result<(), ClientError> {
    let mut client = connection.blob();
    let open = OpenUploadRequest {
        blob: Some(blob.clone()),
        attempt_id: attempt.map(|a| a.attempt_id.clone()).unwrap_or_default(),
        epoch: attempt.map(|a| a.epoch).unwrap_or_default(),
    };
    let opened = unary(UNARY_DEADLINE, client.open_upload(open)).await?;
    cipherhop_failpoint::at("send.opened");
    if opened.complete {
        progress(blob.size);
        return Ok(());
    }
    let mut committed = opened.committed;
    loop {
        if committed > blob.size {
            return Err(ClientError::Protocol(
                "more bytes committed than the blob has",
            ));
        }
        *best = committed.max(*best);
        progress(committed);
        if committed == blob.size {
            break;
        }
        let length = policy.segment_bytes.max(1).min(blob.size - committed);
        let place = Place {
            upload_id: &opened.upload_id,
            offset: committed,
            length,
            replace: false,
        };
        let now = append(&mut client, place, source, policy).await?;
        if now <= committed {
            return Err(ClientError::Unreachable(
                "no byte of the last segment was kept".into(),
            ));
        }
        committed = now;
        cipherhop_failpoint::at("send.segment.kept");
    }
    let finish = FinishRequest {
        upload_id: opened.upload_id.clone(),
    };
    let mut refused = match unary(FINISH_DEADLINE, client.finish(finish.clone())).await {
        Ok(_) => {
            cipherhop_failpoint::at("send.finished");
            return Ok(());
        }
        Err(error) => error,
    };
    if refused.reason() == Some(Reason::BlobDigestMismatch)
        && mend(connection, blob, &opened.upload_id, source, policy)
            .await
            .unwrap_or(false)
    {
        match unary(FINISH_DEADLINE, client.finish(finish)).await {
            Ok(_) => return Ok(()),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Sends the chunks again in which the coordinator's bytes differ from ours; false when none does.
async fn mend(
    connection: &Connection,
    blob: &BlobRef,
    upload_id: &[u8],
    source: &Source<'_>,
    policy: &TransferPolicy,
) -> Result<bool, ClientError> {
    // Bytes in memory are results of hops: sending them as a whole is quick.
    let Source::File(path) = source else {
        return Ok(false);
    };
    let request = ListChunksRequest {
        upload_id: upload_id.to_vec(),
        ..Default::default()
    };
    let file = std::fs::File::open(path).map_err(ClientError::file(path))?;
    let damaged = chunks::differing(connection, request, file, blob.size, policy.idle).await?;
    let mut client = connection.blob();
    for chunk in &damaged {
        let place = Place {
            upload_id,
            offset: chunk.offset,
            length: chunk.length,
            replace: true,
        };
        append(&mut client, place, source, policy).await?;
    }
    Ok(!damaged.is_empty())
}

/// What is sent, and where it goes.
struct Place<'a> {
    upload_id: &'a [u8],
    offset: u64,
    length: u64,
    replace: bool,
}

/// Sends one segment and returns the bytes that are durable after it.
async fn append(
    client: &mut crate::v1::blob_service_client::BlobServiceClient<super::AuthChannel>,
    place: Place<'_>,
    source: &Source<'_>,
    policy: &TransferPolicy,
) -> Result<u64, ClientError> {
    let Place {
        offset,
        length,
        replace,
        ..
    } = place;
    let sent = Arc::new(AtomicU64::new(0));
    let failed: Arc<Mutex<Option<ClientError>>> = Arc::default();
    let mut frames = Frames::open(
        source,
        offset,
        length,
        policy.frame_bytes.clamp(1, crate::FRAME_BYTES),
    )?;
    let mut head = Some((place.upload_id.to_vec(), offset, replace));
    let (sent_in, failed_in) = (sent.clone(), failed.clone());
    let stream = futures::stream::iter(std::iter::from_fn(move || match frames.next() {
        Ok(None) => None,
        Ok(Some(data)) => {
            sent_in.fetch_add(data.len() as u64, Ordering::Relaxed);
            let (upload_id, offset, replace) = head.take().unwrap_or_default();
            Some(AppendRequest {
                upload_id,
                offset,
                data,
                replace,
            })
        }
        Err(error) => {
            if let Ok(mut slot) = failed_in.lock() {
                *slot = Some(error);
            }
            None
        }
    }));
    let call = client.append(stream);
    tokio::pin!(call);
    let mut seen = 0;
    let answer = loop {
        tokio::select! {
            answer = &mut call => break answer,
            () = tokio::time::sleep(policy.idle) => {
                let now = sent.load(Ordering::Relaxed);
                if now == seen {
                    return Err(ClientError::Timeout(policy.idle));
                }
                seen = now;
            }
        }
    };
    if let Some(error) = failed.lock().ok().and_then(|mut slot| slot.take()) {
        return Err(error);
    }
    Ok(answer?.into_inner().committed)
}

/// Cuts a range of the source into messages. Owns its bytes or file, as a request stream has to.
struct Frames {
    reader: Box<dyn Reader>,
    left: u64,
    frame: usize,
    name: String,
}

trait Reader: std::io::Read + Send + Sync {}
impl<T: std::io::Read + Send + Sync> Reader for T {}

impl Frames {
    fn open(
        source: &Source<'_>,
        offset: u64,
        length: u64,
        frame: usize,
    ) -> Result<Frames, ClientError> {
        let (reader, name): (Box<dyn Reader>, String) = match source {
            Source::File(path) => {
                let mut file = std::fs::File::open(path).map_err(ClientError::file(path))?;
                file.seek(SeekFrom::Start(offset))
                    .map_err(ClientError::file(path))?;
                (Box::new(file), path.display().to_string())
            }
            Source::Bytes(bytes) => {
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let to = usize::try_from(offset.saturating_add(length))
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                (
                    Box::new(std::io::Cursor::new(bytes[from..to].to_vec())),
                    "bytes in memory".into(),
                )
            }
        };
        Ok(Frames {
            reader,
            left: length,
            frame,
            name,
        })
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        if self.left == 0 {
            return Ok(None);
        }
        let size = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(self.frame);
        let mut data = vec![0; size];
        self.reader
            .read_exact(&mut data)
            .map_err(|error| ClientError::File {
                path: self.name.clone(),
                error,
            })?;
        self.left -= size as u64;
        Ok(Some(data))
    }
}
