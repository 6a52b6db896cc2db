//! What the program says: progress on standard error, one result on standard output, an exit code.

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// How a command ended, other than with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Success,
    /// The result is outside the acceptance limits.
    NotAccepted,
    /// The chain is not complete.
    Incomplete,
}

impl Outcome {
    /// Documented exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::NotAccepted => 4,
            Self::Incomplete => 5,
        }
    }
}

/// A safety refusal; exit code 3.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A parameter set without security.
    #[error("{0} offers no security; for tests, give --allow-insecure")]
    Insecure(String),
    /// More tokens than fit.
    #[error("the prompt has {tokens} tokens, at most {fit} fit ({limit})")]
    TooManyTokens {
        /// Tokens of the prompt.
        tokens: usize,
        /// Most tokens.
        fit: usize,
        /// What limits them.
        limit: String,
    },
    /// The plaintext run leaves the calibrated intervals.
    #[error("this prompt leaves the calibrated intervals and would not survive encryption:\n{0}")]
    OutsideCalibration(String),
    /// Special token in the private prompt.
    #[error(transparent)]
    Prompt(#[from] cipherhop_hop::model::ModelError),
}

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    terminal: bool,
}

impl Output {
    /// Text or JSON.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// A progress line.
    pub fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    /// The result: as JSON, or as text.
    pub fn result(&self, value: &impl Serialize, text: &str) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(value)?);
        } else {
            println!("{text}");
        }
        Ok(())
    }

    /// The error, and its exit code.
    pub fn error(&self, error: &anyhow::Error) -> ExitCode {
        let refused = error.downcast_ref::<Refused>().is_some();
        if self.json {
            let kind = if refused { "refused" } else { "error" };
            println!(
                "{}",
                serde_json::json!({ "error": format!("{error:#}"), "kind": kind })
            );
        }
        eprintln!("error: {error:#}");
        let advice = error
            .chain()
            .find_map(|e| e.downcast_ref::<cipherhop_proto::client::ClientError>())
            .and_then(|e| e.advice());
        if let Some(advice) = advice {
            eprintln!("{advice}");
        }
        ExitCode::from(if refused { 3 } else { 1 })
    }

    /// A bar on a terminal; otherwise a line about every tenth of the way.
    pub fn progress(&self, what: &str, total: u64, unit: Unit) -> Progress {
        let bar = if self.terminal {
            let bar = ProgressBar::new(total);
            let template = match unit {
                Unit::Steps => "{msg} {wide_bar} {pos}/{len} {elapsed}",
                Unit::Bytes => "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(what.to_string());
            bar.enable_steady_tick(Duration::from_millis(500));
            Some(bar)
        } else {
            None
        };
        Progress {
            bar,
            what: what.to_string(),
            total,
            unit,
            said: 0.into(),
        }
    }
}

/// What a progress bar counts.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Things.
    Steps,
    /// Bytes.
    Bytes,
}

/// Progress of one activity.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    total: u64,
    unit: Unit,
    said: std::sync::atomic::AtomicU64,
}

impl Progress {
    /// Sets the position.
    pub fn set(&self, position: u64) {
        use std::sync::atomic::Ordering;
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            return;
        }
        let tenth = (position.min(self.total) * 10)
            .checked_div(self.total)
            .unwrap_or(10);
        if tenth > self.said.fetch_max(tenth, Ordering::Relaxed) {
            match self.unit {
                Unit::Steps => eprintln!("{}: {position}/{}", self.what, self.total),
                Unit::Bytes => eprintln!(
                    "{}: {} of {} MiB",
                    self.what,
                    position >> 20,
                    self.total >> 20
                ),
            }
        }
    }

    /// Ends the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
