//! What can go wrong on the client side. Decisions are taken on `reason`; texts are for people.

use std::time::Duration;

use tonic::Code;
use tonic_types::StatusExt as _;

use super::TlsFailure;
use crate::reason::{Reason, Retry};
use crate::status;

/// A refusal by the coordinator, or by something between here and there.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// gRPC status code.
    pub code: Code,
    /// The reason, when it is one this version knows.
    pub reason: Option<Reason>,
    /// The reason's name as received, for people; empty when the answer carried none.
    pub reason_name: String,
    /// For people.
    pub message: String,
    /// RetryInfo, when the server named a wait.
    pub retry_after: Option<Duration>,
    /// What to do about it.
    pub retry: Retry,
}

/// Errors of calls and transfers.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The coordinator's address cannot be used.
    #[error("coordinator address {url:?}: {problem}")]
    Address {
        /// As given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The token has characters that cannot be sent.
    #[error("the token is not usable: it may hold visible ASCII characters only")]
    Token,
    /// The certificate authorities to trust cannot be read.
    #[error("certificate authorities{}: {problem}", .path.as_ref().map(|p| format!(" in {p}")).unwrap_or_default())]
    Certificates {
        /// Which file; `None` for the system's.
        path: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// The coordinator's certificate is not accepted.
    #[error("{0}")]
    Tls(Box<TlsFailure>),
    /// No connection, or it broke.
    #[error("coordinator not reachable: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer from the coordinator within {0:?}")]
    Timeout(Duration),
    /// The coordinator said no.
    #[error("refused by the coordinator ({}): {}", if .0.reason_name.is_empty() { "no reason given" } else { &.0.reason_name }, .0.message)]
    Refused(Refusal),
    /// The coordinator broke the contract.
    #[error("unexpected answer from the coordinator: {0}")]
    Protocol(&'static str),
    /// Bytes received twice did not have the digest they were asked by.
    #[error("blob {digest}: the bytes received do not have this digest")]
    DigestMismatch {
        /// Hex.
        digest: String,
    },
    /// The coordinator announced another size than the one agreed.
    #[error("blob {digest}: {announced} bytes announced where {expected} were agreed")]
    SizeMismatch {
        /// Hex.
        digest: String,
        /// Bytes.
        expected: u64,
        /// Bytes.
        announced: u64,
    },
    /// A local file could not be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
}

impl ClientError {
    /// The reason, when the coordinator gave one that this version knows.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            ClientError::Refused(refusal) => refusal.reason,
            _ => None,
        }
    }

    /// What to do without asking a person.
    pub fn retry(&self) -> Retry {
        match self {
            // A certificate is renewed, a clock set, while a worker runs on: it must find back by itself.
            ClientError::Unreachable(_) | ClientError::Timeout(_) | ClientError::Tls(_) => {
                Retry::BackOff
            }
            ClientError::Refused(refusal) => refusal.retry,
            ClientError::Address { .. }
            | ClientError::Token
            | ClientError::Certificates { .. }
            | ClientError::File { .. } => Retry::AfterChange,
            ClientError::Protocol(_)
            | ClientError::DigestMismatch { .. }
            | ClientError::SizeMismatch { .. } => Retry::Never,
        }
    }

    /// The wait the server asks for, when it named a positive one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Refused(refusal) => refusal.retry_after.filter(|wait| !wait.is_zero()),
            _ => None,
        }
    }

    /// What a person should do, where the reason says it.
    pub fn advice(&self) -> Option<&'static str> {
        self.reason().map(Reason::advice)
    }

    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> ClientError + '_ {
        move |error| ClientError::File {
            path: path.display().to_string(),
            error,
        }
    }
}

impl From<tonic::Status> for ClientError {
    fn from(status: tonic::Status) -> Self {
        let reason_name = status
            .get_details_error_info()
            .map(|info| info.reason)
            .unwrap_or_default();
        if reason_name.is_empty()
            && let Some(cause) = std::error::Error::source(&status)
        {
            return match TlsFailure::find(cause) {
                Some(failure) => ClientError::Tls(Box::new(failure)),
                None => ClientError::Unreachable(chain(cause)),
            };
        }
        ClientError::Refused(Refusal {
            code: status.code(),
            reason: status::reason_of(&status),
            reason_name,
            message: status.message().to_owned(),
            retry_after: status::retry_after_of(&status),
            retry: status::retry_of(&status),
        })
    }
}

impl From<tonic::transport::Error> for ClientError {
    fn from(error: tonic::transport::Error) -> Self {
        match TlsFailure::find(&error) {
            Some(failure) => ClientError::Tls(Box::new(failure)),
            None => ClientError::Unreachable(chain(&error)),
        }
    }
}

/// The error and what it stands on, with a hint for the TLS failures people meet most.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        next = error.source();
    }
    const NO_TLS: &str =
        "the coordinator does not speak TLS on this port: use http:// on a trusted network only";
    const TLS: &str =
        "if that is so every time, the coordinator may speak TLS on this port: try https://";
    let hint = [
        ("InvalidContentType", NO_TLS),
        ("CorruptMessage", NO_TLS),
        ("corrupt message", NO_TLS),
        // what HTTP/2 without TLS meets depends on how fast the other side hangs up
        ("connection closed", TLS),
        ("broken pipe", TLS),
        ("connection reset", TLS),
        ("frame with invalid size", TLS),
    ]
    .into_iter()
    .find(|(mark, _)| text.contains(mark));
    if let Some((_, hint)) = hint {
        text.push_str(&format!(" ({hint})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_and_wait_come_from_the_rich_details_and_not_from_the_text() {
        let wait = Duration::from_secs(3);
        let error = ClientError::from(status::status_with_retry(
            Reason::RateLimited,
            "slow down",
            Some(wait),
        ));
        assert_eq!(error.reason(), Some(Reason::RateLimited));
        assert_eq!(
            (error.retry(), error.retry_after()),
            (Retry::BackOff, Some(wait))
        );
    }

    #[test]
    fn a_refusal_without_a_reason_counts_as_a_broken_connection() {
        let known = ClientError::from(status::status(Reason::AttemptNotFound, ""));
        assert_eq!(known.retry(), Retry::NextHop);
        let proxy = ClientError::from(tonic::Status::new(Code::Unknown, "502"));
        assert_eq!((proxy.retry(), proxy.reason()), (Retry::BackOff, None));
    }
}
