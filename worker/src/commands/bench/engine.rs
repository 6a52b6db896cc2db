//! The engine's operations. Keys and ciphertexts are pseudorandom residues: the arithmetic does not care.

use std::sync::Arc;

use cipherhop_ckks::{
    BootProfile, Bootstrapper, Ciphertext, Complex, Context, EvalKey, EvalKeys, EvalModSetting,
    Evaluator, KeyId, KeySpec, LinearMap, ScaleId, expand_uniform,
};
use cipherhop_hop::error::HopError;

use super::Setup;
use super::measure::{Line, Profile, Times, forget_peak};
use super::precision::{Bits, Precision};

/// Level at which matrices are applied: ten limbs.
const MATRIX_LEVEL: usize = 9;
/// Copies of a vector in the slots, each of which serves another part of the matrix's diagonals.
const COPIES: usize = 16;
const MOST_BABIES: usize = 16;

fn keys(ctx: &Context, specs: &[KeySpec]) -> Result<Arc<EvalKeys>, HopError> {
    let mut keys = EvalKeys::new();
    for spec in specs {
        keys.insert(EvalKey::pseudorandom(ctx, *spec, &[7; 32])?);
    }
    Ok(Arc::new(keys))
}

fn spec(id: KeyId, limbs: usize) -> KeySpec {
    KeySpec { id, limbs }
}

fn row(ctx: &Context, level: usize) -> ScaleId {
    match level > ctx.params().boot_out_level() {
        true => ScaleId::EvalMod,
        false => ScaleId::Message,
    }
}

fn ciphertext(ctx: &Context, level: usize, seed: u8) -> Result<Ciphertext, HopError> {
    Ok(Ciphertext::pseudorandom(
        ctx,
        level,
        row(ctx, level),
        &[seed; 32],
    )?)
}

/// Times one operation that has no profile, and prints it.
fn time<T>(
    setup: &Setup,
    name: &str,
    limbs: usize,
    mut operation: impl FnMut() -> Result<T, HopError>,
) -> Result<(), HopError> {
    forget_peak();
    let (times, _) = Times::of(setup.runs, || {
        std::hint::black_box(operation()?);
        Ok::<_, HopError>(Profile::new())
    })?;
    let mut line = Line::new(setup, name, &times);
    line.limbs = Some(limbs);
    setup.say(&line);
    Ok(())
}

/// Levels at which the operations are timed: the top, after a bootstrap, and that of matrices.
fn levels(ctx: &Context) -> [usize; 3] {
    [
        ctx.params().max_level(),
        ctx.params().boot_out_level(),
        MATRIX_LEVEL,
    ]
}

pub(super) fn ntt(setup: &Setup) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let q = ctx.modulus(0).value();
    let mut limb = expand_uniform(&[3; 32], KeyId::Conj, 0, 0, q, ctx.n());
    time(setup, "ntt-forward", 1, || {
        ctx.ntt_forward(0, &mut limb);
        Ok(())
    })?;
    time(setup, "ntt-inverse", 1, || {
        ctx.ntt_inverse(0, &mut limb);
        Ok(())
    })
}

pub(super) fn key_switch(setup: &Setup) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let key = EvalKey::pseudorandom(&ctx, spec(KeyId::FromSparse, ctx.q_len()), &[7; 32])?;
    for level in levels(&ctx) {
        let a = ciphertext(&ctx, level, 1)?;
        time(setup, "keyswitch", level + 1, || {
            Ok(ctx.key_switch(a.parts().1, &key)?)
        })?;
    }
    Ok(())
}

pub(super) fn rotate(setup: &Setup) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let steps: Vec<i64> = (1..=8).collect();
    let specs: Vec<KeySpec> = (1..=8).map(|r| spec(KeyId::Rot(r), ctx.q_len())).collect();
    let ev = Evaluator::new(ctx.clone(), keys(&ctx, &specs)?);
    for level in levels(&ctx) {
        let a = ciphertext(&ctx, level, 1)?;
        time(setup, "rotate", level + 1, || Ok(ev.rotate(&a, 1)?))?;
        time(setup, "rotate-8-hoisted", level + 1, || {
            Ok(ev.rotate_hoisted(&a, &steps)?)
        })?;
    }
    Ok(())
}

pub(super) fn multiply(setup: &Setup) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let specs = [spec(KeyId::Relin, ctx.q_len())];
    let ev = Evaluator::new(ctx.clone(), keys(&ctx, &specs)?);
    for level in levels(&ctx) {
        let (a, b) = (ciphertext(&ctx, level, 1)?, ciphertext(&ctx, level, 2)?);
        time(setup, "multiply", level + 1, || Ok(ev.mul(&a, &b)?))?;
    }
    Ok(())
}

/// A dense matrix as diagonals that fill all slots: of the interleaved copies of the vector, copy c serves the
/// c-th part of the diagonals, and the copies are added up at the end.
pub(super) fn matvec(setup: &Setup) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let rows = ctx.slots() / COPIES;
    for inputs in [rows / 4, rows] {
        matrix(setup, &ctx, rows, inputs)?;
    }
    Ok(())
}

fn matrix(setup: &Setup, ctx: &Arc<Context>, rows: usize, inputs: usize) -> Result<(), HopError> {
    let slots = ctx.slots();
    let diagonals = (inputs / COPIES).max(1);
    let folds: Vec<i64> = (0..COPIES.trailing_zeros()).map(|i| 1 << i).collect();
    let mut map = LinearMap::new(slots);
    let seed = [5; 32];
    for r in 0..diagonals {
        let words = expand_uniform(&seed, KeyId::Conj, r, 0, 1 << 32, slots);
        let weight = |w: u64| Complex::real(w as f64 / (1u64 << 31) as f64 - 1.0);
        let values = words.into_iter().map(weight).collect();
        map.diagonals.insert((r * COPIES) as i64, values);
    }
    map.choose_n1(MOST_BABIES);
    let limbs = MATRIX_LEVEL + 1;
    let mut specs: Vec<KeySpec> = map
        .rotations(slots)
        .into_iter()
        .map(|r| spec(KeyId::Rot(r), limbs))
        .collect();
    specs.extend(folds.iter().map(|r| spec(KeyId::Rot(*r as u32), limbs - 1)));
    let prepared = map.prepare(ctx, ScaleId::Message, MATRIX_LEVEL)?;
    drop(map);
    let ev = Evaluator::new(ctx.clone(), keys(ctx, &specs)?);
    let x = ciphertext(ctx, MATRIX_LEVEL, 1)?;
    time(setup, &format!("matvec-{inputs}x{rows}"), limbs, || {
        let mut y = ev.linear_prepared(&x, &prepared)?;
        for r in &folds {
            let other = ev.rotate(&y, *r)?;
            ev.add_assign(&mut y, &other)?;
        }
        Ok(y)
    })
}

/// Real and complex data with the default reduction, then real data with the precise one.
pub(super) fn bootstrap(setup: &Setup, precision: &Precision) -> Result<(), HopError> {
    let ctx = setup.tables()?;
    let boot = Bootstrapper::new(ctx.clone())?;
    let ev = Evaluator::new(ctx.clone(), keys(&ctx, &boot.key_specs())?);
    let x = ciphertext(&ctx, ctx.params().boot_in_level(), 1)?;
    one_bootstrap(
        setup,
        "bootstrap-real",
        precision.real,
        (&boot, &ev),
        || Ok(boot.real(&ev, &x, None)?.1),
    )?;
    let complex = || Ok(boot.complex(&ev, &x, None)?.2);
    one_bootstrap(
        setup,
        "bootstrap-complex",
        precision.complex,
        (&boot, &ev),
        complex,
    )?;
    let boot = boot.with_setting(EvalModSetting::Precise);
    let name = "bootstrap-real-precise";
    one_bootstrap(setup, name, precision.precise, (&boot, &ev), || {
        Ok(boot.real(&ev, &x, None)?.1)
    })?;
    if !setup.json && !precision.note.is_empty() {
        crate::report::say(&precision.note);
    }
    Ok(())
}

fn one_bootstrap(
    setup: &Setup,
    name: &str,
    bits: Option<Bits>,
    (boot, ev): (&Bootstrapper, &Evaluator),
    mut operation: impl FnMut() -> Result<BootProfile, HopError>,
) -> Result<(), HopError> {
    forget_peak();
    let mut key_bytes = 0;
    let (times, profile) = Times::of(setup.runs, || {
        let profile = operation()?;
        key_bytes = profile.key_bytes;
        let stages = [
            ("stc_s", profile.stc_s),
            ("modraise_s", profile.modraise_s),
            ("cts_s", profile.cts_s),
            ("evalmod_s", profile.evalmod_s),
        ];
        Ok::<_, HopError>(stages.map(|(name, s)| (name.to_owned(), s)).to_vec())
    })?;
    let mut line = Line::new(setup, name, &times);
    line.worst_bits = Some(bits.map(|b| b.worst_bits));
    line.average_bits = Some(bits.map(|b| b.average_bits));
    line.levels_left = Some(boot.out_level() - ev.context().params().boot_in_level());
    line.key_bytes = Some(key_bytes);
    line.profile = profile;
    setup.say(&line);
    Ok(())
}
