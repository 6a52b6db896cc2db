//! The server's certificate: loading and checking the files, and making a pair for tests and small sites.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

/// Longest wait for a client's side of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time.
const HANDSHAKES: usize = 512;
/// Wait after a connection that was not accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// Less validity than this is worth a warning at every start.
const RENEW_BEFORE: Duration = Duration::from_secs(14 * 24 * 3600);
/// Largest file of certificates or of a key, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why the server's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path}: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The key is not the certificate's.
    #[error(
        "{key} is not the key of the first certificate in {certificate}: give the files that were made together"
    )]
    KeyMismatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
    /// Making a certificate failed.
    #[error("no certificate made: {0}")]
    Make(#[from] rcgen::Error),
}

/// What the next handshake shows.
#[derive(Debug)]
struct InUse(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for InUse {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.get())
    }
}

impl InUse {
    fn get(&self) -> Arc<CertifiedKey> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }
}

/// A certificate chain with its key, ready for the server. Clones share what is in use.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    in_use: Arc<InUse>,
    config: Arc<ServerConfig>,
    /// Subject of the server's own certificate.
    pub subject: String,
    /// Last moment of its validity, in words.
    pub not_after: String,
    /// Validity left; zero when it has expired.
    pub left: Duration,
}

impl ServerCertificate {
    /// Reads and checks a PEM file with the server's certificate first, then those that lead to its issuer, and the
    /// PEM file of its key.
    pub fn load(certificate: &Path, key: &Path) -> Result<ServerCertificate, TlsError> {
        let content = |path: &Path, problem: String| TlsError::Content {
            path: path.to_owned(),
            problem,
        };
        let certificate_pem = read(certificate)?;
        let key_pem = read(key)?;
        let chain = CertificateDer::pem_slice_iter(&certificate_pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| content(certificate, format!("not PEM: {e}")))?;
        let Some(first) = chain.first().cloned() else {
            return Err(content(
                certificate,
                "no certificate in it; it must be a PEM file".into(),
            ));
        };
        let private = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|e| content(key, format!("no private key in PEM form in it: {e}")))?;
        // The build may hold more than one provider; ours is ring.
        let provider = rustls::crypto::ring::default_provider();
        let signer = provider
            .key_provider
            .load_private_key(private)
            .map_err(|e| content(key, e.to_string()))?;
        let _ = provider.clone().install_default();
        let certified = CertifiedKey::new(chain, signer);
        match certified.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                return Err(TlsError::KeyMismatch {
                    certificate: certificate.to_owned(),
                    key: key.to_owned(),
                });
            }
            Err(e) => return Err(content(certificate, e.to_string())),
        }
        let (_, parsed) = X509Certificate::from_der(&first)
            .map_err(|e| content(certificate, format!("not an X.509 certificate: {e}")))?;
        let not_after = parsed.validity().not_after;
        let left = not_after.timestamp() - ASN1Time::now().timestamp();
        let in_use = Arc::new(InUse(RwLock::new(Arc::new(certified))));
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| content(certificate, e.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(in_use.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(ServerCertificate {
            in_use,
            config: Arc::new(config),
            subject: parsed.subject().to_string(),
            not_after: not_after
                .to_rfc2822()
                .unwrap_or_else(|_| not_after.to_string()),
            left: Duration::from_secs(u64::try_from(left).unwrap_or(0)),
        })
    }

    /// From now on new connections see the other certificate; open ones go on.
    pub fn replace(&self, other: &ServerCertificate) {
        let mut current = self
            .in_use
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = other.in_use.get();
    }

    /// Connections whose handshake is done. Each handshake runs on its own, so that a slow client keeps nobody.
    pub(crate) fn accept(
        &self,
        listener: TcpListener,
    ) -> ReceiverStream<std::io::Result<TlsStream<TcpStream>>> {
        let acceptor = TlsAcceptor::from(self.config.clone());
        let (sender, receiver) = mpsc::channel(16);
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = sender.closed() => return,
                };
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Too many open files, or a client that is gone already.
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                };
                let _ = stream.set_nodelay(true);
                let Ok(one) = handshakes.clone().acquire_owned().await else {
                    return;
                };
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    let shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
                    drop(one);
                    match shaken {
                        Ok(Ok(stream)) => drop(sender.send(Ok(stream)).await),
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    }
                });
            }
        });
        ReceiverStream::new(receiver)
    }

    /// What an operator should know about the validity, if anything.
    pub fn warning(&self) -> Option<String> {
        let ServerCertificate {
            subject, not_after, ..
        } = self;
        if self.left.is_zero() {
            return Some(format!(
                "the certificate of {subject} expired on {not_after}: no client will connect; renew it, or set the clock"
            ));
        }
        (self.left < RENEW_BEFORE)
            .then(|| format!("the certificate of {subject} expires on {not_after}: renew it"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|source| TlsError::Read {
            path: path.to_owned(),
            source,
        })?;
    Ok(bytes)
}

/// A certificate authority of one certificate: its own key is forgotten, so that it never signs another.
pub struct DevCertificate {
    /// The authority's certificate, for clients (`--ca`). PEM.
    pub ca: String,
    /// The server's certificate. PEM.
    pub certificate: String,
    /// The server's key. PEM; secret.
    pub key: String,
}

impl DevCertificate {
    /// A certificate for these host names and addresses, valid from `from` for `valid`.
    pub fn make(
        hosts: &[String],
        from: SystemTime,
        valid: Duration,
    ) -> Result<DevCertificate, TlsError> {
        let since = from
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let start = rcgen::date_time_ymd(1970, 1, 1) + since;
        let named = |name: &str| {
            let mut names = DistinguishedName::new();
            names.push(DnType::CommonName, name);
            names
        };
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name = named("cipherhop development authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (authority.not_before, authority.not_after) = (start, start + valid);
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

        let mut server = CertificateParams::new(hosts.to_vec())?;
        server.distinguished_name = named(hosts.first().map_or("localhost", String::as_str));
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.use_authority_key_identifier_extension = true;
        (server.not_before, server.not_after) = (start, start + valid);
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &issuer)?;
        Ok(DevCertificate {
            ca: issuer.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(from: SystemTime, valid: Duration) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let made = DevCertificate::make(&["localhost".into()], from, valid).unwrap();
        let (cert, key) = (dir.path().join("server.pem"), dir.path().join("server.key"));
        std::fs::write(&cert, made.certificate).unwrap();
        std::fs::write(&key, made.key).unwrap();
        (dir, cert, key)
    }

    #[test]
    fn a_pair_loads_and_its_end_is_announced_in_time() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let now = SystemTime::now();
        let (_dir, cert, key) = files(now, 100 * DAY);
        let loaded = ServerCertificate::load(&cert, &key).unwrap();
        assert!(loaded.subject.contains("localhost"), "{}", loaded.subject);
        assert_eq!(loaded.warning(), None);
        let (_dir, cert, key) = files(now, 3 * DAY);
        let warning = ServerCertificate::load(&cert, &key).unwrap().warning();
        assert!(warning.unwrap().contains("expires on"));
        let (_dir, cert, key) = files(now - 10 * DAY, 3 * DAY);
        let warning = ServerCertificate::load(&cert, &key).unwrap().warning();
        assert!(warning.unwrap().contains("expired on"));
    }

    #[test]
    fn files_that_do_not_belong_together_or_hold_something_else_are_refused_by_name() {
        let valid = Duration::from_secs(3600);
        let (_a, cert, key) = files(SystemTime::now(), valid);
        let (_b, _, other_key) = files(SystemTime::now(), valid);
        let refused = |cert: &Path, key: &Path| match ServerCertificate::load(cert, key) {
            Ok(_) => panic!("should have been refused"),
            Err(e) => e.to_string(),
        };
        assert!(refused(&cert, &other_key).contains("made together"));
        assert!(refused(&key, &key).contains("no certificate"));
        assert!(refused(&cert, &cert).contains("no private key"));
        assert!(refused(Path::new("/nonexistent.pem"), &key).contains("/nonexistent.pem"));
    }
}
