//! The plain forward pass in f64, with every quantity the calibration and the interval check look at.

use super::{
    LayerWeights, Model, ModelConfig, ModelError, RopeLayout,
    math::{dot, mean_square, rope_tables},
};

/// Keys and values of the public tokens in one layer: ready for attention (key norm and RoPE applied).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublicKv {
    /// Public tokens.
    pub tokens: usize,
    /// `[token][kv_head][head_dim]`.
    pub k: Vec<f64>,
    /// `[token][kv_head][head_dim]`.
    pub v: Vec<f64>,
}

/// What one layer did to a batch of prompts of equal length. `n` counts tokens of all prompts, prompt by prompt.
#[derive(Clone, Debug)]
pub struct LayerRun {
    /// Prompts.
    pub prompts: usize,
    /// Private tokens per prompt.
    pub tokens: usize,
    /// Public tokens before them.
    pub public: usize,
    /// Mean square plus eps before attention, `[n]`.
    pub ms1: Vec<f64>,
    /// Mean square plus eps of raw query heads, `[n][head]`; empty without q/k norm.
    pub q_ms: Vec<f64>,
    /// Mean square plus eps of raw key heads, `[n][kv_head]`; empty without q/k norm.
    pub k_ms: Vec<f64>,
    /// Keys as attention uses them, `[n][kv_head][head_dim]`.
    pub k: Vec<f64>,
    /// Values, `[n][kv_head][head_dim]`.
    pub v: Vec<f64>,
    /// Scores `q.k / sqrt(head_dim)`, `[n][head][public + tokens]`; minus infinity where a key is in the future.
    pub scores: Vec<f64>,
    /// The same before the q/k norm factors (public keys stay normalised); empty without q/k norm.
    pub raw_scores: Vec<f64>,
    /// Attention branch, `[n][d]`.
    pub attn: Vec<f64>,
    /// Mean square plus eps before the MLP, `[n]`.
    pub ms2: Vec<f64>,
    /// Gate, `[n][mlp]`.
    pub gate: Vec<f64>,
    /// Up, `[n][mlp]`.
    pub up: Vec<f64>,
    /// `silu(gate) * up`, `[n][mlp]`.
    pub act: Vec<f64>,
    /// MLP branch, `[n][d]`.
    pub mlp: Vec<f64>,
    /// Residual after the layer, `[n][d]`.
    pub y: Vec<f64>,
}

/// RMSNorm of vectors of `gamma.len()` entries.
pub(crate) fn rms_norm(x: &[f64], gamma: &[f32], eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(gamma.len()) {
        let inv = (mean_square(row) + eps).sqrt().recip();
        out.extend(row.iter().zip(gamma).map(|(v, g)| v * inv * f64::from(*g)));
    }
    out
}

fn mean_squares(x: &[f64], width: usize, eps: f64) -> Vec<f64> {
    x.chunks_exact(width)
        .map(|row| mean_square(row) + eps)
        .collect()
}

fn rotate_head(head: &mut [f64], cos: &[f64], sin: &[f64], layout: RopeLayout) {
    let half = head.len() / 2;
    for i in 0..half {
        let (a, b) = match layout {
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            RopeLayout::HalfSplit => (i, i + half),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos[i] - y * sin[i];
        head[b] = x * sin[i] + y * cos[i];
    }
}

/// RoPE on `[n][heads][head_dim]`; token `t` of every prompt stands at `first + t`.
fn rope(x: &mut [f64], cfg: &ModelConfig, width: usize, tokens: usize, first: usize) {
    let (cos, sin) = rope_tables(cfg.rope_theta, cfg.head_dim, first, tokens);
    for (n, row) in x.chunks_exact_mut(width).enumerate() {
        for head in row.chunks_exact_mut(cfg.head_dim) {
            rotate_head(head, &cos[n % tokens], &sin[n % tokens], cfg.rope_layout);
        }
    }
}

/// Runs one layer on `x` (`prompts * tokens` vectors of `d`); the first token of every prompt stands at position
/// `public.tokens`.
pub fn run_layer(
    cfg: &ModelConfig,
    w: &LayerWeights,
    x: &[f64],
    prompts: usize,
    tokens: usize,
    public: &PublicKv,
) -> LayerRun {
    let n = prompts * tokens;
    let (hd, keys) = (cfg.head_dim, public.tokens + tokens);
    let ms1 = mean_squares(x, cfg.d, cfg.eps);
    let normed = rms_norm(x, &w.attn_norm, cfg.eps);
    let (mut q, mut k, v) = (
        w.q.apply(&normed, n),
        w.k.apply(&normed, n),
        w.v.apply(&normed, n),
    );
    let (mut q_ms, mut k_ms) = (Vec::new(), Vec::new());
    if let (Some(gq), Some(gk)) = (&w.q_norm, &w.k_norm) {
        q_ms = mean_squares(&q, hd, cfg.eps);
        k_ms = mean_squares(&k, hd, cfg.eps);
        q = rms_norm(&q, gq, cfg.eps);
        k = rms_norm(&k, gk, cfg.eps);
    }
    rope(&mut q, cfg, cfg.q_width(), tokens, public.tokens);
    rope(&mut k, cfg, cfg.kv_width(), tokens, public.tokens);

    let mut scores = vec![f64::NEG_INFINITY; n * cfg.heads * keys];
    let mut raw_scores = if q_ms.is_empty() {
        Vec::new()
    } else {
        scores.clone()
    };
    let mut mixed = vec![0.0; n * cfg.q_width()];
    let scale = (hd as f64).sqrt().recip();
    for at in 0..n {
        let (prompt, t) = (at / tokens, at % tokens);
        for h in 0..cfg.heads {
            let kv = cfg.kv_of(h);
            let query = &q[at * cfg.q_width() + h * hd..][..hd];
            let key_at = |j: usize| match j.checked_sub(public.tokens) {
                None => (&public.k, &public.v, j),
                Some(s) => (&k, &v, prompt * tokens + s),
            };
            let row = &mut scores[(at * cfg.heads + h) * keys..][..keys];
            for (j, s) in row.iter_mut().enumerate().take(public.tokens + t + 1) {
                let (ks, _, index) = key_at(j);
                *s = dot(query, &ks[index * cfg.kv_width() + kv * hd..][..hd]) * scale;
                if !raw_scores.is_empty() {
                    let mut factor = q_ms[at * cfg.heads + h].sqrt();
                    if j >= public.tokens {
                        factor *= k_ms[index * cfg.kv_heads + kv].sqrt();
                    }
                    raw_scores[(at * cfg.heads + h) * keys + j] = *s * factor;
                }
            }
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|s| (s - top).exp()).sum();
            let out = &mut mixed[at * cfg.q_width() + h * hd..][..hd];
            for (j, s) in row.iter().enumerate().take(public.tokens + t + 1) {
                let p = (s - top).exp() / total;
                let (_, vs, index) = key_at(j);
                for (o, v) in out
                    .iter_mut()
                    .zip(&vs[index * cfg.kv_width() + kv * hd..][..hd])
                {
                    *o += p * v;
                }
            }
        }
    }
    let attn = w.o.apply(&mixed, n);
    let x1: Vec<f64> = x.iter().zip(&attn).map(|(a, b)| a + b).collect();
    let ms2 = mean_squares(&x1, cfg.d, cfg.eps);
    let normed = rms_norm(&x1, &w.ffn_norm, cfg.eps);
    let (gate, up) = (w.gate.apply(&normed, n), w.up.apply(&normed, n));
    let act: Vec<f64> = gate
        .iter()
        .zip(&up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect();
    let mlp = w.down.apply(&act, n);
    let y = x1.iter().zip(&mlp).map(|(a, b)| a + b).collect();
    LayerRun {
        prompts,
        tokens,
        public: public.tokens,
        ms1,
        q_ms,
        k_ms,
        k,
        v,
        scores,
        raw_scores,
        attn,
        ms2,
        gate,
        up,
        act,
        mlp,
        y,
    }
}

/// The public prefix, run layer by layer.
#[derive(Clone, Debug)]
pub struct PublicPrefix {
    tokens: usize,
    x: Vec<f64>,
}

impl PublicPrefix {
    /// Starts at the embedding.
    pub fn new(model: &Model, tokens: &[u32]) -> Result<Self, ModelError> {
        if tokens.len() < 2 {
            return Err(ModelError::Unsupported(
                "the public prefix needs at least 2 tokens".into(),
            ));
        }
        Ok(Self {
            tokens: tokens.len(),
            x: model.embed(tokens)?,
        })
    }

    /// Runs one layer and returns its keys and values.
    pub fn step(&mut self, cfg: &ModelConfig, w: &LayerWeights) -> PublicKv {
        let run = run_layer(cfg, w, &self.x, 1, self.tokens, &PublicKv::default());
        self.x = run.y;
        PublicKv {
            tokens: self.tokens,
            k: run.k,
            v: run.v,
        }
    }
}

/// The most likely next token.
#[derive(Clone, Debug, PartialEq)]
pub struct NextToken {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f64,
    /// Distance to the second largest logit.
    pub margin: f64,
    /// The five largest logits, largest first.
    pub top: Vec<(u32, f64)>,
}

impl NextToken {
    /// From the logits of one position.
    pub fn of(logits: &[f64]) -> Self {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let top: Vec<_> = order
            .iter()
            .take(5)
            .map(|i| (*i, logits[*i as usize]))
            .collect();
        let (id, logit) = top.first().copied().unwrap_or((0, f64::NAN));
        Self {
            id,
            logit,
            margin: top.get(1).map_or(f64::INFINITY, |s| logit - s.1),
            top,
        }
    }
}

/// A plain run of prompts of equal length behind a public prefix.
#[derive(Clone, Debug)]
pub struct PlainRun {
    /// Residual before layer 0, after layer 0, ..., after the last layer: `[n][d]` each. Empty when not kept.
    pub residuals: Vec<Vec<f64>>,
    /// Residual after the last layer, `[n][d]`.
    pub last: Vec<f64>,
}

impl PlainRun {
    /// Runs all layers, one at a time; `visit` sees every layer's weights, public keys and run.
    pub fn run<E: From<ModelError>>(
        model: &Model,
        prefix: &[u32],
        prompts: &[Vec<u32>],
        keep: bool,
        mut visit: impl FnMut(usize, &LayerWeights, &PublicKv, &LayerRun) -> Result<(), E>,
    ) -> Result<Self, E> {
        let tokens = prompts.first().map_or(0, Vec::len);
        if tokens == 0 || prompts.iter().any(|p| p.len() != tokens) {
            return Err(ModelError::EmptyPrompt.into());
        }
        let mut public = PublicPrefix::new(model, prefix)?;
        let mut x = model.embed(&prompts.concat())?;
        let mut residuals = Vec::new();
        for index in 0..model.config.layers {
            let w = model.layer(index)?;
            let kv = public.step(&model.config, &w);
            let run = run_layer(&model.config, &w, &x, prompts.len(), tokens, &kv);
            visit(index, &w, &kv, &run)?;
            let before = std::mem::replace(&mut x, run.y);
            if keep {
                residuals.push(before);
            }
        }
        if keep {
            residuals.push(x.clone());
        }
        Ok(Self { residuals, last: x })
    }

    /// Next token after the last position of prompt `index`.
    pub fn next_token(&self, model: &Model, index: usize, tokens: usize) -> NextToken {
        let d = model.config.d;
        let at = (index + 1) * tokens - 1;
        NextToken::of(&model.logits(&self.last[at * d..(at + 1) * d]))
    }
}
