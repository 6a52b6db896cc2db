//! Whether the place of the blobs can be used, and has what the database speaks of.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cipherhop_proto::Digest;
use futures::stream::{self, StreamExt as _};

use super::{Findings, Grade};
use crate::blobs::{S3Blobs, S3Settings, place};
use crate::config::Config;

/// The bucket, where it can be used.
pub(super) async fn bucket(settings: &S3Settings, found: &mut Findings) -> Option<S3Blobs> {
    if let Some(path) = &settings.credentials_file
        && fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o007 != 0)
    {
        let text = format!(
            "everybody on this machine may use it: chmod 600 {}",
            path.display()
        );
        found.add("credentials", Grade::Warning, text);
    }
    match S3Blobs::open(settings.clone(), u64::MAX).await {
        Ok(bucket) => {
            let text = format!(
                "{} can be written, read, listed and deleted in, and knows conditional writes",
                settings.place()
            );
            found.add("bucket", Grade::Good, text);
            Some(bucket)
        }
        Err(e) => {
            found.add("bucket", Grade::Bad, format!("{}: {e}", settings.place()));
            None
        }
    }
}

/// Size of each blob's bytes, or why there is none.
type Size = Result<u64, String>;

fn digest_of(row: &(Vec<u8>, i64)) -> Option<Digest> {
    let bytes = <[u8; 32]>::try_from(row.0.as_slice()).ok()?;
    Some(Digest::from_bytes(bytes))
}

fn sizes_in_folder(root: &Path, rows: &[(Vec<u8>, i64)]) -> Vec<Size> {
    let digests = rows.iter().filter_map(digest_of);
    let sizes = digests.map(|digest| fs::metadata(place(root, &digest)).map(|about| about.len()));
    sizes.map(|size| size.map_err(|e| short(&e))).collect()
}

async fn sizes_in_bucket(bucket: &S3Blobs, rows: &[(Vec<u8>, i64)]) -> Vec<Size> {
    let sizes = stream::iter(rows.iter().filter_map(digest_of)).map(async |digest| {
        match bucket.stored_size(digest).await {
            Ok(Some(size)) => Ok(size),
            Ok(None) => Err("no such object".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    });
    sizes.buffered(8).collect().await
}

fn there(sizes: Vec<Size>, rows: &[(Vec<u8>, i64)], found: &mut Findings) {
    let (mut bytes, mut wrong) = (0u64, Vec::new());
    let digests = rows.iter().filter(|row| digest_of(row).is_some());
    for ((digest, size), there) in digests.zip(sizes) {
        let (digest, size) = (hex::encode(digest), u64::try_from(*size).unwrap_or(0));
        match there {
            Ok(there) if there == size => bytes += size,
            Ok(there) => wrong.push(format!("{digest} has {there} of {size} bytes")),
            Err(e) => wrong.push(format!("{digest}: {e}")),
        }
    }
    match wrong.first() {
        None => found.add(
            "blobs",
            Grade::Good,
            format!("all {} are there with {bytes} bytes (sizes compared, not contents)", rows.len()),
        ),
        Some(first) => found.add(
            "blobs",
            Grade::Bad,
            format!(
                "{} of {} are missing or cut off, the first: {first}. Restore a backup, or have the key holder upload again",
                wrong.len(),
                rows.len()
            ),
        ),
    }
}

fn short(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".into(),
        _ => error.to_string(),
    }
}

/// Compares what is there with the rows, digest and size of each. Without a bucket that can be used there is nothing to
/// say of one.
pub(super) async fn compare(
    data: &Path,
    config: &Config,
    bucket: Option<&S3Blobs>,
    rows: &[(Vec<u8>, i64)],
    found: &mut Findings,
) {
    let sizes = match bucket {
        Some(bucket) => sizes_in_bucket(bucket, rows).await,
        None if config.blobs.bucket().is_some() => return,
        None => sizes_in_folder(&data.join("blobs"), rows),
    };
    there(sizes, rows, found);
}
