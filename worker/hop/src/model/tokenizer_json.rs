//! Reader of tokenizer.json: the parts of a byte-level BPE, and nothing else.
//!
//! Own code because the reader of the tokenizers crate panics on some malformed files, and because a regular expression
//! from a stranger can take for ever.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokenizers::pre_tokenizers::{PreTokenizerWrapper, byte_level::ByteLevel, digits::Digits};

use super::{
    ModelError,
    error::malformed,
    tokenizer::{QWEN_PATTERN, qwen_split},
};

/// What a tokenizer is built from.
pub(super) struct Parts {
    /// Tokens of the vocabulary.
    pub vocab: BTreeMap<String, u32>,
    /// Pairs, the most frequent first.
    pub merges: Vec<(String, String)>,
    /// Special tokens.
    pub added: Vec<(String, u32)>,
    /// How text is split into words.
    pub split: Vec<PreTokenizerWrapper>,
    /// Text is put in normal form C first.
    pub compose: bool,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Kind>,
    pre_tokenizer: Option<Splitter>,
    model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Kind {
    r#type: String,
}

#[derive(Deserialize)]
struct Splitter {
    r#type: String,
    #[serde(default)]
    pretokenizers: Vec<Step>,
    #[serde(flatten)]
    alone: StepOptions,
}

#[derive(Deserialize)]
struct Step {
    r#type: String,
    #[serde(flatten)]
    options: StepOptions,
}

#[derive(Deserialize)]
struct StepOptions {
    #[serde(default)]
    add_prefix_space: bool,
    #[serde(default = "yes")]
    use_regex: bool,
    #[serde(default)]
    individual_digits: bool,
    pattern: Option<Pattern>,
    behavior: Option<String>,
    #[serde(default)]
    invert: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
struct Bpe {
    r#type: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

fn unsupported(what: impl std::fmt::Display) -> ModelError {
    ModelError::Unsupported(format!("tokenizer.json: {what}"))
}

/// Reads the file.
pub(super) fn read(text: &[u8]) -> Result<Parts, ModelError> {
    let file: File =
        serde_json::from_slice(text).map_err(|e| malformed(format!("tokenizer.json: {e}")))?;
    let model = file.model;
    if model.r#type.is_some_and(|kind| kind != "BPE") {
        return Err(unsupported("only byte-level BPE is supported"));
    }
    let marks = [
        model.unk_token,
        model.continuing_subword_prefix,
        model.end_of_word_suffix,
    ];
    if model.byte_fallback
        || model.dropout.is_some_and(|share| share != 0.0)
        || marks.into_iter().flatten().any(|mark| !mark.is_empty())
    {
        return Err(unsupported(
            "a BPE with marks, dropout or byte fallback is no byte-level one",
        ));
    }
    let compose = match file.normalizer.map(|kind| kind.r#type) {
        None => false,
        Some(kind) if kind == "NFC" => true,
        Some(kind) => return Err(unsupported(format!("normalizer {kind}"))),
    };
    let steps = match file.pre_tokenizer {
        None => Vec::new(),
        Some(Splitter {
            r#type,
            pretokenizers,
            ..
        }) if r#type == "Sequence" => pretokenizers,
        Some(Splitter { r#type, alone, .. }) => vec![Step {
            r#type,
            options: alone,
        }],
    };
    let merges = model.merges.into_iter().map(|merge| match merge {
        Merge::Pair(a, b) => Ok((a, b)),
        Merge::Text(text) => text
            .split_once(' ')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .ok_or_else(|| malformed("a merge is no pair")),
    });
    let added = file
        .added_tokens
        .into_iter()
        .map(|token| (token.content, token.id));
    Ok(Parts {
        merges: merges.collect::<Result<_, _>>()?,
        vocab: model.vocab,
        // An empty one would be found everywhere.
        added: added.filter(|(content, _)| !content.is_empty()).collect(),
        split: splitters(steps)?,
        compose,
    })
}

fn splitters(steps: Vec<Step>) -> Result<Vec<PreTokenizerWrapper>, ModelError> {
    let mut split: Vec<PreTokenizerWrapper> = Vec::new();
    let mut bytes = false;
    for Step { r#type, options } in steps {
        split.push(match r#type.as_str() {
            "ByteLevel" => {
                bytes = true;
                ByteLevel::new(options.add_prefix_space, true, options.use_regex).into()
            }
            "Digits" => Digits::new(options.individual_digits).into(),
            "Split" => match (options.pattern, options.behavior.as_deref(), options.invert) {
                (Some(Pattern::Regex(pattern)), Some("Isolated"), false)
                    if pattern == QWEN_PATTERN =>
                {
                    qwen_split()?.into()
                }
                (Some(Pattern::Regex(pattern) | Pattern::String(pattern)), ..) => {
                    let shown: String = pattern.chars().take(200).collect();
                    return Err(unsupported(format!("word pattern {shown:?}")));
                }
                (None, ..) => return Err(malformed("tokenizer.json: a split without a pattern")),
            },
            other => return Err(unsupported(format!("pre-tokenizer {other}"))),
        });
    }
    if !bytes {
        return Err(unsupported(
            "a pre-tokenizer that does not split into bytes",
        ));
    }
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"added_tokens":[{"id":3,"content":"<s>"},{"id":9,"content":""}],"normalizer":{"type":"NFC"},
        "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
        {"type":"ByteLevel","add_prefix_space":false}]},"decoder":{"type":"ByteLevel"},
        "model":{"type":"BPE","dropout":null,"vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"],"a b"]}}"#;

    #[test]
    fn the_parts_of_a_byte_level_bpe_are_read() {
        let parts = read(GOOD.as_bytes()).unwrap();
        assert_eq!(parts.vocab["ab"], 2);
        assert_eq!(parts.merges, vec![("a".to_owned(), "b".to_owned()); 2]);
        assert_eq!(parts.added, [("<s>".to_owned(), 3)]);
        assert!(parts.compose && parts.split.len() == 2);
    }

    /// The tokenizers crate's own reader panics on some of these (found by fuzzing).
    #[test]
    fn malformed_and_unsupported_files_are_refused() {
        for (from, to) in [
            (
                r#""decoder":{"type":"ByteLevel"}"#,
                r#""decoder":{"type":"ByteLevel",z "a":1}"#,
            ),
            (r#""type":"BPE""#, r#""type":"WordPiece""#),
            (r#""dropout":null"#, r#""dropout":0.5"#),
            (r#""type":"NFC""#, r#""type":"Precompiled""#),
            (
                r#"{"type":"Digits","individual_digits":true}"#,
                r#"{"type":"Split","pattern":{"Regex":"(a+)+$"},"behavior":"Isolated"}"#,
            ),
            (
                r#"{"type":"ByteLevel","add_prefix_space":false}"#,
                r#"{"type":"Whitespace"}"#,
            ),
            (r#""a b""#, r#""ab""#),
        ] {
            let bad = GOOD.replace(from, to);
            assert_ne!(bad, GOOD, "{from}");
            assert!(read(bad.as_bytes()).is_err(), "{to}");
        }
        for cut in 0..GOOD.len() {
            assert!(read(&GOOD.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
    }
}
