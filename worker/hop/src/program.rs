//! The program of a chain: everything that determines its bytes except weights, keys and the prompt. Canonical
//! JSON; its digest names the program.

use cipherhop_ckks::{Bootstrapper, Complex, Context, KeySpec, Params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::calib::RopeRow;
use crate::circuit::{Circuit, Step};
use crate::error::PlanError;
use crate::fold::{LayerPack, Rotation};
use crate::layout::{Layout, Shape};
use crate::model::{ModelConfig, RopeLayout};
use crate::plan::{LayerPlan, Levels, place_refreshes};
use crate::record::{OpCounts, Record};
use crate::tensors::{PackedLayer, Rope};

/// Value of [`Program::format`].
pub const PROGRAM_FORMAT: &str = "cipherhop-program/1";
/// Changes whenever the same program would give other bytes.
pub const ENGINE: &str = "cipherhop-engine/2";

const MAX_BYTES: usize = 64 << 20;

/// One layer of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramLayer {
    /// SHA-256 of the weight pack, lower-case hex.
    pub weights_sha256: String,
    /// Polynomials, bounds, bootstraps.
    pub plan: LayerPlan,
    /// Names of the steps, in order.
    pub steps: Vec<String>,
}

/// The program of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`PROGRAM_FORMAT`].
    pub format: String,
    /// [`ENGINE`].
    pub engine: String,
    /// Name of the parameter set.
    pub params: String,
    /// Digest of the parameter set, lower-case hex.
    pub params_digest: String,
    /// Shape of the model.
    pub model: ModelConfig,
    /// Rotation of the residual basis.
    pub rotation: Rotation,
    /// Public tokens.
    pub prefix: Vec<u32>,
    /// Private tokens, T.
    pub tokens: usize,
    /// Slots hold the residual divided by this power of two.
    #[serde(with = "crate::hexfloat")]
    pub f: f64,
    /// RoPE of the private positions.
    pub rope: Vec<RopeRow>,
    /// SHA-256 of the calibration file, lower-case hex.
    pub calibration_sha256: String,
    /// One entry per layer.
    pub layers: Vec<ProgramLayer>,
}

/// A step, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepInfo {
    /// Number from 0.
    pub index: u32,
    /// Name.
    pub name: String,
}

/// Shape of a model as the layout sees it.
pub fn shape_of(model: &ModelConfig) -> Shape {
    Shape {
        d: model.d,
        heads: model.heads,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        mlp: model.mlp,
        qk_norm: model.qk_norm(),
    }
}

/// Largest number of private tokens that fit, 0 if the model itself does not.
pub fn tokens_that_fit(params: &Params, model: &ModelConfig, prefix: usize) -> usize {
    Layout::most_tokens(shape_of(model), params.slots(), prefix)
}

fn bad(what: impl Into<String>) -> PlanError {
    PlanError::BadProgram(what.into())
}

impl Program {
    /// Reads a program; only the canonical text of a valid program is accepted.
    pub fn parse(bytes: &[u8]) -> Result<Program, PlanError> {
        if bytes.len() > MAX_BYTES {
            return Err(bad("too large"));
        }
        let program: Program = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        program.check()?;
        if program.to_bytes()? != bytes {
            return Err(bad("not in canonical form"));
        }
        Ok(program)
    }

    /// Canonical text.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PlanError> {
        serde_json::to_vec(self).map_err(|e| bad(e.to_string()))
    }

    /// SHA-256 of the canonical text.
    pub fn digest(&self) -> Result<[u8; 32], PlanError> {
        Ok(Sha256::digest(self.to_bytes()?).into())
    }

    /// Checks that all parts fit together and that every layer fits its levels.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.format != PROGRAM_FORMAT {
            return Err(bad(format!(
                "format '{}', this version reads '{PROGRAM_FORMAT}'",
                self.format
            )));
        }
        if self.engine != ENGINE {
            return Err(bad(format!(
                "made for engine '{}', this is '{ENGINE}'",
                self.engine
            )));
        }
        self.model.check().map_err(|e| bad(e.to_string()))?;
        let params = self.params()?;
        let layout = self.layout()?;
        let half = self.model.head_dim / 2;
        let fits = |r: &RopeRow| r.cos.len() == half && r.sin.len() == half;
        if self.rope.len() != self.tokens || !self.rope.iter().all(fits) {
            return Err(bad("RoPE tables do not fit the prompt"));
        }
        if !power_of_two(self.f) || self.layers.len() != self.model.layers {
            return Err(bad("residual factor or number of layers"));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let plan = &layer.plan;
            plan.check()
                .map_err(|what| bad(format!("layer {index}: {what}")))?;
            if plan.qk.is_some() != self.model.qk_norm() {
                return Err(bad(format!("layer {index}: q/k norm")));
            }
            let (low, top) = (params.boot_in_level(), params.boot_out_level());
            let levels = Levels::count(index, &layout.for_plan(plan, low, top), plan, low, top)?;
            if plan.refresh != place_refreshes(index, &layout, plan, &levels)? {
                return Err(bad(format!(
                    "layer {index}: bootstraps are not where they belong"
                )));
            }
            let names: Vec<String> = self
                .circuit_steps(index, &layout)?
                .into_iter()
                .map(|s| s.name)
                .collect();
            if names != layer.steps {
                return Err(bad(format!("layer {index}: list of steps")));
            }
        }
        Ok(())
    }

    /// The parameter set.
    pub fn params(&self) -> Result<Params, PlanError> {
        let params = Params::by_name(&self.params).map_err(|e| bad(e.to_string()))?;
        if hex::encode(params.digest()) != self.params_digest {
            return Err(bad("the parameter set of that name is another one"));
        }
        Ok(params)
    }

    /// The packing.
    pub fn layout(&self) -> Result<Layout, PlanError> {
        let slots = self.params()?.slots();
        Layout::new(shape_of(&self.model), slots, self.tokens, self.prefix.len())
    }

    fn layer(&self, layer: usize) -> Result<&ProgramLayer, PlanError> {
        self.layers
            .get(layer)
            .ok_or_else(|| bad(format!("layer {layer} of {}", self.layers.len())))
    }

    /// RoPE tables as the circuit reads them.
    pub fn rope_tables(&self) -> Rope {
        Rope {
            cos: self
                .rope
                .iter()
                .flat_map(|r| r.cos.iter().copied())
                .collect(),
            sin: self
                .rope
                .iter()
                .flat_map(|r| r.sin.iter().copied())
                .collect(),
            interleaved: self.model.rope_layout == RopeLayout::Interleaved,
        }
    }

    /// Calls `f` with the circuit of a layer.
    pub fn with_circuit<T>(
        &self,
        layer: usize,
        layout: &Layout,
        weights: &PackedLayer,
        f: impl FnOnce(&Circuit<'_>) -> T,
    ) -> Result<T, PlanError> {
        let params = self.params()?;
        let plan = &self.layer(layer)?.plan;
        let rope = self.rope_tables();
        let (low, top) = (params.boot_in_level(), params.boot_out_level());
        let layout = &layout.for_plan(plan, low, top);
        let levels = Levels::count(layer, layout, plan, low, top)?;
        Ok(f(&Circuit {
            layout,
            plan,
            levels,
            f: self.f,
            eps: self.model.eps,
            weights,
            rope: &rope,
        }))
    }

    pub(crate) fn circuit_steps(
        &self,
        layer: usize,
        layout: &Layout,
    ) -> Result<Vec<Step>, PlanError> {
        self.with_circuit(layer, layout, &PackedLayer::blank(layout), |c| c.steps())
    }

    /// Steps of a layer.
    pub fn steps(&self, layer: usize) -> Result<Vec<StepInfo>, PlanError> {
        let info = |(i, name): (usize, &String)| StepInfo {
            index: i as u32,
            name: name.clone(),
        };
        Ok(self
            .layer(layer)?
            .steps
            .iter()
            .enumerate()
            .map(info)
            .collect())
    }

    /// Runs a layer on levels alone: keys outside bootstraps, and operations.
    pub fn record(&self, layer: usize) -> Result<(Vec<KeySpec>, OpCounts), PlanError> {
        let params = self.params()?;
        let layout = self.layout()?;
        let (low, top) = (params.boot_in_level(), params.boot_out_level());
        let backend = Record::new(params.slots(), low, top);
        let out = self.with_circuit(layer, &layout, &PackedLayer::blank(&layout), |c| {
            c.run(&backend, top)
        })?;
        match out {
            Ok(level) if level == top => Ok((backend.key_specs(), backend.counts())),
            Ok(level) => Err(bad(format!("layer {layer} ends at level {level}"))),
            Err(e) => Err(bad(format!("layer {layer}: {e}"))),
        }
    }

    /// Every evaluation key the chain needs, each for the most limbs it is used at.
    pub fn key_specs(&self) -> Result<Vec<KeySpec>, PlanError> {
        let ctx = Context::new(self.params()?)?;
        let mut all = Bootstrapper::new(ctx)?.key_specs();
        for layer in 0..self.layers.len() {
            all.extend(self.record(layer)?.0);
        }
        Ok(merge_keys(all))
    }

    /// Checks a weight pack against the program and reads it.
    pub fn weights(&self, layer: usize, bytes: &[u8]) -> Result<PackedLayer, PlanError> {
        let wanted = &self.layer(layer)?.weights_sha256;
        if hex::encode(Sha256::digest(bytes)) != *wanted {
            return Err(PlanError::Inconsistent(format!(
                "the weight pack is not that of layer {layer}"
            )));
        }
        let pack = LayerPack::parse(bytes, &self.model)
            .map_err(|e| PlanError::Inconsistent(e.to_string()))?;
        if pack.layer != layer || pack.public != self.prefix.len() {
            return Err(PlanError::Inconsistent(
                "weight pack of another layer or prefix".into(),
            ));
        }
        Ok(pack.into())
    }

    /// Slots of a residual: `tokens` vectors of `d` in the rotated basis, unscaled.
    pub fn encode_residual(&self, x: &[f64]) -> Result<Vec<Complex>, PlanError> {
        let layout = self.layout()?;
        if x.len() != self.tokens * layout.d {
            return Err(PlanError::Inconsistent("residual of another size".into()));
        }
        let scaled: Vec<f64> = x.iter().map(|v| v / self.f).collect();
        Ok(layout.pack(&scaled))
    }

    /// The residual in decrypted slots, `tokens` vectors of `d` in the rotated basis, unscaled.
    pub fn decode_residual(&self, slots: &[Complex]) -> Result<Vec<f64>, PlanError> {
        let layout = self.layout()?;
        if slots.len() != layout.slots {
            return Err(PlanError::Inconsistent("another number of slots".into()));
        }
        Ok(layout
            .unpack(slots)
            .into_iter()
            .map(|v| v * self.f)
            .collect())
    }
}

pub(crate) fn power_of_two(v: f64) -> bool {
    v.is_normal() && v > 0.0 && v.to_bits() & ((1 << 52) - 1) == 0
}

/// One entry per key, with the most limbs asked for.
pub fn merge_keys(all: Vec<KeySpec>) -> Vec<KeySpec> {
    let mut best = std::collections::BTreeMap::new();
    for KeySpec { id, limbs } in all {
        let most = best.entry(id).or_insert(limbs);
        *most = limbs.max(*most);
    }
    best.into_iter()
        .map(|(id, limbs)| KeySpec { id, limbs })
        .collect()
}
