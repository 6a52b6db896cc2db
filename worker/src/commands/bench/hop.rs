//! Whole hops with random weights, and the keys they need.

use std::time::Instant;

use cipherhop_ckks::{Bootstrapper, EvalKey, EvalKeys, KeyId, KeySpec, key_size};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::error::HopError;
use cipherhop_hop::golden::{Degrees, Synthetic};
use cipherhop_hop::layout::{Layout, Shape};
use cipherhop_hop::memory::HopMemory;
use std::sync::Arc;

use crate::machine;

use super::Setup;
use super::measure::{Line, Profile, Times, forget_peak};

/// A model's shape, a small one of the same kind for rings that cannot hold it, and the usual private tokens.
#[derive(Clone, Copy)]
pub(super) struct Model {
    name: &'static str,
    shape: Shape,
    tokens: usize,
}

/// SmolLM2-135M.
pub(super) const SMOLLM2: Model = Model {
    name: "smollm2",
    shape: Shape {
        d: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        mlp: 1536,
        qk_norm: false,
    },
    tokens: 6,
};

/// Qwen3-2B.
pub(super) const QWEN3: Model = Model {
    name: "qwen3-2b",
    shape: Shape {
        d: 2048,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        mlp: 6144,
        qk_norm: true,
    },
    tokens: 4,
};

const PREFIX: usize = 2;
/// What calibrations of these models use.
const DEGREES: Degrees = Degrees {
    norm: 31,
    score: 127,
    silu: 63,
};

/// The model in this ring, with its name and number of private tokens.
fn planned(
    setup: &Setup,
    engine: Engine,
    model: Model,
) -> Result<(Synthetic, String, usize), HopError> {
    let slots = setup.params.slots();
    let fits = |shape| Layout::most_tokens(shape, slots, PREFIX);
    let (name, shape) = match fits(model.shape) {
        0 => (
            format!("tiny-{}", model.name),
            Shape {
                d: 64,
                heads: 4,
                kv_heads: 2,
                head_dim: 16,
                mlp: 192,
                ..model.shape
            },
        ),
        _ => (model.name.to_owned(), model.shape),
    };
    let most = fits(shape);
    let tokens = setup.tokens.unwrap_or(model.tokens.min(most));
    let layer = Synthetic::planned(engine, shape, tokens, DEGREES)?;
    Ok((layer, name, tokens))
}

fn engine(setup: &Setup) -> Result<Engine, HopError> {
    let ctx = setup.tables()?;
    let boot = Arc::new(Bootstrapper::new(ctx.clone())?);
    Ok(Engine { ctx, boot })
}

/// Bytes to download, bytes in memory.
fn sizes(engine: &Engine, specs: &[KeySpec]) -> (u64, u64) {
    let (ctx, params) = (&engine.ctx, engine.ctx.params());
    let download = specs.iter().map(|spec| key_size(params, *spec) as u64);
    let expanded = specs.iter().map(|spec| {
        let limbs = 2 * spec.digits(ctx) * (spec.limbs + spec.special(ctx));
        (limbs * ctx.n() * 8) as u64
    });
    (download.sum(), expanded.sum())
}

fn with_keys(mut line: Line, engine: &Engine, specs: &[KeySpec]) -> Line {
    let (download, expanded) = sizes(engine, specs);
    line.keys = Some(specs.len());
    line.download_bytes = Some(download);
    line.expanded_bytes = Some(expanded);
    line
}

pub(super) fn hop(setup: &Setup, model: Model) -> Result<(), HopError> {
    let engine = engine(setup)?;
    let (mut layer, name, tokens) = planned(setup, engine.clone(), model)?;
    let specs = layer.key_specs()?;
    let mut keys = EvalKeys::new();
    for spec in &specs {
        keys.insert(EvalKey::pseudorandom(&engine.ctx, *spec, &[1; 32])?);
    }
    layer.set_keys(Arc::new(keys));
    // As a volunteer's hop does with memory to spare; half of what is free is left for the hop itself.
    cipherhop_ckks::keep_free_memory((machine::memory_for_work(None) / 2).min(HopMemory::USEFUL));
    let names = layer.registers();
    forget_peak();
    let (times, profile) = Times::of(setup.runs, || {
        let mut profile = Profile::with_capacity(names.len());
        let mut last = Instant::now();
        layer.run(&mut |_| {
            let now = Instant::now();
            let name = names.get(profile.len()).cloned().unwrap_or_default();
            profile.push((name, (now - last).as_secs_f64()));
            last = now;
        })?;
        Ok::<_, HopError>(profile)
    })?;
    let mut line = with_keys(
        Line::new(setup, format!("hop-{name}"), &times),
        &engine,
        &specs,
    );
    line.tokens = Some(tokens);
    line.profile = profile;
    setup.say(&line);
    Ok(())
}

pub(super) fn keys(setup: &Setup) -> Result<(), HopError> {
    let engine = engine(setup)?;
    let ctx = &engine.ctx;
    let full = KeySpec {
        id: KeyId::Rot(1),
        limbs: ctx.q_len(),
    };
    let file = EvalKey::pseudorandom(ctx, full, &[7; 32])?.to_bytes(ctx);
    forget_peak();
    let (times, _) = Times::of(setup.runs, || {
        std::hint::black_box(EvalKey::from_bytes(ctx, &file)?);
        Ok::<_, HopError>(Profile::new())
    })?;
    for model in [SMOLLM2, QWEN3] {
        let (layer, name, tokens) = planned(setup, engine.clone(), model)?;
        let line = Line::new(setup, format!("keys-{name}"), &times);
        let mut line = with_keys(line, &engine, &layer.key_specs()?);
        line.tokens = Some(tokens);
        line.note = format!("times: reading one key of {} limbs", full.limbs);
        setup.say(&line);
    }
    Ok(())
}
