//! Decoder models in the clear: shapes, weights, import, tokenizer and the plain forward pass.
//!
//! Weights are public; the prompt is not. The key holder runs the plain forward to calibrate a model, to check a prompt
//! against the calibrated intervals and to judge a decrypted result. Nothing here runs inside an encrypted hop.

mod bytes;
mod config;
mod dequant;
mod error;
mod forward;
mod gguf;
mod hf;
mod math;
mod prng;
mod tiny;
mod tokenizer;
mod tokenizer_json;
mod weights;
mod weights_gguf;

pub use config::{Architecture, ModelConfig, RopeLayout};
pub use error::ModelError;
pub use forward::{LayerRun, NextToken, PlainRun, PublicKv, PublicPrefix, run_layer};
pub(crate) use math::dots;
pub use math::{Matrix, rope_tables};
pub use prng::SplitMix64;
pub use tiny::TINY_NAMES;
pub use tokenizer::Tokenizer;
pub use weights::{LayerWeights, Model};

#[cfg(test)]
mod tests;
