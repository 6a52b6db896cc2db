//! docs/errors.md is the table of reasons, and the coordinator refuses with reasons of the table only.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cipherhop_proto::{Reason, Retry};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn class(retry: Retry) -> &'static str {
    match retry {
        Retry::Same => "same request again",
        Retry::BackOff => "again after a growing wait",
        Retry::NextHop => "leave the attempt, take another hop",
        Retry::AfterChange => "after somebody changed something",
        Retry::Never => "never",
    }
}

fn page() -> String {
    let mut text = String::from(
        "# Errors\n\n\
         Every refusal, every reason of a stuck hop and every answer without work is one of these. The name travels as\n\
         `ErrorInfo.reason` with the domain `cipherhop.v1`; clients branch on it, never on the text. Where waiting helps,\n\
         `RetryInfo` says how long. This page is made from `proto/src/reason.rs`:\n\
         `UPDATE_DOCS=1 cargo test -p cipherhop-proto --test errors`.\n\n\
         | reason | gRPC code | what a client does by itself | meaning | what a person does |\n\
         |---|---|---|---|---|\n",
    );
    for reason in Reason::ALL {
        writeln!(
            text,
            "| `{reason}` | {:?} | {} | {} | {} |",
            reason.code(),
            class(reason.retry()),
            reason.meaning(),
            reason.advice()
        )
        .unwrap();
    }
    text
}

#[test]
fn the_page_is_the_table() {
    let path = workspace().join("docs/errors.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == page(),
        "docs/errors.md is not the table: run `UPDATE_DOCS=1 cargo test -p cipherhop-proto --test errors`"
    );
}

fn sources(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            into.push((path, text));
        }
    }
}

#[test]
fn no_service_refuses_without_a_reason_and_no_reason_is_idle() {
    let mut files = Vec::new();
    sources(&workspace().join("coordinator/src"), &mut files);
    assert!(files.len() > 30, "the sources were found");
    let mut wrong = Vec::new();
    for (path, text) in &files {
        for constructor in [
            "new",
            "with_details",
            "cancelled",
            "unknown",
            "invalid_argument",
            "deadline_exceeded",
            "not_found",
            "already_exists",
            "permission_denied",
            "resource_exhausted",
            "failed_precondition",
            "aborted",
            "out_of_range",
            "unimplemented",
            "internal",
            "unavailable",
            "data_loss",
            "unauthenticated",
        ] {
            if text.contains(&format!("Status::{constructor}(")) {
                wrong.push(format!("{}: Status::{constructor}", path.display()));
            }
        }
    }
    sources(&workspace().join("worker/src"), &mut files);
    sources(&workspace().join("proto/src"), &mut files);
    files.retain(|(path, _)| !path.ends_with("reason.rs"));
    for reason in Reason::ALL {
        let name = format!("Reason::{reason:?}");
        let used = files.iter().any(|(_, text)| {
            text.match_indices(&name)
                .any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_alphanumeric()))
        });
        if !used {
            wrong.push(format!("{name} is given by nobody"));
        }
    }
    assert!(wrong.is_empty(), "\n  {}", wrong.join("\n  "));
}
