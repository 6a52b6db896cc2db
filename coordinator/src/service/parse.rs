//! From the fields of requests to domain types. What does not fit is refused by the field's name.

use std::fmt::Display;
use std::time::Duration;

use cipherhop_proto::status::bad_request;
use cipherhop_proto::v1;
use tonic::Status;

use crate::domain::attempt::{FailKind, Phase, Progress};
use crate::domain::chain::MAX_TEXT_BYTES;
use crate::domain::view::BlobRole;

/// An id or digest of fixed length.
pub(super) fn field<'a, T>(name: &str, bytes: &'a [u8]) -> Result<T, Status>
where
    T: TryFrom<&'a [u8]>,
    T::Error: Display,
{
    T::try_from(bytes).map_err(|e| bad_request(name, e.to_string()))
}

/// As [`field`]; empty bytes mean "not given".
pub(super) fn optional<'a, T>(name: &str, bytes: &'a [u8]) -> Result<Option<T>, Status>
where
    T: TryFrom<&'a [u8]>,
    T::Error: Display,
{
    if bytes.is_empty() {
        Ok(None)
    } else {
        field(name, bytes).map(Some)
    }
}

/// A name shown to others: 1 to 64 bytes, no control characters, which could rewrite somebody's terminal.
pub(super) fn name(field: &str, text: String) -> Result<String, Status> {
    if text.is_empty() || text.len() > 64 {
        return Err(bad_request(field, "must have 1 to 64 bytes"));
    }
    if text.trim() != text || text.chars().any(char::is_control) {
        return Err(bad_request(
            field,
            "must not have control characters or spaces at the ends",
        ));
    }
    Ok(text)
}

/// Free words: cut to what is kept, control characters become spaces.
pub(super) fn words(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Seconds as a duration.
pub(super) fn seconds(field: &str, value: f64) -> Result<Duration, Status> {
    // Longer than a century is a fault of the client, and would not fit the rows.
    if !(0.0..=3.2e9).contains(&value) {
        return Err(bad_request(
            field,
            "must be a number of seconds from 0 to 3.2e9",
        ));
    }
    Ok(Duration::from_secs_f64(value))
}

pub(super) fn progress(progress: Option<v1::Progress>) -> Result<Progress, Status> {
    let Some(p) = progress else {
        return Ok(Progress::default());
    };
    let low = seconds("progress.eta_low_seconds", p.eta_low_seconds)?;
    let high = seconds("progress.eta_high_seconds", p.eta_high_seconds)?;
    if p.step.len() > 128 {
        return Err(bad_request("progress.step", "must have at most 128 bytes"));
    }
    Ok(Progress {
        steps_done: p.steps_done,
        steps_total: p.steps_total,
        step: words(&p.step),
        compute: seconds("progress.compute_seconds", p.compute_seconds)?,
        eta: (high > Duration::ZERO).then_some((low, high)),
    })
}

/// The phase a worker reports. `Submitted` comes from Submit alone; until then it counts as uploading.
pub(super) fn phase(phase: i32) -> Result<Phase, Status> {
    match v1::AttemptPhase::try_from(phase) {
        Ok(v1::AttemptPhase::Leased) => Ok(Phase::Leased),
        Ok(v1::AttemptPhase::Fetching) => Ok(Phase::Fetching),
        Ok(v1::AttemptPhase::Computing) => Ok(Phase::Computing),
        Ok(v1::AttemptPhase::Uploading | v1::AttemptPhase::Submitted) => Ok(Phase::Uploading),
        Ok(v1::AttemptPhase::Unspecified) | Err(_) => Err(bad_request("phase", "unknown phase")),
    }
}

pub(super) fn fail_kind(kind: i32) -> Result<FailKind, Status> {
    match v1::FailKind::try_from(kind) {
        Ok(v1::FailKind::Compute) => Ok(FailKind::Compute),
        Ok(v1::FailKind::Disconnect) => Ok(FailKind::Disconnect),
        Ok(v1::FailKind::Input) => Ok(FailKind::Input),
        Ok(v1::FailKind::OutOfMemory) => Ok(FailKind::OutOfMemory),
        Ok(v1::FailKind::Disk) => Ok(FailKind::Disk),
        Ok(v1::FailKind::Unspecified) | Err(_) => {
            Err(bad_request("kind", "unknown kind of failure"))
        }
    }
}

pub(super) fn blob_role(role: i32) -> Result<BlobRole, Status> {
    match v1::BlobRole::try_from(role) {
        Ok(v1::BlobRole::Program) => Ok(BlobRole::Program),
        Ok(v1::BlobRole::Weights) => Ok(BlobRole::Weights),
        Ok(v1::BlobRole::KeyManifest) => Ok(BlobRole::KeyManifest),
        Ok(v1::BlobRole::EvaluationKey) => Ok(BlobRole::EvaluationKey),
        Ok(v1::BlobRole::Input) => Ok(BlobRole::Input),
        Ok(v1::BlobRole::Output) => Ok(BlobRole::Output),
        Ok(v1::BlobRole::Trace) => Ok(BlobRole::Trace),
        Ok(v1::BlobRole::Unspecified) | Err(_) => Err(bad_request("blob.role", "unknown role")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_at_a_character_and_lose_control_characters() {
        assert_eq!(words("a\x1b[31mb\nc"), "a [31mb c");
        let long = "é".repeat(MAX_TEXT_BYTES);
        assert!(words(&long).len() <= MAX_TEXT_BYTES);
    }

    #[test]
    fn numbers_that_are_no_durations_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(seconds("x", bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("x", 1.5).unwrap(), Duration::from_millis(1500));
    }

    #[test]
    fn names_cannot_hold_escape_sequences() {
        for bad in ["", " a", "a\x1b[2J", "a\n"] {
            assert!(name("x", bad.into()).is_err(), "{bad:?}");
        }
        assert!(name("x", "Ada's laptop".into()).is_ok());
    }
}
