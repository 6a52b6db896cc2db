//! `bench` on the smallest ring: every name runs, and its JSON has the documented fields.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

fn bench(args: &[&str]) -> (i32, Vec<Value>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_cipherhop-worker"))
        .arg("bench")
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let objects = text.lines().filter_map(|l| serde_json::from_str(l).ok());
    (
        out.status.code().unwrap(),
        objects.collect(),
        text.clone(),
        String::from_utf8(out.stderr).unwrap(),
    )
}

#[test]
fn every_benchmark_runs_and_prints_the_documented_fields() {
    let small = ["--params", "n10-INSECURE", "--runs", "2", "--json"];
    let (code, lines, _, errors) = bench(&[&["all"], &small[..]].concat());
    assert_eq!(code, 0, "{errors}");
    let mut seen = BTreeSet::new();
    for line in &lines {
        let name = line["name"].as_str().unwrap();
        seen.insert(name);
        assert_eq!(line["params"], "n10-INSECURE");
        assert_eq!(line["security"], "INSECURE");
        assert_eq!((&line["threads"], &line["runs"]), (&1.into(), &2.into()));
        assert!(!line["isa"].as_str().unwrap().is_empty());
        let of = |field: &str| line[field].as_f64().unwrap();
        for clock in ["", "cpu_"] {
            let at = |which: &str| of(&format!("{clock}{which}_s"));
            assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"));
        }
        assert!(of("peak_rss_bytes") > 1e6 && of("repeats") >= 1.0);
        if name.starts_with("bootstrap") {
            // numbers where the key holder's program lies beside this one
            for field in ["worst_bits", "average_bits"] {
                let bits = &line[field];
                assert!(bits.is_null() || bits.as_f64().unwrap() > 17.0, "{bits}");
                assert!(line.as_object().unwrap().contains_key(field));
            }
            assert!(of("levels_left") >= 10.0 && of("key_bytes") > 0.0);
            let stages: Vec<&String> = line["profile"].as_object().unwrap().keys().collect();
            assert_eq!(stages.len(), 4, "{stages:?}");
        }
        if name.starts_with("hop") || name.starts_with("keys-") {
            assert!(of("keys") > 10.0 && of("expanded_bytes") > 1.5 * of("download_bytes"));
        }
        if name.starts_with("hop") {
            let sum: f64 = line["profile"]
                .as_object()
                .unwrap()
                .values()
                .map(|s| s.as_f64().unwrap())
                .sum();
            assert!(sum > 0.5 * of("min_s") && sum < 1.5 * of("max_s"));
        }
    }
    let wanted = [
        "bootstrap-complex",
        "bootstrap-real",
        "bootstrap-real-precise",
        "hop-tiny-qwen3-2b",
        "hop-tiny-smollm2",
        "keys-tiny-qwen3-2b",
        "keys-tiny-smollm2",
        "keyswitch",
        "matvec-32x32",
        "matvec-8x32",
        "multiply",
        "ntt-forward",
        "ntt-inverse",
        "rotate",
        "rotate-8-hoisted",
    ];
    for name in wanted {
        assert!(seen.contains(name), "{name} is missing in {seen:?}");
    }
}

#[test]
fn the_table_for_people_says_when_a_set_protects_nothing() {
    let args = ["ntt", "--params", "n10-INSECURE", "--isa", "scalar"];
    let (code, _, text, errors) = bench(&[&args[..], &["--threads", "2"]].concat());
    assert_eq!(code, 0, "{errors}");
    assert!(text.contains("INSECURE") && text.contains("2 thread") && text.contains("scalar"));
    assert!(text.contains("ntt-forward") && text.contains("median"));
    assert_eq!(bench(&["list", "--json"]).1.len(), 9);
}

#[test]
fn wrong_names_are_answered_with_the_choices() {
    let (code, _, _, errors) = bench(&["sorting"]);
    assert_eq!(code, 2);
    assert!(errors.contains("bootstrap") && errors.contains("matvec"));
    let (code, _, _, errors) = bench(&["ntt", "--params", "n12"]);
    assert_eq!(code, 2);
    assert!(errors.contains("n16-128") && errors.contains("n10-INSECURE"));
    let (code, _, _, errors) = bench(&["ntt", "--isa", "mmx"]);
    assert_eq!(code, 2);
    assert!(errors.contains("scalar") && errors.contains("avx2"));
    for count in [["--runs", "0"], ["--threads", "0"], ["--tokens", "99"]] {
        assert_eq!(bench(&[&["ntt"], &count[..]].concat()).0, 2);
    }
    let args = ["hop-smollm2", "--params", "n10-INSECURE", "--tokens", "40"];
    let (code, _, _, errors) = bench(&args);
    assert_ne!(code, 0);
    assert!(errors.contains("token"), "{errors}");
}
