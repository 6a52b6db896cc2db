use super::*;
use cipherhop_proto::v1::BlobRole;
use cipherhop_proto::{AttemptId, ChainId, Digest, Nonce};
use proptest::prelude::*;

fn lease(byte: u8) -> Lease {
    Lease {
        attempt: AttemptId::from_bytes([byte; 16]),
        epoch: 3,
        chain: ChainId::from_bytes([9; 16]),
        chain_name: "tiny".into(),
        hop: 5,
        generation: 1,
        program: Digest::of(b"program"),
        parameter_set: "n11-INSECURE".into(),
        insecure: true,
        blobs: vec![Blob {
            digest: Digest::of(b"x"),
            size: 1,
            role: BlobRole::Input as i32,
            name: String::new(),
        }],
        expected_output_bytes: 77,
    }
}

fn finished() -> Finished {
    Finished {
        output: Digest::of(b"out"),
        output_size: 3,
        trace: Digest::of(b"trace"),
        trace_size: 5,
        trace_root: Digest::of(b"root"),
        compute_seconds: 1.25,
    }
}

fn story() -> Vec<Entry> {
    let claim = Claim {
        chain: ChainId::from_bytes([9; 16]),
        hops: "5-25".parse().ok(),
    };
    let attempt = AttemptId::from_bytes([1; 16]);
    vec![
        Entry::Claimed(claim.clone()),
        Entry::Asking(Asking {
            nonce: Nonce::from_bytes([4; 16]),
            claim: Some(claim),
        }),
        Entry::Leased(Box::new(lease(1))),
        Entry::Moved {
            attempt,
            to: WorkState::Fetched,
        },
        Entry::Moved {
            attempt,
            to: WorkState::Computing,
        },
        Entry::Used {
            attempt,
            seconds: 2.5,
            crashed: false,
        },
        Entry::Moved {
            attempt,
            to: WorkState::Finished(finished()),
        },
        Entry::Leased(Box::new(lease(2))),
    ]
}

fn expected(entries: &[Entry]) -> State {
    let mut state = State::default();
    entries.iter().cloned().for_each(|entry| state.apply(entry));
    state
}

#[test]
fn everything_appended_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::open(&path).unwrap();
    for entry in story() {
        journal.append(entry).unwrap();
    }
    assert_eq!(journal.state(), &expected(&story()));
    drop(journal);
    assert_eq!(Journal::open(&path).unwrap().state(), &expected(&story()));
    assert_eq!(Journal::read_only(&path).unwrap(), expected(&story()));
}

#[test]
fn a_file_cut_at_any_byte_gives_the_state_of_a_prefix_and_can_be_written_on() {
    let whole: Vec<Vec<u8>> = story().iter().map(encode).collect();
    let bytes = whole.concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let ends: Vec<usize> = whole
        .iter()
        .scan(0, |sum, l| {
            *sum += l.len();
            Some(*sum)
        })
        .collect();
    for cut in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let kept = ends.iter().filter(|end| **end <= cut).count();
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!(journal.state(), &expected(&story()[..kept]), "cut at {cut}");
        journal.append(Entry::Answered).unwrap();
        let mut with_more = story()[..kept].to_vec();
        with_more.push(Entry::Answered);
        drop(journal);
        assert_eq!(
            Journal::open(&path).unwrap().state(),
            &expected(&with_more),
            "cut at {cut}"
        );
    }
}

#[test]
fn a_damaged_line_in_the_middle_costs_only_itself_and_the_file_is_kept() {
    let mut lines: Vec<Vec<u8>> = story().iter().map(encode).collect();
    lines[0][30] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    std::fs::write(&path, lines.concat()).unwrap();
    let journal = Journal::open(&path).unwrap();
    assert_eq!(journal.state(), &expected(&story()[1..]));
    assert_eq!(
        std::fs::read(dir.path().join("journal.damaged")).unwrap(),
        lines.concat()
    );
    drop(journal);
    assert_eq!(
        Journal::open(&path).unwrap().state(),
        &expected(&story()[1..])
    );
}

#[test]
fn a_long_journal_is_rewritten_without_losing_anything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut journal = Journal::open(&path).unwrap();
    for entry in story() {
        journal.append(entry).unwrap();
    }
    for _ in 0..COMPACT_AFTER + 20 {
        journal
            .append(Entry::Used {
                attempt: lease(2).attempt,
                seconds: 0.5,
                crashed: true,
            })
            .unwrap();
    }
    let state = journal.state().clone();
    assert_eq!(
        state.works[&lease(2).attempt].crashes as usize,
        COMPACT_AFTER + 20
    );
    drop(journal);
    assert_eq!(Journal::open(&path).unwrap().state(), &state);
    assert!(std::fs::metadata(&path).unwrap().len() < 20_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_bytes_open_as_some_journal(bytes in proptest::collection::vec(any::<u8>(), 0..400), flip in 0usize..2000) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        std::fs::write(&path, &bytes).unwrap();
        Journal::open(&path).unwrap();
        let mut good: Vec<u8> = story().iter().flat_map(encode).collect();
        let at = flip % good.len();
        good[at] ^= 0x10;
        std::fs::write(&path, &good).unwrap();
        Journal::open(&path).unwrap();
    }
}

#[test]
fn an_assignment_that_lacks_a_blob_or_has_a_wrong_id_is_refused() {
    use cipherhop_proto::v1::{Assignment, BlobRef};
    let blob = |role: BlobRole| BlobRef {
        digest: vec![role as u8; 32],
        size: 1,
        role: role.into(),
        name: String::new(),
    };
    let good = Assignment {
        chain_id: vec![1; 16],
        attempt_id: vec![2; 16],
        program_digest: vec![3; 32],
        blobs: [
            BlobRole::Program,
            BlobRole::Weights,
            BlobRole::KeyManifest,
            BlobRole::Input,
        ]
        .map(blob)
        .to_vec(),
        ..Default::default()
    };
    assert!(Lease::from_wire(good.clone()).is_ok());
    let mut bad = good.clone();
    bad.blobs.remove(1);
    assert!(Lease::from_wire(bad).is_err());
    let mut bad = good.clone();
    bad.blobs.push(blob(BlobRole::Input));
    assert!(Lease::from_wire(bad).is_err());
    let mut bad = good.clone();
    bad.blobs[0].digest.pop();
    assert!(Lease::from_wire(bad).is_err());
    assert!(
        Lease::from_wire(Assignment {
            attempt_id: vec![2; 15],
            ..good
        })
        .is_err()
    );
}
