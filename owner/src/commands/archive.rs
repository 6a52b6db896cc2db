//! `archive export`, `archive import`, `archive build`.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context as _, bail};
use cipherhop_ckks::{Context, KeySource, KeySpec};
use cipherhop_hop::{
    keys::{DirKeys, KeyManifest},
    model::{Model, PublicPrefix},
    run::{HopEvent, HopJob, run_hop},
};
use cipherhop_proto::{
    Digest,
    client::{UNARY_DEADLINE, unary},
    manifest,
    v1::{ExportArchiveRequest, ImportArchiveRequest},
};
use serde_json::json;

use super::{
    chain::{fetch_output, verified_outputs},
    create::{fold_next, make_key},
};
use crate::{
    EvalKeyGen,
    chainfolder::ChainFolder,
    cli::{ArchiveBuild, ArchiveExport, ArchiveImport},
    files::{private_folder, read_bounded, write_private},
    reference::rotator,
    report::{Outcome, Output, Unit},
};

/// `archive export`
pub async fn export(args: &ArchiveExport, out: &Output) -> anyhow::Result<Outcome> {
    let folder = ChainFolder::open(&args.chain)?;
    let request = ExportArchiveRequest {
        chain_id: folder.state.chain_id.to_vec(),
    };
    let answer = unary(
        UNARY_DEADLINE,
        folder.connect()?.chain().export_archive(request),
    )
    .await?;
    let digests = manifest::parse(&answer.manifest)?;
    std::fs::write(&args.out, &answer.manifest)
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    out.result(
        &json!({ "hops": digests.len(), "manifest": args.out, "ledger_key": hex::encode(&answer.ledger_key) }),
        &format!("{} digests in {}", digests.len(), args.out.display()),
    )?;
    Ok(Outcome::Success)
}

/// `archive import`
pub async fn import(args: &ArchiveImport, out: &Output) -> anyhow::Result<Outcome> {
    let folder = ChainFolder::open(&args.chain)?;
    let text = String::from_utf8(read_bounded(&args.manifest, manifest::MAX_BYTES as u64)?)
        .context("the manifest is no text")?;
    manifest::parse(&text)?;
    let request = ImportArchiveRequest {
        chain_id: folder.state.chain_id.to_vec(),
        manifest: text,
    };
    let answer = unary(
        UNARY_DEADLINE,
        folder.connect()?.chain().import_archive(request),
    )
    .await?;
    let value = json!({ "imported": answer.imported, "already_known": answer.already_known });
    out.result(
        &value,
        &format!(
            "{} digests imported, {} were known",
            answer.imported, answer.already_known
        ),
    )?;
    Ok(Outcome::Success)
}

/// `archive build`
pub async fn build(args: &ArchiveBuild, out: &Output) -> anyhow::Result<Outcome> {
    let folder = ChainFolder::open(&args.chain)?;
    let program = folder.program()?;
    let hops = program.layers.len() as u32;
    if args.hops.last >= hops {
        bail!("the chain has {hops} hops, 0 to {}", hops - 1);
    }
    private_folder(&args.out)?;
    let mut input = first_input(args, &folder).await?;
    let keys = local_keys(&folder, &args.out, out)?;
    let calibration = folder.calibration()?;
    let model = Model::open(&folder.state.model)?;
    let rotation = rotator(&calibration)?;
    let mut prefix = PublicPrefix::new(&model, &calibration.prefix)?;
    let mut seconds = BTreeMap::new();
    for hop in 0..=args.hops.last {
        let weights = tokio::task::block_in_place(|| {
            fold_next(&model, hop as usize, &mut prefix, &rotation)
        })?;
        if hop < args.hops.first {
            continue;
        }
        let job = HopJob {
            program: program.to_bytes()?,
            layer: hop,
            weights,
            input,
            keys: keys.clone(),
            work_dir: args.out.join(format!("work-{hop:03}")),
            threads: args.threads,
        };
        let bar = out.progress(
            &format!("hop {hop}"),
            program.steps(hop as usize)?.len() as u64,
            Unit::Steps,
        );
        let mut on_event = |event| {
            if let HopEvent::StepDone { index, .. } = event {
                bar.set(u64::from(index) + 1);
            }
        };
        let output =
            tokio::task::block_in_place(|| run_hop(&job, &mut on_event, &AtomicBool::new(false)))?;
        bar.finish();
        write_private(&args.out.join(manifest::file_name(hop)), &output.output)?;
        // Registers are of no use once the output is safe.
        std::fs::remove_dir_all(&job.work_dir)
            .with_context(|| format!("cannot remove {}", job.work_dir.display()))?;
        add_to_manifest(&args.out, hop, Digest::from_bytes(output.digest))?;
        let p = output.boot_profile;
        out.note(&format!(
            "hop {hop}: {:.1} s (lay {:.1}, boot {:.1}); bootstraps: stc {:.1}, modraise {:.1}, cts {:.1}, evalmod {:.1}",
            output.compute_seconds, output.lay_seconds, output.boot_seconds, p.stc, p.modraise, p.cts, p.evalmod
        ));
        seconds.insert(hop, output.compute_seconds);
        input = output.output;
    }
    let value = json!({ "hops": seconds.len(), "manifest": args.out.join("manifest.sha256"), "seconds_per_hop": seconds });
    out.result(
        &value,
        &format!(
            "{} hops in {}",
            seconds.len(),
            args.out.join("manifest.sha256").display()
        ),
    )?;
    Ok(Outcome::Success)
}

/// The ciphertext that enters the first hop asked for.
async fn first_input(args: &ArchiveBuild, folder: &ChainFolder) -> anyhow::Result<Vec<u8>> {
    let Some(before) = args.hops.first.checked_sub(1) else {
        return read_bounded(&folder.path("input.ct"), 1 << 30);
    };
    let local = args.out.join(manifest::file_name(before));
    if local.exists() {
        return read_bounded(&local, 1 << 30);
    }
    let connection = folder.connect()?;
    let (_, outputs) = verified_outputs(folder, &connection).await?;
    let Some(blob) = outputs.get(before as usize) else {
        bail!(
            "hop {before} is neither in {} nor verified: start the range earlier",
            args.out.display()
        );
    };
    read_bounded(
        &fetch_output(folder, &connection, before, blob).await?,
        1 << 30,
    )
}

/// Evaluation keys as files in `out/keys`, made again where they are missing.
fn local_keys(
    folder: &ChainFolder,
    out_dir: &Path,
    out: &Output,
) -> anyhow::Result<Arc<dyn KeySource>> {
    let dir = out_dir.join("keys");
    private_folder(&dir)?;
    let manifest = KeyManifest::parse(&read_bounded(&folder.path("keys.json"), 16 << 20)?)?;
    let keys = folder.keys()?;
    let ctx = Context::new(keys.params.clone())?;
    let secret = keys.secret()?;
    let generator = EvalKeyGen::new(ctx.clone(), &secret)?;
    let total: u64 = manifest.keys.iter().map(|k| k.size).sum();
    let bar = out.progress("evaluation keys", total, Unit::Bytes);
    let mut done = 0;
    for entry in &manifest.keys {
        let path = dir.join(&entry.digest);
        if std::fs::metadata(&path).map_or(0, |m| m.len()) != entry.size {
            let spec = KeySpec {
                id: entry.id.parse()?,
                limbs: entry.limbs,
            };
            let bytes = make_key(&keys, &ctx, &generator, &spec)?;
            if Digest::of(&bytes).to_string() != entry.digest {
                bail!(
                    "key {} comes out differently than when the chain was made: another key folder?",
                    entry.id
                );
            }
            write_private(&path, &bytes)?;
        }
        done += entry.size;
        bar.set(done);
    }
    bar.finish();
    Ok(Arc::new(DirKeys::open(ctx, dir, manifest)?))
}

fn add_to_manifest(dir: &Path, hop: u32, digest: Digest) -> anyhow::Result<()> {
    let path = dir.join("manifest.sha256");
    let mut known = match std::fs::read_to_string(&path) {
        Ok(text) => manifest::parse(&text)?,
        Err(_) => BTreeMap::new(),
    };
    known.insert(hop, digest);
    write_private(&path, manifest::format(known).as_bytes())
}
