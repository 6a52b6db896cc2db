//! The committed corpus through every parser: what fuzzing found once stays found.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use cipherhop_fuzz::TARGETS;

/// Longest time for one input, on a busy machine and without optimisation.
const LONGEST: Duration = Duration::from_secs(20);

// One test: the allocator counts for the whole process.
#[test]
fn no_input_of_the_corpus_makes_a_parser_panic_hang_or_allocate_too_much() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let names: BTreeSet<String> = TARGETS
        .iter()
        .map(|target| target.name.to_owned())
        .collect();
    let folders = std::fs::read_dir(&corpus).unwrap();
    let folders = folders
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, folders, "a corpus for every target and no other");
    for target in TARGETS {
        let mut inputs: Vec<_> = std::fs::read_dir(corpus.join(target.name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        target.check(b"");
        for input in &inputs {
            // Not kept back by the test harness: shows the input should the process be killed.
            writeln!(std::io::stderr(), "{}", input.display()).unwrap();
            let start = Instant::now();
            target.check(&std::fs::read(input).unwrap());
            assert!(
                start.elapsed() < LONGEST,
                "{} took {:?}",
                input.display(),
                start.elapsed()
            );
        }
    }
}

#[test]
fn every_target_has_a_fuzzer() {
    let fuzzers = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer/src/bin");
    for target in TARGETS {
        let text = std::fs::read_to_string(fuzzers.join(format!("{}.rs", target.name))).unwrap();
        assert!(text.contains(&format!("fuzz(\"{}\"", target.name)));
    }
    assert_eq!(std::fs::read_dir(fuzzers).unwrap().count(), TARGETS.len());
}
