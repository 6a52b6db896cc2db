//! Llama and Qwen3 shapes from a folder with config.json, tokenizer.json and safetensors files.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use safetensors::{Dtype, tensor::Metadata};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    Architecture, LayerWeights, Matrix, Model, ModelConfig, ModelError, RopeLayout, Tokenizer,
    dequant::TensorType,
    error::malformed,
    weights::{Store, file_digest},
};

const MAX_HEADER: u64 = 100_000_000;
const MAX_JSON: u64 = 256 << 20;

/// Tensors of one folder, read when asked for.
#[derive(Debug)]
pub(crate) struct HfModel {
    files: Vec<TensorFile>,
    /// Part before `layers.0...`, for example `model.`.
    prefix: String,
}

#[derive(Debug)]
struct TensorFile {
    path: PathBuf,
    meta: Metadata,
    data_start: u64,
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> ModelError + '_ {
    move |source| ModelError::Io {
        path: path.display().to_string(),
        source,
    }
}

fn read_small(path: &Path) -> Result<Vec<u8>, ModelError> {
    let mut out = Vec::new();
    let file = File::open(path).map_err(io(path))?;
    file.take(MAX_JSON + 1)
        .read_to_end(&mut out)
        .map_err(io(path))?;
    if out.len() as u64 > MAX_JSON {
        return Err(malformed(format!("{} is too large", path.display())));
    }
    Ok(out)
}

impl TensorFile {
    fn open(path: &Path) -> Result<Self, ModelError> {
        let mut file = File::open(path).map_err(io(path))?;
        let length = file.metadata().map_err(io(path))?.len();
        let mut head = [0; 8];
        file.read_exact(&mut head).map_err(io(path))?;
        let header = u64::from_le_bytes(head);
        if header > MAX_HEADER || header + 8 > length {
            return Err(malformed(format!(
                "{} has a bad header length",
                path.display()
            )));
        }
        let mut json = vec![0; header as usize];
        file.read_exact(&mut json).map_err(io(path))?;
        // Deserialising checks offsets, overlaps and sizes.
        let meta: Metadata = serde_json::from_slice(&json)
            .map_err(|e| malformed(format!("{}: {e}", path.display())))?;
        if (meta.data_len() as u64).checked_add(8 + header) != Some(length) {
            return Err(malformed(format!(
                "{} is truncated or has trailing bytes",
                path.display()
            )));
        }
        Ok(Self {
            path: path.to_path_buf(),
            meta,
            data_start: 8 + header,
        })
    }

    fn read(&self, name: &str, expected: &[usize]) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(info) = self.meta.info(name) else {
            return Ok(None);
        };
        if info.shape != expected {
            return Err(ModelError::Shape {
                name: name.into(),
                found: info.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        let kind = match info.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::Bf16,
            other => {
                return Err(ModelError::Unsupported(format!(
                    "tensor {name} of type {other:?}"
                )));
            }
        };
        let (start, end) = info.data_offsets;
        let mut file = File::open(&self.path).map_err(io(&self.path))?;
        file.seek(SeekFrom::Start(self.data_start + start as u64))
            .map_err(io(&self.path))?;
        let mut bytes = vec![0; end - start];
        file.read_exact(&mut bytes).map_err(io(&self.path))?;
        let out = kind.decode(&bytes);
        if out.iter().any(|v| !v.is_finite()) {
            return Err(malformed(format!(
                "tensor {name} holds a value that is not finite"
            )));
        }
        Ok(Some(out))
    }
}

impl HfModel {
    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|f| f.meta.info(name).is_some())
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        for file in &self.files {
            if let Some(found) = file.read(name, shape)? {
                return Ok(found);
            }
        }
        Err(ModelError::MissingTensor(name.into()))
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        Ok(Matrix {
            rows,
            cols,
            data: self.read(name, &[rows, cols])?,
        })
    }
}

/// Opens a folder (or a file in it).
pub(crate) fn open(path: &Path) -> Result<Model, ModelError> {
    let folder = if path.is_dir() {
        path
    } else {
        path.parent().unwrap_or(Path::new("."))
    };
    let json: Value = serde_json::from_slice(&read_small(&folder.join("config.json"))?)
        .map_err(|e| malformed(format!("config.json: {e}")))?;
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let path = entry.map_err(io(folder))?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(ModelError::UnknownModel(folder.display().to_string()));
    }
    let files: Vec<TensorFile> = paths
        .iter()
        .map(|p| TensorFile::open(p))
        .collect::<Result<_, _>>()?;
    let mut store = HfModel {
        files,
        prefix: String::new(),
    };
    let known = [
        "model.",
        "model.language_model.",
        "language_model.model.",
        "",
    ];
    store.prefix = known
        .iter()
        .find(|p| store.has(&format!("{p}embed_tokens.weight")))
        .ok_or_else(|| ModelError::MissingTensor("model.embed_tokens.weight".into()))?
        .to_string();
    let config = config(&json)?;
    if store.has(&format!("{}layers.0.self_attn.q_proj.bias", store.prefix)) {
        return Err(ModelError::Unsupported("attention biases".into()));
    }
    let tokenizer = Tokenizer::from_json(&read_small(&folder.join("tokenizer.json"))?)?;
    let embedding = store.matrix(
        &format!("{}embed_tokens.weight", store.prefix),
        config.vocab,
        config.d,
    )?;
    let final_norm = store.read(&format!("{}norm.weight", store.prefix), &[config.d])?;
    let lm_head = if config.tied {
        None
    } else {
        Some(store.matrix("lm_head.weight", config.vocab, config.d)?)
    };
    let mut hash = Sha256::new();
    for path in &paths {
        hash.update(file_digest(path)?);
    }
    let weights_sha256 = if let [only] = &paths[..] {
        file_digest(only)?
    } else {
        hex::encode(hash.finalize())
    };
    let name = folder
        .canonicalize()
        .ok()
        .and_then(|f| f.file_name().map(|n| n.to_string_lossy().into_owned()));
    Ok(Model {
        name: name.unwrap_or_else(|| "model".into()),
        config,
        tokenizer,
        weights_sha256,
        embedding,
        final_norm,
        lm_head,
        store: Store::Hf(store),
    })
}

fn config(json: &Value) -> Result<ModelConfig, ModelError> {
    // Vision-language models keep the decoder's part apart.
    let text = json.get("text_config").unwrap_or(json);
    let kind = text
        .get("model_type")
        .or(json.get("model_type"))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let arch = match kind {
        "llama" => Architecture::Llama,
        "qwen3" | "qwen3_vl_text" | "qwen3_vl" => Architecture::Qwen3,
        other => {
            return Err(ModelError::Unsupported(format!(
                "model_type {other:?}: llama and qwen3 are supported"
            )));
        }
    };
    let count = |key: &str| {
        let n = text
            .get(key)
            .and_then(Value::as_u64)
            .and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| malformed(format!("config.json: {key} is missing or no count")))
    };
    let flag = |key: &str| {
        text.get(key)
            .or(json.get(key))
            .and_then(Value::as_bool)
            .unwrap_or(false)
    };
    if flag("attention_bias") || flag("mlp_bias") {
        return Err(ModelError::Unsupported("biases".into()));
    }
    if text
        .get("hidden_act")
        .and_then(Value::as_str)
        .unwrap_or("silu")
        != "silu"
    {
        return Err(ModelError::Unsupported(
            "an activation other than silu".into(),
        ));
    }
    let rope = text
        .get("rope_scaling")
        .or(text.get("rope_parameters"))
        .filter(|v| !v.is_null());
    let kind = rope
        .and_then(|r| r.get("rope_type").or(r.get("type")))
        .and_then(Value::as_str)
        .unwrap_or("default");
    if kind != "default" && kind != "mrope" {
        return Err(ModelError::Unsupported(format!("RoPE scaling {kind}")));
    }
    let theta = text
        .get("rope_theta")
        .or(rope.and_then(|r| r.get("rope_theta")))
        .and_then(Value::as_f64);
    let (d, heads) = (count("hidden_size")?, count("num_attention_heads")?);
    let config = ModelConfig {
        arch,
        d,
        heads,
        kv_heads: count("num_key_value_heads").unwrap_or(heads),
        head_dim: count("head_dim").unwrap_or(d / heads.max(1)),
        mlp: count("intermediate_size")?,
        layers: count("num_hidden_layers")?,
        vocab: count("vocab_size")?,
        eps: text
            .get("rms_norm_eps")
            .and_then(Value::as_f64)
            .ok_or_else(|| malformed("config.json: rms_norm_eps is missing"))?,
        rope_theta: theta.unwrap_or(10_000.0),
        rope_layout: RopeLayout::HalfSplit,
        tied: flag("tie_word_embeddings"),
    };
    config.check()?;
    Ok(config)
}

/// Reads one layer.
pub(crate) fn layer(
    files: &HfModel,
    cfg: &ModelConfig,
    index: usize,
) -> Result<LayerWeights, ModelError> {
    let name = |part: &str| format!("{}layers.{index}.{part}.weight", files.prefix);
    let matrix = |part: &str, rows, cols| files.matrix(&name(part), rows, cols);
    let vector = |part: &str, len| files.read(&name(part), &[len]);
    let head_norm = |part: &str| {
        cfg.qk_norm()
            .then(|| vector(part, cfg.head_dim))
            .transpose()
    };
    let (d, q, kv, mlp) = (cfg.d, cfg.q_width(), cfg.kv_width(), cfg.mlp);
    Ok(LayerWeights {
        attn_norm: vector("input_layernorm", d)?,
        q: matrix("self_attn.q_proj", q, d)?,
        k: matrix("self_attn.k_proj", kv, d)?,
        v: matrix("self_attn.v_proj", kv, d)?,
        o: matrix("self_attn.o_proj", d, q)?,
        q_norm: head_norm("self_attn.q_norm")?,
        k_norm: head_norm("self_attn.k_norm")?,
        ffn_norm: vector("post_attention_layernorm", d)?,
        gate: matrix("mlp.gate_proj", mlp, d)?,
        up: matrix("mlp.up_proj", mlp, d)?,
        down: matrix("mlp.down_proj", d, mlp)?,
    })
}
