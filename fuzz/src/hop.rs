//! What a hop is made of: manifests, programs, calibrations, weight packs, traces.

use std::sync::LazyLock;
use std::time::Duration;

use cipherhop_coordinator::domain::attempt::Claim;
use cipherhop_coordinator::service::trace::Trace;
use cipherhop_hop::calib::Calibration;
use cipherhop_hop::fold::LayerPack;
use cipherhop_hop::keys::KeyManifest;
use cipherhop_hop::model::{Model, ModelConfig};
use cipherhop_hop::program::Program;
use cipherhop_proto::{Digest, Hasher};
use sha2::{Digest as _, Sha256};

static TINY: LazyLock<ModelConfig> = LazyLock::new(|| {
    let tiny = Model::open(cipherhop_hop::model::TINY_NAMES[0]);
    let shape = tiny
        .unwrap_or_else(|e| panic!("a built-in model: {e}"))
        .config;
    // Small enough for whole packs.
    ModelConfig {
        d: 4,
        heads: 2,
        kv_heads: 1,
        head_dim: 2,
        mlp: 4,
        ..shape
    }
});

pub fn prepare() {
    LazyLock::force(&TINY);
}

pub fn key_manifest(bytes: &[u8]) -> usize {
    if let Ok(manifest) = KeyManifest::parse(bytes) {
        let specs = manifest
            .specs()
            .unwrap_or_else(|e| panic!("checked ids: {e}"));
        manifest
            .covers(&specs)
            .unwrap_or_else(|e| panic!("covers itself: {e}"));
        let again = KeyManifest::parse(&manifest.to_bytes());
        assert_eq!(again.ok(), Some(manifest));
    }
    bytes.len()
}

pub fn program(bytes: &[u8]) -> usize {
    if let Ok(program) = Program::parse(bytes) {
        assert!(program.to_bytes().is_ok_and(|text| text == bytes));
    }
    bytes.len()
}

pub fn calibration(bytes: &[u8]) -> usize {
    if let Ok(calibration) = Calibration::parse(bytes) {
        let text = calibration
            .to_bytes()
            .unwrap_or_else(|e| panic!("written: {e}"));
        // Not compared as values: a number may be no number.
        let again = Calibration::parse(&text).unwrap_or_else(|e| panic!("read back: {e}"));
        assert!(again.to_bytes().is_ok_and(|same| same == text));
    }
    bytes.len()
}

/// The digest at the end is filled in where the first byte is odd.
pub fn weight_pack(bytes: &[u8]) -> usize {
    let Some((mode, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    let mut bytes = rest.to_vec();
    if mode % 2 == 1 {
        bytes.extend(Sha256::digest(rest));
    }
    if let Ok(pack) = LayerPack::parse(&bytes, &TINY) {
        assert!(pack.to_bytes() == bytes, "two forms of one pack");
    }
    bytes.len()
}

type Registers = Vec<(String, String)>;

#[derive(serde::Deserialize)]
struct Line {
    step: u32,
    name: String,
    inputs: Registers,
    outputs: Registers,
}

/// A claim that fits the trace, as a liar would make it.
fn claim(trace: &[u8]) -> (Claim, Vec<String>) {
    let mut root = Hasher::new();
    let mut output = Digest::of(b"");
    let mut steps = Vec::new();
    for text in String::from_utf8_lossy(trace).lines() {
        let Ok(line) = serde_json::from_str::<Line>(text) else {
            break;
        };
        let parts = (line.step, &line.name, &line.inputs, &line.outputs);
        root.update(&serde_json::to_vec(&parts).unwrap_or_default());
        root.update(b"\n");
        if let Some(Ok(digest)) = line.outputs.first().map(|(_, digest)| digest.parse()) {
            output = digest;
        }
        steps.push(line.name);
    }
    let claim = Claim {
        output,
        output_size: 1,
        trace_root: root.finish(),
        trace: Digest::of(trace),
        trace_size: trace.len() as u64,
        compute: Duration::ZERO,
    };
    (claim, steps)
}

/// Two traces with a NUL between them.
pub fn trace(bytes: &[u8]) -> usize {
    let mut parts = bytes.splitn(2, |b| *b == 0);
    let first = parts.next().unwrap_or_default();
    let second = parts.next().unwrap_or_default();
    let (one, steps) = claim(first);
    let (two, _) = claim(second);
    let input = Digest::of(b"in");
    let read = |bytes: &[u8], claim: &Claim| Trace::read(bytes, claim, input, &steps);
    if let (Ok(first), Ok(second)) = (read(first, &one), read(second, &two)) {
        let (there, back) = (first.compare(&second), second.compare(&first));
        assert_eq!(there.step(), back.step(), "the order of two traces matters");
    }
    bytes.len()
}
