//! `backup` and `restore`.

use std::path::Path;

use super::{BackupArgs, Failure, RestoreArgs, output};
use crate::backup::{self, Report};

pub(super) async fn backup(args: BackupArgs, json: bool) -> Result<(), Failure> {
    let made = backup::backup(&args.data, args.database.as_ref(), &args.to).await;
    let report = made.map_err(Failure::other)?;
    said("backed up to", &args.to, report, json)
}

pub(super) async fn restore(args: RestoreArgs, json: bool) -> Result<(), Failure> {
    let made = backup::restore(&args.from, args.database.as_ref(), &args.data).await;
    let report = made.map_err(Failure::other)?;
    said("restored to", &args.data, report, json)
}

fn said(what: &str, folder: &Path, report: Report, json: bool) -> Result<(), Failure> {
    let Report { blobs, bytes } = report;
    let folder = folder.display().to_string();
    let text = format!("{what} {folder}: {blobs} blobs, {bytes} bytes with the database");
    let value = serde_json::json!({ "folder": folder, "blobs": blobs, "bytes": bytes });
    output::print_either(json, value, || text)
}
