//! What a volunteer's program reads from people: packs they carry, preferences they write.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cipherhop_proto::Digest;
use cipherhop_worker::hours::{Hours, Minute};
use cipherhop_worker::pack::{Card, PackError, Reader};
use cipherhop_worker::preferences::{self, Choices, Preferences};

use crate::scratch::{FOLDER, place};

/// A first byte `P`: a pack as it is. Any other: the card, a NUL, and contents, which become a well-formed tar file with
/// their manifest, so that the inner checks are reached.
pub fn pack(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    let made = match kind {
        b'P' => rest.to_vec(),
        _ => tar_of(rest),
    };
    let folder = FOLDER.path().join("unpacked");
    // Left by an input before.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut told: Vec<(PathBuf, Digest, u64)> = Vec::new();
    let read = Reader::new(made.as_slice()).unpack(|head| -> Result<_, PackError> {
        let mut places = BTreeMap::new();
        for (number, member) in head.members.iter().enumerate() {
            let path = folder.join(number.to_string());
            told.push((path.clone(), member.digest, member.size));
            places.insert(member.name.clone(), path);
        }
        Ok(places)
    });
    for (path, digest, size) in &told {
        match std::fs::read(path) {
            Ok(kept) => assert!(
                kept.len() as u64 == *size && Digest::of(&kept) == *digest,
                "bytes that are not what the pack announced were kept"
            ),
            Err(_) => assert!(read.is_err(), "a member of a good pack is missing"),
        }
    }
    let files = std::fs::read_dir(&folder).map_or(0, Iterator::count);
    assert!(files <= told.len(), "more files than members");
    made.len()
}

fn tar_of(bytes: &[u8]) -> Vec<u8> {
    let mut parts = bytes.splitn(2, |b| *b == 0);
    let card = parts.next().unwrap_or_default();
    let mut contents = parts.next().unwrap_or_default();
    let parsed = serde_json::from_slice::<Card>(card).ok();
    let members = parsed.and_then(|card| card.members().ok());
    let members = members.unwrap_or_default();
    let mut manifest = format!("{}  pack.json\n", Digest::of(card));
    for member in &members {
        manifest += &format!("{}  {}\n", member.digest, member.name);
    }
    let mut tar = Vec::new();
    entry(&mut tar, "manifest.sha256", manifest.as_bytes(), None);
    entry(&mut tar, "pack.json", card, None);
    for member in &members {
        let length = usize::try_from(member.size).map_or(contents.len(), |n| n.min(contents.len()));
        let (content, rest) = contents.split_at(length);
        entry(&mut tar, &member.name, content, Some(member.size));
        contents = rest;
    }
    tar.extend([0; 1024]);
    tar
}

fn entry(tar: &mut Vec<u8>, name: &str, content: &[u8], size: Option<u64>) {
    let mut header = tar::Header::new_ustar();
    let _ = header.set_path(name);
    header.set_size(size.unwrap_or(content.len() as u64));
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    tar.extend(header.as_bytes());
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// A first byte `h`: hours as on the command line. Any other: the preferences' file.
pub fn preferences(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    match kind {
        b'h' => {
            if let Ok(found) = String::from_utf8_lossy(rest).parse() {
                hours(&found);
            }
        }
        _ => {
            let root = FOLDER.path().join("worker");
            place("worker/config.toml", rest);
            assert!(preferences::path(&root) == root.join("config.toml"));
            match Preferences::load(&root, &Choices::default()) {
                Ok(found) => {
                    let rows = found.rows();
                    assert!(
                        rows.iter()
                            .all(|row| row.iter().all(|text| !text.is_empty()))
                    );
                    assert!((1..=1024).contains(&found.threads.value));
                    assert!(found.nice.value <= 19);
                    hours(&found.hours.value);
                }
                Err(e) => assert!(e.to_string().contains("config.toml"), "{e}"),
            }
        }
    }
    bytes.len()
}

fn hours(found: &Hours) {
    let again: Hours = match found.to_string().parse() {
        Ok(again) => again,
        Err(e) => panic!("{found} is not read again: {e}"),
    };
    assert!(again == *found, "{again} for {found}");
    for minute in (0..24 * 60).step_by(37) {
        let at = Minute::new(minute / 60, minute % 60);
        if !found.contains(at) {
            let begin = found.next_begin(at);
            assert!(
                begin.is_some_and(|begin| found.contains(begin)),
                "{found}: never after {at}"
            );
        }
    }
}
