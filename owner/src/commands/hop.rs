//! `hop check`: one hop's output against the plaintext model.

use anyhow::bail;
use serde_json::json;

use super::chain::{fetch_output, verified_outputs};
use crate::{
    accuracy::{HopErrors, MAX_REL_RMS},
    chainfolder::ChainFolder,
    cli::HopCheck,
    decrypt::Decryptor,
    reference::Reference,
    report::{Outcome, Output},
};

/// Runs the command.
pub async fn check(args: &HopCheck, out: &Output) -> anyhow::Result<Outcome> {
    let folder = ChainFolder::open(&args.chain)?;
    let decryptor = Decryptor::open(&folder)?;
    let hop = args.hop as usize;
    let Some(calib) = decryptor.calibration.layers.get(hop) else {
        bail!(
            "the chain has {} hops, 0 to {}",
            decryptor.calibration.layers.len(),
            decryptor.calibration.layers.len() - 1
        );
    };
    let path = match &args.file {
        Some(path) => path.clone(),
        None => {
            let connection = folder.connect()?;
            let (_, outputs) = verified_outputs(&folder, &connection).await?;
            let Some(blob) = outputs.get(hop) else {
                out.note(&format!("hop {hop} is not verified yet"));
                return Ok(Outcome::Incomplete);
            };
            fetch_output(&folder, &connection, args.hop, blob).await?
        }
    };
    let reference = Reference::run(
        &decryptor.model,
        &decryptor.calibration,
        &folder.state.tokens,
    )?;
    let found = tokio::task::block_in_place(|| decryptor.residual(&path))?;
    let errors = HopErrors::of(
        args.hop,
        &found,
        &reference.residuals[hop + 1],
        decryptor.model.config.d,
        calib.f,
    );
    let last = hop + 1 == decryptor.calibration.layers.len();
    let within = errors.within() && (!last || errors.worst_rel_rms <= MAX_REL_RMS);
    let rms: Vec<String> = errors.rel_rms.iter().map(|r| format!("{r:.1e}")).collect();
    let text = format!(
        "hop {}: max|err|/F {:.1e}, relative rms per token {}: {}",
        args.hop,
        errors.max_err_over_f,
        rms.join(" "),
        if within {
            "within the limits"
        } else {
            "NOT within the limits"
        }
    );
    out.result(&json!({ "hop": errors, "within": within }), &text)?;
    Ok(if within {
        Outcome::Success
    } else {
        Outcome::NotAccepted
    })
}
