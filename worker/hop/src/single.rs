//! One step of a hop by itself, from given inputs: what a referee runs when two traces differ.

use std::sync::Arc;
use std::time::Instant;

use cipherhop_ckks::{Ciphertext, KeyId, KeySource, KeySpec};
use sha2::{Digest, Sha256};

use crate::circuit::Circuit;
use crate::ckks_backend::Engine;
use crate::error::HopError;
use crate::program::Program;
use crate::schedule::step_keys;

/// A step and what it reads.
pub struct StepJob<'a> {
    /// Decoder layer.
    pub layer: u32,
    /// Weight pack of that layer.
    pub weights: &'a [u8],
    /// Number of the step, from 0.
    pub step: u32,
    /// Register and ciphertext (wire format) of every input.
    pub inputs: &'a [(String, Vec<u8>)],
}

/// What the step wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutput {
    /// Name of the step.
    pub name: String,
    /// Register and SHA-256 of every output.
    pub outputs: Vec<(String, [u8; 32])>,
    /// Wall time of the computation.
    pub seconds: f64,
}

fn no_step(step: u32, steps: usize) -> HopError {
    HopError::BadInput(format!("step {step} of {steps}"))
}

/// The evaluation keys the step uses.
pub fn keys_of_step(
    engine: &Engine,
    program: &Program,
    job: &StepJob<'_>,
) -> Result<Vec<KeySpec>, HopError> {
    let layer = job.layer as usize;
    let (layout, weights) = (program.layout()?, program.weights(layer, job.weights)?);
    program.with_circuit(layer, &layout, &weights, |circuit| {
        keys_in(circuit, engine, job.step)
    })?
}

fn keys_in(circuit: &Circuit<'_>, engine: &Engine, step: u32) -> Result<Vec<KeySpec>, HopError> {
    let mut steps = step_keys(circuit, &engine.boot)?;
    let index = step as usize;
    match index < steps.len() {
        true => Ok(steps.swap_remove(index)),
        false => Err(no_step(step, steps.len())),
    }
}

/// Runs the step.
pub fn run_step(
    engine: &Engine,
    program: &Program,
    job: &StepJob<'_>,
    keys: Arc<dyn KeySource>,
    threads: usize,
) -> Result<StepOutput, HopError> {
    let layer = job.layer as usize;
    let (layout, weights) = (program.layout()?, program.weights(layer, job.weights)?);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .build()
        .map_err(|e| HopError::Internal(e.to_string()))?;
    let backend = engine.backend(keys.clone());
    program.with_circuit(layer, &layout, &weights, |circuit| {
        let steps = circuit.steps();
        let step = steps
            .get(job.step as usize)
            .ok_or_else(|| no_step(job.step, steps.len()))?;
        let mut inputs = Vec::with_capacity(step.reads.len());
        for name in &step.reads {
            let given = job.inputs.iter().find(|(register, _)| register == name);
            let (_, bytes) = given.ok_or_else(|| {
                HopError::BadInput(format!("step {}: no register {name}", step.name))
            })?;
            inputs.push(Ciphertext::from_bytes(&engine.ctx, bytes)?);
        }
        let used = keys_in(circuit, engine, job.step)?;
        let mut used: Vec<KeyId> = used.iter().map(|spec| spec.id).collect();
        used.dedup();
        keys.expect(&used, &[]);
        let start = Instant::now();
        let outputs = pool.install(|| circuit.exec(&backend, &step.op, &inputs))?;
        let seconds = start.elapsed().as_secs_f64();
        let digest = |value: Ciphertext| Sha256::digest(value.to_bytes(&engine.ctx)).into();
        let outputs = step
            .writes
            .iter()
            .cloned()
            .zip(outputs.into_iter().map(digest));
        Ok(StepOutput {
            name: step.name.clone(),
            outputs: outputs.collect(),
            seconds,
        })
    })?
}
