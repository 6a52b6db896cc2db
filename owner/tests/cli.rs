//! The command line as a person meets it, without a coordinator.
#![allow(clippy::unwrap_used)]

use std::{path::Path, process::Command};

use serde_json::Value;

/// Exit code, JSON on standard output, text on standard error.
fn owner(dir: &Path, args: &[&str]) -> (i32, Value, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_cipherhop-owner"))
        .arg("--json")
        .args(args)
        .current_dir(dir)
        .env_remove("CIPHERHOP_TOKEN_FILE")
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let value = text
        .lines()
        .last()
        .map_or(Value::Null, |l| serde_json::from_str(l).unwrap());
    (
        out.status.code().unwrap(),
        value,
        String::from_utf8(out.stderr).unwrap(),
    )
}

#[test]
fn unsafe_requests_are_refused_and_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let run = |args: &[&str]| owner(d, args);

    let (code, value, _) = run(&["keygen", "--params", "n11-INSECURE", "--out", "k"]);
    assert_eq!((code, value["kind"].as_str()), (3, Some("refused")));
    assert!(!d.join("k").exists());
    let keygen = [
        "keygen",
        "--params",
        "n11-INSECURE",
        "--allow-insecure",
        "--out",
        "k",
    ];
    let (code, value, _) = run(&keygen);
    assert_eq!(
        (code, value["parameter_set"].as_str()),
        (0, Some("n11-INSECURE"))
    );
    assert_eq!(run(&keygen).0, 1, "a key is never overwritten");

    let (code, value, _) = run(&[
        "model",
        "calibrate",
        "tiny-llama",
        "--tokens",
        "3",
        "--windows",
        "150",
        "--out",
        "c.json",
    ]);
    assert_eq!((code, value["tokens"].as_u64()), (0, Some(3)));
    let checked = [
        "model",
        "run",
        "tiny-llama",
        "--calibration",
        "c.json",
        "--prompt",
        "abc",
    ];
    let (code, value, _) = run(&checked);
    assert_eq!((code, value["next_token_id"].as_u64()), (0, Some(195)));

    let create = |prompt: &str, insecure: bool, calibration: &str| {
        let mut args = vec![
            "chain",
            "create",
            "--coordinator",
            "http://127.0.0.1:1",
            "--token-file",
            "none",
            "--keys",
            "k",
            "--model",
            "tiny-llama",
            "--calibration",
            calibration,
            "--name",
            "n",
            "--out",
            "chain",
            "--prompt",
            prompt,
        ];
        if insecure {
            args.push("--allow-insecure");
        }
        run(&args)
    };
    let error = |v: &Value| v["error"].as_str().unwrap_or_default().to_string();
    let (code, value, _) = create("abc", false, "c.json");
    assert!(
        code == 3 && error(&value).contains("--allow-insecure"),
        "{value}"
    );
    let (code, value, _) = create("abcd", true, "c.json");
    assert!(
        code == 3 && error(&value).contains("at most 3 fit"),
        "{value}"
    );
    let (code, value, _) = create("a<|im_start|>", true, "c.json");
    assert!(
        code == 3 && error(&value).contains("<|im_start|>"),
        "{value}"
    );

    // The same before there are keys or a calibration.
    let check = |params: &str, prompt: &str| {
        run(&[
            "prompt",
            "check",
            "tiny-llama",
            "--params",
            params,
            "--prompt",
            prompt,
        ])
    };
    let (code, value, _) = check("n11-INSECURE", "abcd");
    assert_eq!(
        (
            code,
            value["tokens"].as_u64(),
            value["most_tokens"].as_u64()
        ),
        (0, Some(4), Some(4))
    );
    let (code, value, _) = check("n11-INSECURE", "abcde");
    assert!(
        code == 3 && error(&value).contains("5 tokens, at most 4 fit"),
        "{value}"
    );
    assert_eq!(check("n12-NONE", "abc").0, 1);

    // A calibration that is too narrow for this prompt: refused by layer and quantity.
    let mut calibration: Value =
        serde_json::from_slice(&std::fs::read(d.join("c.json")).unwrap()).unwrap();
    calibration["layers"][1]["bounds"]["up"] = "0x1p-1".into();
    std::fs::write(d.join("narrow.json"), calibration.to_string()).unwrap();
    let (code, value, stderr) = create("abc", true, "narrow.json");
    assert!(
        code == 3 && error(&value).contains("layer 1: up reaches"),
        "{value}"
    );
    assert!(stderr.contains("layer 1: up reaches"));
    assert!(
        !d.join("chain").exists(),
        "nothing is made for a refused prompt"
    );
    // Another model than the calibrated one is an ordinary error.
    let (code, value, _) = run(&[
        "model",
        "run",
        "tiny-qwen3",
        "--calibration",
        "c.json",
        "--prompt",
        "abc",
    ]);
    assert!(code == 1 && error(&value).contains("tiny-llama"), "{value}");
}

#[test]
fn calibrations_are_kept_and_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let calibrate = |tokens: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_cipherhop-owner"))
            .args(["--json", "model", "calibrate", "tiny-llama"])
            .args(["--windows", "100", "--tokens", tokens])
            .env("XDG_CACHE_HOME", dir.path())
            .output()
            .unwrap();
        assert!(out.status.success());
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let (first, second) = (calibrate("2"), calibrate("2"));
    assert_eq!(
        (&first["reused"], &second["reused"]),
        (&false.into(), &true.into())
    );
    assert_eq!(first["calibration"], second["calibration"]);
    assert_eq!(first["sha256"], second["sha256"]);
    assert_ne!(first["calibration"], calibrate("3")["calibration"]);
    // A damaged file is made again.
    let path = first["calibration"].as_str().unwrap();
    assert!(path.starts_with(dir.path().to_str().unwrap()));
    std::fs::write(path, "{").unwrap();
    let third = calibrate("2");
    assert_eq!(
        (&third["reused"], &third["sha256"]),
        (&false.into(), &first["sha256"])
    );
}
