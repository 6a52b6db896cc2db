//! Packs: a hop's inputs or its finished result as one file that a person carries to a machine without a connection.
//!
//! A pack is a tar file: `manifest.sha256` (which `sha256sum -c` checks in an unpacked copy), `pack.json`, then the
//! content. It is read strictly: these names in this order, plain files of the sizes and digests announced, nothing
//! else. A name in a pack never becomes a path.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use cipherhop_proto::v1::BlobRole;
use cipherhop_proto::{Digest, Hasher};
use serde::{Deserialize, Serialize};

use crate::journal::{Finished, Lease};

/// Name and version of the format.
const FORMAT: &str = "cipherhop-pack/1";
/// First member.
const MANIFEST: &str = "manifest.sha256";
/// Second member.
const CARD: &str = "pack.json";
/// Longest of these two that is read, bytes.
const MAX_TEXT: u64 = 4 << 20;
/// Longest trace that is taken, bytes.
const MAX_TRACE: u64 = 64 << 20;

/// Why a pack is refused, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Reading or writing failed.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Something else than a pack of this version.
    #[error("not a pack ({0}); make it with `cipherhop-worker pack` and carry the file unchanged")]
    NotAPack(String),
    /// Bytes that are not what the manifest says.
    #[error("{0} is damaged: copy the pack again from where it was made")]
    Damaged(String),
    /// A blob on this machine is not what its name says.
    #[error(
        "{0} is damaged on this machine, so no pack was made; what came from the coordinator is fetched anew: say the command again"
    )]
    Source(String),
}

impl PackError {
    fn file(path: &Path) -> impl FnOnce(std::io::Error) -> PackError + '_ {
        move |error| PackError::File {
            path: path.to_owned(),
            error,
        }
    }
}

/// What a pack is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    format: String,
    /// The attempt, as it was leased.
    pub lease: Lease,
    /// The result; absent in a pack that is to be computed.
    pub result: Option<Finished>,
}

/// Bytes with a name in the pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As the pack names it.
    pub name: String,
    /// SHA-256.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
    /// May be left out of a pack: an evaluation key, which the other machine may have.
    pub optional: bool,
}

impl Card {
    /// For a hop to be computed, or for its result.
    pub fn new(lease: Lease, result: Option<Finished>) -> Card {
        Card {
            format: FORMAT.into(),
            lease,
            result,
        }
    }

    fn parse(bytes: &[u8]) -> Result<Card, PackError> {
        let card: Card = serde_json::from_slice(bytes)
            .map_err(|e| PackError::NotAPack(format!("{CARD}: {e}")))?;
        let problem = if card.format != FORMAT {
            Some(format!(
                "its format is {:?}, this program knows {FORMAT}",
                card.format
            ))
        } else {
            card.lease.problem()
        };
        match problem {
            Some(problem) => Err(PackError::NotAPack(problem)),
            None => Ok(card),
        }
    }

    /// Everything that belongs into the pack, in its order. The error says what is wrong with the card.
    pub fn members(&self) -> Result<Vec<Member>, PackError> {
        if let Some(result) = &self.result {
            if result.output_size != self.lease.expected_output_bytes
                || result.trace_size > MAX_TRACE
            {
                return Err(PackError::NotAPack(
                    "the sizes of its result are impossible".into(),
                ));
            }
            let member = |name: &str, digest, size| Member {
                name: name.into(),
                digest,
                size,
                optional: false,
            };
            return Ok(vec![
                member("output", result.output, result.output_size),
                member("trace", result.trace, result.trace_size),
            ]);
        }
        let mut found: BTreeMap<Digest, Member> = BTreeMap::new();
        for blob in &self.lease.blobs {
            let member = Member {
                name: format!("blobs/{}", blob.digest),
                digest: blob.digest,
                size: blob.size,
                optional: blob.role == BlobRole::EvaluationKey as i32,
            };
            let known = found.entry(blob.digest).or_insert_with(|| member.clone());
            if known.size != member.size {
                return Err(PackError::NotAPack("one blob has two sizes".into()));
            }
            known.optional &= member.optional;
        }
        Ok(found.into_values().collect())
    }
}

/// Writes a pack; `source` says where a member lies, and is not asked for members outside `members`. The file appears
/// under its name only when it is complete and durable.
pub fn write(
    out: &Path,
    card: &Card,
    members: &[Member],
    source: impl Fn(&Member) -> PathBuf,
) -> Result<(), PackError> {
    let text = serde_json::to_vec(card).map_err(|e| PackError::NotAPack(e.to_string()))?;
    let mut manifest = format!("{}  {CARD}\n", Digest::of(&text));
    for member in members {
        manifest.push_str(&format!("{}  {}\n", member.digest, member.name));
    }
    let folder = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let fail = || PackError::file(out);
    let file = tempfile::Builder::new()
        .prefix(".pack-")
        .tempfile_in(folder)
        .map_err(fail())?;
    let mut tar = tar::Builder::new(std::io::BufWriter::with_capacity(1 << 20, file));
    append(
        &mut tar,
        MANIFEST,
        manifest.len() as u64,
        &mut manifest.as_bytes(),
    )
    .map_err(fail())?;
    append(&mut tar, CARD, text.len() as u64, &mut text.as_slice()).map_err(fail())?;
    for member in members {
        let path = source(member);
        let input = std::fs::File::open(&path).map_err(PackError::file(&path))?;
        // One byte more than announced, so that a file that is too long is noticed.
        let mut input = Hashing::new(input.take(member.size.saturating_add(1)));
        append(&mut tar, &member.name, member.size, &mut input).map_err(fail())?;
        if input.count != member.size || input.finish() != member.digest {
            return Err(PackError::Source(path.display().to_string()));
        }
    }
    let file = tar
        .into_inner()
        .map_err(fail())?
        .into_inner()
        .map_err(|e| e.into_error())
        .map_err(fail())?;
    file.as_file().sync_all().map_err(fail())?;
    file.persist(out).map_err(|e| e.error).map_err(fail())?;
    sync(folder)
}

fn append(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    size: u64,
    input: &mut impl Read,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    tar.append(&header, input)
}

/// A pack that is being read: its card is known, its content is not yet.
pub struct Reader<R: Read> {
    archive: tar::Archive<R>,
}

/// What the head of a pack says.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// What it is about.
    pub card: Card,
    /// What is in it.
    pub members: Vec<Member>,
    /// What belongs to it and was left out.
    pub left_out: Vec<Member>,
}

impl Reader<std::io::BufReader<std::fs::File>> {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let file = std::fs::File::open(path).map_err(PackError::file(path))?;
        Ok(Reader::new(std::io::BufReader::with_capacity(
            1 << 20,
            file,
        )))
    }
}

impl<R: Read> Reader<R> {
    /// Reads a pack from bytes.
    pub fn new(input: R) -> Reader<R> {
        Reader {
            archive: tar::Archive::new(input),
        }
    }

    /// Checks everything. `begin` is told what the pack says it holds, before that is read, and answers where each member
    /// goes; a member without a place is skipped. A file appears under its name only when size and digest are right.
    pub fn unpack<E: From<PackError>>(
        mut self,
        begin: impl FnOnce(&Head) -> Result<BTreeMap<String, PathBuf>, E>,
    ) -> Result<Head, E> {
        // Raw: no entry may rename or resize the next one.
        let mut entries = self.archive.entries().map_err(broken)?.raw(true);
        let mut text = |name: &str| -> Result<Vec<u8>, PackError> {
            let entry = entries
                .next()
                .ok_or_else(|| PackError::NotAPack(format!("{name} is missing")))?;
            let mut entry = plain(entry.map_err(broken)?, name)?;
            let size = entry.header().entry_size().map_err(broken)?;
            if size > MAX_TEXT {
                return Err(PackError::NotAPack(format!("{name} has {size} bytes")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(broken)?;
            match bytes.len() as u64 == size {
                true => Ok(bytes),
                false => Err(PackError::NotAPack(format!("it ends in {name}"))),
            }
        };
        let manifest = parse_manifest(&text(MANIFEST)?)?;
        let card = text(CARD)?;
        if manifest.first() != Some(&(CARD.to_owned(), Digest::of(&card))) {
            return Err(PackError::Damaged(CARD.into()).into());
        }
        let head = head(Card::parse(&card)?, &manifest)?;
        let places = begin(&head)?;
        for member in &head.members {
            let Some(Ok(entry)) = entries.next() else {
                return Err(
                    PackError::Damaged(format!("{}, or what is before it,", member.name)).into(),
                );
            };
            let mut entry = plain(entry, &member.name)?;
            if entry.header().entry_size().map_err(broken)? != member.size {
                return Err(PackError::Damaged(member.name.clone()).into());
            }
            if let Some(path) = places.get(&member.name) {
                keep(&mut entry, member, path)?;
            }
        }
        match entries.next() {
            None => Ok(head),
            Some(_) => {
                Err(PackError::NotAPack("there is more in it than its manifest says".into()).into())
            }
        }
    }
}

fn broken(error: std::io::Error) -> PackError {
    PackError::NotAPack(error.to_string())
}

/// An entry if it is a plain file of that name.
fn plain<'a, R: Read>(
    entry: tar::Entry<'a, R>,
    name: &str,
) -> Result<tar::Entry<'a, R>, PackError> {
    if entry.header().path_bytes().as_ref() != name.as_bytes() {
        let found = String::from_utf8_lossy(&entry.header().path_bytes())
            .escape_debug()
            .take(100)
            .collect::<String>();
        return Err(PackError::NotAPack(format!("{found} where {name} belongs")));
    }
    if entry.header().entry_type() != tar::EntryType::Regular {
        return Err(PackError::NotAPack(format!("{name} is no plain file")));
    }
    Ok(entry)
}

/// Lines as `sha256sum` writes them, in their order.
fn parse_manifest(bytes: &[u8]) -> Result<Vec<(String, Digest)>, PackError> {
    let wrong = || PackError::NotAPack(format!("{MANIFEST} is not in the format of sha256sum"));
    let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
    let line = |line: &str| {
        let (hex, name) = line.split_once("  ").ok_or_else(wrong)?;
        let digest: Digest = hex.parse().map_err(|_| wrong())?;
        Ok((name.to_owned(), digest))
    };
    text.lines().map(line).collect()
}

/// Compares the manifest with what the card needs.
fn head(card: Card, manifest: &[(String, Digest)]) -> Result<Head, PackError> {
    let mut listed = manifest.iter().skip(1).peekable();
    let (mut members, mut left_out) = (Vec::new(), Vec::new());
    for member in card.members()? {
        if listed
            .next_if(|(name, digest)| *name == member.name && *digest == member.digest)
            .is_some()
        {
            members.push(member);
        } else if member.optional {
            left_out.push(member);
        } else {
            return Err(PackError::NotAPack(format!(
                "{} is not in its manifest",
                member.name
            )));
        }
    }
    match listed.next() {
        None => Ok(Head {
            card,
            members,
            left_out,
        }),
        Some(_) => Err(PackError::NotAPack(format!(
            "{MANIFEST} names what does not belong to it"
        ))),
    }
}

fn keep(entry: &mut impl Read, member: &Member, path: &Path) -> Result<(), PackError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let fail = || PackError::file(path);
    std::fs::create_dir_all(folder).map_err(fail())?;
    let mut file = tempfile::Builder::new()
        .prefix(".unpack-")
        .tempfile_in(folder)
        .map_err(fail())?;
    let mut input = Hashing::new(entry);
    std::io::copy(&mut input, &mut file).map_err(fail())?;
    if input.count != member.size || input.finish() != member.digest {
        return Err(PackError::Damaged(member.name.clone()));
    }
    file.as_file().sync_all().map_err(fail())?;
    file.persist(path).map_err(|e| e.error).map_err(fail())?;
    sync(folder)
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Result<(), PackError> {
    let synced = std::fs::File::open(folder).and_then(|f| f.sync_all());
    synced.map_err(PackError::file(folder))
}

/// Hashes and counts what passes.
struct Hashing<R> {
    inner: R,
    hasher: Hasher,
    count: u64,
}

impl<R: Read> Hashing<R> {
    fn new(inner: R) -> Hashing<R> {
        Hashing {
            inner,
            hasher: Hasher::new(),
            count: 0,
        }
    }

    fn finish(self) -> Digest {
        self.hasher.finish()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
