//! Resumable, checked download to a file: nothing appears under its final name before its digest is right.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use sha2::{Digest as _, Sha256};

use super::{AttemptRef, ClientError, Connection, Progress, Stalls, TransferPolicy, chunks};
use crate::v1::{BlobRef, ListChunksRequest, ReadRequest};

/// Fetches `blob` to `dest` (same folder: `dest` + ".part" while it is incomplete; a part left by an earlier run is
/// continued). A size of 0 in `blob` means unknown. Returns when the file is durable under its name.
pub async fn download(
    connection: &Connection,
    blob: &BlobRef,
    dest: &Path,
    attempt: Option<&AttemptRef>,
    policy: &TransferPolicy,
    progress: Progress<'_>,
) -> Result<(), ClientError> {
    let part_path = part_path(dest);
    let mut stalls = Stalls::new(policy);
    let mut damaged_before = false;
    loop {
        let path = part_path.clone();
        let mut part = blocking(move || Part::open(path)).await?;
        let before = part.length;
        let outcome = read_on(connection, blob, &mut part, attempt, policy, progress).await;
        let progressed = part.length > before;
        match outcome {
            Ok(()) => {}
            Err(error) => {
                stalls.wait(error, progressed).await?;
                continue;
            }
        }
        let (expected, target) = (blob.digest.clone(), dest.to_owned());
        let Some(damaged) = blocking(move || part.publish(&expected, &target)).await? else {
            return Ok(());
        };
        let mismatch = || ClientError::DigestMismatch {
            digest: hex::encode(&blob.digest),
        };
        if damaged_before {
            damaged.remove()?;
            return Err(mismatch());
        }
        damaged_before = true;
        match mend(connection, blob, &damaged, attempt, policy).await {
            Ok(true) => {}
            // Here are the same bytes as there: asking for them again does not help.
            Ok(false) => {
                damaged.remove()?;
                return Err(mismatch());
            }
            // It knows of no chunks, or the connection broke: everything once more.
            Err(_) => damaged.remove()?,
        }
    }
}

/// Fetches the chunks that differ from the coordinator's; false when none does.
async fn mend(
    connection: &Connection,
    blob: &BlobRef,
    part: &Damaged,
    attempt: Option<&AttemptRef>,
    policy: &TransferPolicy,
) -> Result<bool, ClientError> {
    let attempt_id = attempt.map(|a| a.attempt_id.clone()).unwrap_or_default();
    let request = ListChunksRequest {
        digest: blob.digest.clone(),
        attempt_id: attempt_id.clone(),
        upload_id: Vec::new(),
    };
    let (file, idle) = (part.open()?, policy.idle);
    let damaged = chunks::differing(connection, request, part.open()?, part.length, idle).await?;
    for chunk in &damaged {
        let request = ReadRequest {
            digest: blob.digest.clone(),
            offset: chunk.offset,
            length: chunk.length,
            attempt_id: attempt_id.clone(),
        };
        let late = |_| ClientError::Timeout(idle);
        let mut client = connection.blob();
        let stream = tokio::time::timeout(idle, client.read(request)).await;
        let mut stream = stream.map_err(late)??.into_inner();
        let (mut at, end) = (chunk.offset, chunk.offset + chunk.length);
        while let Some(message) = tokio::time::timeout(idle, stream.message())
            .await
            .map_err(late)??
        {
            if at + message.data.len() as u64 > end {
                return Err(ClientError::Protocol("more bytes sent than were asked for"));
            }
            file.write_all_at(&message.data, at)
                .map_err(ClientError::file(&part.path))?;
            at += message.data.len() as u64;
        }
        if at < end {
            return Err(ClientError::Unreachable(
                "the stream ended before the chunk did".into(),
            ));
        }
    }
    Ok(!damaged.is_empty())
}

/// A part whose bytes are all there and not what they should be.
struct Damaged {
    path: PathBuf,
    length: u64,
}

impl Damaged {
    fn open(&self) -> Result<std::fs::File, ClientError> {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(&self.path)
            .map_err(ClientError::file(&self.path))
    }

    fn remove(&self) -> Result<(), ClientError> {
        std::fs::remove_file(&self.path).map_err(ClientError::file(&self.path))
    }
}

async fn read_on(
    connection: &Connection,
    blob: &BlobRef,
    part: &mut Part,
    attempt: Option<&AttemptRef>,
    policy: &TransferPolicy,
    progress: Progress<'_>,
) -> Result<(), ClientError> {
    if blob.size > 0 && part.length > blob.size {
        part.clear()?;
    }
    progress(part.length);
    if blob.size > 0 && part.length == blob.size {
        return Ok(());
    }
    let request = ReadRequest {
        digest: blob.digest.clone(),
        offset: part.length,
        length: 0,
        attempt_id: attempt.map(|a| a.attempt_id.clone()).unwrap_or_default(),
    };
    let idle = || ClientError::Timeout(policy.idle);
    let mut client = connection.blob();
    let mut stream = tokio::time::timeout(policy.idle, client.read(request))
        .await
        .map_err(|_| idle())??
        .into_inner();
    let mut total = None;
    while let Some(message) = tokio::time::timeout(policy.idle, stream.message())
        .await
        .map_err(|_| idle())??
    {
        let size = *total.get_or_insert(message.size);
        if blob.size > 0 && size != blob.size {
            return Err(ClientError::SizeMismatch {
                digest: hex::encode(&blob.digest),
                expected: blob.size,
                announced: size,
            });
        }
        if part.length + message.data.len() as u64 > size {
            return Err(ClientError::Protocol("more bytes sent than the blob has"));
        }
        part.push(message.data)?;
        progress(part.length);
    }
    match total {
        Some(size) if part.length == size => Ok(()),
        _ => Err(ClientError::Unreachable(
            "the stream ended before the blob did".into(),
        )),
    }
}

fn part_path(dest: &Path) -> PathBuf {
    let mut name = dest.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ClientError::Protocol("a file task was broken off")),
    }
}

/// Hashes on a thread of its own, beside writing and receiving.
struct Hashing {
    pieces: SyncSender<Vec<u8>>,
    thread: JoinHandle<Sha256>,
}

impl Hashing {
    fn start(mut hash: Sha256) -> Hashing {
        let (pieces, queue) = sync_channel::<Vec<u8>>(4);
        let thread = std::thread::spawn(move || {
            while let Ok(piece) = queue.recv() {
                hash.update(&piece);
            }
            hash
        });
        Hashing { pieces, thread }
    }

    fn finish(self) -> Result<Sha256, ClientError> {
        drop(self.pieces);
        let hash = self.thread.join();
        hash.map_err(|_| ClientError::Protocol("hashing was broken off"))
    }
}

/// The incomplete file and the hash of what it holds.
struct Part {
    path: PathBuf,
    file: std::fs::File,
    hash: Hashing,
    length: u64,
}

impl Part {
    fn open(path: PathBuf) -> Result<Part, ClientError> {
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(ClientError::file(&path))?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = file.read(&mut buffer).map_err(ClientError::file(&path))?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            length += count as u64;
        }
        Ok(Part {
            path,
            file,
            hash: Hashing::start(hash),
            length,
        })
    }

    fn clear(&mut self) -> Result<(), ClientError> {
        self.file
            .set_len(0)
            .map_err(ClientError::file(&self.path))?;
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(ClientError::file(&self.path))?;
        self.hash = Hashing::start(Sha256::new());
        self.length = 0;
        Ok(())
    }

    fn push(&mut self, data: Vec<u8>) -> Result<(), ClientError> {
        self.file
            .write_all(&data)
            .map_err(ClientError::file(&self.path))?;
        self.length += data.len() as u64;
        cipherhop_failpoint::at("download.written");
        let queued = self.hash.pieces.send(data);
        queued.map_err(|_| ClientError::Protocol("hashing was broken off"))
    }

    /// Moves the file to its name if its digest is right; gives it back if not.
    fn publish(self, expected: &[u8], dest: &Path) -> Result<Option<Damaged>, ClientError> {
        if self.hash.finish()?.finalize()[..] != *expected {
            return Ok(Some(Damaged {
                path: self.path,
                length: self.length,
            }));
        }
        self.file
            .sync_all()
            .map_err(ClientError::file(&self.path))?;
        cipherhop_failpoint::at("download.rename.before");
        std::fs::rename(&self.path, dest).map_err(ClientError::file(dest))?;
        cipherhop_failpoint::at("download.renamed");
        if let Some(folder) = dest.parent() {
            std::fs::File::open(folder)
                .and_then(|f| f.sync_all())
                .map_err(ClientError::file(folder))?;
        }
        Ok(None)
    }
}
