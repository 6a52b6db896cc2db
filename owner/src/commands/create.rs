//! `chain create`: check, plan, fold and upload weights, make and upload keys, encrypt, create.
//!
//! Everything that is made is either stored in the chain folder or made again byte for byte, so the command can be run again
//! after any interruption and sends only what is missing.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use cipherhop_ckks::{Context, KeySpec, ciphertext_size, expanded_key_size, key_size};
use cipherhop_hop::{
    calib::Calibration,
    fold::{LayerPack, Rotator},
    keys::{KEYS_FORMAT, KeyEntry, KeyManifest},
    memory::HopMemory,
    model::{Model, PublicPrefix},
    planner::plan,
    program::Program,
};
use cipherhop_proto::{
    Digest,
    client::{UNARY_DEADLINE, unary},
    v1::{BlobRole, CreateChainRequest, HopInputs},
};
use serde_json::json;

use crate::{
    Cryptor, EvalKeyGen,
    chainfolder::{ChainFolder, ChainState, new_state},
    cli::ChainCreate,
    commands::{
        ledger::current_key,
        prompt::{Limit, private_tokens},
    },
    files::{read_bounded, write_private},
    keyfolder::{KeyFolder, KnownKey, known_name, system_rng},
    reference::{Reference, check_model, rotator},
    report::{Outcome, Output, Refused, Unit},
    uploads::{Sent, Uploader},
};

/// Runs the command.
pub async fn run(args: &ChainCreate, out: &Output) -> anyhow::Result<Outcome> {
    let started = std::time::Instant::now();
    let keys = KeyFolder::open(&args.keys)?;
    if keys.params.is_insecure() && !args.allow_insecure {
        return Err(Refused::Insecure(keys.params.name.clone()).into());
    }
    let calibration_bytes = read_bounded(&args.calibration, 64 << 20)?;
    let calibration = Calibration::parse(&calibration_bytes)?;
    let model = Model::open(&args.model)?;
    check_model(&model, &calibration)?;
    let tokens = private_tokens(args.prompt.as_deref(), args.prompt_file.as_deref(), &model)?;
    Limit::of(
        &keys.params,
        &calibration.model,
        calibration.prefix.len(),
        Some(calibration.max_private_tokens),
    )
    .check(tokens.len())?;
    let reference = Reference::run(&model, &calibration, &tokens)?;
    reference.check()?;
    // A plan that cannot work is refused before anything is sent.
    plan(
        &calibration,
        &keys.params,
        tokens.len(),
        &vec![[0; 32]; calibration.layers.len()],
    )?;

    let state = ChainState {
        weights_sha256: model.weights_sha256.clone(),
        tokens,
        quorum: args.quorum,
        allow_insecure: args.allow_insecure,
        ..new_state(
            &args.coordinator,
            &args.keys,
            args.model.clone(),
            args.name.clone(),
        )?
    };
    let mut folder = ChainFolder::start(&args.out, state, &calibration_bytes)?;
    let uploader = Uploader::new(folder.connect()?);
    let rotation = rotator(&calibration)?;

    let weights = send_weights(&model, &calibration, &rotation, &uploader, out).await?;
    let digests: Vec<[u8; 32]> = weights.iter().map(|w| *w.digest.as_bytes()).collect();
    let program = plan(
        &calibration,
        &keys.params,
        folder.state.tokens.len(),
        &digests,
    )?;
    let program_bytes = program.to_bytes()?;
    write_private(&folder.path("program.json"), &program_bytes)?;
    let program_sent = uploader.send(BlobRole::Program, "", &program_bytes).await?;

    let ctx = Context::new(keys.params.clone())?;
    let manifest = send_keys(&keys, &ctx, &program, &uploader, out).await?;
    let manifest_bytes = manifest.to_bytes();
    write_private(&folder.path("keys.json"), &manifest_bytes)?;
    let manifest_sent = uploader
        .send(BlobRole::KeyManifest, "", &manifest_bytes)
        .await?;

    let input = encrypted_input(
        &mut folder,
        &keys,
        &ctx,
        &program,
        &rotation.rotate(&reference.residuals[0]),
    )?;
    let input_sent = uploader.send(BlobRole::Input, "", &input).await?;

    let level = keys.params.boot_out_level();
    let key_bytes: u64 = manifest.keys.iter().map(|k| k.size).sum();
    let specs = manifest.specs()?;
    let expanded = |s: &KeySpec| expanded_key_size(&keys.params, *s) as u64;
    let key_bytes_expanded: u64 = specs.iter().map(expanded).sum();
    let key_digests = manifest
        .keys
        .iter()
        .map(|k| Ok(k.digest.parse::<Digest>()?.to_vec()));
    let request = CreateChainRequest {
        chain_id: folder.state.chain_id.to_vec(),
        name: folder.state.name.clone(),
        program_digest: program_sent.digest.to_vec(),
        parameter_set: keys.params.name.clone(),
        parameter_digest: keys.params.digest().to_vec(),
        key_manifest_digest: manifest_sent.digest.to_vec(),
        key_digests: key_digests.collect::<anyhow::Result<_>>()?,
        input_digest: input_sent.digest.to_vec(),
        hops: weights
            .iter()
            .zip(0..)
            .map(|(w, hop)| HopInputs {
                hop,
                weights_digest: w.digest.to_vec(),
                archived_digest: Vec::new(),
            })
            .collect(),
        quorum: folder.state.quorum,
        allow_insecure: folder.state.allow_insecure,
        boundary_level: level as u32,
        boundary_bytes: ciphertext_size(&keys.params, level) as u64,
        worker_memory_bytes: HopMemory::estimate(&program, manifest.specs()?)?.least(),
    };
    let connection = folder.connect()?;
    unary(UNARY_DEADLINE, connection.chain().create_chain(request))
        .await
        .context("creating the chain")?;
    folder.state.created = true;
    if folder.state.ledger_keys.is_empty() {
        let key = current_key(&connection, folder.state.chain_id).await?;
        folder.state.ledger_keys.extend(key);
    }
    folder.save()?;

    let seconds = started.elapsed().as_secs_f64();
    let value = json!({ "chain_id": folder.state.chain_id, "name": folder.state.name, "hops": weights.len(), "private_tokens": folder.state.tokens.len(),
        "parameter_set": keys.params.name, "program_digest": program_sent.digest, "evaluation_keys": manifest.keys.len(), "key_bytes": key_bytes,
        "key_bytes_expanded": key_bytes_expanded,
        "expected_token_id": reference.next.id, "seconds": seconds });
    let text = format!(
        "Chain {} ({}): {} hops, {} evaluation keys of {} MiB in all, created in {seconds:.0} s",
        folder.state.chain_id,
        folder.state.name,
        weights.len(),
        manifest.keys.len(),
        key_bytes >> 20
    );
    out.result(&value, &text)?;
    Ok(Outcome::Success)
}

/// Folds one layer after the other and sends what the coordinator does not have.
async fn send_weights(
    model: &Model,
    calibration: &Calibration,
    rotation: &Rotator,
    uploader: &Uploader,
    out: &Output,
) -> anyhow::Result<Vec<Sent>> {
    let layers = model.config.layers;
    let bar = out.progress("weights", layers as u64, Unit::Steps);
    let mut sent = Vec::with_capacity(layers);
    let mut prefix = PublicPrefix::new(model, &calibration.prefix)?;
    for index in 0..layers {
        let bytes = tokio::task::block_in_place(|| fold_next(model, index, &mut prefix, rotation))?;
        sent.push(
            uploader
                .send(BlobRole::Weights, &index.to_string(), &bytes)
                .await?,
        );
        bar.set(index as u64 + 1);
    }
    bar.finish();
    Ok(sent)
}

/// The next layer's pack; `prefix` must stand before it.
pub(crate) fn fold_next(
    model: &Model,
    index: usize,
    prefix: &mut PublicPrefix,
    rotation: &Rotator,
) -> anyhow::Result<Vec<u8>> {
    let w = model.layer(index)?;
    let kv = prefix.step(&model.config, &w);
    Ok(LayerPack::fold(&model.config, index, &w, &kv, rotation).to_bytes())
}

/// Makes the evaluation keys the program needs, one at a time, and sends each before it is dropped.
async fn send_keys(
    keys: &KeyFolder,
    ctx: &Arc<Context>,
    program: &Program,
    uploader: &Uploader,
    out: &Output,
) -> anyhow::Result<KeyManifest> {
    let specs = program.key_specs()?;
    let total: u64 = specs
        .iter()
        .map(|s| key_size(&keys.params, *s) as u64)
        .sum();
    let bar = out.progress("evaluation keys", total, Unit::Bytes);
    let secret = keys.secret()?;
    let generator = EvalKeyGen::new(ctx.clone(), &secret)?;
    let mut known = keys.known_keys();
    let (mut entries, mut done) = (Vec::with_capacity(specs.len()), 0);
    for spec in &specs {
        let name = known_name(spec);
        let here = match known.get(&name) {
            Some(key) => uploader.has(key.digest.parse()?).await?,
            None => false,
        };
        if !here {
            let bytes = tokio::task::block_in_place(|| make_key(keys, ctx, &generator, spec))?;
            let sent = uploader
                .send(BlobRole::EvaluationKey, &spec.id.to_string(), &bytes)
                .await?;
            known.insert(
                name.clone(),
                KnownKey {
                    digest: sent.digest.to_string(),
                    size: sent.size,
                },
            );
            keys.remember(&known)?;
        }
        let key = known.get(&name).context("a key was lost")?;
        entries.push(KeyEntry {
            id: spec.id.to_string(),
            limbs: spec.limbs,
            digest: key.digest.clone(),
            size: key.size,
        });
        done += key.size;
        bar.set(done);
    }
    bar.finish();
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(keys.params.digest()),
        keys: entries,
    })
}

/// File form of one evaluation key, the same bytes every time.
pub(crate) fn make_key(
    keys: &KeyFolder,
    ctx: &Arc<Context>,
    generator: &EvalKeyGen<'_>,
    spec: &KeySpec,
) -> anyhow::Result<Vec<u8>> {
    Ok(generator
        .generate(spec, &mut keys.key_rng(spec)?)?
        .to_bytes(ctx))
}

/// The encrypted prompt: made once, kept in the folder.
fn encrypted_input(
    folder: &mut ChainFolder,
    keys: &KeyFolder,
    ctx: &Arc<Context>,
    program: &Program,
    rotated: &[f64],
) -> anyhow::Result<Vec<u8>> {
    let path = folder.path("input.ct");
    if let Some(digest) = folder.state.input {
        let bytes = read_bounded(&path, 1 << 30)?;
        if Digest::of(&bytes) == digest {
            return Ok(bytes);
        }
        if folder.state.created {
            bail!("{} is damaged", path.display());
        }
    }
    let cryptor = Cryptor::new(ctx.clone(), &keys.secret()?)?;
    let slots = program.encode_residual(rotated)?;
    let bytes = cryptor
        .encrypt(&slots, keys.params.boot_out_level(), &mut system_rng()?)?
        .to_bytes(ctx);
    write_private(&path, &bytes)?;
    folder.state.input = Some(Digest::of(&bytes));
    folder.save()?;
    Ok(bytes)
}
