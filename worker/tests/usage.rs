//! Completions as a shell uses them, and the man pages of the program.
#![allow(clippy::unwrap_used)]

use std::process::Command;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cipherhop-worker"))
}

#[test]
fn bash_completes_subcommands_options_and_their_values() {
    let script = program().args(["completions", "bash"]).output().unwrap();
    assert!(script.status.success());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("completions");
    std::fs::write(&path, &script.stdout).unwrap();
    let complete = |words: &str| {
        let text = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             $(complete -p cipherhop-worker | sed 's/.*-F \\([^ ]*\\).*/\\1/') cipherhop-worker \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
            path.display()
        );
        let done = Command::new("bash").args(["-c", &text]).output().unwrap();
        assert!(
            done.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(complete("cipherhop-worker resub").trim(), "resubmit");
    assert!(complete("cipherhop-worker run --thr").contains("--threads"));
    assert!(complete("cipherhop-worker completions z").contains("zsh"));
}

#[test]
fn the_man_pages_cover_the_program_with_its_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let done = program()
        .arg("man")
        .arg("--out")
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(done.status.success());
    let page = std::fs::read_to_string(dir.path().join("cipherhop-worker.1")).unwrap();
    assert!(
        page.contains("Exit codes") && page.contains("cipherhop\\-worker\\-run(1)"),
        "{page}"
    );
    let run = std::fs::read_to_string(dir.path().join("cipherhop-worker-run.1")).unwrap();
    assert!(run.contains("idle\\-exit"), "{run}");
}
