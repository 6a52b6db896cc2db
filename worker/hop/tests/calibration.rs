//! Calibration of the real model from the shipped corpus.

#![allow(clippy::unwrap_used)]

use cipherhop_hop::{
    calib::{Calibration, PUBLIC_CORPUS},
    calibrate::{CalibrationOptions, calibrate, corpus_windows},
    fold::Rotator,
    model::{Model, ModelError, PlainRun},
    stats::LayerStats,
};

/// Run with CIPHERHOP_SMOLLM2 naming the GGUF file and CIPHERHOP_PROMPTS a file of prompts, one a line.
#[test]
#[ignore = "needs the SmolLM2 file named by CIPHERHOP_SMOLLM2"]
fn unseen_prompts_stay_inside_the_calibrated_intervals() {
    let model = Model::open(&std::env::var("CIPHERHOP_SMOLLM2").unwrap()).unwrap();
    let prefix = model.default_prefix().unwrap();
    let start = std::time::Instant::now();
    let calib = calibrate(
        &model,
        &prefix,
        "public",
        PUBLIC_CORPUS,
        &CalibrationOptions::new(3),
        |_, _| {},
    )
    .unwrap();
    println!("{:.1} s", start.elapsed().as_secs_f64());
    for (i, l) in calib.layers.iter().enumerate() {
        let b = &l.bounds;
        println!(
            "{i} F {} rms1 [{:.3}, {:.2}] d{} rms2 [{:.3}, {:.2}] d{} B {:.2} d{} {:.1e} silu {:.2} d{} {:.1e} o {:.2} up {:.2} act {:.2} down {:.2}",
            l.f,
            l.rms1.lo,
            l.rms1.hi,
            l.inv_sqrt1.degree,
            l.rms2.lo,
            l.rms2.hi,
            l.inv_sqrt2.degree,
            l.score,
            l.sigmoid.degree,
            l.sigmoid.max_err,
            b.gate,
            l.silu.degree,
            l.silu.max_err,
            b.o,
            b.up,
            b.act,
            b.down
        );
    }
    let bytes = calib.to_bytes().unwrap();
    println!("{} bytes", bytes.len());
    assert_eq!(Calibration::parse(&bytes).unwrap(), calib);
    let prompts = std::fs::read_to_string(std::env::var("CIPHERHOP_PROMPTS").unwrap()).unwrap();
    let windows = corpus_windows(&model, &prompts.repeat(4), 3, 1000).unwrap();
    let rotator = Rotator::new(calib.rotation, model.config.d).unwrap();
    let mut found = Vec::new();
    let mut worst = std::collections::BTreeMap::new();
    for window in &windows[..28.min(windows.len())] {
        PlainRun::run::<ModelError>(
            &model,
            &prefix,
            std::slice::from_ref(window),
            false,
            |l, _, _, run| {
                let stats = LayerStats::of(&model.config, run, &rotator);
                let c = &calib.layers[l];
                for (name, use_) in [
                    ("score", stats.score() / c.score),
                    ("gate", stats.gate.magnitude() / c.bounds.gate),
                    ("up", stats.up / c.bounds.up),
                    ("o", stats.attn / c.bounds.o),
                    ("down", stats.mlp / c.bounds.down),
                    ("act", stats.act / c.bounds.act),
                    ("rms1 hi", stats.ms1.max / c.rms1.hi),
                    ("rms1 lo", c.rms1.lo / stats.ms1.min),
                ] {
                    let slot = worst.entry(name).or_insert((0.0, 0));
                    if use_ > slot.0 {
                        *slot = (use_, l);
                    }
                }
                found.extend(stats.violations(l, c));
                Ok(())
            },
        )
        .unwrap();
    }
    println!(
        "{} prompts, use of the intervals {worst:.2?}",
        windows.len()
    );
    assert!(found.is_empty(), "{found:#?}");
}
