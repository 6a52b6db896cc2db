//! Writing files so that after a power cut there is the old content or the new one, never half of it.

use std::io::Write as _;
use std::path::Path;

use crate::error::WorkerError;

/// Writes beside the file, makes it durable, renames it over, makes the folder durable.
/// `private` restricts the file to its owner (0600).
pub fn write_atomic(path: &Path, bytes: &[u8], private: bool) -> Result<(), WorkerError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let fail = || WorkerError::file(path);
    // A temporary file is made with mode 0600; only public ones are opened up.
    let mut file = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(folder)
        .map_err(fail())?;
    file.write_all(bytes).map_err(fail())?;
    if !private {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file()
            .set_permissions(std::fs::Permissions::from_mode(0o644))
            .map_err(fail())?;
    }
    file.as_file().sync_all().map_err(fail())?;
    cipherhop_failpoint::at("file.rename.before");
    file.persist(path).map_err(|e| e.error).map_err(fail())?;
    cipherhop_failpoint::at("file.renamed");
    sync_folder(folder)
}

/// Makes created, renamed and removed names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), WorkerError> {
    std::fs::File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(WorkerError::file(folder))
}

/// Makes a folder and its parents.
pub fn make_folder(path: &Path) -> Result<(), WorkerError> {
    std::fs::create_dir_all(path).map_err(WorkerError::file(path))
}

/// Removes a folder with all in it; one that is not there is fine.
pub fn remove_folder(path: &Path) -> Result<(), WorkerError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(WorkerError::file(path)(error))
        }
        _ => Ok(()),
    }
}
