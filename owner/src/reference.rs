//! The plaintext side of a chain: what every hop should give, and whether the prompt may be encrypted at all.

use cipherhop_hop::{
    calib::Calibration,
    fold::Rotator,
    model::{Model, ModelError, NextToken, PlainRun},
    stats::{LayerStats, Violation},
};

use crate::{
    accuracy::{HopErrors, Verdict},
    report::Refused,
};

/// A plaintext run of the prompt.
#[derive(Debug)]
pub struct Reference {
    /// Residual before hop 0, after hop 0, ...: `tokens` vectors of `d` each.
    pub residuals: Vec<Vec<f64>>,
    /// The plaintext model's next token.
    pub next: NextToken,
    /// Where the run leaves the calibrated intervals.
    pub violations: Vec<Violation>,
}

impl Reference {
    /// Runs the prompt and checks it against the calibration.
    pub fn run(model: &Model, calibration: &Calibration, tokens: &[u32]) -> anyhow::Result<Self> {
        let rotator = rotator(calibration)?;
        let mut violations = Vec::new();
        let run = PlainRun::run::<ModelError>(
            model,
            &calibration.prefix,
            &[tokens.to_vec()],
            true,
            |index, _, _, run| {
                let stats = LayerStats::of(&model.config, run, &rotator);
                violations.extend(stats.violations(index, &calibration.layers[index]));
                Ok(())
            },
        )?;
        let next = run.next_token(model, 0, tokens.len());
        Ok(Self {
            residuals: run.residuals,
            next,
            violations,
        })
    }

    /// Refuses a run that left an interval.
    pub fn check(&self) -> Result<(), Refused> {
        if self.violations.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = self
            .violations
            .iter()
            .take(10)
            .map(|v| format!("  {v}"))
            .collect();
        Err(Refused::OutsideCalibration(lines.join("\n")))
    }
}

/// The calibration's rotation.
pub fn rotator(calibration: &Calibration) -> anyhow::Result<Rotator> {
    let d = calibration.model.d;
    Rotator::new(calibration.rotation, d)
        .ok_or_else(|| anyhow::anyhow!("the calibration's rotation does not fit a width of {d}"))
}

/// Model and calibration belong together.
pub fn check_model(model: &Model, calibration: &Calibration) -> anyhow::Result<()> {
    if model.weights_sha256 != calibration.weights_sha256 || model.config != calibration.model {
        anyhow::bail!(
            "the calibration was made for {} (weights {}), not for this model",
            calibration.model_name,
            calibration.weights_sha256
        );
    }
    Ok(())
}

/// Decrypted hops beside the plaintext model.
#[derive(Debug)]
pub struct Comparison {
    /// Errors per hop.
    pub hops: Vec<HopErrors>,
    /// Next token of the encrypted run.
    pub next: NextToken,
    /// Verdict.
    pub verdict: Verdict,
}

/// Compares decrypted residuals (plain basis, unscaled) of all hops.
pub fn compare(
    model: &Model,
    calibration: &Calibration,
    reference: &Reference,
    found: &[Vec<f64>],
) -> Comparison {
    let d = model.config.d;
    let hops: Vec<HopErrors> = found
        .iter()
        .enumerate()
        .map(|(i, x)| {
            HopErrors::of(
                i as u32,
                x,
                &reference.residuals[i + 1],
                d,
                calibration.layers[i].f,
            )
        })
        .collect();
    let last = found
        .last()
        .map_or(&[][..], |x| &x[x.len().saturating_sub(d)..]);
    let next = NextToken::of(&model.logits(last));
    let verdict = Verdict::of(&hops, next.id == reference.next.id, reference.next.margin);
    Comparison {
        hops,
        next,
        verdict,
    }
}
