//! How much memory a hop takes, from the parameter set, the program and the list of keys alone: whoever lacks it
//! should know before anything is downloaded or computed.

use cipherhop_ckks::{KeySpec, Params, expanded_key_size};

use crate::error::PlanError;
use crate::layout::Layout;
use crate::lin::LinearSpec;
use crate::program::Program;

/// Program, stacks, allocator.
const BASE: u64 = 48 << 20;
/// Extended ciphertexts at the top level whose memory is taken at the worst moment, in the reduction of a bootstrap: by
/// values between steps, by what a step makes, and by free blocks kept for reuse. Measured at N=2^16: 15.
const ALIVE: u64 = 15;
/// The same that are allowed for on top, 740 MiB at N=2^16: what the allocator does not give back. A hop of SmolLM2's
/// shape on one thread took 480 MiB of it.
const MARGIN: u64 = 20;
/// Words per coefficient and modulus of the transforms' tables.
const TABLES: u64 = 6;
/// Bytes per weight of a linear map while it is sorted into a diagonal, and of a value of a diagonal in each form.
const WEIGHT: u64 = 48;
const VALUE: u64 = 16;

/// Bytes a hop takes. All parts but the keys are there at once; of the keys as many as there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopMemory {
    /// Everything but keys.
    pub fixed: u64,
    /// The fewest bytes of keys that allow to work: those a linear map uses at a time.
    pub least_keys: u64,
    /// All keys.
    pub all_keys: u64,
}

impl HopMemory {
    /// Bytes beyond [`HopMemory::best`] that still make a hop faster. At N=2^16 on two threads it took 10.7 s with
    /// none, 10.4 s with half of them, 9.7 s with all.
    pub const USEFUL: u64 = 2 << 30;

    /// For a hop of the program with these keys on one thread. All layers of a program are estimated alike.
    pub fn estimate(
        program: &Program,
        keys: impl IntoIterator<Item = KeySpec>,
    ) -> Result<HopMemory, PlanError> {
        HopMemory::on_threads(program, keys, 1)
    }

    /// The same on that many threads.
    pub fn on_threads(
        program: &Program,
        keys: impl IntoIterator<Item = KeySpec>,
        threads: usize,
    ) -> Result<HopMemory, PlanError> {
        let params = program.params()?;
        let layout = program.layout()?;
        let mut sizes: Vec<u64> = keys
            .into_iter()
            .map(|spec| expanded_key_size(&params, spec) as u64)
            .collect();
        sizes.sort_unstable_by_key(|&bytes| std::cmp::Reverse(bytes));
        Ok(HopMemory {
            fixed: fixed(&params, &layout, threads),
            least_keys: sizes.iter().take(keys_at_a_time(&params)).sum(),
            all_keys: sizes.iter().sum(),
        })
    }

    /// The least a machine must have.
    pub fn least(&self) -> u64 {
        self.fixed + self.least_keys
    }

    /// What makes it fast: no key is read twice.
    pub fn best(&self) -> u64 {
        self.fixed + self.all_keys
    }

    /// Bytes that are left of `memory` beside all of it, up to what the engine makes use of.
    pub fn to_spare(&self, memory: u64) -> u64 {
        memory.saturating_sub(self.best()).min(HopMemory::USEFUL)
    }

    /// Bytes of keys that may be kept in `memory` bytes, if it is enough at all.
    pub fn key_budget(&self, memory: u64) -> Option<u64> {
        let left = memory.checked_sub(self.fixed)?;
        (left >= self.least_keys).then_some(left)
    }
}

fn fixed(params: &Params, layout: &Layout, threads: usize) -> u64 {
    let limb = params.n() as u64 * 8;
    let special = params.p.len() as u64;
    let limbs = params.q.len() as u64;
    let tables = (limbs + special) * limb * TABLES;
    let alive = (ALIVE + MARGIN) * 2 * (limbs + special) * limb;
    let weights = weights(layout, threads);
    BASE + tables + matrices(params) + alive + weights
}

/// Keys of the baby steps of a bootstrap matrix, which are in use together, and one more. Other maps use smaller keys.
fn keys_at_a_time(params: &Params) -> usize {
    1 + diagonals(params, params.cts_levels) as usize / 2
}

/// Diagonals of a bootstrap matrix that spans all slots.
fn diagonals(params: &Params, levels: usize) -> u64 {
    1u64 << (params.log_n as usize - 1).div_ceil(levels.max(1))
}

/// Encoded matrices of the bootstrap. Those that span all slots have a diagonal per point of their butterfly; the
/// others repeat after few slots and are small, together no more than two diagonals of each of the former.
fn matrices(params: &Params) -> u64 {
    let limb = params.n() as u64 * 8;
    let special = params.p.len() as u64;
    let stc = diagonals(params, params.stc_levels) * (params.stc_levels as u64 + 1 + special);
    let cts = diagonals(params, params.cts_levels) * (params.q.len() as u64 + special);
    (stc + cts) * limb + (stc + cts) * limb * 2 / diagonals(params, params.cts_levels)
}

/// A layer's weights, as they came and as they are used, and the diagonals of the largest step.
fn weights(layout: &Layout, threads: usize) -> u64 {
    let (d, kv) = (layout.d as u64, (layout.kv_heads * layout.head_dim) as u64);
    let all = 2 * d * (d + kv) + 3 * d * layout.mlp as u64;
    let maps = [
        layout.qkv_map(),
        layout.o_map(),
        layout.gate_up_map(),
        layout.down_map(),
    ];
    let steps = maps.iter().zip(layout.map_parts);
    let largest = steps.map(|(map, parts)| step(map, parts, threads)).max();
    2 * 4 * all + largest.unwrap_or(0)
}

/// One of the steps of a linear map: first its weights are sorted into diagonals, then those are encoded and every
/// thread transforms them for one modulus after the other.
fn step(map: &LinearSpec, parts: usize, threads: usize) -> u64 {
    let parts = parts.max(1) as u64;
    let weights: usize = map.rows.iter().map(|row| row.count).sum();
    let values = (map.rotations().len() * map.block) as u64 / parts;
    let sorting = weights as u64 / parts * WEIGHT + values * VALUE;
    sorting.max(values * VALUE * (2 + threads as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ckks_backend::Engine;

    #[test]
    fn the_matrices_of_a_bootstrap_take_no_more_than_estimated() {
        for name in ["n10-INSECURE", "n11-INSECURE", "n14-INSECURE"] {
            let params = Params::by_name(name).unwrap();
            let estimate = matrices(&params);
            let engine = Engine::new(params).unwrap();
            let real = engine.boot.bytes() as u64;
            assert!(
                (estimate / 2..=estimate).contains(&real),
                "{name}: {real} bytes, estimated {estimate}"
            );
        }
    }
}
