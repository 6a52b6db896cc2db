//! From a hop's output ciphertext to residual vectors.

use std::{path::Path, sync::Arc};

use cipherhop_ckks::{Ciphertext, Context};
use cipherhop_hop::{calib::Calibration, fold::Rotator, model::Model, program::Program};

use crate::{
    Cryptor,
    chainfolder::ChainFolder,
    files::read_bounded,
    reference::{check_model, rotator},
};

/// Everything needed to decrypt and judge a chain's hops.
#[derive(Debug)]
pub struct Decryptor {
    /// Model.
    pub model: Model,
    /// Calibration.
    pub calibration: Calibration,
    program: Program,
    rotation: Rotator,
    ctx: Arc<Context>,
    cryptor: Cryptor,
}

impl Decryptor {
    /// For a created chain.
    pub fn open(folder: &ChainFolder) -> anyhow::Result<Self> {
        let calibration = folder.calibration()?;
        let model = Model::open(&folder.state.model)?;
        check_model(&model, &calibration)?;
        let keys = folder.keys()?;
        let ctx = Context::new(keys.params.clone())?;
        let cryptor = Cryptor::new(ctx.clone(), &keys.secret()?)?;
        Ok(Self {
            program: folder.program()?,
            rotation: rotator(&calibration)?,
            model,
            calibration,
            ctx,
            cryptor,
        })
    }

    /// Residual vectors in the model's own basis, unscaled.
    pub fn residual(&self, file: &Path) -> anyhow::Result<Vec<f64>> {
        self.residual_of(&read_bounded(file, 1 << 30)?)
    }

    /// The same from bytes.
    pub fn residual_of(&self, bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
        let ciphertext = Ciphertext::from_bytes(&self.ctx, bytes)?;
        let slots = self.cryptor.decrypt(&ciphertext)?;
        Ok(self
            .rotation
            .unrotate(&self.program.decode_residual(&slots)?))
    }
}
