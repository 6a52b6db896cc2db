//! The circuit of one decoder layer (CIRCUIT.md section 3), as a list of steps between named registers.

mod attention;
mod mlp;
mod norm;
mod softmax;
mod steps;

pub use steps::{Op, Step};

use cipherhop_ckks::Complex;

use crate::backend::Backend;
use crate::error::HopError;
use crate::layout::Layout;
use crate::plan::{LayerPlan, Levels};
use crate::tensors::{PackedLayer, Rope};

/// Everything a step needs besides its input registers.
#[derive(Debug, Clone, Copy)]
pub struct Circuit<'a> {
    /// Packing.
    pub layout: &'a Layout,
    /// Calibrated polynomials and bounds.
    pub plan: &'a LayerPlan,
    /// Start levels of the segments.
    pub levels: Levels,
    /// Factor of the residual: slots hold x / f.
    pub f: f64,
    /// RMSNorm eps.
    pub eps: f64,
    /// Weights.
    pub weights: &'a PackedLayer,
    /// RoPE tables.
    pub rope: &'a Rope,
}

/// 1 where `yes`, else 0.
fn one(yes: bool) -> Complex {
    Complex::real(f64::from(u8::from(yes)))
}

impl Circuit<'_> {
    /// Computes one step.
    pub fn exec<B: Backend>(
        &self,
        b: &B,
        op: &Op,
        inputs: &[B::Ct],
    ) -> Result<Vec<B::Ct>, HopError> {
        let wrong = || HopError::Internal(format!("step {op:?} got {} registers", inputs.len()));
        let one = |r: Result<B::Ct, HopError>| r.map(|c| vec![c]);
        match (op, inputs) {
            (Op::NormStat(which), [x]) => one(self.norm_stat(b, *which, x)),
            (Op::NormApply(which), [x, u]) => one(self.norm_apply(b, *which, x, u)),
            (Op::Qkv(part), [h]) => one(self.qkv(b, *part, h)),
            (Op::Heads, parts) => self.split_heads(b, parts),
            (Op::Scores, [q, k]) => one(self.scores(b, q, k)),
            (Op::Leaves, [s]) => one(self.leaves(b, s, None)),
            (Op::Leaves, [s, n]) => one(self.leaves(b, s, Some(n))),
            (Op::BootStc, [x]) => one(b.boot_stc(x)),
            (Op::BootRaise, [x]) => one(b.boot_raise(x)),
            (Op::BootCts { complex }, [x]) => b.boot_cts(x, *complex),
            (Op::BootEvalMod { gain }, [x]) => one(b.boot_evalmod(x, *gain)),
            (Op::QkFactors, [x]) => one(self.qk_factors(b, x)),
            (Op::Round(round), [l]) => self.round(b, *round, l),
            (Op::Pack { rounds }, [l, weights @ ..]) => one(self.pack_round(b, l, rounds, weights)),
            (Op::Unpack { rounds }, [l]) => self.unpack_round(b, l, rounds),
            (Op::Probabilities, [last, weights @ ..]) => one(self.probabilities(b, last, weights)),
            (Op::Spread, [p]) => one(self.spread(b, p)),
            (Op::Values, [p, v]) => one(self.values(b, p, v)),
            (Op::Out(part), [a]) => one(self.out(b, *part, a)),
            (Op::Copies, parts) => one(self.copies(b, parts)),
            (Op::Add, [x, y]) => one(b.add(x, y)),
            (Op::GateUp(part), [h]) => one(self.gate_up(b, *part, h)),
            (Op::Centre, parts) => one(self.centre(b, parts)),
            (Op::Act, [g, u]) => one(self.act(b, g, u)),
            (Op::Down(part), [a]) => one(self.down(b, *part, a)),
            (Op::Gather, parts) => one(self.gather(b, parts)),
            _ => Err(wrong()),
        }
    }

    /// Runs all steps in memory.
    pub fn run<B: Backend>(&self, b: &B, x: B::Ct) -> Result<B::Ct, HopError> {
        self.run_observed(b, x, &mut |_| {})
    }

    /// The same, showing every register that is written.
    pub fn run_observed<B: Backend>(
        &self,
        b: &B,
        x: B::Ct,
        see: &mut dyn FnMut(&B::Ct),
    ) -> Result<B::Ct, HopError> {
        let mut regs = std::collections::BTreeMap::from([("x".to_string(), x)]);
        let mut last = None;
        for step in self.steps() {
            let inputs = step
                .reads
                .iter()
                .map(|r| regs.get(r).cloned())
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| HopError::Internal(format!("{}: missing register", step.name)))?;
            let outputs = self.exec(b, &step.op, &inputs)?;
            if outputs.len() != step.writes.len() {
                return Err(HopError::Internal(format!(
                    "{}: {} outputs",
                    step.name,
                    outputs.len()
                )));
            }
            outputs.iter().for_each(&mut *see);
            last = outputs.first().cloned();
            regs.extend(step.writes.iter().cloned().zip(outputs));
        }
        last.ok_or_else(|| HopError::Internal("no steps".into()))
    }
}
