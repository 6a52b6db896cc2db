//! Model files and tokenizers.

use cipherhop_hop::model::Model;

use crate::scratch::place;

fn open(path: &std::path::Path, text: &str) {
    let Ok(model) = Model::open(&path.display().to_string()) else {
        return;
    };
    for layer in 0..model.config.layers.min(3) {
        let _ = model.layer(layer);
    }
    let _ = model.embed(&[0, 1, u32::MAX]);
    if let Ok(ids) = model.tokenizer.encode_public(text) {
        let _ = model.tokenizer.decode(&ids);
    }
    let _ = model.tokenizer.encode_private(text);
    let _ = model.default_prefix();
}

/// A GGUF file.
pub fn gguf(bytes: &[u8]) -> usize {
    let path = place("model.gguf", bytes);
    open(&path, "ab 1\u{e9}<|im_start|>\n");
    bytes.len()
}

/// Three files: two lengths of 16 bits, then config.json, tokenizer.json, and the tensors.
pub fn safetensors(bytes: &[u8]) -> usize {
    let Some(([a, b, c, d], rest)) = bytes.split_first_chunk::<4>() else {
        return bytes.len();
    };
    let (config, tokenizer) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
    let (config, rest) = rest.split_at(rest.len().min(config.into()));
    let (tokenizer, tensors) = rest.split_at(rest.len().min(tokenizer.into()));
    place("st/config.json", config);
    place("st/tokenizer.json", tokenizer);
    let path = place("st/model.safetensors", tensors);
    open(&path, "ab 1\u{e9}<|im_start|>\n");
    bytes.len()
}

/// A tokenizer.json beside good tensors, and after a NUL a text to take apart.
pub fn tokenizer(bytes: &[u8]) -> usize {
    const CONFIG: &[u8] = include_bytes!("../parts/config.json");
    const TENSORS: &[u8] = include_bytes!("../parts/model.safetensors");
    let mut parts = bytes.splitn(2, |b| *b == 0);
    place("tk/tokenizer.json", parts.next().unwrap_or_default());
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    place("tk/config.json", CONFIG);
    let path = place("tk/model.safetensors", TENSORS);
    open(&path, &text);
    bytes.len()
}
