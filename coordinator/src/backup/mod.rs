//! Copies of everything a coordinator remembers, made while it runs, and the way back.
//!
//! A backup is a folder: the database (`coordinator.db`, or `database.dump` as pg_dump writes it), every complete blob that
//! the database of that moment knows, under `blobs/` as in the data folder, and `manifest.sha256`, which `sha256sum -c`
//! checks. The manifest is written last: a folder without it is no backup. Tokens are in it as hashes only, and the
//! admin token not at all; `serve` makes a new one in a restored folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use cipherhop_proto::Digest;
use sha2::{Digest as _, Sha256};

use crate::blobs::place;
use crate::database::DatabaseUrl;

mod database;

const MANIFEST: &str = "manifest.sha256";
const BLOBS: &str = "blobs";
const SQLITE: &str = "coordinator.db";
const DUMP: &str = "database.dump";
/// Longest manifest that is read, bytes: a million blobs and more.
const MANIFEST_LIMIT: u64 = 256 << 20;
const PIECE: usize = 1 << 20;

/// What a backup or a restore copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Complete blobs.
    pub blobs: u64,
    /// Their bytes and the database's.
    pub bytes: u64,
}

/// Why there is no backup, or no restored coordinator.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The folder to write to holds something.
    #[error("{0} is not empty; give a new folder, nothing is overwritten")]
    NotEmpty(PathBuf),
    /// The database to restore into holds something.
    #[error("the database {0} has tables; restore into a new, empty one")]
    DatabaseNotEmpty(String),
    /// There is no database to copy.
    #[error("there is no coordinator's database at {0}; give the data folder that `serve` uses")]
    NoDatabase(PathBuf),
    /// The folder is no finished backup.
    #[error("{0} has no {MANIFEST}: it is no backup, or one that did not finish")]
    NoManifest(PathBuf),
    /// A line of the manifest is not a digest and a path.
    #[error(
        "line {line} of {MANIFEST} is not a SHA-256 and a file of a backup; the file was changed"
    )]
    Manifest {
        /// The line, counted from 1.
        line: usize,
    },
    /// The kind of database is another one.
    #[error("this is a backup of {backup}: {advice}")]
    Kind {
        /// What was backed up.
        backup: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A blob that the database knows is not in the data folder.
    #[error(
        "blob {0} is missing in the data folder. If it was deleted while the backup ran, run it again; if not, \
         `cipherhop-coordinator scrub` lists what is damaged"
    )]
    Missing(Digest),
    /// Bytes that do not hash to what they should.
    #[error("{0} is damaged: its bytes are not those of its digest")]
    Damaged(PathBuf),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// pg_dump or pg_restore failed.
    #[error("{program} failed: {message}")]
    Program {
        /// The program.
        program: &'static str,
        /// What it said, or why it did not start.
        message: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, BackupError>;

fn failed(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |source| BackupError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Copies the database and every complete blob of the data folder into the folder `to`, which must be new or empty. The
/// coordinator may be running: the database is copied as of one moment, and blobs never change.
pub async fn backup(data: &Path, url: Option<&DatabaseUrl>, to: &Path) -> Result<Report> {
    make_empty(to)?;
    let (name, known) = match url {
        Some(url) => (DUMP, database::dump(url, &to.join(DUMP)).await?),
        None => {
            let from = data.join(SQLITE);
            if !from.is_file() {
                return Err(BackupError::NoDatabase(from));
            }
            (
                SQLITE,
                database::copy_sqlite(&from, &to.join(SQLITE)).await?,
            )
        }
    };
    let (data, to) = (data.to_owned(), to.to_owned());
    blocking(move || {
        let mut manifest = String::new();
        let path = to.join(name);
        let (bytes, digest) = hash(&path)?;
        let mut report = Report { blobs: 0, bytes };
        manifest_line(&mut manifest, digest, Path::new(name));
        for digest in known {
            let from = place(&data.join(BLOBS), &digest);
            if !from.is_file() {
                return Err(BackupError::Missing(digest));
            }
            let relative = place(Path::new(BLOBS), &digest);
            report.bytes += copy(&from, &to.join(&relative), digest)?;
            report.blobs += 1;
            manifest_line(&mut manifest, digest, &relative);
        }
        sync_tree(&to)?;
        let path = to.join(MANIFEST);
        write_new(&path, |file| file.write_all(manifest.as_bytes())).map_err(failed(&path))?;
        sync_dir(&to)?;
        Ok(report)
    })
    .await
}

/// Checks a backup and makes a data folder of it (and fills the empty PostgreSQL database, where the backup has one).
/// `serve` on that folder goes on from the moment of the backup; volunteers hand in again what came later.
pub async fn restore(from: &Path, url: Option<&DatabaseUrl>, data: &Path) -> Result<Report> {
    let entries = read_manifest(from)?;
    let has = |name: &str| entries.iter().any(|(_, path)| path == Path::new(name));
    match (has(DUMP), url) {
        (true, None) => {
            return Err(BackupError::Kind {
                backup: "a PostgreSQL database",
                advice: "give an empty one with --database",
            });
        }
        (false, Some(_)) => {
            return Err(BackupError::Kind {
                backup: "a SQLite database",
                advice: "leave --database (and CIPHERHOP_DATABASE_URL) out",
            });
        }
        _ => {}
    }
    if let Some(url) = url {
        database::check_empty(url).await?;
    }
    make_empty(data)?;
    let (source, target) = (from.to_owned(), data.to_owned());
    let report = blocking(move || {
        let mut report = Report { blobs: 0, bytes: 0 };
        for (digest, relative) in entries {
            let path = source.join(&relative);
            if relative == Path::new(DUMP) {
                let (bytes, actual) = hash(&path)?;
                if actual != digest {
                    return Err(BackupError::Damaged(path));
                }
                report.bytes += bytes;
                continue;
            }
            report.bytes += copy(&path, &target.join(&relative), digest)?;
            report.blobs += u64::from(relative.starts_with(BLOBS));
        }
        sync_tree(&target)?;
        Ok(report)
    })
    .await?;
    if let Some(url) = url {
        database::undump(url, &from.join(DUMP)).await?;
    }
    Ok(report)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => Err(BackupError::Io {
            path: PathBuf::new(),
            source: io::Error::other(e),
        }),
    }
}

/// Makes a folder that only this user may enter, or finds it empty.
fn make_empty(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(failed(path))?;
    match fs::read_dir(path).map_err(failed(path))?.next() {
        None => Ok(()),
        Some(_) => Err(BackupError::NotEmpty(path.to_owned())),
    }
}

fn manifest_line(manifest: &mut String, digest: Digest, path: &Path) {
    manifest.push_str(&format!(
        "{}  {}\n",
        hex::encode(digest.as_bytes()),
        path.display()
    ));
}

/// Digests and paths; refuses every path that is not one a backup has.
fn read_manifest(from: &Path) -> Result<Vec<(Digest, PathBuf)>> {
    let path = from.join(MANIFEST);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(BackupError::NoManifest(from.to_owned()));
        }
        Err(e) => return Err(failed(&path)(e)),
    };
    let mut text = String::new();
    file.take(MANIFEST_LIMIT)
        .read_to_string(&mut text)
        .map_err(failed(&path))?;
    let entries = text.lines().enumerate().map(|(number, line)| {
        let entry = manifest_entry(line);
        entry.ok_or(BackupError::Manifest { line: number + 1 })
    });
    let entries: Vec<_> = entries.collect::<Result<_>>()?;
    let databases = entries.iter().filter(|(_, p)| !p.starts_with(BLOBS));
    match databases.count() {
        1 => Ok(entries),
        _ => Err(BackupError::Manifest { line: 1 }),
    }
}

fn manifest_entry(line: &str) -> Option<(Digest, PathBuf)> {
    let (digest, path) = line.split_once("  ")?;
    let digest = Digest::from_bytes(hex::decode(digest).ok()?.try_into().ok()?);
    let path = PathBuf::from(path);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let named = path == Path::new(SQLITE)
        || path == Path::new(DUMP)
        || path == place(Path::new(BLOBS), &digest);
    (plain && named).then_some((digest, path))
}

/// Copies a file and checks its bytes on the way; the number of bytes.
fn copy(from: &Path, to: &Path, digest: Digest) -> Result<u64> {
    if let Some(folder) = to.parent() {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder);
        made.map_err(failed(folder))?;
    }
    let mut source = File::open(from).map_err(failed(from))?;
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    let mut piece = vec![0; PIECE];
    let mut target = create_new(to).map_err(failed(to))?;
    loop {
        let count = source.read(&mut piece).map_err(failed(from))?;
        if count == 0 {
            break;
        }
        hasher.update(&piece[..count]);
        target.write_all(&piece[..count]).map_err(failed(to))?;
        bytes += count as u64;
    }
    if hasher.finalize()[..] != digest.as_bytes()[..] {
        return Err(BackupError::Damaged(from.to_owned()));
    }
    target.sync_all().map_err(failed(to))?;
    Ok(bytes)
}

fn hash(path: &Path) -> Result<(u64, Digest)> {
    let mut file = File::open(path).map_err(failed(path))?;
    let mut hasher = Sha256::new();
    let bytes = io::copy(&mut file, &mut hasher).map_err(failed(path))?;
    file.sync_all().map_err(failed(path))?;
    Ok((bytes, Digest::from_bytes(hasher.finalize().into())))
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn write_new(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = create_new(path)?;
    write(&mut file)?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|d| d.sync_all())
        .map_err(failed(path))
}

/// Makes the names in a folder and its sub-folders durable.
fn sync_tree(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(failed(path))? {
        let entry = entry.map_err(failed(path))?;
        if entry.file_type().map_err(failed(path))?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_backup_stand_in_a_manifest() {
        let digest = Digest::of(b"x");
        let hex = hex::encode(digest.as_bytes());
        let blob = place(Path::new(BLOBS), &digest);
        for good in ["coordinator.db", "database.dump", blob.to_str().unwrap()] {
            assert!(
                manifest_entry(&format!("{hex}  {good}")).is_some(),
                "{good}"
            );
        }
        for bad in [
            "",
            "x",
            &format!("{hex} coordinator.db"),
            &format!("{hex}  ../coordinator.db"),
            &format!("{hex}  /etc/passwd"),
            &format!("{hex}  blobs/../coordinator.db"),
            &format!("{hex}  blobs/sha256/ab/cd"),
            "00  coordinator.db",
        ] {
            assert!(manifest_entry(bad).is_none(), "{bad}");
        }
    }
}
