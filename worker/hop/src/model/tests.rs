//! Import of synthetic GGUF and safetensors files made from a built-in model.

use std::path::Path;

use proptest::prelude::*;

use super::{LayerWeights, Matrix, Model, ModelError, PlainRun, RopeLayout};

/// The printable stand-ins of bytes in byte-level vocabularies.
fn byte_char(b: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(b) {
        return char::from(b);
    }
    let rank = (0..b).filter(|x| !printable(*x)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}

fn vocabulary() -> Vec<String> {
    let specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|pad|>"];
    (0..=255)
        .map(|b| byte_char(b).to_string())
        .chain(specials.map(String::from))
        .collect()
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn gguf(model: &Model) -> Vec<u8> {
    let c = &model.config;
    let arch = if c.qk_norm() { "qwen3" } else { "llama" };
    let mut meta: Vec<(String, u32, Vec<u8>)> = Vec::new();
    let mut put = |key: &str, kind: u32, bytes: Vec<u8>| meta.push((key.to_string(), kind, bytes));
    let string = |s: &str| {
        let mut b = Vec::new();
        text(&mut b, s);
        b
    };
    let array = |kind: u32, count: usize, body: Vec<u8>| {
        [
            kind.to_le_bytes().to_vec(),
            (count as u64).to_le_bytes().to_vec(),
            body,
        ]
        .concat()
    };
    put("general.architecture", 8, string(arch));
    for (key, v) in [
        ("embedding_length", c.d),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", c.head_dim),
        ("feed_forward_length", c.mlp),
        ("block_count", c.layers),
    ] {
        put(
            &format!("{arch}.{key}"),
            4,
            (v as u32).to_le_bytes().to_vec(),
        );
    }
    put(
        &format!("{arch}.attention.layer_norm_rms_epsilon"),
        6,
        (c.eps as f32).to_le_bytes().to_vec(),
    );
    put(
        &format!("{arch}.rope.freq_base"),
        6,
        (c.rope_theta as f32).to_le_bytes().to_vec(),
    );
    put("tokenizer.ggml.model", 8, string("gpt2"));
    let words = vocabulary();
    put(
        "tokenizer.ggml.tokens",
        9,
        array(
            8,
            words.len(),
            words.iter().flat_map(|w| string(w)).collect(),
        ),
    );
    put("tokenizer.ggml.merges", 9, array(8, 0, Vec::new()));
    let kinds = (0..words.len())
        .flat_map(|i| (if i < 256 { 1i32 } else { 3 }).to_le_bytes())
        .collect();
    put("tokenizer.ggml.token_type", 9, array(5, words.len(), kinds));

    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = vec![
        (
            "token_embd.weight".into(),
            vec![c.d, c.vocab],
            model.embedding.data.clone(),
        ),
        (
            "output_norm.weight".into(),
            vec![c.d],
            model.final_norm.clone(),
        ),
        (
            "output.weight".into(),
            vec![c.d, c.vocab],
            model.lm_head.as_ref().unwrap().data.clone(),
        ),
    ];
    for i in 0..c.layers {
        let w = model.layer(i).unwrap();
        for (n, v) in vectors(&w) {
            tensors.push((format!("blk.{i}.{n}.weight"), vec![v.len()], v));
        }
        for (n, m) in matrices(&w) {
            tensors.push((format!("blk.{i}.{n}.weight"), vec![m.cols, m.rows], m.data));
        }
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, kind, bytes) in meta {
        text(&mut out, &key);
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    }
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        text(&mut out, &name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape
            .iter()
            .for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        data.resize(data.len().next_multiple_of(32), 0);
        out.extend((data.len() as u64).to_le_bytes());
        values.iter().for_each(|v| data.extend(v.to_le_bytes()));
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

fn vectors(w: &LayerWeights) -> Vec<(&'static str, Vec<f32>)> {
    let mut v = vec![
        ("attn_norm", w.attn_norm.clone()),
        ("ffn_norm", w.ffn_norm.clone()),
    ];
    if let (Some(q), Some(k)) = (&w.q_norm, &w.k_norm) {
        v.extend([("attn_q_norm", q.clone()), ("attn_k_norm", k.clone())]);
    }
    v
}

fn matrices(w: &LayerWeights) -> Vec<(&'static str, Matrix)> {
    [
        ("attn_q", &w.q),
        ("attn_k", &w.k),
        ("attn_v", &w.v),
        ("attn_output", &w.o),
        ("ffn_gate", &w.gate),
        ("ffn_up", &w.up),
        ("ffn_down", &w.down),
    ]
    .map(|(n, m)| (n, m.clone()))
    .to_vec()
}

/// Rows of every head from interleaved pairs to halves, as safetensors files of Llama models have them.
fn halves(m: &Matrix, head_dim: usize) -> Matrix {
    let half = head_dim / 2;
    let row = |r: usize| {
        let (head, i) = (r / head_dim, r % head_dim);
        head * head_dim + if i < half { 2 * i } else { 2 * (i - half) + 1 }
    };
    Matrix {
        data: (0..m.rows).flat_map(|r| m.row(row(r)).to_vec()).collect(),
        ..*m
    }
}

fn write_safetensors(model: &Model, dir: &Path) {
    let c = &model.config;
    let names = [
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    let hf = |n: &str| names.iter().find(|(a, _)| *a == n).unwrap().1;
    let mut all: Vec<(String, Vec<usize>, Vec<f32>)> = vec![
        (
            "model.embed_tokens.weight".into(),
            vec![c.vocab, c.d],
            model.embedding.data.clone(),
        ),
        (
            "model.norm.weight".into(),
            vec![c.d],
            model.final_norm.clone(),
        ),
        (
            "lm_head.weight".into(),
            vec![c.vocab, c.d],
            model.lm_head.as_ref().unwrap().data.clone(),
        ),
    ];
    for i in 0..c.layers {
        let w = model.layer(i).unwrap();
        for (n, v) in vectors(&w) {
            all.push((
                format!("model.layers.{i}.{}.weight", hf(n)),
                vec![v.len()],
                v,
            ));
        }
        for (n, m) in matrices(&w) {
            let interleaved =
                c.rope_layout == RopeLayout::Interleaved && matches!(n, "attn_q" | "attn_k");
            let m = if interleaved {
                halves(&m, c.head_dim)
            } else {
                m
            };
            all.push((
                format!("model.layers.{i}.{}.weight", hf(n)),
                vec![m.rows, m.cols],
                m.data,
            ));
        }
    }
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = all
        .into_iter()
        .map(|(n, s, v)| (n, s, v.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes.iter().map(|(n, s, b)| {
        (
            n.clone(),
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, s.clone(), b).unwrap(),
        )
    });
    std::fs::write(
        dir.join("model.safetensors"),
        safetensors::serialize(views, None).unwrap(),
    )
    .unwrap();
    let config = serde_json::json!({
        "model_type": if c.qk_norm() { "qwen3" } else { "llama" }, "hidden_size": c.d, "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim, "intermediate_size": c.mlp, "num_hidden_layers": c.layers, "vocab_size": c.vocab, "rms_norm_eps": c.eps,
        "rope_theta": c.rope_theta, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let vocab: serde_json::Map<String, serde_json::Value> = vocabulary()[..256]
        .iter()
        .enumerate()
        .map(|(i, t)| (t.clone(), i.into()))
        .collect();
    let added: Vec<_> = vocabulary()[256..]
        .iter()
        .enumerate()
        .map(|(i, t)| serde_json::json!({ "id": 256 + i, "content": t, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false }))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": added,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

fn last(model: &Model, prompt: &str) -> Vec<f64> {
    let ids = model.tokenizer.encode_private(prompt).unwrap();
    let prefix = model.default_prefix().unwrap();
    assert_eq!(prefix, [256, 10]);
    let run =
        PlainRun::run::<ModelError>(model, &prefix, &[ids], false, |_, _, _, _| Ok(())).unwrap();
    model.logits(&run.last)
}

#[test]
fn gguf_and_safetensors_files_give_the_model_they_were_made_from() {
    for name in super::TINY_NAMES {
        let model = Model::open(name).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, gguf(&model)).unwrap();
        let hf = tempfile::tempdir().unwrap();
        write_safetensors(&model, hf.path());
        for file in [path.to_str().unwrap(), hf.path().to_str().unwrap()] {
            let read = Model::open(file).unwrap();
            assert_eq!(read.layer(2).unwrap().down, model.layer(2).unwrap().down);
            for (a, b) in last(&read, "a\u{e9} 1")
                .iter()
                .zip(last(&model, "a\u{e9} 1"))
            {
                assert!((a - b).abs() < 1e-5, "{file}: {a} {b}");
            }
            assert!(matches!(
                read.tokenizer.encode_private("x<|im_end|>"),
                Err(ModelError::SpecialToken(_))
            ));
            assert!(read.layer(3).is_err());
        }
    }
}

#[test]
fn damaged_model_files_are_refused_without_panic() {
    let model = Model::open("tiny-qwen3").unwrap();
    let good = gguf(&model);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Model::open(path.to_str().unwrap())
    };
    for cut in [0, 3, 4, 11, 24, 25, 300, 5000, 9000, good.len() - 1] {
        assert!(open(&good[..cut]).is_err(), "cut at {cut}");
    }
    // Counts and lengths of 2^63 or so.
    for at in [8, 16, 24] {
        let mut bad = good.clone();
        bad[at..at + 8].fill(0x7f);
        assert!(open(&bad).is_err(), "length at {at}");
    }
    assert!(matches!(
        Model::open("/no/such/file.gguf"),
        Err(ModelError::UnknownModel(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn flipped_header_bytes_never_panic(at in 0usize..9000, value in any::<u8>()) {
        let model = Model::open("tiny-llama").unwrap();
        let mut bytes = gguf(&model);
        bytes[at] = value;
        let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        if let Ok(read) = Model::open(file.path().to_str().unwrap()) {
            let _ = (0..read.config.layers).map(|i| read.layer(i)).find(Result::is_err);
        }
    }
}
