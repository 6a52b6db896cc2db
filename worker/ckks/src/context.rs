//! Everything precomputed from a parameter set: moduli, transform tables, scale table, encoder roots.

use crate::cipher::ScaleId;
use crate::convert::BaseConverter;
use crate::encode::Encoder;
use crate::error::CkksError;
use crate::error::ParamError;
use crate::isa::best_kernel;
use crate::kernel::Kernel;
use crate::modular::Modulus;
use crate::ntt::{NttTable, automorphism_table};
use crate::params::Params;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Ratio of the two scale rows at the level where they meet.
pub(crate) const EVALMOD_OVER_MESSAGE: f64 = 256.0;

/// Precomputed tables of a parameter set. Moduli are numbered with all q first, then all p.
#[derive(Debug)]
pub struct Context {
    params: Params,
    digest: [u8; 32],
    tables: Vec<NttTable>,
    message_scales: Vec<f64>,
    evalmod_scales: Vec<f64>,
    encoder: Encoder,
    converters: Converters,
    automorphisms: RwLock<HashMap<usize, Arc<Vec<u32>>>>,
    kernel: Arc<dyn Kernel>,
}

/// Base conversions that key switching and rescaling need.
#[derive(Debug)]
pub(crate) struct Converters {
    /// [digit][k-1]: the first k limbs of a digit
    pub(crate) digits: Vec<Vec<BaseConverter>>,
    /// the special primes
    pub(crate) special: BaseConverter,
    /// the first special prime alone
    pub(crate) special_one: BaseConverter,
    /// [l]: q_l and the special primes, for ModDown and rescale at once
    pub(crate) special_and: Vec<BaseConverter>,
}

impl Converters {
    fn new(tables: &[NttTable], q_len: usize, alpha: usize) -> Converters {
        let moduli: Vec<Modulus> = tables.iter().map(|t| t.modulus).collect();
        let special: Vec<usize> = (q_len..moduli.len()).collect();
        let digits = (0..q_len)
            .step_by(alpha)
            .map(|start| {
                (start + 1..=q_len.min(start + alpha))
                    .map(|end| BaseConverter::new(&moduli, &(start..end).collect::<Vec<_>>()))
                    .collect()
            })
            .collect();
        let special_and = (0..q_len)
            .map(|l| {
                let mut sources = special.clone();
                sources.push(l);
                BaseConverter::new(&moduli, &sources)
            })
            .collect();
        Converters {
            digits,
            special: BaseConverter::new(&moduli, &special),
            special_one: BaseConverter::new(&moduli, &special[..1]),
            special_and,
        }
    }
}

impl Context {
    /// Builds the tables, with the fastest kernel for this processor.
    pub fn new(params: Params) -> Result<Arc<Context>, CkksError> {
        Context::with_kernel(params, best_kernel())
    }

    /// Builds the tables; every kernel computes the same bytes.
    pub fn with_kernel(params: Params, kernel: Arc<dyn Kernel>) -> Result<Arc<Context>, CkksError> {
        params.check()?;
        let n = params.n();
        let moduli: Vec<u64> = params.q.iter().chain(&params.p).copied().collect();
        let tables = moduli
            .into_par_iter()
            .map(|q| {
                let m = Modulus::new(q).ok_or(ParamError::BadModulus(q))?;
                NttTable::new(m, n)
            })
            .collect::<Result<Vec<_>, ParamError>>()?;
        let (message_scales, evalmod_scales) = scales(&params);
        Ok(Arc::new(Context {
            digest: params.digest(),
            message_scales,
            evalmod_scales,
            encoder: Encoder::new(params.slots()),
            converters: Converters::new(&tables, params.q.len(), params.alpha),
            automorphisms: RwLock::new(HashMap::new()),
            kernel,
            tables,
            params,
        }))
    }

    /// The parameter set.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Digest of the parameter set.
    pub fn params_digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Ring degree N.
    pub fn n(&self) -> usize {
        self.params.n()
    }

    /// Complex slots, N/2.
    pub fn slots(&self) -> usize {
        self.params.slots()
    }

    /// Number of ciphertext primes.
    pub fn q_len(&self) -> usize {
        self.params.q.len()
    }

    /// Number of special primes.
    pub fn p_len(&self) -> usize {
        self.params.p.len()
    }

    /// Number of moduli, q and p together.
    pub fn moduli_len(&self) -> usize {
        self.tables.len()
    }

    /// Modulus number `index` (all q, then all p).
    pub fn modulus(&self, index: usize) -> &Modulus {
        &self.tables[index].modulus
    }

    /// Number of the modulus of limb `limb` in a polynomial with `q_limbs` q limbs followed by special limbs.
    pub fn ext_index(&self, q_limbs: usize, limb: usize) -> usize {
        if limb < q_limbs {
            limb
        } else {
            self.q_len() + limb - q_limbs
        }
    }

    pub(crate) fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    pub(crate) fn converters(&self) -> &Converters {
        &self.converters
    }

    pub(crate) fn table(&self, index: usize) -> &NttTable {
        &self.tables[index]
    }

    /// The kernel in use.
    pub fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    /// Forward transform of one limb modulo modulus number `index`, in place; canonical coefficients in.
    pub fn ntt_forward(&self, index: usize, limb: &mut [u64]) {
        self.kernel.ntt_forward(&self.tables[index], limb);
    }

    /// Inverse transform of one limb, in place.
    pub fn ntt_inverse(&self, index: usize, limb: &mut [u64]) {
        self.kernel.ntt_inverse(&self.tables[index], limb);
    }

    /// Scale of a message ciphertext at that level (0 to 18).
    pub fn scale(&self, level: usize) -> f64 {
        self.message_scales[level]
    }

    /// Scale of a level on either row.
    pub fn scale_of(&self, row: ScaleId, level: usize) -> Result<f64, CkksError> {
        let (table, first) = match row {
            ScaleId::Message => (&self.message_scales, 0),
            ScaleId::EvalMod => (&self.evalmod_scales, self.params.boot_out_level()),
        };
        level
            .checked_sub(first)
            .and_then(|i| table.get(i))
            .copied()
            .ok_or(CkksError::BadLevel(level))
    }

    /// Lowest and highest level of a scale row.
    pub fn level_range(&self, row: ScaleId) -> (usize, usize) {
        match row {
            ScaleId::Message => (0, self.params.boot_out_level()),
            ScaleId::EvalMod => (self.params.boot_out_level(), self.params.max_level()),
        }
    }

    /// SHA-256 over the transform roots, the scale table and the encoder roots: two machines that agree on it
    /// have the same tables.
    pub fn tables_digest(&self) -> [u8; 32] {
        let mut h = Sha256::new();
        h.update(b"cipherhop ckks tables v1\0");
        h.update(self.digest);
        for t in &self.tables {
            for root in t.forward.iter().chain(&t.inverse) {
                h.update(root.w.to_le_bytes());
            }
        }
        for scale in self.message_scales.iter().chain(&self.evalmod_scales) {
            h.update(scale.to_bits().to_le_bytes());
        }
        for w in self.encoder.layers.iter().flatten() {
            h.update(w.re.to_bits().to_le_bytes());
            h.update(w.im.to_bits().to_le_bytes());
        }
        h.finalize().into()
    }

    /// Galois element of the rotation to the left by `steps` slots: 5^steps mod 2N.
    pub fn galois_rotation(&self, steps: usize) -> usize {
        let two_n = 2 * self.n();
        let (mut r, mut base, mut e) = (1usize, 5usize, steps % self.slots());
        while e != 0 {
            if e & 1 == 1 {
                r = r * base % two_n;
            }
            base = base * base % two_n;
            e >>= 1;
        }
        r
    }

    /// Galois element of complex conjugation.
    pub fn galois_conjugation(&self) -> usize {
        2 * self.n() - 1
    }

    /// Permutation of NTT entries under X -> X^galois: out[k] = in[table[k]]. Cached.
    pub fn automorphism(&self, galois: usize) -> Arc<Vec<u32>> {
        let read = |map: &HashMap<usize, Arc<Vec<u32>>>| map.get(&galois).cloned();
        let cached = match self.automorphisms.read() {
            Ok(map) => read(&map),
            Err(poisoned) => read(&poisoned.into_inner()),
        };
        if let Some(table) = cached {
            return table;
        }
        let table = Arc::new(automorphism_table(self.n(), galois));
        let mut map = match self.automorphisms.write() {
            Ok(map) => map,
            Err(poisoned) => poisoned.into_inner(),
        };
        map.entry(galois).or_insert(table).clone()
    }
}

/// Scale tables: D_0 = 2^42 and D_l = sqrt(D_(l-1) * q_l), so that D_(l-1) = D_l^2 / q_l; the upper row
/// starts at 2^8 * D_18. Built upward because the recurrence contracts in that direction: every entry
/// stays close to its primes. IEEE multiplication and square root are correctly rounded, so this is exact
/// on every machine.
fn scales(params: &Params) -> (Vec<f64>, Vec<f64>) {
    let climb = |start: f64, primes: &[u64]| {
        let mut row = vec![start];
        let mut d = start;
        for &q in primes {
            d = (d * q as f64).sqrt();
            row.push(d);
        }
        row
    };
    let top = params.boot_out_level();
    let message = climb((1u64 << 42) as f64, &params.q[1..=top]);
    let evalmod = climb(EVALMOD_OVER_MESSAGE * message[top], &params.q[top + 1..]);
    (message, evalmod)
}

#[cfg(test)]
mod tests;
