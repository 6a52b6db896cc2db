//! Blobs on their way between real processes: restarts of either side, damage on the way, and in the ignored tests
//! (`cargo test -p cipherhop-coordinator --test blob_flow -- --ignored`) gigabytes.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

#[path = "blob_flow/big.rs"]
mod big;
#[path = "blob_flow/damage.rs"]
mod damage;
#[path = "blob_flow/full.rs"]
mod full;
#[path = "blob_flow/restart.rs"]
mod restart;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cipherhop_proto::client::{Backoff, Connection, TransferPolicy};
use cipherhop_proto::{Digest, v1};
use common::{connect, new_token};

/// The coordinator's program on a fixed address, so that clients find it again after a restart.
pub struct Process {
    child: Child,
    data: PathBuf,
    address: String,
}

impl Process {
    pub fn start(data: &Path) -> Process {
        Process::at(data, "127.0.0.1:0")
    }

    fn at(data: &Path, listen: &str) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"))
            .args(["serve", "--listen", listen, "--data"])
            .arg(data)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().rsplit('/').next().unwrap().to_owned();
        Process {
            child,
            data: data.to_owned(),
            address,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and up again at the same place.
    pub fn restart(self) -> Process {
        let (data, address) = (self.data.clone(), self.address.clone());
        drop(self);
        Process::at(&data, &address)
    }

    pub async fn owner_token(&self) -> String {
        let admin = std::fs::read_to_string(self.data.join("admin.token")).unwrap();
        new_token(
            &self.url(),
            admin.trim(),
            v1::TokenRole::Owner,
            "key holder",
        )
        .await
    }

    /// Where a complete blob lies.
    pub fn place(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.data
            .join("blobs/sha256")
            .join(&name[..2])
            .join(&name[2..])
    }

    /// Bytes of all unfinished uploads.
    pub fn arrived(&self) -> u64 {
        let files = std::fs::read_dir(self.data.join("blobs/uploads")).unwrap();
        files
            .map(|file| file.unwrap())
            .filter(|file| file.path().extension().is_some_and(|e| e == "part"))
            .map(|file| file.metadata().map_or(0, |meta| meta.len()))
            .sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn owner(url: &str, token: &str) -> Connection {
    connect(url, Some(token))
}

/// Quick retries: a restart takes a moment.
pub fn policy() -> TransferPolicy {
    TransferPolicy {
        segment_bytes: 4 << 20,
        max_stalls: 100,
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(200)),
        ..TransferPolicy::default()
    }
}

/// Content in which every MiB is another.
pub fn content(mib: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(mib << 20);
    while bytes.len() < mib << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

pub fn blob(digest: Digest, size: u64) -> v1::BlobRef {
    v1::BlobRef {
        digest: digest.to_vec(),
        size,
        role: v1::BlobRole::EvaluationKey.into(),
        name: String::new(),
    }
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen: {what}");
}
