//! Runs the circuit on levels alone: checks that every operation has the levels it needs, and notes which keys
//! it uses at which level and how many operations of each kind there are.

use std::cell::RefCell;
use std::collections::BTreeMap;

use cipherhop_ckks::{CkksError, Complex, KeyId, KeySpec};

use crate::backend::{Backend, Poly, poly_depth};
use crate::error::HopError;
use crate::lin::LinearSpec;

/// Operations of a circuit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Rotations and conjugations outside linear maps.
    pub rotations: usize,
    /// Ciphertext products outside polynomials.
    pub products: usize,
    /// Plaintext products outside linear maps.
    pub plain_products: usize,
    /// Diagonals of linear maps.
    pub diagonals: usize,
    /// Rotations inside linear maps.
    pub map_rotations: usize,
    /// Polynomials.
    pub polynomials: usize,
    /// Bootstraps.
    pub bootstraps: usize,
    /// Reductions (EvalMod); a complex bootstrap has two.
    pub reductions: usize,
}

/// One use of evaluation keys, in the order of the circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// This key at that many limbs.
    Key(KeySpec),
    /// Those of a bootstrap's first stage: slots to coefficients.
    Stc,
    /// Modulus raising.
    Raise,
    /// Coefficients to slots.
    Cts,
    /// Reduction.
    EvalMod,
}

/// The recorder.
#[derive(Debug)]
pub struct Record {
    slots: usize,
    boot_in: usize,
    boot_out: usize,
    keys: RefCell<BTreeMap<KeyId, usize>>,
    uses: RefCell<Vec<KeyUse>>,
    counts: RefCell<OpCounts>,
}

impl Record {
    /// For a ring with that many slots and these levels of a bootstrap's input and output.
    pub fn new(slots: usize, boot_in: usize, boot_out: usize) -> Record {
        Record {
            slots,
            boot_in,
            boot_out,
            keys: RefCell::default(),
            uses: RefCell::default(),
            counts: RefCell::default(),
        }
    }

    /// Keys used outside bootstraps, each with the most limbs it was used at.
    pub fn key_specs(&self) -> Vec<KeySpec> {
        let keys = self.keys.borrow();
        keys.iter()
            .map(|(id, limbs)| KeySpec {
                id: *id,
                limbs: *limbs,
            })
            .collect()
    }

    /// Uses of keys since the last call.
    pub fn take_uses(&self) -> Vec<KeyUse> {
        self.uses.take()
    }

    fn uses(&self, what: KeyUse) {
        self.uses.borrow_mut().push(what);
    }

    /// Operations so far.
    pub fn counts(&self) -> OpCounts {
        *self.counts.borrow()
    }

    fn count(&self, f: impl FnOnce(&mut OpCounts)) {
        f(&mut self.counts.borrow_mut());
    }

    fn key(&self, id: KeyId, level: usize) {
        let mut keys = self.keys.borrow_mut();
        let limbs = keys.entry(id).or_default();
        *limbs = (*limbs).max(level + 1);
        let limbs = level + 1;
        self.uses(KeyUse::Key(KeySpec { id, limbs }));
    }

    fn rotation(&self, steps: i64, level: usize) -> bool {
        let r = steps.rem_euclid(self.slots as i64) as u32;
        if r != 0 {
            self.key(KeyId::Rot(r), level);
        }
        r != 0
    }

    fn below(&self, level: usize, by: usize) -> Result<usize, HopError> {
        let need = self.boot_in + by;
        if level < need {
            return Err(HopError::Engine(CkksError::LevelTooLow {
                have: level,
                need,
            }));
        }
        Ok(level - by)
    }
}

impl Backend for Record {
    type Ct = usize;

    fn level(&self, a: &usize) -> usize {
        *a
    }

    fn add(&self, a: &usize, b: &usize) -> Result<usize, HopError> {
        Ok(*a.min(b))
    }

    fn sub(&self, a: &usize, b: &usize) -> Result<usize, HopError> {
        Ok(*a.min(b))
    }

    fn add_plain(&self, a: &usize, _: &[Complex]) -> Result<usize, HopError> {
        Ok(*a)
    }

    fn mul_plain(&self, a: &usize, _: &[Complex]) -> Result<usize, HopError> {
        self.count(|c| c.plain_products += 1);
        self.below(*a, 1)
    }

    fn mul_int(&self, a: &usize, _: i64) -> Result<usize, HopError> {
        Ok(*a)
    }

    fn mul_i(&self, a: &usize) -> Result<usize, HopError> {
        Ok(*a)
    }

    fn mul(&self, a: &usize, b: &usize) -> Result<usize, HopError> {
        self.count(|c| c.products += 1);
        let level = *a.min(b);
        self.key(KeyId::Relin, level);
        self.below(level, 1)
    }

    fn square(&self, a: &usize) -> Result<usize, HopError> {
        self.mul(a, a)
    }

    fn rotate(&self, a: &usize, steps: i64) -> Result<usize, HopError> {
        if self.rotation(steps, *a) {
            self.count(|c| c.rotations += 1);
        }
        Ok(*a)
    }

    fn rotate_many(&self, a: &usize, steps: &[i64]) -> Result<Vec<usize>, HopError> {
        steps.iter().map(|s| self.rotate(a, *s)).collect()
    }

    fn conj(&self, a: &usize) -> Result<usize, HopError> {
        self.key(KeyId::Conj, *a);
        self.count(|c| c.rotations += 1);
        Ok(*a)
    }

    fn drop_to(&self, a: &usize, level: usize) -> Result<usize, HopError> {
        if level > *a {
            return Err(HopError::Engine(CkksError::LevelTooLow {
                have: *a,
                need: level,
            }));
        }
        Ok(level)
    }

    fn linear(
        &self,
        a: &usize,
        map: &LinearSpec,
        _: &(dyn Fn(usize, usize) -> Complex + Sync),
    ) -> Result<usize, HopError> {
        let rotations = map.rotations();
        let used = map.key_rotations(&rotations);
        let turned = used.iter().filter(|r| self.rotation(**r, *a)).count();
        self.count(|c| {
            c.diagonals += rotations.len();
            c.map_rotations += turned;
        });
        self.below(*a, 1)
    }

    fn polys(&self, a: &usize, polys: &[Poly]) -> Result<Vec<usize>, HopError> {
        self.key(KeyId::Relin, *a);
        self.count(|c| c.polynomials += polys.len());
        polys
            .iter()
            .map(|p| self.below(*a, poly_depth(&p.coeffs)))
            .collect()
    }

    fn boot_stc(&self, a: &usize) -> Result<usize, HopError> {
        if *a != self.boot_in {
            return Err(HopError::Internal(format!("bootstrap at level {a}")));
        }
        self.uses(KeyUse::Stc);
        self.count(|c| c.bootstraps += 1);
        Ok(*a)
    }

    fn boot_raise(&self, a: &usize) -> Result<usize, HopError> {
        self.uses(KeyUse::Raise);
        Ok(*a)
    }

    fn boot_cts(&self, a: &usize, complex: bool) -> Result<Vec<usize>, HopError> {
        self.uses(KeyUse::Cts);
        Ok(vec![*a; 1 + usize::from(complex)])
    }

    fn boot_evalmod(&self, _: &usize, _: f64) -> Result<usize, HopError> {
        self.uses(KeyUse::EvalMod);
        self.count(|c| c.reductions += 1);
        Ok(self.boot_out)
    }
}
