//! Precision of a bootstrap. It takes a secret key to see it, and this program never holds one: the key holder's
//! program measures it, with a key that it makes for that and forgets.

use std::path::PathBuf;
use std::process::Stdio;

use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::Setup;
use crate::error::WorkerError;

const OWNER: &str = "cipherhop-owner";

/// Bits are -log2 of the error of a slot whose values lie in [-1, 1].
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Bits {
    pub(super) worst_bits: f64,
    pub(super) average_bits: f64,
}

/// What was measured, or why not.
#[derive(Debug, Default)]
pub(super) struct Precision {
    pub(super) real: Option<Bits>,
    pub(super) complex: Option<Bits>,
    pub(super) precise: Option<Bits>,
    pub(super) note: String,
}

#[derive(Deserialize)]
struct Answer {
    real: Bits,
    complex: Bits,
    precise: Bits,
}

/// Runs the key holder's program: the one named, or the one beside this program if there is one.
pub(super) async fn measure(
    setup: &Setup,
    owner: Option<PathBuf>,
    stop: &CancellationToken,
) -> Result<Precision, WorkerError> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name(OWNER));
    let Some(program) = owner.clone().or_else(|| beside().filter(|p| p.is_file())) else {
        return Ok(Precision {
            note: format!(
                "precision unknown: no {OWNER} beside this program (build it, or name it with --owner)"
            ),
            ..Precision::default()
        });
    };
    let mut command = tokio::process::Command::new(&program);
    command.args(["--json", "bench", "--params", &setup.params.name]);
    command.args(["--threads", &setup.threads.to_string()]);
    command.args(["--isa", setup.isa.name()]);
    command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let output = tokio::select! {
        output = command.output() => output.map_err(WorkerError::file(&program))?,
        _ = stop.cancelled() => return Err(WorkerError::NotDone("stopped".into())),
    };
    let answer = serde_json::from_slice::<Answer>(&output.stdout).ok();
    match answer.filter(|_| output.status.success()) {
        Some(answer) => Ok(Precision {
            real: Some(answer.real),
            complex: Some(answer.complex),
            precise: Some(answer.precise),
            note: String::new(),
        }),
        None if owner.is_some() => Err(WorkerError::Request(format!(
            "{} did not measure the precision ({})",
            program.display(),
            output.status
        ))),
        None => Ok(Precision {
            note: format!("precision unknown: {OWNER} failed ({})", output.status),
            ..Precision::default()
        }),
    }
}
