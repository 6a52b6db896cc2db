//! The wire contract keeps its promises: what an older program sends or reads keeps its number, type and name, and the
//! `.proto` files keep to the style of buf's STANDARD rules.
//!
//! `descriptors/v1.binpb` is the contract as last committed; after an addition, run the test once with
//! `UPDATE_DESCRIPTORS=1`. `descriptors/v1-first.binpb` is what the first workers speak and never changes.
#![allow(clippy::unwrap_used)]

#[path = "compat/breaking.rs"]
mod breaking;
#[path = "compat/style.rs"]
mod style;

use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn descriptors(name: &str) -> PathBuf {
    root().join("descriptors").join(name)
}

/// Every `.proto` file, as it is now, without comments and positions.
fn compiled() -> FileDescriptorSet {
    let folder = root().join("proto/cipherhop/v1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "proto"))
        .collect();
    files.sort();
    let mut set = protox::compile(&files, [root().join("proto")]).unwrap();
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set.file.retain(|f| f.package() == "cipherhop.v1");
    set.file.sort_by(|a, b| a.name.cmp(&b.name));
    set
}

fn committed(name: &str) -> FileDescriptorSet {
    let path = descriptors(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    FileDescriptorSet::decode(&bytes[..]).unwrap()
}

#[test]
fn nothing_that_was_promised_changes_or_goes() {
    let now = compiled();
    for name in ["v1-first.binpb", "v1.binpb"] {
        let path = descriptors(name);
        if !path.exists() {
            continue;
        }
        let broken = breaking::breaking(&committed(name), &now);
        assert!(
            broken.is_empty(),
            "{} against {name}:\n  {}",
            "breaking changes",
            broken.join("\n  ")
        );
    }
    if std::env::var_os("UPDATE_DESCRIPTORS").is_some() {
        std::fs::create_dir_all(root().join("descriptors")).unwrap();
        std::fs::write(descriptors("v1.binpb"), now.encode_to_vec()).unwrap();
    }
    assert!(
        committed("v1.binpb") == now,
        "the contract grew: run `UPDATE_DESCRIPTORS=1 cargo test -p cipherhop-proto --test compat` and commit descriptors/v1.binpb"
    );
}

#[test]
fn the_files_keep_to_the_style() {
    let wrong = style::style(&compiled());
    assert!(wrong.is_empty(), "\n  {}", wrong.join("\n  "));
}

#[test]
fn the_generated_code_is_of_every_file() {
    // build.rs names its files; one that is forgotten there is in no program.
    let build = std::fs::read_to_string(root().join("build.rs")).unwrap();
    for file in compiled().file {
        let stem = Path::new(file.name())
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap();
        assert!(
            build.contains(&format!("\"{stem}\"")),
            "{stem} is not in build.rs"
        );
    }
}
