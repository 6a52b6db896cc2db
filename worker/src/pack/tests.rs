use super::*;
use crate::journal::Blob;
use cipherhop_proto::{AttemptId, ChainId};
use proptest::prelude::*;

fn blob(bytes: &[u8], role: BlobRole) -> Blob {
    Blob {
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        role: role as i32,
        name: String::new(),
    }
}

const BLOBS: [(&[u8], BlobRole); 5] = [
    (b"program", BlobRole::Program),
    (b"weights", BlobRole::Weights),
    (b"manifest", BlobRole::KeyManifest),
    (b"input", BlobRole::Input),
    (b"a key", BlobRole::EvaluationKey),
];

fn lease() -> Lease {
    Lease {
        attempt: AttemptId::from_bytes([1; 16]),
        epoch: 3,
        chain: ChainId::from_bytes([9; 16]),
        chain_name: "tiny".into(),
        hop: 5,
        generation: 1,
        program: Digest::of(b"program"),
        parameter_set: "n11-INSECURE".into(),
        insecure: true,
        blobs: BLOBS.map(|(bytes, role)| blob(bytes, role)).to_vec(),
        expected_output_bytes: 6,
    }
}

fn finished() -> Finished {
    Finished {
        output: Digest::of(b"output"),
        output_size: 6,
        trace: Digest::of(b"trace"),
        trace_size: 5,
        trace_root: Digest::of(b"root"),
        compute_seconds: 1.5,
    }
}

/// A pack of the hop in a file, and where its blobs were.
fn packed(dir: &Path, keep: impl Fn(&Member) -> bool) -> PathBuf {
    let blobs = dir.join("from");
    std::fs::create_dir_all(&blobs).unwrap();
    for (bytes, _) in BLOBS {
        std::fs::write(blobs.join(Digest::of(bytes).to_string()), bytes).unwrap();
    }
    let card = Card::new(lease(), None);
    let members: Vec<Member> = card
        .members()
        .unwrap()
        .into_iter()
        .filter(|m| keep(m))
        .collect();
    let out = dir.join("hop.tar");
    write(&out, &card, &members, |m| blobs.join(m.digest.to_string())).unwrap();
    out
}

fn unpack(bytes: &[u8], into: &Path) -> Result<Head, PackError> {
    Reader::new(bytes).unpack(|head| {
        let place = |m: &Member| (m.name.clone(), into.join(m.digest.to_string()));
        Ok(head.members.iter().map(place).collect())
    })
}

#[test]
fn what_was_packed_comes_out_the_same_and_sha256sum_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path(), |_| true);
    let into = dir.path().join("into");
    let head = unpack(&std::fs::read(&pack).unwrap(), &into).unwrap();
    assert_eq!((head.card.lease, head.left_out), (lease(), vec![]));
    for (bytes, _) in BLOBS {
        assert_eq!(
            std::fs::read(into.join(Digest::of(bytes).to_string())).unwrap(),
            bytes
        );
    }
    let check = std::process::Command::new("sh")
        .args([
            "-c",
            "mkdir plain && tar xf hop.tar -C plain && cd plain && sha256sum -c manifest.sha256",
        ])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&check.stdout);
    assert!(
        check.status.success() && said.lines().count() == 6,
        "{said}"
    );

    std::fs::write(dir.path().join("output"), b"output").unwrap();
    std::fs::write(dir.path().join("trace"), b"trace").unwrap();
    let card = Card::new(lease(), Some(finished()));
    let out = dir.path().join("result.tar");
    write(&out, &card, &card.members().unwrap(), |m| {
        dir.path().join(&m.name)
    })
    .unwrap();
    assert_eq!(
        unpack(&std::fs::read(&out).unwrap(), &into).unwrap().card,
        card
    );
}

#[test]
fn keys_may_be_left_out_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path(), |m| !m.optional);
    let head = unpack(&std::fs::read(&pack).unwrap(), dir.path()).unwrap();
    assert_eq!(head.left_out.len(), 1);
    assert_eq!(head.left_out[0].digest, Digest::of(b"a key"));
    let pack = packed(dir.path(), |m| m.digest != Digest::of(b"input"));
    let error = unpack(&std::fs::read(&pack).unwrap(), dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("is not in its manifest"),
        "{error}"
    );
}

#[test]
fn a_damaged_source_gives_no_pack() {
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path(), |_| true);
    std::fs::remove_file(&pack).unwrap();
    let input = dir
        .path()
        .join("from")
        .join(Digest::of(b"input").to_string());
    for wrong in [&b"inputs"[..], b"inpux", b"inp"] {
        std::fs::write(&input, wrong).unwrap();
        let card = Card::new(lease(), None);
        let from = |m: &Member| dir.path().join("from").join(m.digest.to_string());
        let error = write(&pack, &card, &card.members().unwrap(), from).unwrap_err();
        assert!(matches!(error, PackError::Source(_)), "{error}");
        assert!(!pack.exists());
    }
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "no half pack stays behind");
}

/// A tar file of entries that a tar program would take.
fn tar_of(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, kind, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_entry_type(*kind);
        header.set_link_name("/etc/passwd").unwrap();
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

#[test]
fn paths_links_and_everything_that_was_not_announced_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let card = serde_json::to_vec(&Card::new(lease(), Some(finished()))).unwrap();
    let line = |bytes: &[u8], name: &str| format!("{}  {name}\n", Digest::of(bytes));
    let good = line(&card, CARD) + &line(b"output", "output") + &line(b"trace", "trace");
    let file = tar::EntryType::Regular;
    let head = [
        (MANIFEST, file, good.as_bytes()),
        (CARD, file, card.as_slice()),
    ];
    let with = |rest: &[(&str, tar::EntryType, &[u8])]| tar_of(&[&head, rest].concat());
    let (output, trace) = (
        ("output", file, &b"output"[..]),
        ("trace", file, &b"trace"[..]),
    );
    assert!(unpack(&with(&[output, trace]), &dir.path().join("good")).is_ok());

    let into = dir.path().join("bad");
    for (what, bytes) in [
        ("traversal", with(&[("../output", file, b"output"), trace])),
        ("absolute", with(&[("/output", file, b"output"), trace])),
        ("a dot", with(&[("./output", file, b"output"), trace])),
        (
            "a link",
            with(&[("output", tar::EntryType::Symlink, b""), trace]),
        ),
        (
            "a hard link",
            with(&[("output", tar::EntryType::Link, b""), trace]),
        ),
        (
            "a folder",
            with(&[("output", tar::EntryType::Directory, b""), trace]),
        ),
        (
            "a device",
            with(&[("output", tar::EntryType::Char, b"output"), trace]),
        ),
        (
            "a sparse file",
            with(&[("output", tar::EntryType::GNUSparse, b"output"), trace]),
        ),
        (
            "a new name",
            with(&[
                ("x", tar::EntryType::GNULongName, b"output\0"),
                output,
                trace,
            ]),
        ),
        (
            "a new size",
            with(&[
                ("x", tar::EntryType::XHeader, b"10 size=6\n"),
                output,
                trace,
            ]),
        ),
        ("twice", with(&[output, output, trace])),
        ("more", with(&[output, trace, ("more", file, b"more")])),
        ("another order", with(&[trace, output])),
        ("less", with(&[output])),
        ("other bytes", with(&[("output", file, b"outpux"), trace])),
        ("longer", with(&[("output", file, b"outputs"), trace])),
        ("no head", tar_of(&[output, trace])),
        (
            "no card",
            tar_of(&[(MANIFEST, file, good.as_bytes()), output, trace]),
        ),
        ("nothing", Vec::new()),
        ("no tar", b"PK\x03\x04".repeat(400)),
    ] {
        let error = unpack(&bytes, &into).map(|head| head.members).unwrap_err();
        assert!(
            matches!(error, PackError::NotAPack(_) | PackError::Damaged(_)),
            "{what}: {error}"
        );
        let names: Vec<String> = match std::fs::read_dir(&into) {
            Ok(found) => found
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect(),
            Err(_) => Vec::new(),
        };
        let known = [b"output" as &[u8], b"trace"].map(|b| Digest::of(b).to_string());
        assert!(
            names.iter().all(|name| known.contains(name)),
            "{what}: {names:?}"
        );
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        2,
        "nothing beside the two folders"
    );
}

#[test]
fn cards_and_manifests_that_lie_are_refused_before_the_content_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = tar::EntryType::Regular;
    let refused = |card: &Card, manifest: Option<&str>| {
        let text = serde_json::to_vec(card).unwrap();
        let members = card.members().unwrap_or_default();
        let mut lines = format!("{}  {CARD}\n", Digest::of(&text));
        members
            .iter()
            .for_each(|m| lines.push_str(&format!("{}  {}\n", m.digest, m.name)));
        let lines = manifest.map_or(lines, str::to_owned);
        let bytes = tar_of(&[(MANIFEST, file, lines.as_bytes()), (CARD, file, &text)]);
        let mut asked = false;
        let error = Reader::new(bytes.as_slice()).unpack(|_| {
            asked = true;
            Ok::<_, PackError>(BTreeMap::new())
        });
        assert!(!asked, "{error:?}");
        error.unwrap_err().to_string()
    };
    let result = |result: Finished| Card::new(lease(), Some(result));
    let huge = Finished {
        output_size: u64::MAX,
        ..finished()
    };
    assert!(refused(&result(huge), None).contains("sizes"));
    let huge = Finished {
        trace_size: MAX_TRACE + 1,
        ..finished()
    };
    assert!(refused(&result(huge), None).contains("sizes"));
    let mut other = result(finished());
    other.format = "cipherhop-pack/2".into();
    assert!(refused(&other, None).contains("cipherhop-pack/1"));
    let mut two = Card::new(lease(), None);
    two.lease.blobs.push(Blob {
        size: 1,
        ..two.lease.blobs[4].clone()
    });
    assert!(refused(&two, None).contains("two sizes"));
    let mut none = Card::new(lease(), None);
    none.lease.blobs.remove(3);
    assert!(refused(&none, None).contains("BLOB_ROLE_INPUT"));
    let mut name = Card::new(lease(), None);
    name.lease.chain_name = "\x1b[2J".into();
    assert!(refused(&name, None).contains("name"));
    for manifest in ["", "nonsense\n", "00  pack.json\n"] {
        refused(&result(finished()), Some(manifest));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_change_of_a_pack_is_noticed_or_changes_nothing(at in 0usize..20_000, bit in 0u8..8, cut in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(packed(dir.path(), |_| true)).unwrap();
        let at = at % bytes.len();
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        let into = dir.path().join("into");
        if let Ok(head) = unpack(&bytes, &into) {
            prop_assert_eq!(head.card, Card::new(lease(), None));
            for (bytes, _) in BLOBS {
                prop_assert_eq!(std::fs::read(into.join(Digest::of(bytes).to_string())).unwrap(), bytes);
            }
        }
    }
}
