//! A folder and a runtime for parsers that read files or need one.

use std::path::PathBuf;
use std::sync::LazyLock;

use tempfile::TempDir;
use tokio::runtime::Runtime;

pub static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir().unwrap_or_else(|e| panic!("a folder: {e}")));
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap_or_else(|e| panic!("a runtime: {e}"))
});

/// Makes both before the first input.
pub fn prepare() {
    LazyLock::force(&FOLDER);
    LazyLock::force(&RUNTIME);
}

/// Writes the bytes below the folder.
pub fn place(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    let folder = path.parent().unwrap_or(&path);
    std::fs::create_dir_all(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}
