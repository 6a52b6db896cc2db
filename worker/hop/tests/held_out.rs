//! Prompts that the calibration has never seen stay inside its intervals. With the SmolLM2 file where it is there
//! (CIPHERHOP_SMOLLM2, or the file that deploy/smollm2.sh keeps), else with the built-in model.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cipherhop_hop::calib::{Calibration, PUBLIC_CORPUS};
use cipherhop_hop::calibrate::{CalibrationOptions, calibrate, kept_path, unescape};
use cipherhop_hop::fold::Rotator;
use cipherhop_hop::model::{Model, ModelError, PlainRun};
use cipherhop_hop::stats::LayerStats;

const HELD_OUT: &str = include_str!("../corpus/held_out.txt");

fn smollm2() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CIPHERHOP_SMOLLM2") {
        return Some(path.into());
    }
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let path = home.join(".cache/cipherhop/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    path.exists().then_some(path)
}

/// The kept calibration of six tokens, or a new one.
fn calibration(model: &Model, prefix: &[u32]) -> Calibration {
    let options = CalibrationOptions::new(6);
    let kept = kept_path(model, prefix, PUBLIC_CORPUS, &options)
        .and_then(|path| std::fs::read(path).ok())
        .and_then(|bytes| Calibration::parse(&bytes).ok());
    kept.unwrap_or_else(|| {
        calibrate(model, prefix, "public", PUBLIC_CORPUS, &options, |_, _| {}).unwrap()
    })
}

#[test]
fn no_held_out_prompt_leaves_an_interval() {
    let seen: BTreeSet<&str> = PUBLIC_CORPUS.lines().collect();
    let lines: BTreeSet<&str> = HELD_OUT.lines().filter(|l| !l.is_empty()).collect();
    assert!(lines.len() >= 30 && seen.is_disjoint(&lines));

    let real = smollm2();
    let name = real.map_or("tiny-llama".into(), |p| p.to_str().unwrap().to_string());
    let model = Model::open(&name).unwrap();
    let prefix = model.default_prefix().unwrap();
    let calib = calibration(&model, &prefix);
    let rotator = Rotator::new(calib.rotation, model.config.d).unwrap();
    let mut used: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    let mut found = Vec::new();
    for line in &lines {
        let mut prompt = model.tokenizer.encode_private(&unescape(line)).unwrap();
        prompt.truncate(6);
        let see = |layer: usize, stats: &LayerStats| {
            let c = &calib.layers[layer];
            let b = &c.bounds;
            for (what, share) in [
                ("score", stats.score() / c.score),
                ("gate", stats.gate.magnitude() / b.gate),
                ("up", stats.up / b.up),
                ("activation", stats.act / b.act),
                ("attention branch", stats.attn / b.o),
                ("MLP branch", stats.mlp / b.down),
                ("norm 1, low", c.rms1.lo / stats.ms1.min),
                ("norm 1, high", stats.ms1.max / c.rms1.hi),
                ("norm 2, low", c.rms2.lo / stats.ms2.min),
                ("norm 2, high", stats.ms2.max / c.rms2.hi),
            ] {
                let most = used.entry(what).or_default();
                if share > most.0 {
                    *most = (share, layer);
                }
            }
            stats.violations(layer, c)
        };
        let mut see = see;
        PlainRun::run::<ModelError>(&model, &prefix, &[prompt], false, |layer, _, _, run| {
            found.extend(see(layer, &LayerStats::of(&model.config, run, &rotator)));
            Ok(())
        })
        .unwrap();
    }
    println!(
        "{name}, {} prompts; largest share of every interval and its layer:",
        lines.len()
    );
    for (what, (share, layer)) in &used {
        println!("  {what:18} {share:.2} (layer {layer})");
    }
    assert!(found.is_empty(), "{found:#?}");
}
