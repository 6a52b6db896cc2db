//! Evaluation keys. The uniform half of a key is regenerated from a seed, so only half of it travels.

use crate::blocks::{Limbs, SpareBlocks};
use crate::context::Context;
use crate::error::CkksError;
use crate::params::Params;
use crate::uniform::Stream;
use rayon::prelude::*;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Which evaluation key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyId {
    /// s^2 to s.
    Relin,
    /// Complex conjugation.
    Conj,
    /// Rotation to the left by that many slots: rot(v, r)[p] = v[p + r].
    Rot(u32),
    /// Dense secret to sparse ephemeral secret; exists only modulo q0*p0.
    ToSparse,
    /// Sparse ephemeral secret back to the dense one.
    FromSparse,
}

impl KeyId {
    /// Tag and argument on the wire.
    pub(crate) fn to_wire(self) -> (u8, u32) {
        match self {
            KeyId::Relin => (0, 0),
            KeyId::Conj => (1, 0),
            KeyId::Rot(r) => (2, r),
            KeyId::ToSparse => (3, 0),
            KeyId::FromSparse => (4, 0),
        }
    }

    pub(crate) fn from_wire(tag: u8, arg: u32) -> Option<KeyId> {
        match (tag, arg) {
            (0, 0) => Some(KeyId::Relin),
            (1, 0) => Some(KeyId::Conj),
            (2, r) if r != 0 => Some(KeyId::Rot(r)),
            (3, 0) => Some(KeyId::ToSparse),
            (4, 0) => Some(KeyId::FromSparse),
            _ => None,
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyId::Relin => f.write_str("relin"),
            KeyId::Conj => f.write_str("conj"),
            KeyId::Rot(r) => write!(f, "rot-{r}"),
            KeyId::ToSparse => f.write_str("to-sparse"),
            KeyId::FromSparse => f.write_str("from-sparse"),
        }
    }
}

impl FromStr for KeyId {
    type Err = CkksError;

    fn from_str(s: &str) -> Result<KeyId, CkksError> {
        let bad = || CkksError::BadKeyName(s.chars().take(64).collect());
        match s {
            "relin" => Ok(KeyId::Relin),
            "conj" => Ok(KeyId::Conj),
            "to-sparse" => Ok(KeyId::ToSparse),
            "from-sparse" => Ok(KeyId::FromSparse),
            _ => {
                let digits = s.strip_prefix("rot-").ok_or_else(bad)?;
                if digits.starts_with('0') || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(bad());
                }
                Ok(KeyId::Rot(digits.parse().map_err(|_| bad())?))
            }
        }
    }
}

/// A key that some circuit needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeySpec {
    /// Which key.
    pub id: KeyId,
    /// Usable for ciphertexts of up to this many limbs.
    pub limbs: usize,
}

impl KeySpec {
    /// Special primes such a key uses: all, except one for the key to the sparse secret.
    pub fn special(&self, ctx: &Context) -> usize {
        self.special_of(ctx.params())
    }

    pub(crate) fn special_of(&self, params: &Params) -> usize {
        if self.id == KeyId::ToSparse {
            1
        } else {
            params.p.len()
        }
    }

    /// Number of gadget digits.
    pub fn digits(&self, ctx: &Context) -> usize {
        self.digits_of(ctx.params())
    }

    pub(crate) fn digits_of(&self, params: &Params) -> usize {
        self.limbs.div_ceil(params.alpha)
    }

    /// Checks limb count, rotation range, and the rule on the sparse secret.
    pub fn check(&self, ctx: &Context) -> Result<(), CkksError> {
        self.check_in(ctx.params())
    }

    pub(crate) fn check_in(&self, params: &Params) -> Result<(), CkksError> {
        if self.limbs == 0 || self.limbs > params.q.len() {
            return Err(CkksError::BadHeader("limbs"));
        }
        match self.id {
            KeyId::ToSparse if self.limbs != 1 => Err(CkksError::SparseKeyTooLarge),
            KeyId::Rot(r) if r == 0 || r as usize >= params.slots() => {
                Err(CkksError::BadHeader("key id"))
            }
            _ => Ok(()),
        }
    }
}

/// One gadget component: b = -a*s + e + (P*t on the limbs of this digit, 0 elsewhere).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyDigit {
    pub(crate) b: Limbs,
    pub(crate) a: Limbs,
}

/// A key-switching key from a secret t to the secret s. NTT domain; every component has the q limbs
/// first, then the special limbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalKey {
    pub(crate) id: KeyId,
    pub(crate) limbs: usize,
    pub(crate) special: usize,
    pub(crate) seed: [u8; 32],
    pub(crate) digits: Vec<KeyDigit>,
}

impl EvalKey {
    /// Assembles a key from its seed and its computed halves: `b[digit]` holds (limbs + special) * N
    /// residues, q limbs first.
    pub fn from_parts(
        ctx: &Context,
        spec: KeySpec,
        seed: [u8; 32],
        b: Vec<Vec<u64>>,
    ) -> Result<EvalKey, CkksError> {
        spec.check(ctx)?;
        let special = spec.special(ctx);
        let n = ctx.n();
        if b.len() != spec.digits(ctx) || b.iter().any(|x| x.len() != (spec.limbs + special) * n) {
            return Err(CkksError::ShapeMismatch("key components"));
        }
        for x in &b {
            for (i, limb) in x.chunks_exact(n).enumerate() {
                let q = ctx.modulus(ctx.ext_index(spec.limbs, i)).value();
                if let Some(index) = limb.iter().position(|&r| r >= q) {
                    return Err(CkksError::ResidueOutOfRange { limb: i, index });
                }
            }
        }
        let digits = b
            .into_iter()
            .enumerate()
            .map(|(digit, b)| {
                let none = &mut SpareBlocks::default();
                let mut a = Limbs::scratch(n, spec.limbs + special, none);
                EvalKey::fill_uniform_half(ctx, spec, &seed, digit, a.par_iter_mut());
                let b = Limbs::copy_of(n, &b);
                KeyDigit { b, a }
            })
            .collect();
        Ok(EvalKey {
            id: spec.id,
            limbs: spec.limbs,
            special,
            seed,
            digits,
        })
    }

    /// A key of pseudorandom residues: it switches to nothing, but costs and computes what a real key does.
    /// For self-tests and timings where there is no secret.
    pub fn pseudorandom(
        ctx: &Context,
        spec: KeySpec,
        seed: &[u8; 32],
    ) -> Result<EvalKey, CkksError> {
        spec.check(ctx)?;
        let other = blake3::derive_key("cipherhop 2026 pseudorandom test key", seed);
        let b = (0..spec.digits(ctx))
            .map(|digit| EvalKey::uniform_half(ctx, spec, &other, digit))
            .collect();
        EvalKey::from_parts(ctx, spec, *seed, b)
    }

    /// The uniform half of one digit, (limbs + special) * N residues in the NTT domain, q limbs first.
    pub fn uniform_half(ctx: &Context, spec: KeySpec, seed: &[u8; 32], digit: usize) -> Vec<u64> {
        let mut a = vec![0u64; (spec.limbs + spec.special(ctx)) * ctx.n()];
        EvalKey::fill_uniform_half(ctx, spec, seed, digit, a.par_chunks_exact_mut(ctx.n()));
        a
    }

    /// Fills the limbs of the uniform half of one digit.
    pub(crate) fn fill_uniform_half<'a>(
        ctx: &Context,
        spec: KeySpec,
        seed: &[u8; 32],
        digit: usize,
        limbs: impl IndexedParallelIterator<Item = &'a mut [u64]>,
    ) {
        limbs.enumerate().for_each(|(i, out)| {
            let m = ctx.ext_index(spec.limbs, i);
            let q = ctx.modulus(m).value();
            Stream::new(seed, spec.id, digit, m, q).fill(q, out);
        });
    }

    /// Gives the memory of the key back for the next one.
    pub fn recycle(self, spare: &mut SpareBlocks) {
        for digit in self.digits {
            spare.put(digit.a);
            spare.put(digit.b);
        }
    }

    /// Which key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Limbs it covers.
    pub fn limbs(&self) -> usize {
        self.limbs
    }

    /// Id and limbs.
    pub fn spec(&self) -> KeySpec {
        KeySpec {
            id: self.id,
            limbs: self.limbs,
        }
    }

    /// Both halves (b, a) of one digit, limb by limb: limbs + special limbs of N residues, NTT domain, q limbs first.
    pub fn component(
        &self,
        digit: usize,
    ) -> Option<impl ExactSizeIterator<Item = (&[u64], &[u64])>> {
        let digit = self.digits.get(digit)?;
        Some((0..self.limbs + self.special).map(|i| (digit.b.limb(i), digit.a.limb(i))))
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        self.digits
            .iter()
            .map(|d| (d.a.words() + d.b.words()) * 8)
            .sum()
    }
}

/// Bytes of a key in memory; the spec must be valid.
pub fn expanded_key_size(params: &Params, spec: KeySpec) -> usize {
    let limbs = spec.limbs + spec.special_of(params);
    spec.digits_of(params) * 2 * limbs * params.n() * 8
}

/// Where the evaluator finds its keys.
pub trait KeySource: Send + Sync {
    /// The key, or `MissingKey`.
    fn key(&self, id: KeyId) -> Result<Arc<EvalKey>, CkksError>;

    /// A hint for sources that cannot keep all keys at hand: the keys that the running step is about to use, and
    /// after them those of all later steps, both in order.
    fn expect(&self, _now: &[KeyId], _later: &[KeyId]) {}
}

/// Keys held in memory.
#[derive(Debug, Clone, Default)]
pub struct EvalKeys {
    keys: HashMap<KeyId, Arc<EvalKey>>,
}

impl EvalKeys {
    /// No keys.
    pub fn new() -> EvalKeys {
        EvalKeys::default()
    }

    /// Adds a key; of two keys with the same id the one that covers more limbs stays.
    pub fn insert(&mut self, key: EvalKey) {
        let covered = self.keys.get(&key.id).is_some_and(|k| k.limbs >= key.limbs);
        if !covered {
            self.keys.insert(key.id, Arc::new(key));
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        self.keys.values().map(|k| k.bytes()).sum()
    }
}

impl KeySource for EvalKeys {
    fn key(&self, id: KeyId) -> Result<Arc<EvalKey>, CkksError> {
        self.keys.get(&id).cloned().ok_or(CkksError::MissingKey(id))
    }
}
