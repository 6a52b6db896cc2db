//! The gRPC services: thin. Each call parses into domain types, asks the store, and maps the answer.

use std::sync::Arc;
use std::time::Duration;

use cipherhop_proto::MESSAGE_CAP_BYTES;
use cipherhop_proto::v1::admin_service_server::AdminServiceServer;
use cipherhop_proto::v1::blob_service_server::BlobServiceServer;
use cipherhop_proto::v1::chain_service_server::ChainServiceServer;
use cipherhop_proto::v1::volunteer_service_server::VolunteerServiceServer;
use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

use crate::blobs::Blobs;
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::Counters;
use crate::store::Store;
use crate::tls::ServerCertificate;

mod access;
mod admin;
mod arbitrate;
mod authorize;
mod blob;
mod chain;
mod chunks;
pub(crate) mod convert;
mod error;
mod limits;
mod orphans;
mod parse;
mod recent;
mod referee;
mod scrub;
pub mod trace;
mod verify;
mod volunteer;
mod watch;

pub use orphans::Collected;

/// What every service needs.
#[derive(Clone)]
pub struct Core {
    store: Arc<dyn Store>,
    blobs: Blobs,
    clock: Arc<dyn Clock>,
    config: Arc<Config>,
    /// Cancelled when the server goes down: long polls and watches end.
    shutdown: CancellationToken,
    recent: Arc<recent::RecentUploads>,
    publishing: Arc<orphans::DigestLocks>,
    board: Arc<arbitrate::Board>,
    tls: Option<ServerCertificate>,
    reflection: bool,
    limits: Arc<limits::Limits>,
    counters: Arc<Counters>,
}

impl Core {
    /// Puts the parts together.
    pub fn new(
        store: Arc<dyn Store>,
        blobs: Blobs,
        clock: Arc<dyn Clock>,
        config: Config,
        shutdown: CancellationToken,
    ) -> Core {
        Core {
            store,
            blobs,
            clock,
            limits: Arc::new(limits::Limits::new(&config.limits)),
            config: Arc::new(config),
            shutdown,
            recent: Arc::default(),
            publishing: Arc::default(),
            board: Arc::default(),
            tls: None,
            reflection: false,
            counters: Arc::default(),
        }
    }

    /// Counts into these counters.
    pub fn with_counters(self, counters: Arc<Counters>) -> Core {
        Core { counters, ..self }
    }

    /// The public key that the archive is signed with, as the wire carries it; empty where there is none.
    fn ledger_key(&self) -> Vec<u8> {
        let key = self.store.ledger_key();
        key.map_or_else(Vec::new, |key| key.as_bytes().to_vec())
    }

    /// Speaks TLS with this certificate; plaintext without it.
    pub fn with_tls(self, certificate: ServerCertificate) -> Core {
        Core {
            tls: Some(certificate),
            ..self
        }
    }
}

/// Serves until shutdown is asked for, then lets open calls end, but no longer than the configured time.
pub async fn serve(core: Core, listener: TcpListener) -> Result<(), tonic::transport::Error> {
    match core.tls.clone() {
        Some(certificate) => serve_on(core, certificate.accept(listener)).await,
        // The builder's own setting does not reach a listener that is handed over. Without it the second small segment
        // of an answer waits for the client's delayed acknowledgement, 40 ms.
        None => serve_on(core, TcpIncoming::from(listener).with_nodelay(Some(true))).await,
    }
}

/// The same, with server reflection beside it: what an operator's listener offers and the public one does not.
pub async fn serve_admin(core: Core, listener: TcpListener) -> Result<(), tonic::transport::Error> {
    let core = Core {
        reflection: true,
        ..core
    };
    serve(core, listener).await
}

/// The same over connections that were accepted elsewhere.
pub async fn serve_on<S, IO, E>(core: Core, incoming: S) -> Result<(), tonic::transport::Error>
where
    S: Stream<Item = Result<IO, E>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    IO::ConnectInfo: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<VolunteerServiceServer<Core>>().await;
    reporter.set_serving::<ChainServiceServer<Core>>().await;
    reporter.set_serving::<BlobServiceServer<Core>>().await;
    reporter.set_serving::<AdminServiceServer<Core>>().await;
    reporter
        .set_service_status("", tonic_health::ServingStatus::Serving)
        .await;
    let shutdown = core.shutdown.clone();
    let limit = Duration::from_secs(core.config.server.shutdown_seconds);
    let keepalive = Duration::from_secs(core.config.server.keepalive_seconds);
    let reflection = core.reflection.then(reflection).flatten();
    let server = Server::builder()
        .http2_keepalive_interval(Some(keepalive))
        .http2_keepalive_timeout(Some(keepalive))
        // One connection cannot take all of the server's memory.
        .max_concurrent_streams(256)
        .max_frame_size(cipherhop_proto::HTTP2_FRAME_BYTES)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(health)
        .add_optional_service(reflection)
        .add_service(
            VolunteerServiceServer::new(core.clone()).max_decoding_message_size(MESSAGE_CAP_BYTES),
        )
        .add_service(
            ChainServiceServer::new(core.clone()).max_decoding_message_size(MESSAGE_CAP_BYTES),
        )
        .add_service(
            BlobServiceServer::new(core.clone()).max_decoding_message_size(MESSAGE_CAP_BYTES),
        )
        .add_service(AdminServiceServer::new(core).max_decoding_message_size(MESSAGE_CAP_BYTES))
        .serve_with_incoming_shutdown(incoming, {
            let shutdown = shutdown.clone();
            async move {
                shutdown.cancelled().await;
                reporter
                    .set_service_status("", tonic_health::ServingStatus::NotServing)
                    .await;
            }
        });
    tokio::select! {
        result = server => result,
        () = async { shutdown.cancelled().await; tokio::time::sleep(limit).await } => {
            tracing::warn!(seconds = limit.as_secs(), "open calls were cut off at shutdown");
            Ok(())
        }
    }
}

/// Server reflection of all services.
fn reflection() -> Option<ServerReflectionServer<impl ServerReflection>> {
    let built = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(cipherhop_proto::FILE_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    built
        .inspect_err(|error| tracing::error!(%error, "no server reflection"))
        .ok()
}
