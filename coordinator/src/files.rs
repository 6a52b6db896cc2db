//! Files with secrets.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// A file in `folder` with one line, mode 0600 and on disk, that has no name yet: persist it, then call [`sync_folder`].
pub(crate) fn secret_line(folder: &Path, line: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o600))?;
    writeln!(file, "{line}")?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Makes new names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
