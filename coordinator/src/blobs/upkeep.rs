//! What lies in a local blob folder and for how long: for cleaning up.

use std::fs::{self, DirEntry, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{BlobError, Stored, UploadKey, io};

/// Time since a moment in seconds since 1970; zero for one to come.
fn age(seconds: i64) -> Duration {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().saturating_sub(since)
}

/// The upload whose files have this name.
pub(super) fn upload_of(name: &str) -> Option<UploadKey> {
    let (sender, digest) = name.split_once('-')?;
    UploadKey::from_bytes(&[hex::decode(sender).ok()?, hex::decode(digest).ok()?].concat())
}

/// `None` for a file that is gone since its folder was listed: an upload that finished, a blob that was removed.
fn about(file: &DirEntry, action: &'static str) -> Result<Option<Metadata>, BlobError> {
    match file.metadata() {
        Ok(about) => Ok(Some(about)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io(action)(e)),
    }
}

/// Complete blobs whose digests begin with this byte.
pub(super) fn list(complete: &Path, first: u8) -> Result<Vec<Stored>, BlobError> {
    let shard = hex::encode([first]);
    let files = match fs::read_dir(complete.join(&shard)) {
        Ok(files) => files,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io("list blobs")(e)),
    };
    let mut found = Vec::new();
    for file in files {
        let file = file.map_err(io("list blobs"))?;
        let name = format!("{shard}{}", file.file_name().to_string_lossy());
        let Ok(digest) = name.parse() else { continue };
        // The time of the last change of name, which is when it was published.
        if let Some(about) = about(&file, "list blobs")? {
            found.push(Stored {
                digest,
                age: age(about.ctime()),
            });
        }
    }
    Ok(found)
}

/// Uploads without a new byte for so long.
pub(super) fn abandoned(uploads: &Path, idle: Duration) -> Result<Vec<UploadKey>, BlobError> {
    let mut found = Vec::new();
    for file in fs::read_dir(uploads).map_err(io("list uploads"))? {
        let file = file.map_err(io("list uploads"))?;
        let name = file.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".state"));
        let Some(id) = name.and_then(upload_of) else {
            continue;
        };
        // Written at every commit.
        if about(&file, "list uploads")?.is_some_and(|about| age(about.mtime()) >= idle) {
            found.push(id);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_goes_while_its_folder_is_listed_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "x").unwrap();
        let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
        assert!(about(&file, "list").unwrap().is_some());
        std::fs::remove_file(file.path()).unwrap();
        assert!(about(&file, "list").unwrap().is_none());
    }
}
