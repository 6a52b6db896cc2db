//! Bootstrapping, slots-to-coefficients first (CIRCUIT.md section 6): StC at the bottom of the chain, switch to
//! a sparse ephemeral secret modulo q0*p0 only (Bossuat, Troncoso-Pastoriza, Hubaux 2022), ModRaise, switch
//! back, CtS, EvalMod. Slots of absolute value up to 1 come back at full level.
//!
//! Scales: a slot v enters StC at D_3 and becomes the coefficient v/4 * D_0, hence m = v*D_0/(4 q_0) modulo 1
//! in units of q_0. After ModRaise the coefficient is t = I + m. CtS brings t/A to the slots at E_25, the
//! polynomial returns p = v/256 at E_18 = 256 D_18, which read on the message row is v at D_18.

mod factor;
mod profile;
mod reduction;
#[rustfmt::skip]
mod reduction_table;
#[rustfmt::skip]
mod reduction_table_precise;
mod refine;
mod setting;

pub use profile::BootProfile;
pub use setting::EvalModSetting;

use crate::cipher::{Ciphertext, ExtCiphertext, ScaleId};
use crate::context::{Context, EVALMOD_OVER_MESSAGE};
use crate::error::CkksError;
use crate::eval::Evaluator;
use crate::keys::{KeyId, KeySpec};
use crate::linear::{LinearMap, PreparedMap};
use reduction::HALF_WIDTH;
use setting::Reduction;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The encoded matrices and the polynomial of the bootstrap. One per context; shared between threads.
#[derive(Debug)]
pub struct Bootstrapper {
    ctx: Arc<Context>,
    stc_maps: Vec<LinearMap>,
    stc: Vec<PreparedMap>,
    cts_maps: Vec<LinearMap>,
    cts: Vec<PreparedMap>,
    setting: EvalModSetting,
    reduction: Reduction,
}

impl Bootstrapper {
    /// Builds and encodes the matrices (megabytes at N=2^10, 0.8 GiB at N=2^16), for the default setting.
    pub fn new(ctx: Arc<Context>) -> Result<Bootstrapper, CkksError> {
        let params = ctx.params();
        let layers = &ctx.encoder().layers;
        let q0 = ctx.modulus(0).value() as f64;
        let mut stc_maps = factor::slots_to_coefficients(layers, params.stc_levels);
        if let Some(last) = stc_maps.last_mut() {
            last.scale(0.25);
        }
        let mut cts_maps = factor::coefficients_to_slots(layers, params.cts_levels);
        // E_top/(A q0) in all, 1/2 for the sum with the conjugate, 1/2 per layer. Split over the stages: an
        // early factor shrinks the values before the rescales, a late one the precision of the last matrix.
        let top = ctx.scale_of(ScaleId::EvalMod, params.max_level())?;
        let mut rest = top / (HALF_WIDTH * q0) * 0.5 / ctx.slots() as f64;
        let sizes = factor::group_sizes(layers.len(), params.cts_levels);
        let count = cts_maps.len();
        for (i, (map, size)) in cts_maps.iter_mut().zip(sizes.iter().rev()).enumerate() {
            let by = if i + 1 == count {
                rest
            } else {
                0.5 / (1u64 << size) as f64
            };
            rest /= by;
            map.scale(by);
        }
        let prepare = |maps: &[LinearMap], row, level: usize| {
            maps.iter()
                .enumerate()
                .map(|(i, m)| m.prepare(&ctx, row, level - i))
                .collect::<Result<Vec<_>, _>>()
        };
        let stc = prepare(&stc_maps, ScaleId::Message, params.boot_in_level())?;
        let cts = prepare(&cts_maps, ScaleId::EvalMod, params.max_level())?;
        let setting = EvalModSetting::default();
        Ok(Bootstrapper {
            setting,
            reduction: reduction_for(&ctx, setting),
            ctx,
            stc_maps,
            stc,
            cts_maps,
            cts,
        })
    }

    /// The same matrices with another setting of the modular reduction.
    pub fn with_setting(mut self, setting: EvalModSetting) -> Bootstrapper {
        self.setting = setting;
        self.reduction = reduction_for(&self.ctx, setting);
        self
    }

    /// The setting of the modular reduction.
    pub fn setting(&self) -> EvalModSetting {
        self.setting
    }

    /// Level of the results.
    pub fn out_level(&self) -> usize {
        self.ctx.params().boot_out_level() - self.setting.extra_levels()
    }

    /// Number of CtS stages, each a checkpoint of its own.
    pub fn cts_stages(&self) -> usize {
        self.cts.len()
    }

    /// Bytes of the encoded matrices.
    pub fn bytes(&self) -> usize {
        self.stc
            .iter()
            .chain(&self.cts)
            .map(PreparedMap::bytes)
            .sum()
    }

    /// The keys a bootstrap needs, each at the limbs where it is used.
    pub fn key_specs(&self) -> Vec<KeySpec> {
        let mut most: BTreeMap<KeyId, usize> = BTreeMap::new();
        for KeySpec { id, limbs } in self.stage_keys().into_iter().flatten() {
            let have = most.entry(id).or_insert(0);
            *have = limbs.max(*have);
        }
        most.into_iter()
            .map(|(id, limbs)| KeySpec { id, limbs })
            .collect()
    }

    /// The keys of each stage about in the order of their use: slots-to-coefficients, modulus raising,
    /// coefficients-to-slots, reduction.
    pub fn stage_keys(&self) -> [Vec<KeySpec>; 4] {
        let params = self.ctx.params();
        let of_maps = |maps: &[LinearMap], top: usize| -> Vec<KeySpec> {
            let of_map = |(i, map): (usize, &LinearMap)| {
                let limbs = top - i + 1;
                let key = move |r| KeySpec {
                    id: KeyId::Rot(r),
                    limbs,
                };
                map.rotations(self.ctx.slots()).into_iter().map(key)
            };
            maps.iter().enumerate().flat_map(of_map).collect()
        };
        let key = |id, limbs| KeySpec { id, limbs };
        let last_cts = params.max_level() + 1 - self.cts_maps.len();
        let mut cts = of_maps(&self.cts_maps, params.max_level());
        cts.push(key(KeyId::Conj, last_cts + 1));
        [
            of_maps(&self.stc_maps, params.boot_in_level()),
            vec![
                key(KeyId::ToSparse, 1),
                key(KeyId::FromSparse, params.max_level() + 1),
            ],
            cts,
            vec![key(KeyId::Relin, last_cts)],
        ]
    }

    /// Slots-to-coefficients: a message ciphertext at level 3 or above to level 0. `mask` (real, its length a
    /// power of two up to N/2, repeated) multiplies the slots on the way, at no level.
    pub fn stc(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
    ) -> Result<Ciphertext, CkksError> {
        let level = self.ctx.params().boot_in_level();
        if ct.scale_id() != ScaleId::Message {
            return Err(CkksError::ScaleMismatch(ct.scale_id(), ScaleId::Message));
        }
        let mut x = ev.drop_to(ct, level)?;
        for (i, map) in self.stc.iter().enumerate() {
            x = match mask {
                Some(mask) if i == 0 => {
                    let mut masked = self.stc_maps[0].clone();
                    masked.mask_input(mask)?;
                    ev.linear(&x, &masked)?
                }
                _ => ev.linear_prepared(&x, map)?,
            };
        }
        Ok(x)
    }

    /// Level 0 to the top: every coefficient m becomes m + q0*I with |I| <= 13, under the dense secret.
    pub fn mod_raise(&self, ev: &Evaluator, ct: &Ciphertext) -> Result<Ciphertext, CkksError> {
        let ctx = &self.ctx;
        let key = ev.keys().key(KeyId::ToSparse)?;
        let sparse = match self.setting.message_factor() {
            1 => ctx.switch_to_sparse(ct, &key)?,
            factor => ctx.switch_to_sparse(&ev.mul_int(ct, factor), &key)?,
        };
        let raised = ctx.mod_raise_ciphertext(&sparse);
        let (mut c0, c1) = ctx.key_switch(&raised.c1, &*ev.keys().key(KeyId::FromSparse)?)?;
        ev.add_poly(&mut c0, &raised.c0);
        Ok(Ciphertext { c0, c1, ..raised })
    }

    /// One of the CtS stages before the last: `stage` counts from 0.
    pub fn cts(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        stage: usize,
    ) -> Result<Ciphertext, CkksError> {
        match self.cts.get(stage) {
            Some(map) if stage + 1 < self.cts.len() => {
                let x = ev.linear_extended(ct, map)?;
                ev.mod_down_rescale(&x)
            }
            _ => Err(CkksError::BadLevel(stage)),
        }
    }

    /// The last CtS stage for real data: the lower half of the coefficients as real slots.
    pub fn cts_last_real(&self, ev: &Evaluator, ct: &Ciphertext) -> Result<Ciphertext, CkksError> {
        let (mut x, conj) = self.last_and_conjugate(ev, ct)?;
        ev.add_extended(&mut x, &conj)?;
        ev.mod_down_rescale(&x)
    }

    /// The last CtS stage for complex data: real parts and imaginary parts as two real ciphertexts.
    pub fn cts_last_complex(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
    ) -> Result<(Ciphertext, Ciphertext), CkksError> {
        let (x, conj) = self.last_and_conjugate(ev, ct)?;
        let (mut re, mut im) = (x.clone(), conj);
        ev.add_extended(&mut re, &im)?;
        // conj(z) - z = -2i im(z)
        let ctx = &self.ctx;
        ctx.sub_ext(&mut im.c0, &x.c0);
        ctx.sub_ext(&mut im.c1, &x.c1);
        let im = ev.mod_down_rescale(&im)?;
        Ok((ev.mod_down_rescale(&re)?, ev.mul_i(&im)))
    }

    /// The last matrix and the conjugate of its result, both before ModDown and rescale, so that the noise
    /// of this key switch is divided by the top prime too.
    fn last_and_conjugate(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
    ) -> Result<(ExtCiphertext, ExtCiphertext), CkksError> {
        let map = self.cts.last().ok_or(CkksError::Empty)?;
        let x = ev.linear_extended(ct, map)?;
        let conj = ev.conjugate_extended(&x)?;
        Ok((x, conj))
    }

    /// Modular reduction of real slots; back on the message row, at full level.
    pub fn evalmod(&self, ev: &Evaluator, ct: &Ciphertext) -> Result<Ciphertext, CkksError> {
        self.evalmod_gain(ev, ct, 1.0)
    }

    /// The same with the values multiplied by `gain` on the way, at no level.
    pub fn evalmod_gain(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        gain: f64,
    ) -> Result<Ciphertext, CkksError> {
        let polynomials = self.reduction.polynomials(gain);
        let factors = ev.cheb(ct, &polynomials.iter().collect::<Vec<_>>())?;
        let factors = factors
            .into_iter()
            .map(|f| ev.reread_as_message(f))
            .collect::<Result<Vec<_>, _>>()?;
        match &factors[..] {
            [odd, even] => ev.mul(odd, even),
            _ => factors.into_iter().next().ok_or(CkksError::Empty),
        }
    }

    fn to_slots(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
        profile: &mut BootProfile,
    ) -> Result<Ciphertext, CkksError> {
        let start = Instant::now();
        let x = self.stc(ev, ct, mask)?;
        profile.stc_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut x = self.mod_raise(ev, &x)?;
        profile.modraise_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for stage in 0..self.cts.len() - 1 {
            x = self.cts(ev, &x, stage)?;
        }
        profile.cts_s = start.elapsed().as_secs_f64();
        Ok(x)
    }

    /// Refreshes real slots of absolute value up to 1 (imaginary parts are dropped), masked if wanted.
    pub fn real(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
    ) -> Result<(Ciphertext, BootProfile), CkksError> {
        self.real_gain(ev, ct, mask, 1.0)
    }

    fn real_gain(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
        gain: f64,
    ) -> Result<(Ciphertext, BootProfile), CkksError> {
        let begin = Instant::now();
        let mut profile = BootProfile::default();
        let x = self.to_slots(ev, ct, mask, &mut profile)?;
        let start = Instant::now();
        let x = self.cts_last_real(ev, &x)?;
        profile.cts_s += start.elapsed().as_secs_f64();
        let start = Instant::now();
        let out = self.evalmod_gain(ev, &x, gain)?;
        profile.evalmod_s = start.elapsed().as_secs_f64();
        profile.total_s = begin.elapsed().as_secs_f64();
        profile.key_bytes = self.key_bytes(1);
        Ok((out, profile))
    }

    /// Refreshes complex slots, both parts up to 1 in absolute value, into two real ciphertexts.
    pub fn complex(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
    ) -> Result<(Ciphertext, Ciphertext, BootProfile), CkksError> {
        self.complex_gain(ev, ct, mask, 1.0)
    }

    fn complex_gain(
        &self,
        ev: &Evaluator,
        ct: &Ciphertext,
        mask: Option<&[f64]>,
        gain: f64,
    ) -> Result<(Ciphertext, Ciphertext, BootProfile), CkksError> {
        let begin = Instant::now();
        let mut profile = BootProfile::default();
        let x = self.to_slots(ev, ct, mask, &mut profile)?;
        let start = Instant::now();
        let (re, im) = self.cts_last_complex(ev, &x)?;
        profile.cts_s += start.elapsed().as_secs_f64();
        let start = Instant::now();
        let re = self.evalmod_gain(ev, &re, gain)?;
        let im = self.evalmod_gain(ev, &im, gain)?;
        profile.evalmod_s = start.elapsed().as_secs_f64();
        profile.total_s = begin.elapsed().as_secs_f64();
        profile.key_bytes = self.key_bytes(2);
        Ok((re, im, profile))
    }

    /// Bytes of keys that one bootstrap with that many modular reductions reads, at the limbs it uses.
    pub fn key_bytes(&self, reductions: u64) -> u64 {
        let params = self.ctx.params();
        let bytes = |limbs: usize, special: usize| {
            let digits = limbs.div_ceil(params.alpha);
            (digits * 2 * (limbs + special) * self.ctx.n() * 8) as u64
        };
        let p = params.alpha;
        let maps = |maps: &[PreparedMap]| -> u64 {
            maps.iter()
                .map(|m| m.rotations_used() as u64 * bytes(m.level() + 1, p))
                .sum()
        };
        let top = params.max_level() + 1;
        let conj_limbs = top + 1 - self.cts.len();
        let relin = self.reduction.relinearisation_levels(conj_limbs - 2);
        maps(&self.stc)
            + maps(&self.cts)
            + bytes(1, 1)
            + bytes(top, p)
            + bytes(conj_limbs, p)
            + reductions * relin.iter().map(|l| bytes(l + 1, p)).sum::<u64>()
    }
}

/// The polynomials of a setting for the scales of this context.
fn reduction_for(ctx: &Context, setting: EvalModSetting) -> Reduction {
    let ratio = 4.0 * ctx.modulus(0).value() as f64 / ctx.scale(0);
    let ratio = ratio / setting.message_factor() as f64;
    Reduction::new(setting, ratio, EVALMOD_OVER_MESSAGE)
}
