//! I11: a real chain with the real programs, everything they log at the finest level and everything they print kept,
//! and no token, key or plaintext in any of it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Three private tokens of the tiny model; letters that no hexadecimal text holds.
const PROMPT: &str = "QzW";
/// Longer than fits: an error about it must not repeat it.
const LONG_PROMPT: &str = "The Magic Words are Squeamish Ossifrage";

/// A program of this workspace, built with the tests or now.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join(name);
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "-p", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success() && path.exists(), "{name} is not built");
    }
    path
}

/// Files of everything the programs wrote, and the folder of the chain.
struct Scene {
    dir: PathBuf,
    outputs: Vec<PathBuf>,
}

impl Scene {
    /// The program's output goes to files of this name.
    fn command(&mut self, name: &str, log: &str) -> Command {
        let path = match name {
            "cipherhop-owner" => env!("CARGO_BIN_EXE_cipherhop-owner").into(),
            other => program(other),
        };
        let mut command = Command::new(path);
        let mut open = |suffix: &str| {
            let path = self.dir.join(format!("{log}.{suffix}"));
            self.outputs.push(path.clone());
            File::create(path).unwrap()
        };
        command
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full")
            .stdin(Stdio::null())
            .stdout(open("out"))
            .stderr(open("err"))
            .current_dir(&self.dir);
        command
    }

    /// Runs a command to its end; exit code and the last line of its output as JSON.
    fn run(&mut self, name: &str, log: &str, args: &[&str]) -> (i32, Value) {
        let status = self.command(name, log).args(args).status().unwrap();
        let text = self.read(&format!("{log}.out"));
        let value = text
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok());
        (status.code().unwrap(), value.unwrap_or(Value::Null))
    }

    fn done(&mut self, name: &str, log: &str, args: &[&str]) -> Value {
        let (code, value) = self.run(name, log, args);
        assert_eq!(code, 0, "{name} {args:?}: {value}");
        value
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap()
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(seconds), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Which of the secrets a file holds, read in pieces that overlap by the longest secret.
fn found_in(path: &Path, secrets: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let longest = secrets.values().map(Vec::len).max().unwrap();
    let mut file = File::open(path).unwrap();
    let mut piece = Vec::new();
    let mut found = Vec::new();
    loop {
        let kept = piece.len().min(longest);
        piece.drain(..piece.len() - kept);
        let read = file.by_ref().take(4 << 20).read_to_end(&mut piece).unwrap();
        for (name, secret) in secrets {
            if contains(&piece, secret) {
                found.push(format!("{name} in {}", path.display()));
            }
        }
        if read == 0 {
            return found;
        }
    }
}

fn contains(text: &[u8], secret: &[u8]) -> bool {
    let (first, rest) = secret.split_first().unwrap();
    text.iter()
        .enumerate()
        .any(|(i, byte)| byte == first && text[i + 1..].starts_with(rest))
}

/// A secret as bytes, and as hexadecimal in both cases.
fn forms(secrets: &mut BTreeMap<String, Vec<u8>>, name: &str, bytes: &[u8]) {
    secrets.insert(name.to_owned(), bytes.to_vec());
    secrets.insert(format!("{name} (hex)"), hex::encode(bytes).into_bytes());
    secrets.insert(
        format!("{name} (HEX)"),
        hex::encode_upper(bytes).into_bytes(),
    );
    // As `{:?}` of a slice prints it.
    let debug = format!("{bytes:?}");
    secrets.insert(
        format!("{name} (debug)"),
        debug.trim_matches(['[', ']']).as_bytes().to_vec(),
    );
}

fn token(secrets: &mut BTreeMap<String, Vec<u8>>, name: &str, token: &str) {
    let secret = token.trim().rsplit('_').next().unwrap();
    assert_eq!(secret.len(), 64, "{name} is a token");
    // A part is as bad as the whole.
    for (part, text) in [
        ("first half", &secret[..32]),
        ("second half", &secret[32..]),
    ] {
        secrets.insert(format!("{name}, {part}"), text.as_bytes().to_vec());
    }
}

#[test]
fn i11_no_log_or_error_holds_a_token_a_key_or_plaintext() {
    let temp = tempfile::tempdir().unwrap();
    let mut scene = Scene {
        dir: temp.path().to_owned(),
        outputs: Vec::new(),
    };
    let mut secrets = BTreeMap::new();
    let server = Running(
        scene
            .command("cipherhop-coordinator", "coordinator")
            .args(["serve", "--data", "coordinator", "--listen", "127.0.0.1:0"])
            .spawn()
            .unwrap(),
    );
    let url = wait_for("the coordinator starts", 30, || {
        let text = scene.read("coordinator.out");
        text.lines()
            .next()
            .and_then(|line| line.split_once("http://"))
            .map(|(_, rest)| format!("http://{}", rest.trim()))
    });
    token(
        &mut secrets,
        "admin token",
        &scene.read("coordinator/admin.token"),
    );
    let admin = ["--coordinator", &url, "--data", "coordinator", "--json"];

    // Printed once, to whom asked for it: the one place a token may be.
    let mut make = |scene: &mut Scene, role: &str, account: &str| {
        let args = ["token", "create", "--role", role, "--account", account];
        let log = format!("token-{account}");
        let made = scene.done("cipherhop-coordinator", &log, &[&args[..], &admin].concat());
        scene
            .outputs
            .retain(|path| *path != scene.dir.join(format!("{log}.out")));
        let text = made["token"].as_str().unwrap().to_owned();
        token(&mut secrets, &format!("{role} of {account}"), &text);
        text
    };
    let owner_token = make(&mut scene, "owner", "key-holder");
    std::fs::write(scene.dir.join("owner.token"), &owner_token).unwrap();
    let invites = ["alice", "bob"].map(|who| (who, make(&mut scene, "invite", who)));
    for (who, invite) in &invites {
        let enroll = [
            "--data",
            who,
            "enroll",
            "--coordinator",
            &url,
            "--invite",
            invite,
            "--name",
            who,
        ];
        scene.done("cipherhop-worker", &format!("enroll-{who}"), &enroll);
        token(
            &mut secrets,
            &format!("token of {who}"),
            &scene.read(&format!("{who}/token")),
        );
        let key = hex::decode(scene.read(&format!("{who}/device.key"))).unwrap();
        forms(&mut secrets, &format!("device key of {who}"), &key);
    }

    let owner = "cipherhop-owner";
    let insecure = "--allow-insecure";
    let keygen = [
        "keygen",
        "--params",
        "n11-INSECURE",
        insecure,
        "--out",
        "keys",
    ];
    scene.done(owner, "keygen", &keygen);
    let calibrate = [
        "model",
        "calibrate",
        "tiny-llama",
        "--tokens",
        "3",
        "--windows",
        "200",
        "--out",
        "c.json",
    ];
    scene.done(owner, "calibrate", &calibrate);
    let create = |prompt: &'static str, out: &'static str, token_file: &'static str| {
        [
            "--json",
            "chain",
            "create",
            "--coordinator",
            &url,
            "--token-file",
            token_file,
            "--keys",
            "keys",
            "--model",
            "tiny-llama",
            "--calibration",
            "c.json",
            "--prompt",
            prompt,
            "--name",
            "t",
            insecure,
            "--out",
            out,
        ]
        .map(str::to_owned)
    };
    let run = |scene: &mut Scene, log: &str, args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        scene.run(owner, log, &args)
    };
    // Errors: a prompt that is too long, a token that is no owner's, an invite where a token is wanted.
    std::fs::copy(scene.dir.join("alice/token"), scene.dir.join("wrong.token")).unwrap();
    let long = run(
        &mut scene,
        "long",
        &create(LONG_PROMPT, "long", "owner.token"),
    );
    assert_ne!(long.0, 0);
    let wrong = run(&mut scene, "wrong", &create(PROMPT, "wrong", "wrong.token"));
    assert_ne!(wrong.0, 0);
    let again = scene.run(
        "cipherhop-worker",
        "wrong-enroll",
        &[
            "--data",
            "eve",
            "enroll",
            "--coordinator",
            &url,
            "--invite",
            &owner_token,
            "--name",
            "eve",
        ],
    );
    assert_ne!(again.0, 0);
    let (code, made) = run(
        &mut scene,
        "create",
        &create(PROMPT, "chain", "owner.token"),
    );
    assert_eq!(code, 0, "{made}");

    let mut workers = Vec::new();
    for (who, _) in &invites {
        let work = [
            "--json",
            "--data",
            who,
            "run",
            "--until-done",
            "t",
            "--threads",
            "1",
            insecure,
        ];
        let mut command = scene.command("cipherhop-worker", &format!("run-{who}"));
        workers.push(Running(command.args(work).spawn().unwrap()));
    }
    scene.done(
        owner,
        "wait",
        &["chain", "wait", "--chain", "chain", "--timeout", "600"],
    );
    for worker in &mut workers {
        assert!(worker.0.wait().unwrap().success());
    }
    let result = scene.done(
        owner,
        "result",
        &["--json", "chain", "result", "--chain", "chain"],
    );
    assert_eq!(result["next_token_id"], made["expected_token_id"]);
    scene.run("cipherhop-worker", "doctor", &["--data", "alice", "doctor"]);
    scene.done(
        "cipherhop-coordinator",
        "audit",
        &[&["audit"][..], &admin].concat(),
    );
    drop((workers, server));

    secrets.insert("prompt".into(), PROMPT.into());
    for part in ["Squeamish", "Ossifrage"] {
        secrets.insert(format!("long prompt, {part}"), part.into());
    }
    let seed = std::fs::read(scene.dir.join("keys/evaluation-seed.key")).unwrap();
    forms(&mut secrets, "evaluation seed", &seed);
    let secret = std::fs::read(scene.dir.join("keys/secret.key")).unwrap();
    // Coefficients of which many are not zero: such 32 bytes do not occur by accident.
    let dense = secret
        .windows(32)
        .skip(64)
        .find(|w| w.iter().filter(|b| **b != 0).count() >= 16);
    forms(&mut secrets, "secret key", dense.unwrap());

    // The search finds what is there: the log names the coordinator's address and the worker's hop.
    let planted = BTreeMap::from([("address".to_owned(), b"127.0.0.1".to_vec())]);
    assert!(!found_in(&scene.dir.join("coordinator.err"), &planted).is_empty());
    let mut bytes = 0;
    let mut found = Vec::new();
    for path in &scene.outputs {
        bytes += std::fs::metadata(path).unwrap().len();
        found.extend(found_in(path, &secrets));
    }
    assert!(
        bytes > 100_000,
        "the finest logs are long, not {bytes} bytes"
    );
    assert!(found.is_empty(), "\n  {}", found.join("\n  "));
}
