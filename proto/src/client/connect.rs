//! Connecting with a bearer token, keepalive and deadlines.

use std::path::PathBuf;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use super::{ClientError, tls};
use crate::v1::admin_service_client::AdminServiceClient;
use crate::v1::blob_service_client::BlobServiceClient;
use crate::v1::chain_service_client::ChainServiceClient;
use crate::v1::volunteer_service_client::VolunteerServiceClient;

/// Deadline of ordinary calls.
pub const UNARY_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline of a long-polling Acquire.
pub const LONG_POLL_DEADLINE: Duration = Duration::from_secs(45);

/// Longest wait for a connection and for its TLS handshake.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A token; its `Debug` shows nothing.
#[derive(Clone)]
pub struct BearerToken(String);

impl BearerToken {
    /// Takes the token's text without surrounding white space.
    pub fn new(text: &str) -> Self {
        BearerToken(text.trim().to_owned())
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// How to reach a coordinator.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// `http://` or `https://`, host and port.
    pub url: String,
    /// Absent for Hello and Enroll.
    pub token: Option<BearerToken>,
    /// A PEM file with the certificate authority to trust beside the system's.
    pub ca: Option<PathBuf>,
    /// Allows `http://` to a host that is not this machine: token and blobs then travel unencrypted.
    pub allow_plaintext: bool,
}

/// A channel that adds the token to every call.
pub type AuthChannel = InterceptedService<Channel, Bearer>;

/// Adds the bearer token.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// One connection, shared by all services; it reconnects by itself.
#[derive(Clone)]
pub struct Connection {
    channel: AuthChannel,
}

impl Connection {
    /// Checks the options and connects at the first call. Needs a tokio runtime.
    pub fn lazy(options: &ConnectOptions) -> Result<Connection, ClientError> {
        Connection::over(endpoint(options)?.connect_lazy(), options.token.as_ref())
    }

    /// The same over a channel that was made elsewhere from [`endpoint`], for example over a simulated network.
    pub fn over(channel: Channel, token: Option<&BearerToken>) -> Result<Connection, ClientError> {
        let header = match token {
            None => None,
            Some(token) => {
                let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.0)
                    .parse()
                    .map_err(|_| ClientError::Token)?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Connection {
            channel: InterceptedService::new(channel, Bearer(header)),
        })
    }

    /// Calls of volunteers.
    pub fn volunteer(&self) -> VolunteerServiceClient<AuthChannel> {
        VolunteerServiceClient::new(self.channel.clone())
            .max_decoding_message_size(crate::MESSAGE_CAP_BYTES)
    }

    /// Chains.
    pub fn chain(&self) -> ChainServiceClient<AuthChannel> {
        ChainServiceClient::new(self.channel.clone())
            .max_decoding_message_size(crate::MESSAGE_CAP_BYTES)
    }

    /// Blobs; see [`super::upload`] and [`super::download`].
    pub fn blob(&self) -> BlobServiceClient<AuthChannel> {
        BlobServiceClient::new(self.channel.clone())
            .max_decoding_message_size(crate::MESSAGE_CAP_BYTES)
    }

    /// Calls of operators.
    pub fn admin(&self) -> AdminServiceClient<AuthChannel> {
        AdminServiceClient::new(self.channel.clone())
            .max_decoding_message_size(crate::MESSAGE_CAP_BYTES)
    }
}

/// Waits for a unary call, at most `deadline`, and maps its error.
pub async fn unary<T>(
    deadline: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, ClientError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(ClientError::Timeout(deadline)),
    }
}

/// Checks the options; the address with its time limits, keepalive and TLS.
pub fn endpoint(options: &ConnectOptions) -> Result<Endpoint, ClientError> {
    let bad = |problem: &str| ClientError::Address {
        url: options.url.clone(),
        problem: problem.to_owned(),
    };
    let endpoint = Endpoint::from_shared(options.url.clone()).map_err(|e| bad(&e.to_string()))?;
    let uri = endpoint.uri().clone();
    let host = uri
        .host()
        .ok_or_else(|| bad("no host in it; write http://HOST:PORT or https://HOST:PORT"))?;
    let endpoint = match uri.scheme_str() {
        Some("https") => {
            let settings = ClientTlsConfig::new().timeout(CONNECT_DEADLINE);
            let verifier = tls::verifier(options.ca.as_deref())?;
            endpoint
                .tls_config_with_verifier(settings, verifier)
                .map_err(|e| bad(&e.to_string()))?
        }
        Some("http") if options.allow_plaintext || is_loopback(host) => endpoint,
        Some("http") => {
            return Err(bad(
                "http:// would send the token unencrypted; use https://, or --allow-plaintext on a trusted network",
            ));
        }
        _ => return Err(bad("write http://HOST:PORT or https://HOST:PORT")),
    };
    Ok(endpoint
        .connect_timeout(CONNECT_DEADLINE)
        .tcp_keepalive(Some(Duration::from_secs(30)))
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .keep_alive_while_idle(true)
        .max_frame_size(crate::HTTP2_FRAME_BYTES)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20))
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> ConnectOptions {
        ConnectOptions {
            url: url.into(),
            token: Some(BearerToken::new("secret-token\n")),
            ca: None,
            allow_plaintext: false,
        }
    }

    #[tokio::test]
    async fn plaintext_is_for_this_machine_unless_asked_for() {
        assert!(Connection::lazy(&options("http://127.0.0.1:1")).is_ok());
        assert!(Connection::lazy(&options("http://[::1]:1")).is_ok());
        assert!(Connection::lazy(&options("http://localhost:1")).is_ok());
        assert!(matches!(
            Connection::lazy(&options("http://10.0.0.1:1")),
            Err(ClientError::Address { .. })
        ));
        assert!(matches!(
            Connection::lazy(&options("localhost:1")),
            Err(ClientError::Address { .. })
        ));
        assert!(
            Connection::lazy(&ConnectOptions {
                allow_plaintext: true,
                ..options("http://10.0.0.1:1")
            })
            .is_ok()
        );
        assert!(Connection::lazy(&options("https://example.org:1")).is_ok());
    }

    #[test]
    fn a_token_is_never_shown_by_debug() {
        assert!(!format!("{:?}", options("http://127.0.0.1:1")).contains("secret-token"));
    }
}
