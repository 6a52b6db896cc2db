//! How a command can fail, and the exit code of each way.

use std::fmt::Display;
use std::process::ExitCode;

use cipherhop_proto::Reason;
use cipherhop_proto::client::ClientError;
use tonic::Code;

/// A failure as the person or program outside sees it.
#[derive(Debug)]
pub(super) struct Failure {
    code: u8,
    reason: Option<&'static str>,
    message: String,
    advice: Option<&'static str>,
}

impl Failure {
    fn new(code: u8, message: impl Display) -> Failure {
        Failure {
            code,
            reason: None,
            message: message.to_string(),
            advice: None,
        }
    }

    /// Exit code 1.
    pub fn other(message: impl Display) -> Failure {
        Failure::new(1, message)
    }

    /// Exit code 3.
    pub fn config(message: impl Display) -> Failure {
        Failure::new(3, message)
    }

    /// Exit code 4.
    pub fn unreachable(url: &str, cause: impl Display) -> Failure {
        let mut failure = Failure::new(4, format!("{url}: {cause}"));
        failure.advice = Some("Is it running? Give its address with --coordinator URL.");
        failure
    }

    /// Exit code 5, before any call was made.
    pub fn token(message: impl Display) -> Failure {
        let mut failure = Failure::new(5, message);
        failure.advice =
            Some("Give an admin token with --token, or the coordinator's data folder with --data.");
        failure
    }

    /// Exit code 7.
    pub fn in_use(message: impl Display) -> Failure {
        Failure::new(7, message)
    }

    /// Exit code 1, 4, 5 or 6, by what went wrong with a call.
    pub fn client(url: &str, error: &ClientError) -> Failure {
        let refusal = match error {
            ClientError::Refused(refusal) => refusal,
            ClientError::Address { .. } => return Failure::new(2, error),
            ClientError::Tls(_) => return Failure::new(4, error),
            ClientError::Token => return Failure::token(error),
            ClientError::Unreachable(_) | ClientError::Timeout(_) => {
                return Failure::unreachable(url, error);
            }
            _ => return Failure::other(error),
        };
        let code = match refusal.code {
            Code::Unauthenticated | Code::PermissionDenied => 5,
            _ => 6,
        };
        Failure {
            code,
            reason: refusal.reason.map(Reason::as_str),
            message: refusal.message.clone(),
            advice: error.advice(),
        }
    }

    /// Prints it (text to standard error, JSON to standard output) and gives the exit code.
    pub fn report(self, json: bool) -> ExitCode {
        if json {
            let value = serde_json::json!({
                "error": self.message, "reason": self.reason, "advice": self.advice, "exit_code": self.code,
            });
            println!("{value}");
        } else {
            let reason = self.reason.map(|r| format!(" ({r})")).unwrap_or_default();
            eprintln!("error: {}{reason}", self.message);
            if let Some(advice) = self.advice {
                eprintln!("  {advice}");
            }
        }
        ExitCode::from(self.code)
    }
}
