//! A planned chain of a built-in or given model with its weight packs and one plain run.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use cipherhop_ckks::Params;
use cipherhop_hop::calib::{Calibration, PUBLIC_CORPUS};
use cipherhop_hop::calibrate::{CalibrateError, CalibrationOptions, calibrate, kept_path};
use cipherhop_hop::error::PlanError;
use cipherhop_hop::fold::{LayerPack, Rotator};
use cipherhop_hop::model::{Model, PlainRun};
use cipherhop_hop::planner::plan;
use cipherhop_hop::program::Program;
use sha2::{Digest, Sha256};

pub struct Chain {
    pub model: Model,
    pub calibration: Calibration,
    pub prefix: Vec<u32>,
}

pub fn chain(name: &str, tokens: usize) -> Chain {
    let model = Model::open(name).unwrap();
    let prefix = model.default_prefix().unwrap();
    let options = CalibrationOptions {
        max_windows: 105,
        ..CalibrationOptions::new(tokens)
    };
    // A kept calibration, also one for longer prompts, saves minutes with a real model.
    for most in tokens..=8 {
        let options = CalibrationOptions::new(most);
        let kept = kept_path(&model, &prefix, PUBLIC_CORPUS, &options)
            .filter(|_| name.ends_with("gguf"))
            .and_then(|path| std::fs::read(path).ok())
            .and_then(|bytes| Calibration::parse(&bytes).ok());
        if let Some(calibration) = kept {
            return Chain {
                model,
                calibration,
                prefix,
            };
        }
    }
    let calibration = calibrate(
        &model,
        &prefix,
        "public",
        PUBLIC_CORPUS,
        &options,
        |_, _| {},
    )
    .unwrap();
    Chain {
        model,
        calibration,
        prefix,
    }
}

impl Chain {
    /// Weight packs of all layers and the residuals of a plain run.
    pub fn packs(&self, prompt: &[u32]) -> (Vec<Vec<u8>>, PlainRun) {
        let rotator = Rotator::new(self.calibration.rotation, self.model.config.d).unwrap();
        let mut packs = Vec::new();
        let prompts = [prompt.to_vec()];
        let run = PlainRun::run::<CalibrateError>(
            &self.model,
            &self.prefix,
            &prompts,
            true,
            |i, w, kv, _| {
                packs.push(LayerPack::fold(&self.model.config, i, w, kv, &rotator).to_bytes());
                Ok(())
            },
        )
        .unwrap();
        (packs, run)
    }

    pub fn program(
        &self,
        params: &Params,
        tokens: usize,
        packs: &[Vec<u8>],
    ) -> Result<Program, PlanError> {
        let digests: Vec<[u8; 32]> = packs.iter().map(|p| Sha256::digest(p).into()).collect();
        plan(&self.calibration, params, tokens, &digests)
    }
}
