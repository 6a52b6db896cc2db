//! Who may send or read which blob, and whose signature stands under a result.

use cipherhop_proto::signing::{EnrolmentStatement, PublicKey, ResultStatement, Signature};
use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::{AttemptId, Digest, Nonce, Reason, UploadId, v1};
use tonic::Status;

use super::error::of_store;
use super::{Core, parse};
use crate::blobs::UploadKey;
use crate::domain::attempt::{Attempt, AttemptState, Claim};
use crate::domain::command::Holder;
use crate::domain::view::BlobRole;
use crate::store::{Identity, ResultSignature, Role, UploadRecord};

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
        if role == BlobRole::Output
            && attempt.state == AttemptState::Submitted
            && self.is_wanted_input(&attempt, digest).await?
        {
            // The step's own size is nobody's secret; no ciphertext is this much larger than the boundary's.
            let chain = self
                .store
                .chain(attempt.chain)
                .await
                .map_err(of_store("upload"))?;
            let most = chain.spec.boundary_bytes.saturating_mul(8);
            return match size <= most {
                true => Ok(()),
                false => Err(status(
                    Reason::BlobTooLarge,
                    format!("at most {most} bytes"),
                )),
            };
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
            self.in_scope_blob(identity, digest).await?;
            return Ok(None);
        }
        if attempt.is_none() && self.referee_may_read(identity, digest).await? {
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

    /// A token of one chain reads that chain's inputs and outputs only.
    async fn in_scope_blob(&self, identity: &Identity, digest: Digest) -> Result<(), Status> {
        let Some(chain) = identity.scope else {
            return Ok(());
        };
        let results = self.store.results(chain).await.map_err(of_store("read"))?;
        let of_chain = |blob: Option<Digest>| blob == Some(digest);
        if results
            .iter()
            .any(|hop| of_chain(hop.input) || of_chain(hop.output))
        {
            return Ok(());
        }
        Err(status(
            Reason::TokenScope,
            "the blob is not of the token's chain",
        ))
    }

    /// The key an enrolling device proves to hold; `None` from workers that have none.
    pub(super) fn enrolling_key(
        &self,
        asked: &v1::EnrollRequest,
        nonce: Nonce,
        invite: Digest,
    ) -> Result<Option<PublicKey>, Status> {
        if asked.public_key.is_empty() {
            return match self.config.volunteers.require_device_keys {
                false => Ok(None),
                true => Err(status(
                    Reason::SignatureMissing,
                    "this coordinator takes only devices that sign their results",
                )),
            };
        }
        let invalid = |detail: &str| status(Reason::DeviceKeyInvalid, detail);
        let key = PublicKey::from_slice(&asked.public_key).map_err(|e| invalid(&e.to_string()))?;
        let signature = Signature::try_from(&asked.key_signature[..])
            .map_err(|e| invalid(&format!("key_signature: {e}")))?;
        if !key.verify(&EnrolmentStatement { nonce, invite }, &signature) {
            return Err(invalid(
                "key_signature is not the key's over this enrolment",
            ));
        }
        Ok(Some(key))
    }

    /// The device's signature under a claim, checked; `None` from devices that enrolled without a key.
    pub(super) async fn signed(
        &self,
        identity: &Identity,
        attempt: &Attempt,
        claim: &Claim,
        bytes: &[u8],
    ) -> Result<Option<ResultSignature>, Status> {
        if Some(attempt.device) != identity.device {
            return Err(status(Reason::AttemptNotYours, ""));
        }
        let key = self
            .store
            .device_key(attempt.device)
            .await
            .map_err(of_store("submit"))?;
        let Some(key) = key else {
            return match self.config.volunteers.require_device_keys {
                false => Ok(None),
                true => Err(status(
                    Reason::SignatureMissing,
                    "the device enrolled without a key",
                )),
            };
        };
        if bytes.is_empty() {
            return Err(status(Reason::SignatureMissing, ""));
        }
        let signature: Signature = parse::field("signature", bytes)?;
        let statement = ResultStatement {
            chain: attempt.chain,
            generation: attempt.generation,
            hop: attempt.hop,
            attempt: attempt.id,
            output: claim.output,
            trace_root: claim.trace_root,
        };
        if !key.verify(&statement, &signature) {
            return Err(status(Reason::SignatureInvalid, ""));
        }
        Ok(Some(ResultSignature {
            attempt: attempt.id,
            key,
            output: claim.output,
            trace_root: claim.trace_root,
            signature,
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
