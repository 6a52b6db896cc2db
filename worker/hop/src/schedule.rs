//! Which evaluation keys the steps of a hop use, in order.

use std::collections::BTreeMap;

use cipherhop_ckks::{Bootstrapper, KeySpec};

use crate::circuit::Circuit;
use crate::error::HopError;
use crate::record::{KeyUse, Record};

/// The keys of every step, in the order of use as far as it is known, each at the limbs it is used at. Found by
/// running the circuit on levels alone.
pub fn step_keys(
    circuit: &Circuit<'_>,
    boot: &Bootstrapper,
) -> Result<Vec<Vec<KeySpec>>, HopError> {
    let (slots, levels) = (circuit.layout.slots, &circuit.levels);
    let record = Record::new(slots, levels.floor, levels.top);
    let [stc, raise, cts, reduction] = boot.stage_keys();
    let mut regs = BTreeMap::from([("x".to_string(), levels.top)]);
    let mut all = Vec::new();
    for step in circuit.steps() {
        let missing = || HopError::Internal(format!("{}: missing register", step.name));
        let inputs = step.reads.iter().map(|r| regs.get(r).copied());
        let inputs: Vec<usize> = inputs.collect::<Option<_>>().ok_or_else(missing)?;
        let outputs = circuit.exec(&record, &step.op, &inputs)?;
        regs.extend(step.writes.iter().cloned().zip(outputs));
        let mut keys = Vec::new();
        for used in record.take_uses() {
            match used {
                KeyUse::Key(spec) => keys.push(spec),
                KeyUse::Stc => keys.extend(&stc),
                KeyUse::Raise => keys.extend(&raise),
                KeyUse::Cts => keys.extend(&cts),
                KeyUse::EvalMod => keys.extend(&reduction),
            }
        }
        all.push(keys);
    }
    Ok(all)
}
