//! Reads every blob again and compares it with its digest.

use cipherhop_proto::{Digest, Hasher, v1};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tonic::Status;

use super::Core;
use super::error::of_store;
use crate::blobs::BlobError;
use crate::store::BlobRecord;

/// Rows read at once.
const BATCH: u32 = 256;
/// Bytes between two reports of progress.
const REPORT_EVERY: u64 = 256 << 20;

pub(super) type Reports = mpsc::Sender<Result<v1::ScrubResponse, Status>>;

/// Counts so far.
#[derive(Default)]
struct Counts {
    blobs: u64,
    bytes: u64,
    reported: u64,
}

impl Counts {
    fn report(&mut self, damaged: Option<(Digest, String)>) -> v1::ScrubResponse {
        self.reported = self.bytes;
        let (damaged_digest, problem) = match damaged {
            Some((digest, problem)) => (digest.to_vec(), problem),
            None => Default::default(),
        };
        v1::ScrubResponse {
            blobs: self.blobs,
            bytes: self.bytes,
            damaged_digest,
            problem,
        }
    }
}

/// Goes through all blobs; ends early when nobody listens any more.
pub(super) async fn scrub(core: Core, reports: Reports) {
    let stop = core.shutdown.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = reports.closed() => {}
        result = all(&core, &reports) => if let Err(status) = result {
            let _ = reports.send(Err(status)).await;
        },
    }
}

async fn all(core: &Core, reports: &Reports) -> Result<(), Status> {
    let mut counts = Counts::default();
    let mut after = None;
    loop {
        let rows = core
            .store
            .blobs(after, BATCH)
            .await
            .map_err(of_store("scrub"))?;
        let Some(last) = rows.last() else {
            break;
        };
        after = Some(last.digest);
        for row in rows {
            let problem = examine(core, row, &mut counts, reports).await;
            counts.blobs += 1;
            if let Some(problem) = problem {
                tracing::error!(digest = %row.digest, problem, "a stored blob is damaged");
                let _ = reports
                    .send(Ok(counts.report(Some((row.digest, problem)))))
                    .await;
            }
        }
    }
    let _ = reports.send(Ok(counts.report(None))).await;
    Ok(())
}

/// What is wrong with a blob, if anything.
async fn examine(
    core: &Core,
    row: BlobRecord,
    counts: &mut Counts,
    reports: &Reports,
) -> Option<String> {
    let mut reader = match core.blobs.read(row.digest, 0, 0).await {
        Ok(reader) => reader,
        Err(BlobError::NotFound(_)) => return Some("its bytes are not there".to_owned()),
        Err(error) => return Some(error.to_string()),
    };
    if reader.size != row.size {
        return Some(format!("{} bytes instead of {}", reader.size, row.size));
    }
    let mut hash = Hasher::new();
    while let Some(frame) = reader.frames.next().await {
        match frame {
            Ok(frame) => {
                hash.update(&frame);
                counts.bytes += frame.len() as u64;
            }
            Err(error) => return Some(error.to_string()),
        }
        if counts.bytes - counts.reported >= REPORT_EVERY {
            let _ = reports.send(Ok(counts.report(None))).await;
        }
        // Reading everything is not urgent: calls of clients come first.
        tokio::task::yield_now().await;
    }
    let actual = hash.finish();
    (actual != row.digest).then(|| format!("its bytes hash to {actual}"))
}
