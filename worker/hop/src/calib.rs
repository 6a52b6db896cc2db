//! The calibration file: for every layer the intervals, bounds and polynomials the encrypted circuit relies on.
//!
//! The key holder makes it from a public corpus (never from the prompt); planner and worker only read it. Every number is
//! hexadecimal text, so no reader ever rounds. Units are those of the plain model: residual, gate, up and so on unscaled.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{fold::Rotation, model::ModelConfig};

/// Value of [`Calibration::format`].
pub const CALIBRATION_FORMAT: &str = "cipherhop-calib/1";
/// The public corpus shipped with the program; one entry per line, `\n` spelled out.
pub const PUBLIC_CORPUS: &str = include_str!("../corpus/public.txt");

const MAX_BYTES: usize = 64 << 20;
const MAX_DEGREE: usize = 1023;

/// A calibration file that must not be used.
#[derive(Debug, thiserror::Error)]
pub enum CalibError {
    /// Larger than any real file.
    #[error("the calibration file has {0} bytes, more than any real one")]
    TooLarge(usize),
    /// No JSON of this format.
    #[error("malformed calibration file: {0}")]
    Json(#[from] serde_json::Error),
    /// A value that makes no sense.
    #[error("calibration file: {0}")]
    Invalid(String),
}

/// A closed interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    #[serde(with = "crate::hexfloat")]
    pub lo: f64,
    /// Upper end.
    #[serde(with = "crate::hexfloat")]
    pub hi: f64,
}

impl Interval {
    /// Whether `value` lies inside.
    pub fn contains(&self, value: f64) -> bool {
        (self.lo..=self.hi).contains(&value)
    }

    /// Affine map onto [-1, 1].
    pub fn normalise(&self, value: f64) -> f64 {
        (2.0 * value - self.lo - self.hi) / (self.hi - self.lo)
    }
}

/// A function as a Chebyshev sum in `u` = [`Interval::normalise`] of the argument on `[lo, hi]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChebApprox {
    /// Degree; `coeffs.len() - 1`.
    pub degree: usize,
    /// Lower end of the argument.
    #[serde(with = "crate::hexfloat")]
    pub lo: f64,
    /// Upper end of the argument.
    #[serde(with = "crate::hexfloat")]
    pub hi: f64,
    /// Coefficients of T_0, T_1, ...
    #[serde(with = "crate::hexfloat::list")]
    pub coeffs: Vec<f64>,
    /// Largest error found on a fine grid: relative for inverse square roots, absolute in units of the value otherwise.
    #[serde(with = "crate::hexfloat")]
    pub max_err: f64,
}

impl ChebApprox {
    /// Value at `x` by Clenshaw's recurrence (plain checks only).
    pub fn eval(&self, x: f64) -> f64 {
        let u = Interval {
            lo: self.lo,
            hi: self.hi,
        }
        .normalise(x);
        let (mut a, mut b) = (0.0, 0.0);
        for c in self.coeffs.iter().skip(1).rev() {
            (a, b) = (2.0 * u * a - b + c, a);
        }
        u * a - b + self.coeffs.first().copied().unwrap_or(0.0)
    }
}

/// Largest magnitudes, margin included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Attention branch, rotated basis.
    #[serde(with = "crate::hexfloat")]
    pub o: f64,
    /// Gate.
    #[serde(with = "crate::hexfloat")]
    pub gate: f64,
    /// Up.
    #[serde(with = "crate::hexfloat")]
    pub up: f64,
    /// `silu(gate) * up`.
    #[serde(with = "crate::hexfloat")]
    pub act: f64,
    /// MLP branch, rotated basis.
    #[serde(with = "crate::hexfloat")]
    pub down: f64,
}

/// Query and key norms of the Qwen3 shape.
///
/// `q` and `k` are intervals of mean square plus eps of a raw head and have the same ratio R = hi/lo, so one polynomial
/// serves both: with the centre `c = sqrt(lo*hi)`, `m^-1/2 = c^-1/2 * inv(m/c)`, `inv` on `[R^-1/2, R^1/2]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QkCalib {
    /// Mean square plus eps of raw query heads.
    pub q: Interval,
    /// Mean square plus eps of raw key heads.
    pub k: Interval,
    /// `sqrt(q.lo * q.hi)`.
    #[serde(with = "crate::hexfloat")]
    pub q_centre: f64,
    /// `sqrt(k.lo * k.hi)`.
    #[serde(with = "crate::hexfloat")]
    pub k_centre: f64,
    /// Bound of `q.k / sqrt(head_dim)` of two private tokens before both norm factors (gammas and RoPE applied).
    #[serde(with = "crate::hexfloat")]
    pub raw_score: f64,
    /// The same against public keys, whose norm is already applied.
    #[serde(with = "crate::hexfloat")]
    pub raw_score_public: f64,
    /// Inverse square root on `[R^-1/2, R^1/2]`.
    pub inv: ChebApprox,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerCalib {
    /// Power of two: the residual after the layer stays below 0.4 of it in the rotated basis.
    #[serde(with = "crate::hexfloat")]
    pub f: f64,
    /// Mean square plus eps before attention.
    pub rms1: Interval,
    /// Mean square plus eps before the MLP.
    pub rms2: Interval,
    /// Norms of queries and keys; `None` in the Llama shape.
    pub qk: Option<QkCalib>,
    /// Bound B of every leaf, partial log-sum-exp and tournament difference (Llama: leaves relative to public key 0).
    #[serde(with = "crate::hexfloat")]
    pub score: f64,
    /// The same per query head.
    #[serde(with = "crate::hexfloat::list")]
    pub score_heads: Vec<f64>,
    /// Largest magnitudes.
    pub bounds: Bounds,
    /// Inverse square root on `rms1`.
    pub inv_sqrt1: ChebApprox,
    /// Inverse square root on `rms2`.
    pub inv_sqrt2: ChebApprox,
    /// Logistic function on `[-B, B]`.
    pub sigmoid: ChebApprox,
    /// `softplus(x) / B` on `[-B, B]`.
    pub softplus: ChebApprox,
    /// SiLU on `[-bounds.gate, bounds.gate]`.
    pub silu: ChebApprox,
}

/// Factors between the largest value seen and the bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Margins {
    /// Branches, up, scores.
    #[serde(with = "crate::hexfloat")]
    pub bound: f64,
    /// Both ends of the RMSNorm intervals.
    #[serde(with = "crate::hexfloat")]
    pub rms: f64,
    /// Gate.
    #[serde(with = "crate::hexfloat")]
    pub gate: f64,
    /// Everything but scores in the heavy-tailed layers 1 to a third of all.
    #[serde(with = "crate::hexfloat")]
    pub heavy: f64,
}

/// Cosines and sines of RoPE for the private positions, so that the worker needs no trigonometry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeRow {
    /// Position of the token.
    pub position: usize,
    /// `head_dim / 2` cosines.
    #[serde(with = "crate::hexfloat::list")]
    pub cos: Vec<f64>,
    /// `head_dim / 2` sines.
    #[serde(with = "crate::hexfloat::list")]
    pub sin: Vec<f64>,
}

/// A whole calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// [`CALIBRATION_FORMAT`].
    pub format: String,
    /// Name of the model, for people.
    pub model_name: String,
    /// Shape of the model.
    pub model: ModelConfig,
    /// SHA-256 of the weights, hex.
    pub weights_sha256: String,
    /// Public prefix; at least 2 tokens.
    pub prefix: Vec<u32>,
    /// Most private tokens the calibration covers.
    pub max_private_tokens: usize,
    /// Rotation of the residual basis the bounds refer to.
    pub rotation: Rotation,
    /// Factors used.
    pub margins: Margins,
    /// Where the text came from.
    pub corpus: String,
    /// SHA-256 of the corpus, hex.
    pub corpus_sha256: String,
    /// RoPE of positions `prefix.len()..prefix.len() + max_private_tokens`.
    pub rope: Vec<RopeRow>,
    /// One entry per layer.
    pub layers: Vec<LayerCalib>,
}

impl Calibration {
    /// Reads and checks a calibration file.
    pub fn parse(bytes: &[u8]) -> Result<Self, CalibError> {
        if bytes.len() > MAX_BYTES {
            return Err(CalibError::TooLarge(bytes.len()));
        }
        let out: Self = serde_json::from_slice(bytes)?;
        out.check()?;
        Ok(out)
    }

    /// Canonical bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CalibError> {
        self.check()?;
        Ok(serde_json::to_vec_pretty(self)?)
    }

    /// SHA-256 of the canonical bytes.
    pub fn digest(&self) -> Result<[u8; 32], CalibError> {
        Ok(Sha256::digest(self.to_bytes()?).into())
    }

    /// Checks that all parts fit together.
    pub fn check(&self) -> Result<(), CalibError> {
        let bad = |text: String| Err(CalibError::Invalid(text));
        if self.format != CALIBRATION_FORMAT {
            return bad(format!(
                "format {:?}, this program reads {CALIBRATION_FORMAT:?}",
                self.format
            ));
        }
        self.model
            .check()
            .map_err(|e| CalibError::Invalid(e.to_string()))?;
        if self.prefix.len() < 2
            || self.prefix.len() > 4096
            || self.prefix.iter().any(|t| *t as usize >= self.model.vocab)
        {
            return bad("the public prefix needs at least 2 tokens of the vocabulary".into());
        }
        if !(1..=4096).contains(&self.max_private_tokens)
            || self.rope.len() != self.max_private_tokens
        {
            return bad("private tokens and RoPE rows do not fit together".into());
        }
        for (i, row) in self.rope.iter().enumerate() {
            let half = self.model.head_dim / 2;
            if row.position != self.prefix.len() + i
                || row.cos.len() != half
                || row.sin.len() != half
            {
                return bad(format!("RoPE row {i}"));
            }
        }
        if self.layers.len() != self.model.layers {
            return bad(format!(
                "{} layers, the model has {}",
                self.layers.len(),
                self.model.layers
            ));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer
                .check(&self.model)
                .map_err(|e| CalibError::Invalid(format!("layer {i}: {e}")))?;
        }
        Ok(())
    }
}

impl LayerCalib {
    fn check(&self, model: &ModelConfig) -> Result<(), String> {
        let positive = |what: &str, v: f64| {
            if v.is_finite() && v > 0.0 {
                Ok(())
            } else {
                Err(format!("{what} is not positive"))
            }
        };
        let b = &self.bounds;
        for (what, v) in [
            ("f", self.f),
            ("score", self.score),
            ("o", b.o),
            ("gate", b.gate),
            ("up", b.up),
            ("act", b.act),
            ("down", b.down),
        ] {
            positive(what, v)?;
        }
        if self.f.to_bits() & ((1 << 52) - 1) != 0 {
            return Err("f is no power of two".into());
        }
        if self.score_heads.len() != model.heads
            || self
                .score_heads
                .iter()
                .any(|s| !(*s > 0.0 && *s <= self.score))
        {
            return Err("score bounds per head".into());
        }
        let inverse = |what: &str, i: Interval, poly: &ChebApprox| {
            positive(what, i.lo)?;
            check_poly(what, poly, i.lo, i.hi)
        };
        inverse("rms1", self.rms1, &self.inv_sqrt1)?;
        inverse("rms2", self.rms2, &self.inv_sqrt2)?;
        check_poly("sigmoid", &self.sigmoid, -self.score, self.score)?;
        check_poly("softplus", &self.softplus, -self.score, self.score)?;
        check_poly("silu", &self.silu, -b.gate, b.gate)?;
        if self.qk.is_some() != model.qk_norm() {
            return Err("q/k norms do not fit the model".into());
        }
        if let Some(qk) = &self.qk {
            for (what, i) in [("q", qk.q), ("k", qk.k)] {
                positive(what, i.lo)?;
                if i.lo >= i.hi {
                    return Err(format!("interval of {what}"));
                }
            }
            for (what, v) in [
                ("raw_score", qk.raw_score),
                ("raw_score_public", qk.raw_score_public),
                ("q_centre", qk.q_centre),
                ("k_centre", qk.k_centre),
            ] {
                positive(what, v)?;
            }
            positive("q/k norm interval", qk.inv.lo)?;
            check_poly("q/k norm", &qk.inv, qk.inv.lo, qk.inv.hi)?;
        }
        Ok(())
    }
}

fn check_poly(what: &str, p: &ChebApprox, lo: f64, hi: f64) -> Result<(), String> {
    if p.lo != lo || p.hi != hi || lo >= hi {
        return Err(format!("interval of {what}"));
    }
    if p.degree > MAX_DEGREE || p.coeffs.len() != p.degree + 1 {
        return Err(format!("degree of {what}"));
    }
    Ok(())
}
