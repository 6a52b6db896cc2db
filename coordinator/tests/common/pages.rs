//! The HTTP pages of a test's coordinator.

use std::net::SocketAddr;
use std::sync::Arc;

use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::http::{Pages, serve};
use cipherhop_coordinator::metrics::{Counters, Disk};
use tokio::net::TcpListener;

use super::Server;

impl Server {
    /// Serves the pages on a socket of their own.
    pub async fn pages(&self, counters: Arc<Counters>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        self.pages_on(listener, counters);
        address
    }

    /// The same on this socket.
    pub fn pages_on(&self, listener: TcpListener, counters: Arc<Counters>) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let pages = Pages {
            store: self.store.clone(),
            blobs: self.blobs.clone(),
            clock,
            counters,
            disk: Disk {
                folder: self.dir.path().to_owned(),
                headroom_bytes: 4096,
            },
            coordinator: self.url.clone(),
            shutdown: self.shutdown.clone(),
        };
        tokio::spawn(serve(pages, listener));
    }
}
