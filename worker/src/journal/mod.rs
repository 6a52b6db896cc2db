//! The crash-safe journal: an append-only file of checksummed JSON lines. A lease, a finished result or a claim is
//! on disk before the worker acts on it, so kill -9 loses nothing that was finished.

mod state;

pub use state::{Asking, Blob, Claim, Entry, Finished, Lease, State, Work, WorkState};

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::durable::write_atomic;
use crate::error::WorkerError;

/// Lines after which the file is rewritten as one snapshot.
const COMPACT_AFTER: usize = 500;
/// Hex digits of the checksum before each line.
const CHECK: usize = 16;

/// The open journal. One process at a time (the folder's lock).
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: std::fs::File,
    length: u64,
    lines: usize,
    state: State,
}

/// What was read from a journal's file.
struct Scan {
    state: State,
    lines: usize,
    damaged: usize,
}

impl Journal {
    /// Reads the file. A torn last line (power cut) is dropped; a damaged line in the middle is skipped; in both cases
    /// the file as found is kept beside as `journal.damaged` and a clean one is written.
    pub fn open(path: &Path) -> Result<Journal, WorkerError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(WorkerError::file(path)(error)),
        };
        let scan = scan(&bytes);
        if scan.damaged > 0 {
            tracing::warn!(
                damaged_lines = scan.damaged,
                "the journal had damaged lines; the file as found is kept as journal.damaged"
            );
            write_atomic(&path.with_extension("damaged"), &bytes, true)?;
        }
        if scan.damaged > 0 || bytes.is_empty() || scan.lines > COMPACT_AFTER {
            write_snapshot(path, &scan.state)?;
        }
        Self::open_clean(path, scan.state, scan.lines)
    }

    /// Reads without writing anything, for `status` beside a running worker.
    pub fn read_only(path: &Path) -> Result<State, WorkerError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(scan(&bytes).state),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(State::default()),
            Err(error) => Err(WorkerError::file(path)(error)),
        }
    }

    fn open_clean(path: &Path, state: State, lines: usize) -> Result<Journal, WorkerError> {
        let fail = || WorkerError::file(path);
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(fail())?;
        let length = file.seek(SeekFrom::End(0)).map_err(fail())?;
        Ok(Journal {
            path: path.to_owned(),
            file,
            length,
            lines,
            state,
        })
    }

    /// The content.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Makes one entry durable and applies it.
    pub fn append(&mut self, entry: Entry) -> Result<(), WorkerError> {
        let line = encode(&entry);
        let written = self
            .file
            .write_all(&line)
            .inspect(|()| cipherhop_failpoint::at("journal.written"))
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line must not stand before the next one.
            let cut = self
                .file
                .set_len(self.length)
                .and_then(|()| self.file.seek(SeekFrom::Start(self.length)));
            if let Err(error) = cut {
                tracing::error!(%error, "a half-written journal line could not be taken back; it will be skipped when read");
            }
            return Err(WorkerError::file(&self.path)(error));
        }
        self.length += line.len() as u64;
        self.lines += 1;
        self.state.apply(entry);
        if self.lines > COMPACT_AFTER {
            write_snapshot(&self.path, &self.state)?;
            *self = Self::open_clean(&self.path, std::mem::take(&mut self.state), 1)?;
        }
        Ok(())
    }
}

fn encode(entry: &Entry) -> Vec<u8> {
    // Plain types of ours always serialise; a line that did not would be skipped as damaged.
    let json = serde_json::to_string(entry).unwrap_or_default();
    format!("{} {json}\n", checksum(json.as_bytes())).into_bytes()
}

fn checksum(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..CHECK / 2])
}

fn decode(line: &[u8]) -> Option<Entry> {
    let (check, json) = line.split_at_checked(CHECK)?;
    let json = json.strip_prefix(b" ")?;
    if checksum(json).as_bytes() != check {
        return None;
    }
    // A line with the right checksum that is not understood was written by a newer version.
    serde_json::from_slice(json)
        .inspect_err(|error| tracing::warn!(%error, "a journal line was not understood"))
        .ok()
}

fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan {
        state: State::default(),
        lines: 0,
        damaged: 0,
    };
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        match line.strip_suffix(b"\n").and_then(decode) {
            Some(entry) => {
                scan.state.apply(entry);
                scan.lines += 1;
            }
            None => scan.damaged += 1,
        }
    }
    scan
}

fn write_snapshot(path: &Path, state: &State) -> Result<(), WorkerError> {
    write_atomic(
        path,
        &encode(&Entry::Snapshot(Box::new(state.clone()))),
        true,
    )
}

#[cfg(test)]
mod tests;
