//! The real program at work, and what it says.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;

use crate::common::worker;

pub struct Running {
    pub child: Child,
    pub lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// `run --once --json` on a data folder.
pub fn start(data: &Path) -> Running {
    start_with(data, &["--once", "--allow-insecure", "--threads", "1"])
}

pub fn start_without_end(data: &Path) -> Running {
    start_with(data, &["--allow-insecure", "--threads", "1"])
}

pub fn start_with(data: &Path, options: &[&str]) -> Running {
    let mut child = worker(data)
        .args(["--json", "run"])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Running { child, lines }
}

impl Drop for Running {
    /// A test that fails leaves no worker behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// The next event of a kind.
    pub fn event(&mut self, kind: &str) -> Value {
        for line in self.lines.by_ref() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if event["event"] == kind {
                return event;
            }
            assert_ne!(event["event"], "error", "{event}");
        }
        panic!("ended before {kind}");
    }

    /// Process ids of the computing process.
    pub fn children(&self) -> Vec<i32> {
        let id = self.child.id();
        let mut found = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{id}/task")).unwrap() {
            let text =
                std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
            found.extend(
                text.split_whitespace()
                    .map(|pid| pid.parse::<i32>().unwrap()),
            );
        }
        found
    }
}
