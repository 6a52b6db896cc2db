//! Copies of everything a coordinator remembers, made while it runs, and the way back.
//!
//! A backup is a folder: the database (`coordinator.db`, or `database.dump` as pg_dump writes it), every complete blob that
//! the database of that moment knows, under `blobs/` as in the data folder, and `manifest.sha256`, which `sha256sum -c`
//! checks. Blobs in a bucket are fetched into that folder, or left out where the bucket is copied by other means; `restore`
//! puts them into a folder or a bucket. The manifest is written last: a folder without it is no backup. Tokens are in it as hashes only, and the
//! admin token not at all; `serve` makes a new one in a restored folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cipherhop_proto::Digest;
use sha2::{Digest as _, Sha256};

use crate::blobs::{BlobError, Blobs, place};
use crate::database::DatabaseUrl;

mod blobs;
mod database;
mod manifest;

const MANIFEST: &str = "manifest.sha256";
const BLOBS: &str = "blobs";
const SQLITE: &str = "coordinator.db";
const DUMP: &str = "database.dump";
const PIECE: usize = 1 << 20;

/// What a backup or a restore copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Complete blobs.
    pub blobs: u64,
    /// Their bytes and the database's.
    pub bytes: u64,
}

/// Where a coordinator keeps its blobs.
#[derive(Clone)]
pub enum Kept {
    /// In its data folder.
    Folder,
    /// In a bucket.
    Bucket(Blobs),
    /// Somewhere that is copied by other means: only the database is. With a bucket it is made sure that the blobs are
    /// there.
    Apart(Option<Blobs>),
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
        "blob {0} is missing where this coordinator should have it. Blobs in a bucket? Give --config or --blobs as to \
         `serve`. If it was deleted while the backup ran, run it again; if not, `cipherhop-coordinator scrub` lists what \
         is damaged"
    )]
    Missing(Digest),
    /// Bytes that do not hash to what they should.
    #[error("{0} is damaged: its bytes are not those of its digest")]
    Damaged(PathBuf),
    /// A blob in a bucket whose bytes do not hash to its digest.
    #[error(
        "blob {0} in the bucket is damaged: `cipherhop-coordinator scrub` lists all such; the key holder or the \
         volunteer has to send it again"
    )]
    DamagedBlob(Digest),
    /// The bucket failed.
    #[error(transparent)]
    Bucket(#[from] BlobError),
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

/// [`backup_of`] a coordinator with its blobs in the data folder.
pub async fn backup(data: &Path, url: Option<&DatabaseUrl>, to: &Path) -> Result<Report> {
    backup_of(data, url, &Kept::Folder, to).await
}

/// Copies the database and every complete blob into the folder `to`, which must be new or empty. The coordinator may be
/// running: the database is copied as of one moment, and blobs never change.
pub async fn backup_of(
    data: &Path,
    url: Option<&DatabaseUrl>,
    kept: &Kept,
    to: &Path,
) -> Result<Report> {
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
    let path = to.join(name);
    let (bytes, digest) = blocking(move || hash(&path)).await?;
    let mut report = Report { blobs: 0, bytes };
    let mut manifest = String::new();
    manifest::line(&mut manifest, digest, Path::new(name));
    for digest in known {
        let relative = place(Path::new(BLOBS), &digest);
        let target = to.join(&relative);
        report.bytes += match kept {
            Kept::Folder => {
                let from = place(&data.join(BLOBS), &digest);
                if !from.is_file() {
                    return Err(BackupError::Missing(digest));
                }
                blocking(move || copy(&from, &target, digest)).await?
            }
            Kept::Bucket(bucket) => blobs::fetch(&**bucket, digest, &target).await?,
            Kept::Apart(None) => continue,
            Kept::Apart(Some(bucket)) => match bucket.stat(digest).await? {
                Some(_) => continue,
                None => return Err(BackupError::Missing(digest)),
            },
        };
        report.blobs += 1;
        manifest::line(&mut manifest, digest, &relative);
    }
    let to = to.to_owned();
    blocking(move || {
        sync_tree(&to)?;
        let path = to.join(MANIFEST);
        write_new(&path, |file| file.write_all(manifest.as_bytes())).map_err(failed(&path))?;
        sync_dir(&to)
    })
    .await?;
    Ok(report)
}

/// [`restore_to`] a coordinator with its blobs in the data folder.
pub async fn restore(from: &Path, url: Option<&DatabaseUrl>, data: &Path) -> Result<Report> {
    restore_to(from, url, &Kept::Folder, data).await
}

/// Checks a backup and makes a data folder of it (and fills the empty PostgreSQL database, where the backup has one, and
/// the bucket, where blobs are to be in one). `serve` on that folder goes on from the moment of the backup; volunteers
/// hand in again what came later.
pub async fn restore_to(
    from: &Path,
    url: Option<&DatabaseUrl>,
    kept: &Kept,
    data: &Path,
) -> Result<Report> {
    let entries = manifest::read(from)?;
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
    let mut report = Report { blobs: 0, bytes: 0 };
    for (digest, relative) in entries {
        let (path, target) = (from.join(&relative), data.join(&relative));
        let blob = relative.starts_with(BLOBS);
        report.blobs += u64::from(blob);
        report.bytes += match kept {
            Kept::Bucket(bucket) if blob => blobs::put(&**bucket, digest, &path).await?,
            _ if relative == Path::new(DUMP) => {
                blocking(move || match hash(&path)? {
                    (bytes, actual) if actual == digest => Ok(bytes),
                    _ => Err(BackupError::Damaged(path)),
                })
                .await?
            }
            _ => blocking(move || copy(&path, &target, digest)).await?,
        };
    }
    let target = data.to_owned();
    blocking(move || sync_tree(&target)).await?;
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
