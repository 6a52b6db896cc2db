//! `prompt check`: how long a prompt may be, and whether this one is.

use std::path::Path;

use anyhow::{Context as _, bail};
use cipherhop_ckks::Params;
use cipherhop_hop::{
    calib::Calibration,
    model::{Model, ModelConfig},
    program::tokens_that_fit,
};
use serde_json::json;

use crate::{
    cli::PromptCheck,
    files::read_bounded,
    reference::check_model,
    report::{Outcome, Output, Refused},
};

/// Most private tokens, and what limits them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    most: usize,
    why: String,
}

impl Limit {
    /// The smaller of what the ring holds and what the calibration covers.
    pub(crate) fn of(
        params: &Params,
        model: &ModelConfig,
        prefix: usize,
        calibrated: Option<usize>,
    ) -> Limit {
        let ring = Limit {
            most: tokens_that_fit(params, model, prefix),
            why: format!("the ring of {}", params.name),
        };
        match calibrated {
            Some(most) if most < ring.most => Limit {
                most,
                why: "the calibration".into(),
            },
            _ => ring,
        }
    }

    /// Refuses a longer prompt.
    pub(crate) fn check(&self, tokens: usize) -> Result<(), Refused> {
        if tokens <= self.most {
            return Ok(());
        }
        Err(Refused::TooManyTokens {
            tokens,
            fit: self.most,
            limit: self.why.clone(),
        })
    }
}

/// Tokens of the private prompt, from the command line or a file.
pub(crate) fn private_tokens(
    prompt: Option<&str>,
    file: Option<&Path>,
    model: &Model,
) -> anyhow::Result<Vec<u32>> {
    let text = match (prompt, file) {
        (Some(text), _) => text.to_string(),
        (None, Some(path)) => String::from_utf8(read_bounded(path, 1 << 20)?)
            .context("the prompt is no UTF-8 text")?,
        (None, None) => bail!("no prompt"),
    };
    let tokens = model
        .tokenizer
        .encode_private(&text)
        .map_err(Refused::Prompt)?;
    if tokens.is_empty() {
        bail!("the prompt is empty");
    }
    Ok(tokens)
}

/// `prompt check`
pub fn check(args: &PromptCheck, out: &Output) -> anyhow::Result<Outcome> {
    let params = Params::by_name(&args.params)?;
    let model = Model::open(&args.model)?;
    let (prefix, calibrated) = match (&args.calibration, &args.prefix) {
        (Some(path), _) => {
            let calibration = Calibration::parse(&read_bounded(path, 64 << 20)?)?;
            check_model(&model, &calibration)?;
            let most = calibration.max_private_tokens;
            (calibration.prefix, Some(most))
        }
        (None, Some(text)) => (model.tokenizer.encode_public(text)?, args.tokens),
        (None, None) => (model.default_prefix()?, args.tokens),
    };
    let limit = Limit::of(&params, &model.config, prefix.len(), calibrated);
    let tokens = private_tokens(args.prompt.as_deref(), args.prompt_file.as_deref(), &model)?;
    limit.check(tokens.len())?;
    let value = json!({ "tokens": tokens.len(), "most_tokens": limit.most, "limit": limit.why, "public_tokens": prefix.len() });
    out.result(
        &value,
        &format!(
            "{} private tokens; at most {} fit ({})",
            tokens.len(),
            limit.most,
            limit.why
        ),
    )?;
    Ok(Outcome::Success)
}
