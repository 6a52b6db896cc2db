//! A model as the key holder uses it: embedding and output in memory, layers read one at a time.

use std::{io::Read, path::Path};

use sha2::{Digest, Sha256};

use super::{Matrix, ModelConfig, ModelError, Tokenizer, gguf::GgufFile, hf::HfModel, tiny};

/// Weights of one decoder layer, as stored (norm gammas not folded).
#[derive(Clone, Debug, PartialEq)]
pub struct LayerWeights {
    /// Gamma of the RMSNorm before attention, `d`.
    pub attn_norm: Vec<f32>,
    /// Query matrix, `heads * head_dim` x `d`.
    pub q: Matrix,
    /// Key matrix, `kv_heads * head_dim` x `d`.
    pub k: Matrix,
    /// Value matrix, `kv_heads * head_dim` x `d`.
    pub v: Matrix,
    /// Output matrix, `d` x `heads * head_dim`.
    pub o: Matrix,
    /// Gamma of the per-head query norm, `head_dim` (Qwen3).
    pub q_norm: Option<Vec<f32>>,
    /// Gamma of the per-head key norm, `head_dim` (Qwen3).
    pub k_norm: Option<Vec<f32>>,
    /// Gamma of the RMSNorm before the MLP, `d`.
    pub ffn_norm: Vec<f32>,
    /// Gate matrix, `mlp` x `d`.
    pub gate: Matrix,
    /// Up matrix, `mlp` x `d`.
    pub up: Matrix,
    /// Down matrix, `d` x `mlp`.
    pub down: Matrix,
}

#[derive(Debug)]
pub(crate) enum Store {
    Gguf(GgufFile),
    Hf(HfModel),
    Memory(Vec<LayerWeights>),
}

/// A decoder model in the clear.
#[derive(Debug)]
pub struct Model {
    /// Name from the file, or of the built-in model.
    pub name: String,
    /// Shape.
    pub config: ModelConfig,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// SHA-256 of the weight file(s), or of the weights themselves for a built-in model; lower-case hex.
    pub weights_sha256: String,
    pub(crate) embedding: Matrix,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) lm_head: Option<Matrix>,
    pub(crate) store: Store,
}

impl Model {
    /// A built-in model by name, a `.gguf` file, or a folder (or file in it) with safetensors and config.json.
    pub fn open(what: &str) -> Result<Self, ModelError> {
        if let Some(model) = tiny::by_name(what)? {
            return Ok(model);
        }
        let path = Path::new(what);
        if path.is_dir() || path.extension().is_some_and(|e| e == "safetensors") {
            return super::hf::open(path);
        }
        if path.is_file() {
            return super::weights_gguf::open(path);
        }
        Err(ModelError::UnknownModel(what.to_string()))
    }

    /// Weights of layer `index`, read and checked.
    pub fn layer(&self, index: usize) -> Result<LayerWeights, ModelError> {
        if index >= self.config.layers {
            return Err(ModelError::MissingTensor(format!("layer {index}")));
        }
        match &self.store {
            Store::Memory(layers) => Ok(layers[index].clone()),
            Store::Gguf(file) => super::weights_gguf::layer(file, &self.config, index),
            Store::Hf(files) => super::hf::layer(files, &self.config, index),
        }
    }

    /// Embedding rows of `tokens`, one vector of `d` after another.
    pub fn embed(&self, tokens: &[u32]) -> Result<Vec<f64>, ModelError> {
        let mut out = Vec::with_capacity(tokens.len() * self.config.d);
        for &id in tokens {
            if id as usize >= self.config.vocab {
                return Err(ModelError::TokenId {
                    id,
                    vocab: self.config.vocab,
                });
            }
            out.extend(
                self.embedding
                    .row(id as usize)
                    .iter()
                    .map(|v| f64::from(*v)),
            );
        }
        Ok(out)
    }

    /// Logits of residual vectors after the last layer (`n x d` in, `n x vocab` out).
    pub fn logits(&self, residual: &[f64]) -> Vec<f64> {
        let d = self.config.d;
        let normed = super::forward::rms_norm(residual, &self.final_norm, self.config.eps);
        self.lm_head
            .as_ref()
            .unwrap_or(&self.embedding)
            .apply(&normed, residual.len() / d)
    }

    /// The public prefix a chain starts with: start marker and newline.
    pub fn default_prefix(&self) -> Result<Vec<u32>, ModelError> {
        self.tokenizer.encode_public("<|im_start|>\n")
    }
}

/// SHA-256 of a file, hex.
pub(crate) fn file_digest(path: &Path) -> Result<String, ModelError> {
    let fail = |source| ModelError::Io {
        path: path.display().to_string(),
        source,
    };
    let mut file = std::fs::File::open(path).map_err(fail)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(fail)? {
            0 => return Ok(hex::encode(hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}
