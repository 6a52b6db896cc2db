//! Errors of the program and the exit code each stands for.

use std::path::{Path, PathBuf};

use cipherhop_proto::client::ClientError;
use cipherhop_proto::{Reason, Retry};

use crate::pack::PackError;

/// Everything went as asked (for `run` without a goal: also a stop by signal, with the checkpoint kept).
pub const EXIT_OK: u8 = 0;
/// A failure that has no code of its own.
pub const EXIT_FAILURE: u8 = 1;
/// The command line could not be understood.
pub const EXIT_USAGE: u8 = 2;
/// Not enrolled, or the token or invite is not accepted.
pub const EXIT_IDENTITY: u8 = 3;
/// The coordinator could not be reached.
pub const EXIT_UNREACHABLE: u8 = 4;
/// The coordinator refused; the reason was printed.
pub const EXIT_REFUSED: u8 = 5;
/// `doctor` found that this machine computes other bytes, or lacks something it needs.
pub const EXIT_DOCTOR: u8 = 6;
/// Another worker uses the data folder.
pub const EXIT_BUSY: u8 = 7;
/// Not enough memory or disk.
pub const EXIT_RESOURCES: u8 = 8;
/// The goal (`--once`, `--until-done`, a watched chain) was not reached: stopped, stuck or cancelled.
pub const EXIT_NOT_DONE: u8 = 9;
/// The preferences file is wrong.
pub const EXIT_PREFERENCES: u8 = 10;
/// A pack is damaged, or none.
pub const EXIT_PACK: u8 = 11;

/// The same table for `--help`.
pub const EXIT_HELP: &str = "\
Exit codes:
  0  done; for `run` without a goal also a stop by signal (the checkpoint is kept)
  1  another failure
  2  wrong command line
  3  not enrolled, or token or invite not accepted
  4  coordinator not reachable
  5  refused by the coordinator (the reason is printed)
  6  doctor: this machine must not work
  7  another worker uses the data folder
  8  not enough memory or disk
  9  goal not reached: stopped, stuck or cancelled
  10 the preferences file is wrong
  11 a pack is damaged, or none";

/// Errors of the worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A call or a transfer failed.
    #[error("{0}{hint}", hint = advice(.0))]
    Client(#[from] ClientError),
    /// The data folder has no identity.
    #[error(
        "{0} holds no identity: run `cipherhop-worker enroll --coordinator URL --invite TOKEN` first"
    )]
    NotEnrolled(PathBuf),
    /// The data folder already has an identity.
    #[error("{0} already belongs to device {1}; use another --data folder for another identity")]
    AlreadyEnrolled(PathBuf, String),
    /// Two workers, one folder.
    #[error("another worker uses {0}; stop it, or give this one its own --data folder")]
    FolderBusy(PathBuf),
    /// A file of ours cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file of ours does not hold what it should.
    #[error("{path}: {problem}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The preferences file holds something else than preferences.
    #[error(
        "{path}: {problem}\ncorrect it (`cipherhop-worker config check` looks again), or move it away: without it the defaults count"
    )]
    Preferences {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A pack cannot be read or written.
    #[error("{path}: {error}")]
    Pack {
        /// Which pack.
        path: PathBuf,
        /// What is wrong.
        error: PackError,
    },
    /// Memory or disk does not suffice.
    #[error("{0}")]
    Resources(String),
    /// The chain runs on a parameter set that protects nothing.
    #[error(
        "chain {0} uses the parameter set {1}, which protects nothing (tests only); say --allow-insecure to work on it"
    )]
    Insecure(String, String),
    /// The self-test computed other bytes.
    #[error(
        "the self-test computed {got} where {expected} is right: this machine or build must not work; run `cipherhop-worker doctor`"
    )]
    SelfTest {
        /// Hex.
        got: String,
        /// Hex.
        expected: String,
    },
    /// The coordinator's answer lacks something.
    #[error("unexpected answer from the coordinator: {0}")]
    Answer(String),
    /// What the person asked for does not exist.
    #[error("{0}")]
    Request(String),
    /// `--once` or `--until-done` ended without success.
    #[error("{0}")]
    NotDone(String),
}

impl WorkerError {
    /// Wraps an input/output error with its file.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> WorkerError + '_ {
        move |error| WorkerError::File {
            path: path.to_owned(),
            error,
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            WorkerError::Client(error) => match error {
                ClientError::Unreachable(_) | ClientError::Timeout(_) | ClientError::Tls(_) => {
                    EXIT_UNREACHABLE
                }
                ClientError::Address { .. } | ClientError::Certificates { .. } => EXIT_USAGE,
                ClientError::Token => EXIT_IDENTITY,
                ClientError::Refused(refusal) => match refusal.reason {
                    Some(
                        Reason::TokenMissing
                        | Reason::TokenInvalid
                        | Reason::TokenRevoked
                        | Reason::InviteInvalid,
                    ) => EXIT_IDENTITY,
                    Some(Reason::NotEnoughDisk | Reason::NotEnoughMemory) => EXIT_RESOURCES,
                    Some(Reason::SelfTestFailed) => EXIT_DOCTOR,
                    None if refusal.retry == Retry::BackOff => EXIT_UNREACHABLE,
                    _ => EXIT_REFUSED,
                },
                _ => EXIT_FAILURE,
            },
            WorkerError::NotEnrolled(_) | WorkerError::AlreadyEnrolled(..) => EXIT_IDENTITY,
            WorkerError::FolderBusy(_) => EXIT_BUSY,
            WorkerError::Resources(_) => EXIT_RESOURCES,
            WorkerError::SelfTest { .. } => EXIT_DOCTOR,
            WorkerError::Insecure(..) => EXIT_REFUSED,
            WorkerError::Request(_) => EXIT_USAGE,
            WorkerError::NotDone(_) => EXIT_NOT_DONE,
            WorkerError::Preferences { .. } => EXIT_PREFERENCES,
            WorkerError::Pack { error, .. } => match error {
                PackError::NotAPack(_) | PackError::Damaged(_) => EXIT_PACK,
                PackError::File { .. } | PackError::Source(_) => EXIT_FAILURE,
            },
            WorkerError::File { .. } | WorkerError::Damaged { .. } | WorkerError::Answer(_) => {
                EXIT_FAILURE
            }
        }
    }

    /// The coordinator's reason, where there is one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            WorkerError::Client(error) => error.reason(),
            _ => None,
        }
    }
}

fn advice(error: &ClientError) -> String {
    error
        .advice()
        .map(|text| format!(" ({text})"))
        .unwrap_or_default()
}
