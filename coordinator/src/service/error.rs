//! Failures of the layers below, as statuses with a reason. A fault of this server is logged here, once.

use cipherhop_proto::Reason;
use cipherhop_proto::status::{status, status_with_metadata, status_with_retry};
use tonic::Status;

use crate::blobs::BlobError;
use crate::domain::command::Refusal;
use crate::store::StoreError;

/// The status of a blob failure.
pub(super) fn of_blob(error: BlobError) -> Status {
    let text = error.to_string();
    let reason = match &error {
        BlobError::NotFound(_) => Reason::BlobNotFound,
        BlobError::NoUpload(_) => Reason::UploadNotFound,
        BlobError::WrongOffset { committed, .. } => {
            return status_with_metadata(Reason::UploadOffset, text, [committed_fact(*committed)]);
        }
        BlobError::Truncated { committed, .. } => {
            return status_with_metadata(
                Reason::BlobIncomplete,
                text,
                [committed_fact(*committed)],
            );
        }
        BlobError::TakenOver => Reason::UploadOffset,
        BlobError::TooLong { .. } | BlobError::SizeConflict { .. } => Reason::BlobSizeMismatch,
        BlobError::DigestMismatch { .. } => Reason::BlobDigestMismatch,
        BlobError::TooLarge { .. } => Reason::BlobTooLarge,
        BlobError::StorageFull { .. } => {
            tracing::warn!(error = %text, "upload refused for lack of room");
            Reason::DiskFull
        }
        BlobError::OutOfRange { .. } => {
            return cipherhop_proto::status::bad_request("offset", text);
        }
        BlobError::Io { .. } => {
            tracing::error!(error = %text, "blob storage failed");
            // The operating system's words stay in the log.
            return status(Reason::Internal, "");
        }
        BlobError::Remote { .. } => {
            tracing::error!(error = %text, "blob storage failed");
            return status(Reason::StoreUnavailable, "");
        }
    };
    status(reason, text)
}

fn committed_fact(committed: u64) -> (String, String) {
    ("committed".to_owned(), committed.to_string())
}

/// The status of a store failure. `call` names the call in the log.
pub(super) fn of_store(call: &'static str) -> impl Fn(StoreError) -> Status {
    move |error| match error {
        StoreError::Refused(refusal) => of_refusal(refusal),
        error if error.is_disk_full() => {
            tracing::error!(call, %error, "no room for the database");
            status(Reason::DiskFull, "the database's disk is full")
        }
        StoreError::Database(error) => {
            tracing::error!(call, %error, "the database failed");
            status(Reason::StoreUnavailable, "")
        }
        error => {
            tracing::error!(call, %error, "the store failed");
            status(Reason::Internal, "")
        }
    }
}

/// A refusal by the rules.
pub(super) fn of_refusal(refusal: Refusal) -> Status {
    status_with_retry(refusal.reason, refusal.detail, refusal.retry_after)
}
