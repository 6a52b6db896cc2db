//! Certificates of servers, and a program's own files after an accident.

use std::path::Path;
use std::time::Duration;

use cipherhop_coordinator::blobs::{BlobStore as _, LocalBlobs, LocalLimits, UploadKey};
use cipherhop_coordinator::tls::ServerCertificate;
use cipherhop_owner::SecretKey;
use cipherhop_proto::Digest;
use cipherhop_proto::client::TlsFailure;
use cipherhop_worker::journal::Journal;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest as _, Sha256};

use crate::scratch::{FOLDER, RUNTIME, place};

/// An even first byte: the certificate a server shows, in DER. Odd: an operator's two PEM files, with a NUL between.
pub fn certificates(bytes: &[u8]) -> usize {
    let Some((mode, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    if mode % 2 == 1 {
        let mut parts = rest.splitn(2, |b| *b == 0);
        let certificate = place("server.pem", parts.next().unwrap_or_default());
        let key = place("server.key", parts.next().unwrap_or_default());
        if let Ok(read) = ServerCertificate::load(&certificate, &key) {
            let _ = read.warning();
        }
        return bytes.len();
    }
    let Ok(server) = ServerName::try_from("hops.example.org") else {
        return bytes.len();
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_790_000_000));
    let problem = rustls::CertificateError::UnknownIssuer.into();
    let failure = TlsFailure::new(&CertificateDer::from(rest), &server, now, &problem);
    let text = failure.to_string();
    assert!(text.len() < 16 << 10, "an error of {} bytes", text.len());
    bytes.len()
}

/// The first byte says which file.
pub fn local_files(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    match kind {
        b'S' => drop(SecretKey::from_bytes(rest)),
        b's' => {
            let mut bytes = rest.to_vec();
            bytes.extend(Sha256::digest(rest));
            drop(SecretKey::from_bytes(&bytes));
        }
        b'J' => journal(&place("journal", rest)),
        b'j' => {
            // Lines without their checksums, which are filled in.
            let mut text = Vec::new();
            for line in rest.split(|b| *b == b'\n') {
                let check: String = Sha256::digest(line)[..8]
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect();
                text.extend(check.into_bytes());
                text.push(b' ');
                text.extend(line);
                text.push(b'\n');
            }
            journal(&place("journal", &text));
        }
        _ => upload(*kind, rest),
    }
    bytes.len()
}

fn journal(path: &Path) {
    let Ok(state) = Journal::read_only(path) else {
        return;
    };
    let opened = Journal::open(path).unwrap_or_else(|e| panic!("it was read before: {e}"));
    assert!(format!("{state:?}") == format!("{:?}", opened.state()));
}

/// The state file of an upload, beside a part of `length` bytes.
fn upload(length: u8, state: &[u8]) {
    let root = FOLDER.path().join("blobs");
    let uploads = root.join("uploads");
    std::fs::create_dir_all(&uploads).unwrap_or_else(|e| panic!("{}: {e}", uploads.display()));
    let id = UploadKey {
        sender: [1; 16],
        digest: Digest::of(b"x"),
    };
    place(&format!("blobs/uploads/{id}.state"), state);
    place(&format!("blobs/uploads/{id}.part"), &vec![0; length.into()]);
    let limits = LocalLimits {
        headroom_bytes: 0,
        ..LocalLimits::default()
    };
    let blobs = LocalBlobs::open(&root, limits).unwrap_or_else(|e| panic!("opened: {e}"));
    RUNTIME.block_on(async {
        let committed = blobs.committed(id).await;
        assert!(committed.is_ok());
        let _ = blobs.open_upload(id, 1000).await;
        if let Ok(mut stream) = blobs.append(id, u64::from(length)).await {
            let _ = stream.write(vec![1; 10]).await;
            let _ = stream.commit().await;
        }
        let _ = blobs.finish(id).await;
    });
}
