//! Browsers that follow a chain by server-sent events.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Browsers until they are dropped.
pub struct Crowd {
    _tasks: JoinSet<()>,
    /// Pages they got.
    pub pages: Arc<AtomicU64>,
}

/// Starts so many, and waits until each has its stream.
pub async fn crowd(address: SocketAddr, number: usize, chain: &str) -> Crowd {
    let pages: Arc<AtomicU64> = Arc::default();
    let mut tasks = JoinSet::new();
    for _ in 0..number {
        tasks.spawn(watch(address, chain.to_owned(), pages.clone()));
    }
    while pages.load(Ordering::Relaxed) < number as u64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Crowd {
        _tasks: tasks,
        pages,
    }
}

async fn ask(stream: &mut BufReader<TcpStream>, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// One header line, or none at the end of the headers.
async fn header(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let line = line.trim_end().to_ascii_lowercase();
    (!line.is_empty()).then_some(line)
}

/// Gets a page, to its last byte.
async fn get(stream: &mut BufReader<TcpStream>, path: &str) {
    ask(stream, path).await;
    let mut length = 0;
    assert!(header(stream).await.unwrap().contains(" 200 "));
    while let Some(line) = header(stream).await {
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    assert!(length > 0);
}

async fn watch(address: SocketAddr, chain: String, pages: Arc<AtomicU64>) {
    let connect = || async { BufReader::new(TcpStream::connect(address).await.unwrap()) };
    let (mut events, mut page) = (connect().await, connect().await);
    ask(&mut events, &format!("/chains/{chain}/live")).await;
    let mut line = String::new();
    loop {
        line.clear();
        if events.read_line(&mut line).await.unwrap() == 0 {
            return;
        }
        if line.starts_with("data:") {
            get(&mut page, &format!("/chains/{chain}")).await;
            pages.fetch_add(1, Ordering::Relaxed);
        }
    }
}
