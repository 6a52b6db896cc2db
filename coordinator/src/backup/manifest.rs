//! `manifest.sha256`: the files of a backup and their digests.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use cipherhop_proto::Digest;

use super::{BLOBS, BackupError, DUMP, MANIFEST, Result, SQLITE, failed};
use crate::blobs::place;

/// Longest manifest that is read, bytes: a million blobs and more.
const MANIFEST_LIMIT: u64 = 256 << 20;

pub(super) fn line(manifest: &mut String, digest: Digest, path: &Path) {
    manifest.push_str(&format!(
        "{}  {}\n",
        hex::encode(digest.as_bytes()),
        path.display()
    ));
}

/// Digests and paths; refuses every path that is not one a backup has.
pub(super) fn read(from: &Path) -> Result<Vec<(Digest, PathBuf)>> {
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
        let entry = entry(line);
        entry.ok_or(BackupError::Manifest { line: number + 1 })
    });
    let entries: Vec<_> = entries.collect::<Result<_>>()?;
    let databases = entries.iter().filter(|(_, p)| !p.starts_with(BLOBS));
    match databases.count() {
        1 => Ok(entries),
        _ => Err(BackupError::Manifest { line: 1 }),
    }
}

fn entry(line: &str) -> Option<(Digest, PathBuf)> {
    let (digest, path) = line.split_once("  ")?;
    let digest = Digest::from_bytes(hex::decode(digest).ok()?.try_into().ok()?);
    let path = PathBuf::from(path);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    let named = path == Path::new(SQLITE)
        || path == Path::new(DUMP)
        || path == place(Path::new(BLOBS), &digest);
    (plain && named).then_some((digest, path))
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
            assert!(entry(&format!("{hex}  {good}")).is_some(), "{good}");
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
            assert!(entry(bad).is_none(), "{bad}");
        }
    }
}
