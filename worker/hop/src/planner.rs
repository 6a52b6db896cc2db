//! From a calibration, a parameter set and a prompt length to a program, or to a refusal that says what to change.

use cipherhop_ckks::Params;

use crate::calib::{Calibration, ChebApprox, LayerCalib};
use crate::error::PlanError;
use crate::plan::{Approx, LayerPlan, Levels, place_refreshes};
use crate::program::{ENGINE, PROGRAM_FORMAT, Program, ProgramLayer};

fn approx(c: &ChebApprox) -> Approx {
    Approx {
        lo: c.lo,
        hi: c.hi,
        coeffs: c.coeffs.clone(),
    }
}

/// m^-1/2 on the interval of `centre` times that of `inv`.
fn centred(inv: &ChebApprox, centre: f64) -> Approx {
    let factor = centre.sqrt().recip();
    Approx {
        lo: inv.lo * centre,
        hi: inv.hi * centre,
        coeffs: inv.coeffs.iter().map(|c| c * factor).collect(),
    }
}

/// Largest power of two that keeps the mean square at or below 1.
fn lift(f: f64, mean_square: f64) -> u64 {
    let (mut lift, target) = (1u64, f / mean_square.sqrt());
    while (lift * 2) as f64 <= target && lift < 1 << 40 {
        lift *= 2;
    }
    lift
}

fn layer_plan(c: &LayerCalib, f: f64) -> LayerPlan {
    let qk = c.qk.as_ref();
    LayerPlan {
        lift: [lift(f, c.inv_sqrt1.hi), lift(f, c.inv_sqrt2.hi)],
        norms: [approx(&c.inv_sqrt1), approx(&c.inv_sqrt2)],
        qk: qk.map(|q| [centred(&q.inv, q.q_centre), centred(&q.inv, q.k_centre)]),
        raw_private: qk.map_or(1.0, |q| q.raw_score),
        raw_public: qk.map_or(1.0, |q| q.raw_score_public),
        score: c.score,
        sigmoid: c.sigmoid.coeffs.clone(),
        softplus: c.softplus.coeffs.clone(),
        silu: approx(&c.silu),
        o: c.bounds.o,
        up: c.bounds.up,
        down: c.bounds.down,
        refresh: Vec::new(),
    }
}

/// Plans a chain of all layers for `tokens` private tokens. `weight_digests` are the SHA-256 of the weight packs.
pub fn plan(
    calibration: &Calibration,
    params: &Params,
    tokens: usize,
    weight_digests: &[[u8; 32]],
) -> Result<Program, PlanError> {
    let inconsistent = |what: String| PlanError::Inconsistent(what);
    calibration
        .check()
        .map_err(|e| inconsistent(e.to_string()))?;
    let model = &calibration.model;
    if weight_digests.len() != model.layers {
        return Err(inconsistent(format!(
            "{} weight packs, the model has {} layers",
            weight_digests.len(),
            model.layers
        )));
    }
    if tokens > calibration.max_private_tokens {
        return Err(PlanError::TooLarge {
            what: "the prompt in the calibrated length",
            need: tokens,
            have: calibration.max_private_tokens,
            hint: "shorten the prompt or calibrate for more private tokens".into(),
        });
    }
    let f = calibration.layers.iter().map(|l| l.f).fold(1.0, f64::max);
    let digest = calibration
        .digest()
        .map_err(|e| inconsistent(e.to_string()))?;
    let mut program = Program {
        format: PROGRAM_FORMAT.into(),
        engine: ENGINE.into(),
        params: params.name.clone(),
        params_digest: hex::encode(params.digest()),
        model: model.clone(),
        rotation: calibration.rotation,
        prefix: calibration.prefix.clone(),
        tokens,
        f,
        rope: calibration.rope[..tokens].to_vec(),
        calibration_sha256: hex::encode(digest),
        layers: Vec::with_capacity(model.layers),
    };
    let layout = program.layout()?;
    for (index, calib) in calibration.layers.iter().enumerate() {
        let mut plan = layer_plan(calib, f);
        plan.check()
            .map_err(|what| inconsistent(format!("layer {index}: {what}")))?;
        let (low, top) = (params.boot_in_level(), params.boot_out_level());
        let levels = Levels::count(index, &layout.for_plan(&plan, low, top), &plan, low, top)?;
        plan.refresh = place_refreshes(index, &layout, &plan, &levels)?;
        program.layers.push(ProgramLayer {
            weights_sha256: hex::encode(weight_digests[index]),
            plan,
            steps: Vec::new(),
        });
        let steps = program.circuit_steps(index, &layout)?;
        program.layers[index].steps = steps.into_iter().map(|s| s.name).collect();
        program.record(index)?;
    }
    Ok(program)
}
