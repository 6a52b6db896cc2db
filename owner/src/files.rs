//! Private files: written whole or not at all, readable by their owner only.

use std::{
    io::{Read, Write},
    path::Path,
};

use anyhow::{Context, bail};

/// Writes `bytes` to `path` with mode 0600: temporary file, fsync, rename.
pub fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    // tempfile makes its files with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("cannot write in {}", folder.display()))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    std::fs::File::open(folder)?.sync_all()?;
    Ok(())
}

/// Reads at most `most` bytes.
pub fn read_bounded(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let file =
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut out = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut out)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if out.len() as u64 > most {
        bail!("{} is larger than {most} bytes", path.display());
    }
    Ok(out)
}

/// Makes a folder (mode 0700 on Unix) if it is not there.
pub fn private_folder(path: &Path) -> anyhow::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(path)
        .with_context(|| format!("cannot make the folder {}", path.display()))
}
