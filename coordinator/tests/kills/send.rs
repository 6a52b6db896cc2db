//! Uploads in parts, resumed from what was acknowledged.

use std::time::Duration;

use cipherhop_proto::client::{ClientError, Connection, unary};
use cipherhop_proto::v1::BlobRole;
use cipherhop_proto::{Digest, Reason, UploadId, v1};

use crate::common::attempt_ref;
use crate::ledger::Bytes;
use crate::site::{GONE, Site, accepted_or, ask, persist};

const FRAME: usize = 4096;
/// Appends of one blob.
const PARTS: usize = 3;

impl Site {
    /// Uploads in parts; false when the attempt is over.
    pub(super) async fn upload(
        &self,
        connection: &Connection,
        bytes: &[u8],
        role: BlobRole,
        given: Option<&v1::Assignment>,
    ) -> bool {
        let digest = Digest::of(bytes);
        let from = given.map(attempt_ref);
        for _ in 0..30 {
            let open = v1::OpenUploadRequest {
                blob: Some(crate::common::blob_ref(bytes, role)),
                attempt_id: from
                    .as_ref()
                    .map(|f| f.attempt_id.clone())
                    .unwrap_or_default(),
                epoch: from.as_ref().map(|f| f.epoch).unwrap_or_default(),
            };
            let opened = match ask!(connection, blob, open_upload, open) {
                Ok(opened) => opened,
                // Another sender just completed the same bytes: the contract says to open again.
                Err(again) if again.reason() == Some(Reason::UploadNotFound) => continue,
                Err(refused) => {
                    accepted_or(Err(refused), GONE);
                    return false;
                }
            };
            if opened.complete {
                self.book().blobs.set(digest, bytes.len() as u64);
                return true;
            }
            let id = UploadId::from_slice(&opened.upload_id).unwrap();
            if let Some(known) = self.book().uploads.get(&id) {
                assert!(opened.committed >= known.committed, "I5: {known:?}");
            }
            match self.send(connection, id, opened.committed, bytes).await {
                Ok(()) => {
                    self.book().blobs.set(digest, bytes.len() as u64);
                    return true;
                }
                Err(ClientError::Unreachable(_) | ClientError::Timeout(_)) => {}
                Err(refused) => accepted_or(
                    Err(refused),
                    &[
                        Reason::UploadNotFound,
                        Reason::UploadOffset,
                        Reason::StoreUnavailable,
                    ],
                ),
            }
        }
        panic!("{digest} cannot be uploaded");
    }

    /// Sends what is missing in parts and finishes; any error: open again.
    async fn send(
        &self,
        connection: &Connection,
        id: UploadId,
        committed: u64,
        bytes: &[u8],
    ) -> Result<(), ClientError> {
        let mut at = committed as usize;
        while at < bytes.len() {
            let end = bytes.len().min(at + bytes.len().div_ceil(PARTS));
            let frames = bytes[at..end].chunks(FRAME).scan(at, |offset, data| {
                let message = v1::AppendRequest {
                    upload_id: id.to_vec(),
                    offset: *offset as u64,
                    data: data.to_vec(),
                    ..Default::default()
                };
                *offset += data.len();
                Some(message)
            });
            let frames: Vec<_> = frames.collect();
            let mut call = connection.blob();
            let call = call.append(futures::stream::iter(frames));
            let kept = unary(Duration::from_secs(10), call).await?.committed;
            assert_eq!(kept, end as u64);
            let mut book = self.book();
            book.bytes += kept - at as u64;
            let digest = Digest::of(bytes);
            book.uploads.set(
                id,
                Bytes {
                    digest,
                    committed: kept,
                },
            );
            at = end;
        }
        let request = v1::FinishRequest {
            upload_id: id.to_vec(),
        };
        let mut call = connection.blob();
        unary(Duration::from_secs(10), call.finish(request)).await?;
        Ok(())
    }
}
