//! Blobs over gRPC: the order of durable steps.
//!
//! Bytes first, row second: the blob store makes bytes durable, then the database says so, then the client hears it
//! (I3, I5). After a crash between two of these, opening the upload again brings the later ones up to date.

use std::pin::Pin;
use std::time::Duration;

use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::v1::blob_service_server::BlobService;
use cipherhop_proto::{AttemptId, Digest, Reason, UploadId, v1};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout};
use tonic::{Request, Response, Status, Streaming};

use super::authorize::OWN;
use super::error::{of_blob, of_store};
use super::recent::Finished;
use super::{Core, chunks, convert, parse};
use crate::blobs::{Appender, BlobError, FRAME_BYTES, Opened, UploadKey};
use crate::domain::command::Holder;
use crate::domain::view::{BlobRole, NeededBlob};
use crate::store::{NewUpload, OpenedUpload, Role, UploadRecord};

type Answered<T> = Result<Response<T>, Status>;

/// While bytes of an attempt flow, its lease is renewed this often.
const RENEW_EVERY: Duration = Duration::from_secs(30);

const SENDERS: &[Role] = &[Role::Volunteer, Role::Owner, Role::Admin];

#[tonic::async_trait]
impl BlobService for Core {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<v1::ReadResponse, Status>> + Send>>;
    type ListChunksStream = chunks::Answers;

    async fn open_upload(
        &self,
        request: Request<v1::OpenUploadRequest>,
    ) -> Answered<v1::OpenUploadResponse> {
        let identity = self.caller(&request, SENDERS).await?;
        let asked = request.into_inner();
        let blob = asked
            .blob
            .ok_or_else(|| bad_request("blob", "must be set"))?;
        let digest = parse::field("blob.digest", &blob.digest)?;
        let role = parse::blob_role(blob.role)?;
        let limit = self.config.blobs.max_blob_bytes;
        if blob.size > limit {
            // Before the row is made: a declared size is not changed later.
            return Err(of_blob(BlobError::TooLarge {
                size: blob.size,
                limit,
            }));
        }
        let attempt: Option<AttemptId> = parse::optional("attempt_id", &asked.attempt_id)?;
        self.may_upload(&identity, attempt, asked.epoch, digest, blob.size, role)
            .await?;
        let now = self.clock.now();
        let account = identity.account;
        let upload = NewUpload {
            id: UploadId::generate(),
            digest,
            size: blob.size,
            role,
            account,
            attempt,
        };
        let key = UploadKey {
            sender: *account.as_bytes(),
            digest,
        };
        let record = match self
            .store
            .open_upload(upload, now)
            .await
            .map_err(of_store("open_upload"))?
        {
            OpenedUpload::Complete(_) => {
                // Somebody else's upload completed it; this account's part is not needed any more.
                self.blobs.discard(key).await.map_err(of_blob)?;
                return Ok(Response::new(complete()));
            }
            OpenedUpload::Open(record) => record,
        };
        cipherhop_failpoint::at("upload.row.made");
        // From the bytes that may be there to the row that says so, nobody may take them away.
        let _publishing = self.publishing.lock(digest).await;
        match self
            .blobs
            .open_upload(key, blob.size)
            .await
            .map_err(of_blob)?
        {
            Opened::Complete(size) => {
                // The bytes were published and the server died before the row was: make up for it.
                self.commit_row(&record, size).await?;
                self.store
                    .complete_upload(record.id, now)
                    .await
                    .map_err(of_store("open_upload"))?;
                self.blobs.discard(key).await.map_err(of_blob)?;
                Ok(Response::new(complete()))
            }
            Opened::Resume(committed) => {
                self.commit_row(&record, committed).await?;
                Ok(Response::new(v1::OpenUploadResponse {
                    complete: false,
                    upload_id: record.id.to_vec(),
                    committed,
                }))
            }
        }
    }

    async fn append(
        &self,
        request: Request<Streaming<v1::AppendRequest>>,
    ) -> Answered<v1::AppendResponse> {
        let identity = self.caller(&request, SENDERS).await?;
        let mut messages = request.into_inner();
        let first = self
            .next_message(&mut messages)
            .await?
            .ok_or_else(|| bad_request("upload_id", "must be set"))?;
        let id = parse::field("upload_id", &first.upload_id)?;
        let (record, key) = self.own_upload(&identity, id).await?;
        let appender = match first.replace {
            false => self.blobs.append(key, first.offset).await,
            true => self.blobs.replace(key, first.offset).await,
        };
        let appender = appender.map_err(of_blob)?;
        let mut stream = AppendStream {
            core: self,
            record,
            appender,
            uncommitted: 0,
            renewed: Instant::now(),
        };
        let received = stream.receive(first.data, &mut messages).await;
        // A broken stream keeps what arrived: the commit comes before the error.
        let committed = stream.commit().await;
        received?;
        Ok(Response::new(v1::AppendResponse {
            committed: committed?,
        }))
    }

    async fn finish(&self, request: Request<v1::FinishRequest>) -> Answered<v1::FinishResponse> {
        let identity = self.caller(&request, SENDERS).await?;
        let id = parse::field("upload_id", &request.into_inner().upload_id)?;
        if let Some(done) = self
            .recent
            .get(id)
            .filter(|done| done.account == identity.account)
        {
            return Ok(finished(done.digest, done.size));
        }
        let (record, key) = self.own_upload(&identity, id).await?;
        let _publishing = self.publishing.lock(record.digest).await;
        let size = match self.blobs.finish(key).await {
            Ok(size) => size,
            Err(error) => {
                if matches!(error, BlobError::DigestMismatch { .. }) {
                    tracing::warn!(upload = %id, account = %identity.account, %error, "an upload was refused");
                    let now = self.clock.now();
                    self.store
                        .restart_upload(id, now)
                        .await
                        .map_err(of_store("finish"))?;
                }
                return Err(of_blob(error));
            }
        };
        self.commit_row(&record, size).await?;
        cipherhop_failpoint::at("finish.row.before");
        self.store
            .complete_upload(id, self.clock.now())
            .await
            .map_err(of_store("finish"))?;
        cipherhop_failpoint::at("finish.row.after");
        self.recent.insert(
            id,
            Finished {
                account: identity.account,
                digest: record.digest,
                size,
            },
        );
        Ok(finished(record.digest, size))
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Answered<Self::ReadStream> {
        let identity = self.caller(&request, SENDERS).await?;
        let asked = request.into_inner();
        let digest = parse::field("digest", &asked.digest)?;
        let attempt: Option<AttemptId> = parse::optional("attempt_id", &asked.attempt_id)?;
        let holder = self.may_read(&identity, attempt, digest).await?;
        if self
            .store
            .blob(digest)
            .await
            .map_err(of_store("read"))?
            .is_none()
        {
            return Err(of_blob(BlobError::NotFound(digest)));
        }
        let reader = self
            .blobs
            .read(digest, asked.offset, asked.length)
            .await
            .map_err(of_blob)?;
        let first = v1::ReadResponse {
            size: reader.size,
            data: Vec::new(),
        };
        let core = self.clone();
        let mut renewed: Option<Instant> = None;
        let frames = reader.frames.then(move |frame| {
            let core = core.clone();
            let due = renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY);
            if due {
                renewed = Some(Instant::now());
            }
            async move {
                if let (true, Some(holder)) = (due, holder) {
                    core.renew(holder).await;
                }
                frame
                    .map(|data| v1::ReadResponse { size: 0, data })
                    .map_err(of_blob)
            }
        });
        let shutdown = self.shutdown.clone();
        let all = futures::stream::once(async { Ok(first) }).chain(frames);
        Ok(Response::new(Box::pin(
            all.take_until(shutdown.cancelled_owned()),
        )))
    }

    async fn list_chunks(
        &self,
        request: Request<v1::ListChunksRequest>,
    ) -> Answered<Self::ListChunksStream> {
        let identity = self.caller(&request, SENDERS).await?;
        let asked = request.into_inner();
        let reader = match parse::optional("upload_id", &asked.upload_id)? {
            Some(id) => {
                let (_, key) = self.own_upload(&identity, id).await?;
                self.blobs.read_refused(key).await
            }
            None => {
                let digest = parse::field("digest", &asked.digest)?;
                let attempt: Option<AttemptId> = parse::optional("attempt_id", &asked.attempt_id)?;
                self.may_read(&identity, attempt, digest).await?;
                self.blobs.read(digest, 0, 0).await
            }
        };
        let answers = chunks::digests(reader.map_err(of_blob)?);
        let shutdown = self.shutdown.clone();
        Ok(Response::new(Box::pin(
            answers.take_until(shutdown.cancelled_owned()),
        )))
    }

    async fn stat(&self, request: Request<v1::StatRequest>) -> Answered<v1::StatResponse> {
        self.caller(&request, OWN).await?;
        let digest = parse::field("digest", &request.into_inner().digest)?;
        let blob = self.store.blob(digest).await.map_err(of_store("stat"))?;
        Ok(Response::new(v1::StatResponse {
            complete: blob.is_some(),
            size: blob.map_or(0, |b| b.size),
        }))
    }
}

fn complete() -> v1::OpenUploadResponse {
    v1::OpenUploadResponse {
        complete: true,
        upload_id: Vec::new(),
        committed: 0,
    }
}

fn finished(digest: Digest, size: u64) -> Response<v1::FinishResponse> {
    let blob = convert::blob(&NeededBlob {
        digest,
        size,
        role: BlobRole::Output,
    });
    let blob = v1::BlobRef {
        role: v1::BlobRole::Unspecified.into(),
        ..blob
    };
    Response::new(v1::FinishResponse { blob: Some(blob) })
}

/// One Append call.
struct AppendStream<'a> {
    core: &'a Core,
    record: UploadRecord,
    appender: Box<dyn Appender>,
    uncommitted: u64,
    renewed: Instant,
}

impl AppendStream<'_> {
    async fn receive(
        &mut self,
        first: Vec<u8>,
        messages: &mut Streaming<v1::AppendRequest>,
    ) -> Result<(), Status> {
        let mut data = first;
        loop {
            if data.len() > FRAME_BYTES {
                return Err(bad_request(
                    "data",
                    format!("at most {FRAME_BYTES} bytes per message"),
                ));
            }
            let shutdown = self.core.shutdown.clone();
            let core = self.core;
            let next = async {
                tokio::select! {
                    message = core.next_message(messages) => message,
                    () = shutdown.cancelled() => Err(status(Reason::Draining, "")),
                }
            };
            let (kept, message) = tokio::join!(self.keep(data), next);
            kept?;
            let message = message?;
            match message {
                None => return Ok(()),
                Some(message) => data = message.data,
            }
        }
    }

    /// Writes bytes; makes them durable where enough have gathered.
    async fn keep(&mut self, data: Vec<u8>) -> Result<(), Status> {
        self.uncommitted += data.len() as u64;
        if !data.is_empty() {
            self.appender.write(data).await.map_err(of_blob)?;
        }
        if self.uncommitted >= self.core.config.blobs.commit_every_bytes {
            let committed = self.appender.checkpoint().await.map_err(of_blob)?;
            self.durable(committed).await?;
        }
        if self.renewed.elapsed() >= RENEW_EVERY {
            self.renewed = Instant::now();
            self.renew().await;
        }
        Ok(())
    }

    /// Bytes durable, then the row.
    async fn commit(&mut self) -> Result<u64, Status> {
        let committed = self.appender.commit().await.map_err(of_blob)?;
        self.durable(committed).await
    }

    async fn durable(&mut self, committed: u64) -> Result<u64, Status> {
        self.uncommitted = 0;
        cipherhop_failpoint::at("append.row.before");
        let now = self.core.clock.now();
        let row = self
            .core
            .store
            .commit_upload(self.record.id, committed, now)
            .await;
        row.map_err(of_store("append"))?;
        cipherhop_failpoint::at("append.row.after");
        Ok(committed)
    }

    async fn renew(&self) {
        let Some(attempt) = self.record.attempt else {
            return;
        };
        if let Ok(attempt) = self.core.store.attempt(attempt).await {
            self.core
                .renew(Holder {
                    attempt: attempt.id,
                    device: attempt.device,
                    epoch: attempt.epoch,
                })
                .await;
        }
    }
}

impl Core {
    async fn next_message(
        &self,
        messages: &mut Streaming<v1::AppendRequest>,
    ) -> Result<Option<v1::AppendRequest>, Status> {
        match timeout(self.config.blobs.idle(), messages.message()).await {
            Ok(message) => message,
            Err(_) => Err(status(Reason::StreamIdle, "")),
        }
    }

    /// A renewal is a courtesy; a closed attempt is told by the calls that matter.
    async fn renew(&self, holder: Holder) {
        if let Err(error) = self.store.touch(holder, self.clock.now()).await {
            tracing::debug!(attempt = %holder.attempt, %error, "lease not renewed by a blob stream");
        }
    }

    /// Brings the row to what is durable. Fewer bytes than the row says mean that the disk lost some.
    async fn commit_row(&self, record: &UploadRecord, committed: u64) -> Result<(), Status> {
        let now = self.clock.now();
        // Another call may have moved the row since it was read.
        let row = match self.store.upload(record.id).await {
            Ok(row) => row.committed,
            Err(_) => record.committed,
        };
        if committed < row {
            tracing::warn!(upload = %record.id, committed, row, "stored bytes of an upload are gone; it goes back");
            self.store
                .restart_upload(record.id, now)
                .await
                .map_err(of_store("open_upload"))?;
        }
        if committed != row {
            self.store
                .commit_upload(record.id, committed, now)
                .await
                .map_err(of_store("open_upload"))?;
        }
        Ok(())
    }
}
