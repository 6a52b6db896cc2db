//! Writing into an open upload: whole parts on the way to the storage while the next bytes arrive.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _, PutPayload, UpdateVersion};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::super::{Appender, BlobError, UploadKey};
use super::Inner;
use super::objects::Written;
use super::records::{Tail, Upload, uuid};

/// Parts of one stream that are under way at once.
const UNDER_WAY: usize = 2;

/// One upload in memory. The generation says who may write: opening or appending anew cuts off older streams.
#[derive(Default)]
pub(super) struct Slot {
    pub state: Mutex<SlotState>,
}

#[derive(Default)]
pub(super) struct SlotState {
    pub generation: u64,
    pub writer: Option<Writer>,
}

type Sent = (usize, Result<PartId, Error>);

/// An upload opened for writing.
pub(super) struct Writer {
    id: UploadKey,
    /// What the bucket says.
    record: Upload,
    version: UpdateVersion,
    /// Bytes behind the parts that were sent.
    buffer: Vec<u8>,
    /// Number of the next part to send, from 0.
    next: usize,
    under_way: JoinSet<Sent>,
    /// Acknowledged parts that the record does not have yet.
    acknowledged: BTreeMap<usize, String>,
}

impl Writer {
    pub async fn open(
        inner: &Inner,
        id: UploadKey,
        record: Upload,
        version: UpdateVersion,
    ) -> Result<Writer, BlobError> {
        let mut buffer = Vec::new();
        if let Some(tail) = &record.tail {
            let path = Path::from(tail.object.as_str());
            let read = inner.client.get_range(&path, 0..tail.bytes).await;
            buffer = read
                .map_err(inner.failed("read the tail of an upload"))?
                .into();
        }
        Ok(Writer {
            id,
            next: record.parts.len(),
            record,
            version,
            buffer,
            under_way: JoinSet::new(),
            acknowledged: BTreeMap::new(),
        })
    }

    /// Bytes taken in.
    fn written(&self) -> u64 {
        let sent = (self.next as u64).saturating_mul(self.record.part_bytes);
        (sent + self.buffer.len() as u64).min(self.record.size)
    }

    async fn write(&mut self, inner: &Arc<Inner>, data: &[u8]) -> Result<(), BlobError> {
        let got = self.written().saturating_add(data.len() as u64);
        if got > self.record.size {
            return Err(BlobError::TooLong {
                declared: self.record.size,
                got,
            });
        }
        self.buffer.extend_from_slice(data);
        self.send(inner).await
    }

    /// Sends what makes whole parts, and the last one once it is there.
    async fn send(&mut self, inner: &Arc<Inner>) -> Result<(), BlobError> {
        if self.record.single() {
            return Ok(());
        }
        let part_bytes = usize::try_from(self.record.part_bytes).unwrap_or(usize::MAX);
        loop {
            let last = self.written() == self.record.size && !self.buffer.is_empty();
            if self.buffer.len() < part_bytes && !last {
                return Ok(());
            }
            let multipart = self.multipart(inner).await?;
            while self.under_way.len() >= UNDER_WAY {
                self.arrived(inner).await?;
            }
            let rest = self.buffer.split_off(part_bytes.min(self.buffer.len()));
            let part = PutPayload::from(std::mem::replace(&mut self.buffer, rest));
            let (inner, path, number) = (inner.clone(), self.record.path(), self.next);
            self.next += 1;
            self.under_way.spawn(async move {
                let sent = inner.client.put_part(&path, &multipart, number, part).await;
                (number, sent)
            });
        }
    }

    /// The multipart upload. It stands in the record before it has a part, so that none is ever forgotten with bytes.
    async fn multipart(&mut self, inner: &Inner) -> Result<String, BlobError> {
        if let Some(id) = &self.record.multipart {
            return Ok(id.clone());
        }
        let made = inner.client.create_multipart(&self.record.path()).await;
        let id = made.map_err(inner.failed("begin a multipart upload"))?;
        self.record.multipart = Some(id.clone());
        self.save(inner).await?;
        Ok(id)
    }

    /// Waits for one part.
    async fn arrived(&mut self, inner: &Inner) -> Result<(), BlobError> {
        match self.under_way.join_next().await {
            Some(sent) => self.acknowledge(inner, sent),
            None => Ok(()),
        }
    }

    fn acknowledge(
        &mut self,
        inner: &Inner,
        sent: Result<Sent, tokio::task::JoinError>,
    ) -> Result<(), BlobError> {
        let (number, part) = sent.map_err(|e| BlobError::Io {
            action: "send a part",
            source: std::io::Error::other(e),
        })?;
        let part = part.map_err(inner.failed("send a part"))?;
        self.acknowledged.insert(number, part.content_id);
        Ok(())
    }

    /// Moves acknowledged parts into the record; true where there were any.
    fn record_parts(&mut self) -> bool {
        let before = self.record.parts.len();
        while let Some(part) = self.acknowledged.remove(&self.record.parts.len()) {
            self.record.parts.push(part);
        }
        self.record.parts.len() > before
    }

    async fn save(&mut self, inner: &Inner) -> Result<(), BlobError> {
        self.record.mark = uuid();
        let path = inner.layout.upload(self.id);
        let over = Some(self.version.clone());
        match inner
            .put(&path, &self.record, over, "record an upload")
            .await?
        {
            Written::Done(version) => {
                self.version = version;
                Ok(())
            }
            Written::Lost => Err(BlobError::TakenOver),
        }
    }

    /// Records the parts that have arrived, without waiting for those under way.
    async fn checkpoint(&mut self, inner: &Inner) -> Result<u64, BlobError> {
        while let Some(sent) = self.under_way.try_join_next() {
            self.acknowledge(inner, sent)?;
        }
        if self.record_parts() {
            let tail = self.record.tail.take();
            self.save(inner).await?;
            if let Some(tail) = tail {
                inner.tidy(&Path::from(tail.object.as_str())).await;
            }
        }
        Ok(self.record.committed())
    }

    /// Makes everything durable: the parts, and a tail too short for one.
    pub async fn commit(&mut self, inner: &Inner) -> Result<u64, BlobError> {
        while !self.under_way.is_empty() {
            self.arrived(inner).await?;
        }
        let more = self.record_parts();
        let tail = self.record.tail.clone().filter(|_| !more);
        let had = tail.as_ref().map_or(0, |t| t.bytes);
        if !more && had == self.buffer.len() as u64 {
            return Ok(self.record.committed());
        }
        let old = self.record.tail.take();
        if !self.buffer.is_empty() {
            // Under a new name each time: nobody's late write can shorten what was acknowledged.
            let path = inner.layout.fresh_data(&self.id.digest);
            let bytes = PutPayload::from(self.buffer.clone());
            let put = inner.client.put(&path, bytes).await;
            put.map_err(inner.failed("write the tail of an upload"))?;
            self.record.tail = Some(Tail {
                object: path.to_string(),
                bytes: self.buffer.len() as u64,
            });
        }
        self.save(inner).await?;
        if let Some(old) = old {
            inner.tidy(&Path::from(old.object.as_str())).await;
        }
        Ok(self.record.committed())
    }
}

pub(super) struct S3Appender {
    pub inner: Arc<Inner>,
    pub slot: Arc<Slot>,
    pub generation: u64,
}

/// Runs work on the writer as long as nobody took the upload over. A failure ends this stream's right to write: the
/// record says where to go on.
macro_rules! with {
    ($appender:expr, |$writer:ident| $work:expr) => {{
        let mut state = $appender.slot.state.lock().await;
        if state.generation != $appender.generation {
            return Err(BlobError::TakenOver);
        }
        // Put back only after success.
        let mut $writer = state.writer.take().ok_or(BlobError::TakenOver)?;
        let done = $work;
        if done.is_ok() || matches!(done, Err(BlobError::TooLong { .. })) {
            state.writer = Some($writer);
        }
        done
    }};
}

impl Appender for S3Appender {
    fn write(&mut self, data: Vec<u8>) -> BoxFuture<'_, Result<(), BlobError>> {
        Box::pin(async move { with!(self, |writer| writer.write(&self.inner, &data).await) })
    }

    fn checkpoint(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        Box::pin(async move { with!(self, |writer| writer.checkpoint(&self.inner).await) })
    }

    fn commit(&mut self) -> BoxFuture<'_, Result<u64, BlobError>> {
        Box::pin(async move { with!(self, |writer| writer.commit(&self.inner).await) })
    }
}

impl Drop for S3Appender {
    fn drop(&mut self) {
        // Locked: somebody newer is at it.
        if let Ok(mut state) = self.slot.state.try_lock()
            && state.generation == self.generation
        {
            state.writer = None;
        }
    }
}
