//! Key folders and work folders: what is foreign, torn or changed is noticed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

use cipherhop_ckks::{CkksError, Context, EvalKey, KeyId, KeySource, KeySpec, Params};
use cipherhop_hop::error::HopError;
use cipherhop_hop::keys::{DirKeys, KEYS_FORMAT, KeyEntry, KeyManifest};
use cipherhop_hop::registers::{JobId, TraceLine, WorkDir, trace_bytes, trace_root};
use sha2::{Digest, Sha256};

fn write_keys(ctx: &Context, dir: &Path, ids: &[KeyId]) -> KeyManifest {
    let mut keys: Vec<KeyEntry> = ids
        .iter()
        .map(|&id| {
            let key = EvalKey::pseudorandom(ctx, KeySpec { id, limbs: 4 }, &[7; 32]).unwrap();
            let bytes = key.to_bytes(ctx);
            let digest = hex::encode(Sha256::digest(&bytes));
            fs::write(dir.join(&digest), &bytes).unwrap();
            KeyEntry {
                id: id.to_string(),
                limbs: 4,
                digest,
                size: bytes.len() as u64,
            }
        })
        .collect();
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(ctx.params_digest()),
        keys,
    }
}

#[test]
fn a_key_folder_gives_its_keys_and_notices_changes() {
    let ctx = Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let manifest = write_keys(&ctx, dir.path(), &[KeyId::Relin, KeyId::Rot(3)]);
    assert_eq!(KeyManifest::parse(&manifest.to_bytes()).unwrap(), manifest);
    let open = |m: &KeyManifest| DirKeys::open(ctx.clone(), dir.path().to_path_buf(), m.clone());
    let keys = open(&manifest).unwrap();
    assert_eq!(keys.key(KeyId::Rot(3)).unwrap().limbs(), 4);
    assert!(matches!(
        keys.key(KeyId::Conj),
        Err(CkksError::MissingKey(KeyId::Conj))
    ));

    let spec = |id, limbs| KeySpec { id, limbs };
    assert!(
        manifest
            .covers(&[spec(KeyId::Relin, 4), spec(KeyId::Rot(3), 2)])
            .is_ok()
    );
    assert!(manifest.covers(&[spec(KeyId::Relin, 5)]).is_err());
    assert!(manifest.covers(&[spec(KeyId::Rot(4), 1)]).is_err());

    let relin = manifest.keys.iter().find(|k| k.id == "relin").unwrap();
    let path = dir.path().join(&relin.digest);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(
        open(&manifest).unwrap().key(KeyId::Relin).is_err(),
        "changed byte"
    );
    fs::write(&path, &bytes[..last]).unwrap();
    assert!(open(&manifest).is_err(), "shortened file");
    let mut foreign = manifest.clone();
    foreign.params_digest = "00".repeat(32);
    assert!(open(&foreign).is_err(), "other parameters");
}

#[test]
fn manifests_in_another_form_are_refused() {
    let entry = |id: &str| KeyEntry {
        id: id.into(),
        limbs: 1,
        digest: "ab".repeat(32),
        size: 1,
    };
    let good = KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: "00".repeat(32),
        keys: vec![entry("conj"), entry("relin")],
    };
    assert!(KeyManifest::parse(&good.to_bytes()).is_ok());
    for change in [
        |m: &mut KeyManifest| m.format.push('x'),
        |m: &mut KeyManifest| m.keys.reverse(),
        |m: &mut KeyManifest| m.keys[1].id = "conj".into(),
        |m: &mut KeyManifest| m.keys[1].id = "secret".into(),
        |m: &mut KeyManifest| m.keys[0].digest = "../../etc/passwd".into(),
        |m: &mut KeyManifest| m.params_digest = String::new(),
    ] {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(matches!(
            KeyManifest::parse(&bad.to_bytes()),
            Err(HopError::BadInput(_) | HopError::Engine(_))
        ));
    }
}

fn job(layer: u32) -> JobId {
    JobId {
        program: "p".into(),
        layer,
        weights: "w".into(),
        input: "i".into(),
    }
}

fn line(step: u32) -> TraceLine {
    TraceLine {
        step,
        name: format!("s{step}"),
        inputs: vec![],
        outputs: vec![(format!("r{step}"), "d".into())],
        seconds: 1.5,
    }
}

#[test]
fn a_work_folder_keeps_whole_lines_and_drops_another_jobs_files() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["s0", "s1", "s2"];
    let work = WorkDir::open(dir.path(), &job(0)).unwrap();
    for step in 0..2 {
        work.append_trace(&line(step)).unwrap();
    }
    let trace = dir.path().join("trace.jsonl");
    let whole = fs::read(&trace).unwrap();
    assert_eq!(whole, trace_bytes(&[line(0), line(1)]).unwrap());
    let mut torn = whole.clone();
    torn.extend(&trace_bytes(&[line(2)]).unwrap()[..20]);
    fs::write(&trace, torn).unwrap();
    let work = WorkDir::open(dir.path(), &job(0)).unwrap();
    assert_eq!(work.trace(&names).len(), 2);
    assert_eq!(work.trace(&["s0", "other"]).len(), 1);

    work.save("r1", b"bytes").unwrap();
    let digest = hex::encode(Sha256::digest(b"bytes"));
    assert_eq!(work.load("r1", &digest).unwrap(), b"bytes");
    assert!(work.load("r1", &"00".repeat(32)).is_none());
    let other = WorkDir::open(dir.path(), &job(1)).unwrap();
    assert!(other.trace(&names).is_empty() && other.load("r1", &digest).is_none());
}

#[test]
fn the_trace_root_ignores_times_and_nothing_else() {
    let lines = [line(0), line(1)];
    let mut slower = lines.clone();
    slower[0].seconds = 99.0;
    assert_eq!(trace_root(&lines), trace_root(&slower));
    let mut changed = lines.clone();
    changed[1].outputs[0].1 = "e".into();
    assert_ne!(trace_root(&lines), trace_root(&changed));
    assert_ne!(trace_root(&lines), trace_root(&lines[..1]));
}
