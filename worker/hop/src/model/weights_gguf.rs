//! Llama and Qwen3 shapes from GGUF files.

use std::path::Path;

use super::{
    Architecture, LayerWeights, Model, ModelConfig, ModelError, RopeLayout, Tokenizer,
    error::malformed,
    gguf::{GgufFile, Value},
    weights::{Store, file_digest},
};

/// Opens a GGUF file: configuration, tokenizer, embedding and output matrices; layers stay on disk.
pub(crate) fn open(path: &Path) -> Result<Model, ModelError> {
    let file = GgufFile::open(path)?;
    let config = config(&file)?;
    let (d, vocab) = (config.d, config.vocab);
    let tokenizer = tokenizer(&file)?;
    let embedding = file.matrix("token_embd.weight", vocab, d)?;
    let final_norm = file.vector("output_norm.weight", d)?;
    let lm_head = if config.tied {
        None
    } else {
        Some(file.matrix("output.weight", vocab, d)?)
    };
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = file
        .text("general.name")
        .map(str::to_string)
        .or(stem)
        .unwrap_or_else(|| "model".into());
    let weights_sha256 = file_digest(path)?;
    Ok(Model {
        name,
        config,
        tokenizer,
        weights_sha256,
        embedding,
        final_norm,
        lm_head,
        store: Store::Gguf(file),
    })
}

fn config(file: &GgufFile) -> Result<ModelConfig, ModelError> {
    let name = file
        .text("general.architecture")
        .ok_or_else(|| malformed("general.architecture is missing"))?;
    let (arch, rope_layout) = match name {
        "llama" => (Architecture::Llama, RopeLayout::Interleaved),
        "qwen3" | "qwen3vl" => (Architecture::Qwen3, RopeLayout::HalfSplit),
        other => {
            return Err(ModelError::Unsupported(format!(
                "architecture {other}: llama and qwen3 are supported"
            )));
        }
    };
    let key = |k: &str| format!("{name}.{k}");
    if let Some(Value::Text(kind)) = file.value(&key("rope.scaling.type"))
        && kind != "none"
    {
        return Err(ModelError::Unsupported(format!("RoPE scaling {kind}")));
    }
    if file.has_tensor("rope_freqs.weight") {
        return Err(ModelError::Unsupported("RoPE frequency factors".into()));
    }
    if file.has_tensor("blk.0.attn_q.bias") || file.has_tensor("blk.0.ffn_gate_inp.weight") {
        return Err(ModelError::Unsupported(
            "attention biases or mixture of experts".into(),
        ));
    }
    let (d, heads) = (
        file.count(&key("embedding_length"))?,
        file.count(&key("attention.head_count"))?,
    );
    let config = ModelConfig {
        arch,
        d,
        heads,
        kv_heads: file.count(&key("attention.head_count_kv")).unwrap_or(heads),
        head_dim: file
            .count(&key("attention.key_length"))
            .unwrap_or(d / heads.max(1)),
        mlp: file.count(&key("feed_forward_length"))?,
        layers: file.count(&key("block_count"))?,
        vocab: file.shape("token_embd.weight")?[0],
        eps: file.float(&key("attention.layer_norm_rms_epsilon"))?,
        rope_theta: file.float(&key("rope.freq_base")).unwrap_or(10_000.0),
        rope_layout,
        tied: !file.has_tensor("output.weight"),
    };
    if let Ok(rotated) = file.count(&key("rope.dimension_count"))
        && rotated != config.head_dim
    {
        return Err(ModelError::Unsupported("RoPE on part of a head".into()));
    }
    config.check()?;
    Ok(config)
}

fn tokenizer(file: &GgufFile) -> Result<Tokenizer, ModelError> {
    match file.text("tokenizer.ggml.model") {
        Some("gpt2") => {}
        other => {
            return Err(ModelError::Unsupported(format!(
                "tokenizer {other:?}: byte-level BPE (gpt2) is supported"
            )));
        }
    }
    let (Some(Value::Texts(tokens)), Some(Value::Texts(merges))) = (
        file.value("tokenizer.ggml.tokens"),
        file.value("tokenizer.ggml.merges"),
    ) else {
        return Err(malformed("the vocabulary or the merges are missing"));
    };
    let kinds: &[i64] = match file.value("tokenizer.ggml.token_type") {
        Some(Value::Ints(kinds)) if kinds.len() == tokens.len() => kinds,
        _ => return Err(malformed("token types are missing")),
    };
    let pre = file.text("tokenizer.ggml.pre").unwrap_or("gpt-2");
    // Kinds 3 (control) and 4 (user defined) never come out of ordinary text.
    let special = |id: usize| matches!(kinds[id], 3 | 4);
    Tokenizer::byte_level_bpe(tokens, merges, pre, special)
}

/// Reads one layer.
pub(crate) fn layer(
    file: &GgufFile,
    cfg: &ModelConfig,
    index: usize,
) -> Result<LayerWeights, ModelError> {
    let name = |part: &str| format!("blk.{index}.{part}.weight");
    let matrix = |part: &str, rows, cols| file.matrix(&name(part), rows, cols);
    let head_norm = |part: &str| {
        cfg.qk_norm()
            .then(|| file.vector(&name(part), cfg.head_dim))
            .transpose()
    };
    let (d, q, kv, mlp) = (cfg.d, cfg.q_width(), cfg.kv_width(), cfg.mlp);
    Ok(LayerWeights {
        attn_norm: file.vector(&name("attn_norm"), d)?,
        q: matrix("attn_q", q, d)?,
        k: matrix("attn_k", kv, d)?,
        v: matrix("attn_v", kv, d)?,
        o: matrix("attn_output", d, q)?,
        q_norm: head_norm("attn_q_norm")?,
        k_norm: head_norm("attn_k_norm")?,
        ffn_norm: file.vector(&name("ffn_norm"), d)?,
        gate: matrix("ffn_gate", mlp, d)?,
        up: matrix("ffn_up", mlp, d)?,
        down: matrix("ffn_down", d, mlp)?,
    })
}
