//! Shape of a decoder model.

use serde::{Deserialize, Serialize};

use super::ModelError;

/// Family of decoder layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// RMSNorm, grouped-query attention, SwiGLU, no q/k norm (SmolLM2).
    Llama,
    /// The same with an RMSNorm on every query and key head.
    Qwen3,
}

/// Which two entries of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeLayout {
    /// Entries 2i and 2i+1 (Llama weights in GGUF files).
    Interleaved,
    /// Entries i and i + head_dim/2 (safetensors; Qwen3 everywhere).
    HalfSplit,
}

/// Shape and constants of a decoder model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Layer family.
    pub arch: Architecture,
    /// Width of the residual stream.
    pub d: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; `heads * head_dim` may differ from `d`.
    pub head_dim: usize,
    /// Width of the SwiGLU layer.
    pub mlp: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Added to the mean square in every RMSNorm.
    #[serde(with = "crate::hexfloat")]
    pub eps: f64,
    /// RoPE base.
    #[serde(with = "crate::hexfloat")]
    pub rope_theta: f64,
    /// RoPE pairing.
    pub rope_layout: RopeLayout,
    /// Output matrix is the embedding.
    pub tied: bool,
}

impl ModelConfig {
    /// Whether queries and keys are normalised per head.
    pub fn qk_norm(&self) -> bool {
        self.arch == Architecture::Qwen3
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Key/value head that query head `head` reads.
    pub fn kv_of(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// Refuses shapes that no supported model has.
    pub fn check(&self) -> Result<(), ModelError> {
        let bad = |what: &str| Err(ModelError::Unsupported(what.to_string()));
        let within = |v: usize, hi: usize| (1..=hi).contains(&v);
        if !within(self.d, 65_536) || !within(self.mlp, 262_144) || !within(self.head_dim, 1024) {
            return bad("width out of range");
        }
        if !within(self.heads, 1024)
            || !within(self.kv_heads, self.heads)
            || !self.heads.is_multiple_of(self.kv_heads)
        {
            return bad("head counts do not fit together");
        }
        if !within(self.layers, 1024) || !within(self.vocab, 4_000_000) {
            return bad("layer count or vocabulary out of range");
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("odd head width");
        }
        if !(self.eps.is_finite() && self.eps > 0.0 && self.eps < 1.0) {
            return bad("eps out of range");
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return bad("RoPE base out of range");
        }
        Ok(())
    }
}
