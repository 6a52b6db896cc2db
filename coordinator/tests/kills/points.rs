//! The named points of the coordinator, and a look that the list is whole.

use std::path::Path;

/// A point and how many passes are chosen from: rare ones are killed at the first pass.
pub const POINTS: &[(&str, u32)] = &[
    // at the start of the process
    ("migrate.before", 1),
    ("migrate.after", 1),
    ("admin_token.stored", 1),
    ("admin_token.rename.before", 1),
    ("ledger_key.rename.before", 1),
    // people
    ("audit.begun", 1),
    ("audit.done", 1),
    ("enroll.commit.before", 1),
    ("enroll.commit.after", 1),
    // blobs
    ("upload.row.made", 8),
    ("upload.created", 4),
    ("upload.written", 40),
    ("upload.fsync.before", 20),
    ("upload.fsync.after", 20),
    ("upload.slot.written", 20),
    ("upload.slot.durable", 20),
    ("append.row.before", 20),
    ("append.row.after", 20),
    ("publish.rename.before", 6),
    ("publish.renamed", 6),
    ("publish.durable", 6),
    ("finish.row.before", 6),
    ("finish.commit.before", 6),
    ("finish.row.after", 6),
    // chains and work
    ("chain.commit.before", 1),
    ("claim.commit.before", 4),
    ("claim.commit.after", 4),
    ("sync.commit.after", 4),
    ("verify.before", 4),
    ("verify.after", 6),
    ("submit.commit.before", 6),
    ("submit.commit.after", 6),
    ("advance.archived", 2),
    ("advance.head.before", 3),
    ("fork.attempts_closed", 1),
    ("reaper.commit.before", 1),
    ("reaper.round.after", 3),
    // every transaction
    ("commit.before", 60),
    ("commit.after", 60),
    ("outbox.told", 10),
];

/// Points of the collector, which has something to do only where others were killed: see `collector.rs`.
pub const COLLECTOR: &[&str] = &[
    "collect.remove.before",
    "collect.removed",
    "collect.discard.before",
    "collect.discarded",
];

fn named(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let parts = text.split("cipherhop_failpoint::at(\"").skip(1);
            found.extend(parts.filter_map(|p| p.split('"').next().map(str::to_owned)));
        }
    }
}

/// A point that nobody tries protects nothing.
#[test]
fn every_point_in_the_source_is_tried() {
    let mut found = Vec::new();
    named(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    found.sort();
    found.dedup();
    let mut known: Vec<&str> = POINTS.iter().map(|(name, _)| *name).collect();
    known.extend(COLLECTOR);
    known.sort_unstable();
    assert_eq!(found, known);
}
