//! Blob transfer against a server that breaks off where the test wants it to. The coordinator's own service is
//! tested with its real store elsewhere; here only the client's resuming is under test.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cipherhop_proto::client::{
    Backoff, ClientError, ConnectOptions, Connection, Source, TransferPolicy, download, upload,
};
use cipherhop_proto::v1::blob_service_server::{BlobService, BlobServiceServer};
use cipherhop_proto::v1::*;
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status, Streaming};

#[derive(Default)]
struct State {
    held: Vec<u8>,
    complete: bool,
    /// Bytes after which the next streams break off.
    breaks: Vec<usize>,
    offsets: Vec<u64>,
    lie_about_size: bool,
    served: Vec<u8>,
}

#[derive(Clone, Default)]
struct Flaky(Arc<Mutex<State>>);

#[tonic::async_trait]
impl BlobService for Flaky {
    async fn open_upload(
        &self,
        _: Request<OpenUploadRequest>,
    ) -> Result<Response<OpenUploadResponse>, Status> {
        let state = self.0.lock().unwrap();
        Ok(Response::new(OpenUploadResponse {
            complete: state.complete,
            upload_id: vec![7; 16],
            committed: state.held.len() as u64,
        }))
    }

    async fn append(
        &self,
        request: Request<Streaming<AppendRequest>>,
    ) -> Result<Response<AppendResponse>, Status> {
        let mut stream = request.into_inner();
        let mut first = true;
        let mut left = {
            let mut state = self.0.lock().unwrap();
            if state.breaks.is_empty() {
                usize::MAX
            } else {
                state.breaks.remove(0)
            }
        };
        while let Some(message) = stream.message().await? {
            let mut state = self.0.lock().unwrap();
            if std::mem::take(&mut first) {
                assert_eq!(message.upload_id, vec![7; 16]);
                assert_eq!(message.offset, state.held.len() as u64);
                state.offsets.push(message.offset);
            }
            let take = message.data.len().min(left);
            state.held.extend_from_slice(&message.data[..take]);
            left -= take;
            if left == 0 {
                return Err(Status::unavailable("broken off by the test"));
            }
        }
        Ok(Response::new(AppendResponse {
            committed: self.0.lock().unwrap().held.len() as u64,
        }))
    }

    async fn finish(&self, _: Request<FinishRequest>) -> Result<Response<FinishResponse>, Status> {
        self.0.lock().unwrap().complete = true;
        Ok(Response::new(FinishResponse { blob: None }))
    }

    type ReadStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<ReadResponse, Status>> + Send>>;

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let mut state = self.0.lock().unwrap();
        let offset = request.into_inner().offset as usize;
        state.offsets.push(offset as u64);
        let limit = if state.breaks.is_empty() {
            usize::MAX
        } else {
            state.breaks.remove(0)
        };
        let size = state.served.len() as u64 + u64::from(state.lie_about_size);
        let mut frames = Vec::new();
        let mut sent = 0;
        for (index, data) in state.served[offset..].chunks(1000).enumerate() {
            if sent + data.len() > limit {
                frames.push(Err(Status::unavailable("broken off by the test")));
                break;
            }
            sent += data.len();
            frames.push(Ok(ReadResponse {
                size: if index == 0 { size } else { 0 },
                data: data.to_vec(),
            }));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(frames))))
    }

    type ListChunksStream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<ListChunksResponse, Status>> + Send>,
    >;

    /// As coordinators were before they told digests of chunks.
    async fn list_chunks(
        &self,
        _: Request<ListChunksRequest>,
    ) -> Result<Response<Self::ListChunksStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stat(&self, _: Request<StatRequest>) -> Result<Response<StatResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

async fn serve(state: State) -> (Flaky, Connection) {
    let flaky = Flaky(Arc::new(Mutex::new(state)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = BlobServiceServer::new(flaky.clone());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );
    let connection = Connection::lazy(&ConnectOptions {
        url,
        token: None,
        ca: None,
        allow_plaintext: false,
    })
    .unwrap();
    (flaky, connection)
}

fn policy() -> TransferPolicy {
    TransferPolicy {
        frame_bytes: 700,
        segment_bytes: 5000,
        idle: Duration::from_secs(5),
        max_stalls: 3,
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(5)),
    }
}

fn bytes() -> Vec<u8> {
    (0..20_011u32).map(|i| (i * 31 % 251) as u8).collect()
}

fn reference(bytes: &[u8]) -> BlobRef {
    BlobRef {
        digest: Sha256::digest(bytes).to_vec(),
        size: bytes.len() as u64,
        role: BlobRole::Output as i32,
        name: String::new(),
    }
}

#[tokio::test]
async fn an_upload_goes_on_from_the_durable_offset_after_every_break() {
    let bytes = bytes();
    let (flaky, connection) = serve(State {
        breaks: vec![123, 4999, 1, 300],
        ..State::default()
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    std::fs::write(&path, &bytes).unwrap();
    upload(
        &connection,
        &reference(&bytes),
        Source::File(&path),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    let state = flaky.0.lock().unwrap();
    assert_eq!(state.held, bytes);
    assert!(state.complete);
    assert_eq!(&state.offsets[..4], &[0, 123, 123 + 4999, 123 + 4999 + 1]);
}

#[tokio::test]
async fn an_upload_of_a_known_blob_sends_nothing() {
    let bytes = bytes();
    let (flaky, connection) = serve(State {
        complete: true,
        ..State::default()
    })
    .await;
    upload(
        &connection,
        &reference(&bytes),
        Source::Bytes(&bytes),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert!(flaky.0.lock().unwrap().held.is_empty());
}

#[tokio::test]
async fn a_download_goes_on_from_the_part_on_disk_and_is_published_whole() {
    let bytes = bytes();
    let (flaky, connection) = serve(State {
        served: bytes.clone(),
        breaks: vec![3000, 0, 5000],
        ..State::default()
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    std::fs::write(dir.path().join("in.part"), &bytes[..777]).unwrap();
    download(
        &connection,
        &reference(&bytes),
        &path,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(flaky.0.lock().unwrap().offsets, vec![777, 3777, 3777, 8777]);
    assert!(!dir.path().join("in.part").exists());
}

#[tokio::test]
async fn a_damaged_part_is_thrown_away_once_and_fetched_again() {
    let bytes = bytes();
    let (_, connection) = serve(State {
        served: bytes.clone(),
        ..State::default()
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    std::fs::write(dir.path().join("in.part"), b"not the right bytes").unwrap();
    download(
        &connection,
        &reference(&bytes),
        &path,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn wrong_bytes_and_a_lying_size_never_reach_the_final_name() {
    let bytes = bytes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    let (_, connection) = serve(State {
        served: vec![1; bytes.len()],
        ..State::default()
    })
    .await;
    let error = download(
        &connection,
        &reference(&bytes),
        &path,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, ClientError::DigestMismatch { .. }),
        "{error}"
    );
    let (_, connection) = serve(State {
        served: bytes.clone(),
        lie_about_size: true,
        ..State::default()
    })
    .await;
    let error = download(
        &connection,
        &reference(&bytes),
        &path,
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, ClientError::SizeMismatch { .. }), "{error}");
    assert!(!path.exists());
}

#[tokio::test]
async fn patience_ends_when_no_byte_moves() {
    let bytes = bytes();
    let dir = tempfile::tempdir().unwrap();
    let (_, connection) = serve(State {
        served: bytes.clone(),
        breaks: vec![0; 20],
        ..State::default()
    })
    .await;
    let error = download(
        &connection,
        &reference(&bytes),
        &dir.path().join("in"),
        None,
        &policy(),
        &|_| (),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, ClientError::Refused(_)), "{error}");
}
