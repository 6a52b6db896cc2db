//! Text to tokens: byte-level BPE from a model's own vocabulary and merges, or plain bytes for the built-in models.

use std::collections::BTreeMap;

use tokenizers::{
    SplitDelimiterBehavior, Tokenizer as Bpe,
    models::bpe::{BPE, Vocab},
    normalizers::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{ModelError, error::malformed};

/// 256 bytes and four special tokens.
pub(crate) const BYTE_VOCAB: usize = 260;
const BYTE_SPECIALS: [(&str, u32); 4] = [
    ("<|im_start|>", 256),
    ("<|im_end|>", 257),
    ("<|endoftext|>", 258),
    ("<|pad|>", 259),
];

// The word-splitting pattern published with the Qwen2 and Qwen3 tokenizers.
pub(super) const QWEN_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Turns text into token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    /// `None`: every byte is its own token.
    bpe: Option<Box<Bpe>>,
    specials: BTreeMap<String, u32>,
}

/// Splits as the Qwen tokenizers do.
pub(super) fn qwen_split() -> Result<Split, ModelError> {
    let pattern = SplitPattern::Regex(QWEN_PATTERN.into());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(fail)
}

fn fail(e: impl std::fmt::Display) -> ModelError {
    ModelError::Tokenizer(e.to_string())
}

impl Tokenizer {
    /// Byte vocabulary.
    pub(crate) fn bytes() -> Self {
        Self {
            bpe: None,
            specials: BYTE_SPECIALS
                .iter()
                .map(|(t, i)| (t.to_string(), *i))
                .collect(),
        }
    }

    /// Byte-level BPE with the pre-tokenizer a GGUF file names.
    pub(crate) fn byte_level_bpe(
        tokens: &[String],
        merges: &[String],
        pre: &str,
        special: impl Fn(usize) -> bool,
    ) -> Result<Self, ModelError> {
        let pairs = merges.iter().map(|m| {
            let (a, b) = m
                .split_once(' ')
                .ok_or_else(|| malformed("a merge is no pair"))?;
            Ok((a.to_string(), b.to_string()))
        });
        let pairs: Vec<(String, String)> = pairs.collect::<Result<_, ModelError>>()?;
        let vocab = tokens
            .iter()
            .enumerate()
            .map(|(i, t)| (t.clone(), i as u32));
        let specials: BTreeMap<String, u32> = (0..tokens.len())
            .filter(|i| special(*i) && !tokens[*i].is_empty())
            .map(|i| (tokens[i].clone(), i as u32))
            .collect();
        let split: Vec<PreTokenizerWrapper> = match pre {
            "smollm" => vec![
                Digits::new(true).into(),
                ByteLevel::new(false, true, true).into(),
            ],
            "gpt-2" | "default" => vec![ByteLevel::new(false, true, true).into()],
            "qwen2" => vec![
                qwen_split()?.into(),
                ByteLevel::new(false, true, false).into(),
            ],
            other => return Err(ModelError::Unsupported(format!("pre-tokenizer {other}"))),
        };
        Self::build(vocab.collect(), pairs, split, None, specials)
    }

    /// From a tokenizer.json; all its added tokens count as special.
    pub(crate) fn from_json(text: &[u8]) -> Result<Self, ModelError> {
        let parts = super::tokenizer_json::read(text)?;
        let mut vocab: Vocab = parts.vocab.into_iter().collect();
        let specials: BTreeMap<String, u32> = parts.added.into_iter().collect();
        vocab.extend(specials.clone());
        Self::build(
            vocab,
            parts.merges,
            parts.split,
            parts.compose.then_some(NFC),
            specials,
        )
    }

    fn build(
        vocab: Vocab,
        merges: Vec<(String, String)>,
        split: Vec<PreTokenizerWrapper>,
        normalizer: Option<NFC>,
        specials: BTreeMap<String, u32>,
    ) -> Result<Self, ModelError> {
        let model = BPE::builder()
            .vocab_and_merges::<Vocab>(vocab, merges)
            .build()
            .map_err(fail)?;
        let mut bpe = Bpe::new(model);
        bpe.with_normalizer(normalizer);
        bpe.with_pre_tokenizer(Some(Sequence::new(split)));
        bpe.with_decoder(Some(ByteLevel::new(false, true, true)));
        Ok(Self {
            bpe: Some(Box::new(bpe)),
            specials,
        })
    }

    /// Tokens of a private prompt; special tokens are refused.
    pub fn encode_private(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        if let Some(name) = self.specials.keys().find(|s| text.contains(s.as_str())) {
            return Err(ModelError::SpecialToken(name.clone()));
        }
        self.encode_plain(text)
    }

    /// Tokens of a public text, special tokens included.
    pub fn encode_public(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let mut out = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            // Leftmost special token, longest where several start together.
            let found = self.specials.iter().filter_map(|(s, id)| {
                rest.find(s.as_str())
                    .map(|at| (at, std::cmp::Reverse(s.len()), *id))
            });
            let Some((at, length, id)) = found.min() else {
                out.extend(self.encode_plain(rest)?);
                break;
            };
            out.extend(self.encode_plain(&rest[..at])?);
            out.push(id);
            rest = &rest[at + length.0..];
        }
        Ok(out)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        match &self.bpe {
            None => Ok(text.bytes().map(u32::from).collect()),
            Some(_) if text.is_empty() => Ok(Vec::new()),
            Some(bpe) => Ok(bpe.encode(text, false).map_err(fail)?.get_ids().to_vec()),
        }
    }

    /// Whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.values().any(|s| *s == id)
    }

    /// Printable text of tokens.
    pub fn decode(&self, ids: &[u32]) -> String {
        let name = |id: u32| {
            self.specials
                .iter()
                .find(|(_, s)| **s == id)
                .map(|(name, _)| name.clone())
        };
        match &self.bpe {
            None => {
                let mut bytes = Vec::new();
                for id in ids {
                    match (u8::try_from(*id), name(*id)) {
                        (Ok(byte), _) => bytes.push(byte),
                        (_, Some(name)) => bytes.extend(name.bytes()),
                        _ => bytes.extend(format!("<{id}>").bytes()),
                    }
                }
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Some(bpe) => {
                if let (&[id], _) = (ids, ())
                    && let Some(name) = name(id)
                {
                    return name;
                }
                bpe.decode(ids, false)
                    .unwrap_or_else(|_| format!("{ids:?}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_are_public_only() {
        let t = Tokenizer::bytes();
        assert_eq!(t.encode_public("<|im_start|>\na").unwrap(), [256, 10, 97]);
        assert_eq!(t.encode_private("hé").unwrap(), [104, 0xc3, 0xa9]);
        assert!(
            matches!(t.encode_private("a<|im_end|>"), Err(ModelError::SpecialToken(s)) if s == "<|im_end|>")
        );
        assert_eq!(t.decode(&[256, 97, 300]), "<|im_start|>a<300>");
    }
}
