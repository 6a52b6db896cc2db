//! The check of the coordinator's certificate: rustls' own, with a failure that says which certificate it was, when it
//! is valid, what this machine's clock says, and what to do.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use x509_parser::prelude::{ASN1Time, FromDer as _, GeneralName, X509Certificate};

use super::ClientError;

/// Longest file of certificate authorities that is read, bytes.
const MAX_CA_BYTES: u64 = 4 << 20;
/// Names of a certificate shown in an error.
const MAX_NAMES: usize = 8;

/// The coordinator's certificate was not accepted. Everything a person needs to find out why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFailure {
    /// Who was asked for.
    pub server: String,
    /// Subject of the certificate shown.
    pub subject: String,
    /// Names and addresses it is for.
    pub names: Vec<String>,
    /// Who signed it.
    pub issuer: String,
    /// First moment of its validity, in words.
    pub not_before: String,
    /// Last moment of its validity, in words.
    pub not_after: String,
    /// This machine's clock at the check, in words.
    pub clock: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub advice: &'static str,
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the certificate of {} is not accepted: {}. Subject {}, for {}, issued by {}, valid from {} to {}; \
             this machine's clock says {}. {}",
            self.server,
            self.problem,
            self.subject,
            if self.names.is_empty() {
                "no names".to_owned()
            } else {
                self.names.join(", ")
            },
            self.issuer,
            self.not_before,
            self.not_after,
            self.clock,
            self.advice
        )
    }
}

impl std::error::Error for TlsFailure {}

impl TlsFailure {
    /// Describes the certificate (DER, as the server sent it) and what rustls said about it.
    pub fn new(
        certificate: &CertificateDer<'_>,
        server: &ServerName<'_>,
        now: UnixTime,
        error: &rustls::Error,
    ) -> TlsFailure {
        let (problem, advice) = explain(error);
        let clock = i64::try_from(now.as_secs())
            .ok()
            .and_then(|seconds| ASN1Time::from_timestamp(seconds).ok())
            .map_or_else(|| "an impossible time".to_owned(), words);
        let mut failure = TlsFailure {
            server: server.to_str().into_owned(),
            subject: "(unreadable)".into(),
            names: Vec::new(),
            issuer: "(unreadable)".into(),
            not_before: "(unreadable)".into(),
            not_after: "(unreadable)".into(),
            clock,
            problem,
            advice,
        };
        if let Ok((_, parsed)) = X509Certificate::from_der(certificate) {
            failure.subject = printable(&parsed.subject().to_string());
            failure.issuer = printable(&parsed.issuer().to_string());
            failure.not_before = words(parsed.validity().not_before);
            failure.not_after = words(parsed.validity().not_after);
            if let Ok(Some(names)) = parsed.subject_alternative_name() {
                let names = names.value.general_names.iter().take(MAX_NAMES);
                failure.names = names.filter_map(name).collect();
            }
        }
        failure
    }

    /// The failure that a transport error stands on, if it is one of these.
    pub(crate) fn find(error: &(dyn std::error::Error + 'static)) -> Option<TlsFailure> {
        let mut next = Some(error);
        while let Some(error) = next {
            let inner = match error.downcast_ref::<std::io::Error>() {
                Some(io) => io
                    .get_ref()
                    .and_then(|inner| inner.downcast_ref::<rustls::Error>()),
                None => error.downcast_ref::<rustls::Error>(),
            };
            if let Some(rustls::Error::Other(OtherError(cause))) = inner
                && let Some(failure) = cause.downcast_ref::<TlsFailure>()
            {
                return Some(failure.clone());
            }
            next = error.source();
        }
        None
    }
}

/// What is wrong and what to do about it.
fn explain(error: &rustls::Error) -> (String, &'static str) {
    let rustls::Error::InvalidCertificate(error) = error else {
        return (
            error.to_string(),
            "Tell the operator of the coordinator these words.",
        );
    };
    let (problem, advice) = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "it has expired",
            "If the clock is right, the operator has to renew the certificate; otherwise set the clock.",
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
            "it is not valid yet",
            "Set this machine's clock; if it is right, the operator's clock was wrong when the certificate was made.",
        ),
        CertificateError::UnknownIssuer => (
            "its issuer is not trusted here",
            "Get the certificate authority's file from the operator and give it with --ca FILE.",
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            "it is for other names",
            "Use one of its names in the coordinator's address, or have the operator make one for this name.",
        ),
        CertificateError::BadSignature => (
            "its signature is wrong",
            "The file given with --ca may be of an earlier certificate authority of the same name: get the present one.",
        ),
        CertificateError::Revoked => (
            "it was revoked",
            "Tell the operator; do not connect before there is a new one.",
        ),
        other => {
            return (
                other.to_string(),
                "Tell the operator of the coordinator these words.",
            );
        }
    };
    (problem.to_owned(), advice)
}

fn words(time: ASN1Time) -> String {
    time.to_rfc2822().unwrap_or_else(|_| time.to_string())
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(printable(name)),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes)
                .ok()
                .map(|b| std::net::Ipv4Addr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes)
                .ok()
                .map(|b| std::net::Ipv6Addr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// Foreign text goes to a terminal: no control characters, not endless.
fn printable(text: &str) -> String {
    text.chars()
        .take(128)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// rustls' own check, whose failure becomes a [`TlsFailure`].
#[derive(Debug)]
struct Explained(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Explained {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| {
                let failure = TlsFailure::new(end_entity, server_name, now, &error);
                rustls::Error::Other(OtherError(Arc::new(failure)))
            })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The check against the system's certificate authorities and those in `ca`.
pub(crate) fn verifier(ca: Option<&Path>) -> Result<Arc<dyn ServerCertVerifier>, ClientError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let mut text = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_CA_BYTES).read_to_end(&mut text))
            .map_err(ClientError::file(path))?;
        let bad = |problem: String| ClientError::Certificates {
            path: Some(path.display().to_string()),
            problem,
        };
        let mut found = 0;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|e| bad(format!("not PEM: {e}")))?;
            roots
                .add(certificate)
                .map_err(|e| bad(format!("a certificate cannot be used: {e}")))?;
            found += 1;
        }
        if found == 0 {
            return Err(bad("no certificate in it; it must be a PEM file".into()));
        }
    }
    if roots.is_empty() {
        return Err(ClientError::Certificates {
            path: None,
            problem:
                "this system trusts no certificate authority; give the coordinator's with --ca FILE"
                    .into(),
        });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| ClientError::Certificates {
            path: None,
            problem: e.to_string(),
        })?;
    Ok(Arc::new(Explained(inner)))
}
