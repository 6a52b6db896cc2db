//! `backup` and `restore`.

use std::path::Path;
use std::sync::Arc;

use super::{BackupArgs, BlobsArg, Failure, RestoreArgs, output};
use crate::backup::{self, Kept, Report};
use crate::blobs::{Blobs, S3Blobs};
use crate::config::Config;

pub(super) async fn backup(args: BackupArgs, json: bool) -> Result<(), Failure> {
    let (config, bucket) = open(args.config.as_deref(), &args.blobs).await?;
    let kept = match (args.without_blobs, bucket) {
        (true, bucket) => Kept::Apart(bucket),
        (false, Some(bucket)) => Kept::Bucket(bucket),
        (false, None) => Kept::Folder,
    };
    let url = args.database.as_ref().or(config.database.url.as_ref());
    let made = backup::backup_of(&args.data, url, &kept, &args.to).await;
    let report = made.map_err(Failure::other)?;
    said("backed up to", &args.to, report, json)?;
    if args.without_blobs && !json {
        let place = config.blobs.bucket().map(|s3| s3.place());
        eprintln!(
            "No blob is in this backup, as you asked. It is of use only with a copy of {} that is not older: see \
             docs/storage.md",
            place.unwrap_or_else(|| format!("{}/blobs", args.data.display()))
        );
    }
    Ok(())
}

pub(super) async fn restore(args: RestoreArgs, json: bool) -> Result<(), Failure> {
    let (config, bucket) = open(args.config.as_deref(), &args.blobs).await?;
    let kept = bucket.map_or(Kept::Folder, Kept::Bucket);
    let url = args.database.as_ref().or(config.database.url.as_ref());
    let made = backup::restore_to(&args.from, url, &kept, &args.data).await;
    let report = made.map_err(Failure::other)?;
    said("restored to", &args.data, report, json)
}

/// The configuration and the bucket in it.
async fn open(config: Option<&Path>, blobs: &BlobsArg) -> Result<(Config, Option<Blobs>), Failure> {
    let config = Config::load_with(config, blobs.place.as_deref()).map_err(Failure::config)?;
    let Some(settings) = config.blobs.bucket() else {
        return Ok((config, None));
    };
    let opened = S3Blobs::open(settings.clone(), u64::MAX).await;
    let place = settings.place();
    let blobs = opened.map_err(|e| Failure::other(format!("cannot use {place}: {e}")))?;
    Ok((config, Some(Arc::new(blobs))))
}

fn said(what: &str, folder: &Path, report: Report, json: bool) -> Result<(), Failure> {
    let Report { blobs, bytes } = report;
    let folder = folder.display().to_string();
    let text = format!("{what} {folder}: {blobs} blobs, {bytes} bytes with the database");
    let value = serde_json::json!({ "folder": folder, "blobs": blobs, "bytes": bytes });
    output::print_either(json, value, || text)
}
