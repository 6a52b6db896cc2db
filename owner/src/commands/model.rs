//! `model import`, `model calibrate`, `model run`.

use std::path::Path;

use anyhow::{Context as _, bail};
use cipherhop_hop::{
    calib::{Calibration, PUBLIC_CORPUS},
    calibrate::{CalibrationOptions, calibrate as make, kept_path},
    model::{Model, ModelError, PlainRun},
};
use serde_json::json;

use crate::{
    cli::{ModelCalibrate, ModelImport, ModelRun},
    files::{read_bounded, write_private},
    reference::{Reference, check_model},
    report::{Outcome, Output, Refused, Unit},
};

/// `model import`
pub fn import(args: &ModelImport, out: &Output) -> anyhow::Result<Outcome> {
    let model = Model::open(&args.model)?;
    if let Some(expected) = &args.sha256
        && !expected.eq_ignore_ascii_case(&model.weights_sha256)
    {
        bail!(
            "the weights have the SHA-256 {}, expected {expected}",
            model.weights_sha256
        );
    }
    let bar = out.progress("reading layers", model.config.layers as u64, Unit::Steps);
    let mut weights = 0usize;
    for index in 0..model.config.layers {
        let w = model.layer(index)?;
        weights += [&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down]
            .map(|m| m.data.len())
            .iter()
            .sum::<usize>();
        bar.set(index as u64 + 1);
    }
    bar.finish();
    let c = &model.config;
    let value = json!({ "name": model.name, "sha256": model.weights_sha256, "config": c, "layer_weights": weights });
    let text = format!(
        "{} ({:?}): {} layers of width {}, {} query and {} key/value heads of {}, MLP {}, vocabulary {}\nSHA-256 {}",
        model.name,
        c.arch,
        c.layers,
        c.d,
        c.heads,
        c.kv_heads,
        c.head_dim,
        c.mlp,
        c.vocab,
        model.weights_sha256
    );
    out.result(&value, &text)?;
    Ok(Outcome::Success)
}

/// `model calibrate`
pub fn calibrate(args: &ModelCalibrate, out: &Output) -> anyhow::Result<Outcome> {
    let model = Model::open(&args.model)?;
    let prefix = match &args.prefix {
        None => model.default_prefix()?,
        Some(text) => model.tokenizer.encode_public(text)?,
    };
    let (name, corpus) = match &args.corpus {
        None => (
            "public corpus of the program".to_string(),
            PUBLIC_CORPUS.to_string(),
        ),
        Some(path) => {
            let name = path
                .file_name()
                .map_or("corpus".into(), |n| n.to_string_lossy().into_owned());
            (
                name,
                String::from_utf8(read_bounded(path, 64 << 20)?)
                    .context("the corpus is no UTF-8 text")?,
            )
        }
    };
    let options = CalibrationOptions {
        max_windows: args.windows.max(100),
        ..CalibrationOptions::new(args.tokens.clamp(1, 64))
    };
    let path = match &args.out {
        Some(path) => path.clone(),
        None => kept_path(&model, &prefix, &corpus, &options)
            .context("neither XDG_CACHE_HOME nor HOME names a folder; give --out")?,
    };
    let kept = match &args.out {
        Some(_) => None,
        None => kept(&path, &model),
    };
    let reused = kept.is_some();
    let calibration = match kept {
        Some(calibration) => calibration,
        None => {
            let layers = model.config.layers as u64;
            let bar = out.progress("calibrating layers", layers, Unit::Steps);
            let calibration = make(&model, &prefix, &name, &corpus, &options, |done, _| {
                bar.set(done as u64)
            })?;
            bar.finish();
            write_whole(&path, &calibration.to_bytes()?)?;
            calibration
        }
    };
    let digest = hex::encode(calibration.digest()?);
    let value = json!({ "calibration": path, "reused": reused, "sha256": digest, "model": calibration.model_name, "tokens": calibration.max_private_tokens,
        "prefix": calibration.prefix, "corpus": calibration.corpus });
    let text = format!(
        "{} for up to {} private tokens behind {} public ones ({})\nSHA-256 {digest}",
        path.display(),
        calibration.max_private_tokens,
        calibration.prefix.len(),
        calibration.corpus
    );
    out.result(&value, &text)?;
    Ok(Outcome::Success)
}

/// A whole calibration of this model found in the cache.
fn kept(path: &Path, model: &Model) -> Option<Calibration> {
    let calibration = Calibration::parse(&read_bounded(path, 64 << 20).ok()?).ok()?;
    check_model(model, &calibration).ok()?;
    Some(calibration)
}

/// Never leaves half a file.
fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    write_private(path, bytes)
}

/// `model run`
pub fn run(args: &ModelRun, out: &Output) -> anyhow::Result<Outcome> {
    let model = Model::open(&args.model)?;
    let tokens = model
        .tokenizer
        .encode_private(&args.prompt)
        .map_err(Refused::Prompt)?;
    let (next, violations) = match &args.calibration {
        Some(path) => {
            let calibration = Calibration::parse(&read_bounded(path, 64 << 20)?)?;
            check_model(&model, &calibration)?;
            let reference = Reference::run(&model, &calibration, &tokens)?;
            reference.check()?;
            (reference.next, reference.violations)
        }
        None => {
            let run = PlainRun::run::<ModelError>(
                &model,
                &model.default_prefix()?,
                std::slice::from_ref(&tokens),
                false,
                |_, _, _, _| Ok(()),
            )?;
            (run.next_token(&model, 0, tokens.len()), Vec::new())
        }
    };
    let text = model.tokenizer.decode(&[next.id]);
    let value = json!({ "tokens": tokens, "next_token_id": next.id, "next_token": text, "margin": next.margin, "violations": violations });
    out.result(
        &value,
        &format!(
            "{} tokens; next token {} {text:?}, margin {:.3}",
            tokens.len(),
            next.id,
            next.margin
        ),
    )?;
    Ok(Outcome::Success)
}
