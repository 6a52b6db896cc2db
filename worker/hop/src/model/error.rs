//! What can go wrong with a model file, a tokenizer or a prompt.

/// Errors of model import, tokenizer and plain forward.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Reading the file failed.
    #[error("cannot read {path}: {source}")]
    Io {
        /// File that was read.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The bytes are no valid model file.
    #[error("malformed model file: {0}")]
    Malformed(String),
    /// Valid, but something this program does not support.
    #[error("unsupported model: {0}")]
    Unsupported(String),
    /// A tensor is missing.
    #[error("tensor {0} is missing from the model file")]
    MissingTensor(String),
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Tensor name.
        name: String,
        /// Shape in the file, outermost first.
        found: Vec<usize>,
        /// Shape the configuration asks for, outermost first.
        expected: Vec<usize>,
    },
    /// No such built-in model and no such file.
    #[error(
        "no model named {0}: give a .gguf file, a folder with safetensors and config.json, or one of tiny-llama, tiny-qwen3"
    )]
    UnknownModel(String),
    /// The tokenizer could not be built or used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A private prompt holds a special token.
    #[error(
        "the prompt holds the special token {0}: special tokens are public and may only stand in the public prefix"
    )]
    SpecialToken(String),
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    TokenId {
        /// Id asked for.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Nothing to run.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
}

pub(crate) fn malformed(text: impl Into<String>) -> ModelError {
    ModelError::Malformed(text.into())
}
