//! `bench`: the precision of a bootstrap, as the worker's benchmark reads it.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

#[test]
fn the_precision_of_a_bootstrap_is_measured_with_a_throwaway_key() {
    let owner = || Command::new(env!("CARGO_BIN_EXE_cipherhop-owner"));
    let args = ["--json", "bench", "--params", "n10-INSECURE"];
    let out = owner().args(args).output().unwrap();
    assert!(out.status.success());
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["insecure"], true);
    assert_eq!(report["slots"], 512);
    for kind in ["real", "complex", "precise"] {
        let bits = |field: &str| report[kind][field].as_f64().unwrap();
        assert!(bits("worst_bits") > 17.0 && bits("average_bits") > bits("worst_bits"));
    }
    let out = owner().args(["bench", "--params", "n9"]).output().unwrap();
    assert!(!out.status.success());
    assert!(String::from_utf8(out.stderr).unwrap().contains("n16-128"));
}
