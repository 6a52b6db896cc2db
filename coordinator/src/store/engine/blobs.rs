//! Rows of blobs and uploads.

use cipherhop_proto::{Reason, UploadId};

use super::Work;
use crate::domain::command::Refusal;
use crate::domain::time::Timestamp;
use crate::store::types::{BlobRecord, NewUpload, OpenedUpload, Result, UploadRecord, UploadState};

impl Work {
    pub(super) async fn open_upload(
        &mut self,
        new: NewUpload,
        now: Timestamp,
    ) -> Result<OpenedUpload> {
        let check = |known: u64| {
            let detail = format!("{} bytes declared, {known} known", new.size);
            match known == new.size {
                true => Ok(()),
                false => Err(Refusal::new(Reason::BlobSizeMismatch, detail)),
            }
        };
        if let Some(blob) = self.tx.blob(new.digest).await? {
            check(blob.size)?;
            return Ok(OpenedUpload::Complete(blob));
        }
        if let Some(mut upload) = self.tx.upload_of(new.digest, new.account).await? {
            check(upload.size)?;
            if upload.attempt != new.attempt || upload.role != new.role {
                upload.attempt = new.attempt;
                upload.role = new.role;
                self.tx.put_upload(&upload).await?;
            }
            return Ok(OpenedUpload::Open(upload));
        }
        if let Some(attempt) = new.attempt {
            self.attempt(attempt).await?;
        }
        let upload = UploadRecord {
            id: new.id,
            digest: new.digest,
            size: new.size,
            role: new.role,
            account: new.account,
            attempt: new.attempt,
            committed: 0,
            state: UploadState::Reserved,
            updated: now,
        };
        self.tx.put_upload(&upload).await?;
        Ok(OpenedUpload::Open(upload))
    }

    pub(super) async fn upload(&mut self, id: UploadId) -> Result<UploadRecord> {
        Ok(self.tx.upload(id).await?.ok_or(Reason::UploadNotFound)?)
    }

    pub(super) async fn commit_upload(
        &mut self,
        id: UploadId,
        committed: u64,
        now: Timestamp,
    ) -> Result<()> {
        let mut upload = self.upload(id).await?;
        if committed < upload.committed || committed > upload.size {
            let detail = format!(
                "{committed} is not in {}..={}",
                upload.committed, upload.size
            );
            return Err(Refusal::new(Reason::UploadOffset, detail).into());
        }
        if committed > 0 {
            upload.state = UploadState::Uploading;
        }
        upload.committed = committed;
        upload.updated = now;
        self.tx.put_upload(&upload).await
    }

    pub(super) async fn restart_upload(&mut self, id: UploadId, now: Timestamp) -> Result<()> {
        let mut upload = self.upload(id).await?;
        upload.committed = 0;
        upload.state = UploadState::Reserved;
        upload.updated = now;
        self.tx.put_upload(&upload).await
    }

    pub(super) async fn complete_upload(
        &mut self,
        id: UploadId,
        now: Timestamp,
    ) -> Result<BlobRecord> {
        let upload = self.upload(id).await?;
        if upload.committed != upload.size {
            let detail = format!("{} of {} bytes are there", upload.committed, upload.size);
            return Err(Refusal::new(Reason::BlobIncomplete, detail).into());
        }
        let blob = match self.tx.blob(upload.digest).await? {
            // Another sender was first.
            Some(blob) => blob,
            None => {
                let blob = BlobRecord {
                    digest: upload.digest,
                    size: upload.size,
                    completed: now,
                };
                self.tx.insert_blob(&blob).await?;
                blob
            }
        };
        self.tx.delete_uploads(upload.digest).await?;
        cipherhop_failpoint::at("finish.commit.before");
        Ok(blob)
    }
}
