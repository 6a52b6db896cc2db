//! Makes a calibration from a public corpus. Key holder's side only: it uses the system's `exp` and `ln`, and its output
//! travels as exact numbers, so workers never do.

use sha2::{Digest, Sha256};

pub use crate::corpus::{cache_key, corpus_windows, kept_path, unescape};
use crate::{
    calib::{
        Bounds, CALIBRATION_FORMAT, Calibration, Interval, LayerCalib, Margins, QkCalib, RopeRow,
    },
    fit::Fit,
    fold::{Rotation, Rotator},
    model::{Model, ModelError, PlainRun, rope_tables},
    stats::{LayerStats, Range},
};

/// What a calibration run may spend and how careful it is.
#[derive(Clone, Copy, Debug)]
pub struct CalibrationOptions {
    /// Private tokens a prompt may have.
    pub max_tokens: usize,
    /// Most windows of `max_tokens` tokens taken from the corpus.
    pub max_windows: usize,
    /// Factors between the largest value seen and the bound.
    pub margins: Margins,
    /// Largest relative error of inverse square roots.
    pub rms_tolerance: f64,
    /// Largest error of the logistic function.
    pub softmax_tolerance: f64,
    /// Largest error of SiLU for bounds up to 8; grows with the bound above.
    pub silu_tolerance: f64,
}

impl CalibrationOptions {
    /// Figures of CIRCUIT.md section 4.
    pub fn new(max_tokens: usize) -> Self {
        Self {
            max_tokens,
            max_windows: 600,
            margins: Margins {
                bound: 1.6,
                rms: 1.6,
                gate: 1.6,
                heavy: 2.5,
            },
            rms_tolerance: 3e-4,
            softmax_tolerance: 1e-4,
            silu_tolerance: 1e-4,
        }
    }
}

/// Why no calibration was made.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The model could not be run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Too little text.
    #[error("the corpus has {0} usable lines, at least 100 are needed")]
    SmallCorpus(usize),
    /// A function needs a higher degree than any sensible circuit has.
    #[error(
        "layer {layer}: no polynomial of degree up to {degree} approximates {what} on [{lo:.3}, {hi:.3}] to {tolerance:e}"
    )]
    Degree {
        /// Layer.
        layer: usize,
        /// Function.
        what: &'static str,
        /// Highest degree tried.
        degree: usize,
        /// Interval.
        lo: f64,
        /// Interval.
        hi: f64,
        /// Error asked for.
        tolerance: f64,
    },
}

/// Runs the corpus through the model and turns what it saw into intervals, bounds and polynomials.
pub fn calibrate(
    model: &Model,
    prefix: &[u32],
    corpus_name: &str,
    corpus: &str,
    options: &CalibrationOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Calibration, CalibrateError> {
    let cfg = &model.config;
    let windows = corpus_windows(model, corpus, options.max_tokens, options.max_windows)?;
    let rotation = Rotation::for_width(cfg.d);
    let rotator =
        Rotator::new(rotation, cfg.d).ok_or_else(|| ModelError::Unsupported("rotation".into()))?;
    let mut layers = Vec::with_capacity(cfg.layers);
    PlainRun::run::<CalibrateError>(model, prefix, &windows, false, |index, _, _, run| {
        let stats = LayerStats::of(cfg, run, &rotator);
        layers.push(layer(index, cfg.layers, &stats, options)?);
        progress(index + 1, cfg.layers);
        Ok(())
    })?;
    let (cos, sin) = rope_tables(
        cfg.rope_theta,
        cfg.head_dim,
        prefix.len(),
        options.max_tokens,
    );
    let rope = cos
        .into_iter()
        .zip(sin)
        .enumerate()
        .map(|(i, (cos, sin))| RopeRow {
            position: prefix.len() + i,
            cos,
            sin,
        });
    Ok(Calibration {
        format: CALIBRATION_FORMAT.into(),
        model_name: model.name.clone(),
        model: cfg.clone(),
        weights_sha256: model.weights_sha256.clone(),
        prefix: prefix.to_vec(),
        max_private_tokens: options.max_tokens,
        rotation,
        margins: options.margins,
        corpus: format!(
            "{corpus_name}, {} windows of {} tokens",
            windows.len(),
            options.max_tokens
        ),
        corpus_sha256: hex::encode(Sha256::digest(corpus)),
        rope: rope.collect(),
        layers,
    })
}

fn layer(
    index: usize,
    layers: usize,
    s: &LayerStats,
    o: &CalibrationOptions,
) -> Result<LayerCalib, CalibrateError> {
    let m = &o.margins;
    // Massive activations grow and shrink in the first third of a model, the first layer aside (CIRCUIT.md section 4).
    let heavy = (1..=layers / 3).contains(&index);
    let bound = if heavy { m.heavy } else { m.bound };
    let rms = |r: Range| Interval {
        lo: r.min / m.rms,
        hi: r.max * if heavy { m.heavy } else { m.rms },
    };
    let (rms1, rms2) = (rms(s.ms1), rms(s.ms2));
    let head = |v: f64| (m.bound * v).max(1.0);
    let score = head(s.score()).max(4.0);
    let gate = s.gate.magnitude().max(2.5) * if heavy { m.gate.max(2.0) } else { m.gate };
    let fit = Fit { layer: index };
    let qk = match &s.qk {
        None => None,
        Some(qk) => {
            let (q, k) = same_ratio(rms(qk.q), rms(qk.k));
            let root = (q.hi / q.lo).sqrt();
            Some(QkCalib {
                q,
                k,
                q_centre: (q.lo * q.hi).sqrt(),
                k_centre: (k.lo * k.hi).sqrt(),
                raw_score: bound * qk.raw_private,
                raw_score_public: bound * qk.raw_public,
                inv: fit.inverse_root(
                    "q/k norm",
                    Interval {
                        lo: 1.0 / root,
                        hi: root,
                    },
                    o.rms_tolerance,
                )?,
            })
        }
    };
    let silu_tolerance = o.silu_tolerance * (gate / 8.0).max(1.0);
    let sigmoid = fit.symmetric(
        "the logistic function",
        logistic,
        score,
        o.softmax_tolerance,
        None,
    )?;
    let softplus = |x: f64| (x.max(0.0) + (-x.abs()).exp().ln_1p()) / score;
    Ok(LayerCalib {
        f: (m.bound * s.residual / 0.4).log2().ceil().exp2(),
        rms1,
        rms2,
        qk,
        score,
        score_heads: s.score_heads.iter().map(|v| head(*v).min(score)).collect(),
        bounds: Bounds {
            o: 1.2 * bound * s.attn,
            gate,
            up: bound * s.up,
            act: bound * m.bound * s.act,
            down: 1.2 * bound * s.mlp,
        },
        inv_sqrt1: fit.inverse_root("RMSNorm 1", rms1, o.rms_tolerance)?,
        inv_sqrt2: fit.inverse_root("RMSNorm 2", rms2, o.rms_tolerance)?,
        softplus: fit.symmetric(
            "softplus",
            softplus,
            score,
            o.softmax_tolerance,
            Some(sigmoid.degree),
        )?,
        sigmoid,
        silu: fit.symmetric("SiLU", |x| x * logistic(x), gate, silu_tolerance, None)?,
    })
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Widens the narrower interval around its centre until both have one ratio.
fn same_ratio(a: Interval, b: Interval) -> (Interval, Interval) {
    let root = (a.hi / a.lo).max(b.hi / b.lo).sqrt();
    let widen = |i: Interval| {
        let centre = (i.lo * i.hi).sqrt();
        Interval {
            lo: centre / root,
            hi: centre * root,
        }
    };
    (widen(a), widen(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calib::PUBLIC_CORPUS;

    #[test]
    fn both_built_in_models_calibrate_and_the_file_round_trips() {
        for name in crate::model::TINY_NAMES {
            let model = Model::open(name).unwrap();
            let prefix = model.default_prefix().unwrap();
            let calib = calibrate(
                &model,
                &prefix,
                "public",
                PUBLIC_CORPUS,
                &CalibrationOptions::new(3),
                |_, _| {},
            )
            .unwrap();
            for (i, l) in calib.layers.iter().enumerate() {
                println!(
                    "{name} {i} F {} rms1 [{:.2}, {:.2}] d{} rms2 [{:.2}, {:.2}] d{} B {:.2} d{} {:.1e} silu {:.2} d{} {:.1e} qk {:?}",
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
                    l.bounds.gate,
                    l.silu.degree,
                    l.silu.max_err,
                    l.qk.as_ref().map(|q| (
                        q.q.lo,
                        q.q.hi,
                        q.inv.degree,
                        q.raw_score,
                        q.raw_score_public
                    ))
                );
            }
            let bytes = calib.to_bytes().unwrap();
            assert_eq!(Calibration::parse(&bytes).unwrap(), calib);
            assert!(Calibration::parse(&bytes[..bytes.len() - 2]).is_err());
        }
    }
}
