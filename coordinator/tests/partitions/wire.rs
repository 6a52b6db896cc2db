//! The simulated network under the real client and server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use cipherhop_proto::client::{BearerToken, ConnectOptions, Connection, endpoint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};
use turmoil::net::{TcpListener, TcpStream};

pub const HOST: &str = "coordinator";
pub const PORT: u16 = 7070;

/// A simulated connection as tonic's server takes it.
pub struct Wire(TcpStream);

impl Connected for Wire {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: self.0.local_addr().ok(),
            remote_addr: self.0.peer_addr().ok(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Connections to the coordinator's host, inside of it.
pub async fn incoming() -> ReceiverStream<io::Result<Wire>> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.unwrap();
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if sender.send(Ok(Wire(stream))).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// The client's own connection with its time limits, over the simulated network.
pub fn connect(token: Option<&str>) -> Connection {
    let options = ConnectOptions {
        url: format!("http://{HOST}:{PORT}"),
        token: token.map(BearerToken::new),
        ca: None,
        allow_plaintext: true,
    };
    let endpoint = endpoint(&options).unwrap();
    let connector = tower::service_fn(|_| async {
        let stream = TcpStream::connect((HOST, PORT)).await?;
        io::Result::Ok(TokioIo::new(stream))
    });
    let channel = endpoint.connect_with_connector_lazy(connector);
    Connection::over(channel, options.token.as_ref()).unwrap()
}
