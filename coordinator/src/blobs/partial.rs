//! One unfinished upload on disk: the bytes so far (`NAME.part`) and a small state file (`NAME.state`).
//!
//! The state file holds the declared size and two alternating commit slots, so a crash in the middle of writing one
//! leaves the other valid. Bytes of the part file beyond the committed length are a torn tail and are cut off.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 8] = b"CHUPLD01";
const SLOT_BYTES: usize = 32;
// The header and the slots stand in different disk sectors, so that no write can tear two of them.
const HEADER_AT: u64 = 0;
const SLOTS_AT: [u64; 2] = [512, 1024];

/// An upload opened for writing.
pub(super) struct Partial {
    part: File,
    state: File,
    /// Declared size, bytes.
    pub size: u64,
    /// Durable bytes.
    pub committed: u64,
    /// Bytes written, at least `committed`.
    pub written: u64,
    sequence: u64,
}

fn checksum(bytes: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&Sha256::digest(bytes)[..16]);
    out
}

/// Two numbers and their checksum.
fn record(a: [u8; 8], b: u64) -> [u8; SLOT_BYTES] {
    let mut out = [0; SLOT_BYTES];
    out[..8].copy_from_slice(&a);
    out[8..16].copy_from_slice(&b.to_le_bytes());
    let sum = checksum(&out[..16]);
    out[16..].copy_from_slice(&sum);
    out
}

fn parse_record(bytes: &[u8; SLOT_BYTES]) -> Option<([u8; 8], u64)> {
    let a: [u8; 8] = bytes[..8].try_into().ok()?;
    let b = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    (bytes[16..] == checksum(&bytes[..16])).then_some((a, b))
}

fn read_record(file: &File, at: u64) -> Option<([u8; 8], u64)> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, at).ok()?;
    parse_record(&bytes)
}

/// Paths of an upload's two files inside `folder`.
pub(super) fn paths(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (
        folder.join(format!("{name}.part")),
        folder.join(format!("{name}.state")),
    )
}

pub(super) fn sync_dir(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Declared size and durable bytes of an upload, without changing it.
pub(super) fn peek(folder: &Path, name: &str) -> Option<(u64, u64)> {
    let (_, state) = paths(folder, name);
    let state = File::open(state).ok()?;
    let (magic, size) = read_record(&state, HEADER_AT)?;
    let committed = latest_slot(&state).map_or(0, |(_, committed)| committed);
    (&magic == MAGIC).then_some((size, committed.min(size)))
}

fn latest_slot(state: &File) -> Option<(u64, u64)> {
    SLOTS_AT
        .iter()
        .filter_map(|&at| read_record(state, at))
        .map(|(seq, n)| (u64::from_le_bytes(seq), n))
        .max()
}

impl Partial {
    /// Starts a new upload, durable when this returns.
    pub fn create(folder: &Path, name: &str, size: u64) -> io::Result<Partial> {
        let (part, state) = paths(folder, name);
        let open = |path: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)
        };
        let part = open(&part)?;
        let state = open(&state)?;
        cipherhop_failpoint::at("upload.created");
        state.write_all_at(&record(*MAGIC, size), HEADER_AT)?;
        state.sync_all()?;
        part.sync_all()?;
        sync_dir(folder)?;
        Ok(Partial {
            part,
            state,
            size,
            committed: 0,
            written: 0,
            sequence: 0,
        })
    }

    /// Finds an upload again; `None` where there is none or its state file is not whole (it then starts anew).
    pub fn open(folder: &Path, name: &str) -> io::Result<Option<Partial>> {
        let (part, state) = paths(folder, name);
        let open = |path: &Path| match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        };
        let (Some(part), Some(state)) = (open(&part)?, open(&state)?) else {
            return Ok(None);
        };
        let Some((magic, size)) = read_record(&state, HEADER_AT) else {
            return Ok(None);
        };
        if &magic != MAGIC {
            return Ok(None);
        }
        let (sequence, committed) = latest_slot(&state).unwrap_or((0, 0));
        // A part file shorter than what was committed means lost data below us: only what is there can be kept.
        let committed = committed.min(part.metadata()?.len()).min(size);
        part.set_len(committed)?;
        Ok(Some(Partial {
            part,
            state,
            size,
            committed,
            written: committed,
            sequence,
        }))
    }

    /// Writes behind the last written byte.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        self.part.write_all_at(data, self.written)?;
        self.written += data.len() as u64;
        cipherhop_failpoint::at("upload.written");
        Ok(())
    }

    /// Writes over bytes that are there.
    pub fn overwrite(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.part.write_all_at(data, at)
    }

    /// The file with the bytes, for reading them.
    pub fn into_part(self) -> File {
        self.part
    }

    /// Makes all written bytes durable.
    pub fn commit(&mut self) -> io::Result<u64> {
        if self.written > self.committed {
            cipherhop_failpoint::at("upload.fsync.before");
            self.part.sync_data()?;
            cipherhop_failpoint::at("upload.fsync.after");
            self.sequence += 1;
            let at = SLOTS_AT[(self.sequence % 2) as usize];
            self.state
                .write_all_at(&record(self.sequence.to_le_bytes(), self.written), at)?;
            cipherhop_failpoint::at("upload.slot.written");
            self.state.sync_data()?;
            cipherhop_failpoint::at("upload.slot.durable");
            self.committed = self.written;
        }
        Ok(self.committed)
    }

    /// SHA-256 of the bytes, read back from the file.
    pub fn hash(&self) -> io::Result<[u8; 32]> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; super::FRAME_BYTES];
        let mut at = 0;
        while at < self.committed {
            let wanted = usize::try_from(self.committed - at)
                .map_or(buffer.len(), |left| left.min(buffer.len()));
            self.part.read_exact_at(&mut buffer[..wanted], at)?;
            hasher.update(&buffer[..wanted]);
            at += wanted as u64;
        }
        Ok(hasher.finalize().into())
    }

    /// Makes the whole file durable, size included.
    pub fn sync_all(&self) -> io::Result<()> {
        self.part.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_commit_slot_falls_back_to_the_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut p = Partial::create(dir.path(), "x", 100).unwrap();
        p.write(&[1; 10]).unwrap();
        p.commit().unwrap();
        p.write(&[2; 20]).unwrap();
        p.commit().unwrap();
        drop(p);
        let (_, state) = paths(dir.path(), "x");
        let file = OpenOptions::new().write(true).open(state).unwrap();
        file.write_all_at(&[0xff; 5], SLOTS_AT[0] + 3).unwrap();
        let p = Partial::open(dir.path(), "x").unwrap().unwrap();
        assert_eq!((p.size, p.committed), (100, 10));
    }

    #[test]
    fn bytes_beyond_the_committed_length_are_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let mut p = Partial::create(dir.path(), "x", 100).unwrap();
        p.write(&[1; 10]).unwrap();
        p.commit().unwrap();
        p.write(&[2; 20]).unwrap();
        drop(p);
        let p = Partial::open(dir.path(), "x").unwrap().unwrap();
        assert_eq!(p.committed, 10);
        assert_eq!(
            std::fs::metadata(paths(dir.path(), "x").0).unwrap().len(),
            10
        );
    }

    #[test]
    fn a_damaged_header_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        Partial::create(dir.path(), "x", 100).unwrap();
        std::fs::write(paths(dir.path(), "x").1, b"garbage").unwrap();
        assert!(Partial::open(dir.path(), "x").unwrap().is_none());
        assert!(peek(dir.path(), "x").is_none());
    }
}
