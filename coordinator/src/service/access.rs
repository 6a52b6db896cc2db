//! Who may send or read which blob.

use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::{AttemptId, Digest, Reason, UploadId};
use tonic::Status;

use super::Core;
use super::error::of_store;
use crate::blobs::UploadKey;
use crate::domain::attempt::{Attempt, Claim};
use crate::domain::command::Holder;
use crate::domain::view::BlobRole;
use crate::store::{Identity, Role, UploadRecord};

impl Core {
    pub(super) async fn own_upload(
        &self,
        identity: &Identity,
        id: UploadId,
    ) -> Result<(UploadRecord, UploadKey), Status> {
        let record = self.store.upload(id).await.map_err(of_store("upload"))?;
        if record.account != identity.account {
            return Err(status(
                Reason::BlobNotAllowed,
                "the upload belongs to another account",
            ));
        }
        let key = UploadKey {
            sender: *record.account.as_bytes(),
            digest: record.digest,
        };
        Ok((record, key))
    }

    /// An attempt of the caller's own device.
    async fn own_attempt(
        &self,
        identity: &Identity,
        attempt: Option<AttemptId>,
    ) -> Result<Attempt, Status> {
        let id = attempt
            .ok_or_else(|| bad_request("attempt_id", "volunteers must name their attempt"))?;
        let attempt = self.store.attempt(id).await.map_err(of_store("attempt"))?;
        if Some(attempt.device) != identity.device {
            return Err(status(Reason::AttemptNotYours, ""));
        }
        Ok(attempt)
    }

    /// Volunteers send the claimed output and trace of their own attempt, nothing else.
    pub(super) async fn may_upload(
        &self,
        identity: &Identity,
        attempt: Option<AttemptId>,
        epoch: u64,
        digest: Digest,
        size: u64,
        role: BlobRole,
    ) -> Result<(), Status> {
        if identity.role != Role::Volunteer {
            return match attempt {
                None => Ok(()),
                Some(_) => Err(bad_request("attempt_id", "only volunteers have attempts")),
            };
        }
        let attempt = self.own_attempt(identity, attempt).await?;
        if attempt.epoch != epoch {
            return Err(status(Reason::StaleEpoch, ""));
        }
        if !attempt.may_upload() {
            return Err(status(
                Reason::AttemptClosed,
                "the attempt takes no more bytes",
            ));
        }
        if !matches!(role, BlobRole::Output | BlobRole::Trace) {
            return Err(status(
                Reason::BlobNotAllowed,
                "a volunteer sends outputs and traces only",
            ));
        }
        let claim = attempt.claim.as_ref();
        match claim.and_then(|claim| claimed(claim, digest)) {
            None => Err(status(
                Reason::BlobNotAllowed,
                "submit the digest first; only what was submitted is taken",
            )),
            Some(claimed) if claimed != size => Err(status(
                Reason::BlobSizeMismatch,
                format!("the submit said {claimed} bytes, the upload {size}"),
            )),
            Some(_) => Ok(()),
        }
    }

    /// Volunteers read the blobs of their own live attempt. Returns the lease to renew while bytes flow.
    pub(super) async fn may_read(
        &self,
        identity: &Identity,
        attempt: Option<AttemptId>,
        digest: Digest,
    ) -> Result<Option<Holder>, Status> {
        if identity.role != Role::Volunteer {
            return Ok(None);
        }
        let attempt = self.own_attempt(identity, attempt).await?;
        if !attempt.state.is_live() {
            return Err(status(
                Reason::AttemptClosed,
                "the attempt is not live; its inputs are not handed out",
            ));
        }
        let blobs = self
            .store
            .attempt_blobs(attempt.id)
            .await
            .map_err(of_store("read"))?;
        if !blobs.iter().any(|blob| blob.digest == digest) {
            return Err(status(
                Reason::BlobNotAllowed,
                "the attempt does not need this blob",
            ));
        }
        Ok(Some(Holder {
            attempt: attempt.id,
            device: attempt.device,
            epoch: attempt.epoch,
        }))
    }
}

/// A digest as the claim names it, with the size it must have.
fn claimed(claim: &Claim, digest: Digest) -> Option<u64> {
    if digest == claim.output {
        Some(claim.output_size)
    } else if digest == claim.trace {
        Some(claim.trace_size)
    } else {
        None
    }
}
