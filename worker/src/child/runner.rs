//! The agent's side of the child process.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cipherhop_ckks::Isa;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use super::{Failure, Job, Line, Profile};
use crate::durable::{make_folder, write_atomic};
use crate::error::WorkerError;
use crate::folder::to_json;
use crate::journal::Finished;

/// How long the child may take to end its running step when it is told to stop; then it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// A child that says nothing for this long hangs: steps take seconds, on slow machines minutes.
const SILENCE_LIMIT: Duration = Duration::from_secs(3600);

/// How to start the child.
#[derive(Clone, Debug)]
pub struct Runner {
    /// Program and first arguments; the job's path follows.
    pub command: Vec<OsString>,
}

/// How the child is told to halt; its checkpoint is kept either way.
#[derive(Clone, Debug, Default)]
pub struct Halt {
    /// When it has completed its running step, however long that takes.
    pub after_step: CancellationToken,
    /// The same, but within seconds: then it is killed in its step.
    pub soon: CancellationToken,
}

/// How a run of the child ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The result is in the spool.
    Finished(Finished, Profile),
    /// Stopped by the token; the checkpoint is kept.
    Stopped,
    /// It said why it cannot be done.
    Failed(Failure, String),
    /// It was not begun: bytes of memory needed and available.
    Refused(u64, u64),
    /// It ended without a word.
    Crashed(Failure, String),
}

impl Runner {
    /// This program itself, as `hop-exec`, with the kernel of that instruction set or the fastest, and so much nicer.
    pub fn of_this_program(isa: Option<Isa>, nice: u8) -> Result<Runner, WorkerError> {
        let path =
            std::env::current_exe().map_err(WorkerError::file(Path::new("/proc/self/exe")))?;
        let mut command = vec![path.into(), "hop-exec".into()];
        command.extend(isa.map(|isa| format!("--isa={isa}").into()));
        command.push(format!("--nice={nice}").into());
        Ok(Runner { command })
    }

    /// Runs the job to its end or until it is to halt.
    pub async fn run(
        &self,
        job: &Job,
        halt: &Halt,
        mut on_line: impl FnMut(&Line),
    ) -> Result<Outcome, WorkerError> {
        make_folder(&job.work)?;
        let job_path = job.work.join("job.json");
        write_atomic(&job_path, &to_json(job), true)?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(WorkerError::Request(
                "no program for the child process".into(),
            ));
        };
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .arg(&job_path)
            // The C library's allocator otherwise puts blocks of up to 32 MiB on a heap that does not shrink: keys
            // come and go in several sizes.
            .env("MALLOC_MMAP_THRESHOLD_", "1048576")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C on the terminal is the agent's to handle.
            .process_group(0)
            .spawn()
            .map_err(WorkerError::file(Path::new(program)))?;
        let mut stdin = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(WorkerError::Request(
                "the child process has no output".into(),
            ));
        };
        let mut lines = BufReader::new(stdout).lines();
        let mut said = None;
        let mut killed = false;
        let mut silent = false;
        let mut asked = false;
        let mut stopping = false;
        let patience = tokio::time::sleep(Duration::MAX);
        tokio::pin!(patience);
        let silence = tokio::time::sleep(SILENCE_LIMIT);
        tokio::pin!(silence);
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(text)) => {
                        silence.as_mut().reset(tokio::time::Instant::now() + SILENCE_LIMIT);
                        match serde_json::from_str::<Line>(&text) {
                        Ok(line) => {
                            on_line(&line);
                            match line {
                                Line::Finished { result, profile } => said = Some(Outcome::Finished(result, profile)),
                                Line::Cancelled => said = Some(Outcome::Stopped),
                                Line::Failed { kind, detail } => said = Some(Outcome::Failed(kind, detail)),
                                Line::Refused { needed, available } => said = Some(Outcome::Refused(needed, available)),
                                _ => {}
                            }
                        }
                        Err(error) => tracing::warn!(%error, "a line of the child process was not understood"),
                        }
                    }
                    Ok(None) | Err(_) => break,
                },
                () = halt.after_step.cancelled(), if !asked => {
                    asked = true;
                    if let Some(pipe) = stdin.as_mut() && pipe.write_all(b"stop\n").await.is_err() {
                        stdin = None;
                    }
                }
                () = halt.soon.cancelled(), if !stopping => {
                    stopping = true;
                    halt.after_step.cancel();
                    patience.as_mut().reset(tokio::time::Instant::now() + STOP_PATIENCE);
                }
                () = &mut silence, if !killed => {
                    silent = true;
                    killed = true;
                    if let Err(error) = child.start_kill() {
                        tracing::warn!(%error, "the child process could not be killed");
                    }
                }
                () = &mut patience, if stopping && !killed => {
                    killed = true;
                    if let Err(error) = child.start_kill() {
                        tracing::warn!(%error, "the child process could not be killed");
                    }
                }
            }
        }
        let status = child
            .wait()
            .await
            .map_err(WorkerError::file(Path::new(program)))?;
        Ok(match said {
            Some(outcome) => outcome,
            None if asked || stopping => Outcome::Stopped,
            None if silent => Outcome::Crashed(
                Failure::Compute,
                format!(
                    "the computing process said nothing for {} s and was ended",
                    SILENCE_LIMIT.as_secs()
                ),
            ),
            None => {
                use std::os::unix::process::ExitStatusExt as _;
                // Nobody but the kernel's memory killer, or a person, sends this signal to it.
                let kind = if status.signal() == Some(9) {
                    Failure::OutOfMemory
                } else {
                    Failure::Compute
                };
                Outcome::Crashed(kind, format!("the computing process ended with {status}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::CheckedFile;
    use cipherhop_proto::Digest;

    fn job(dir: &Path) -> Job {
        let file = CheckedFile {
            path: dir.join("x"),
            digest: Digest::of(b"x"),
        };
        Job {
            layer: 0,
            parameter_set: "n10-INSECURE".into(),
            program: file.clone(),
            weights: file.clone(),
            key_manifest: file.clone(),
            input: file,
            keys: dir.to_owned(),
            work: dir.join("work"),
            spool: dir.join("spool"),
            threads: 1,
            memory: 1 << 30,
        }
    }

    fn shell(script: &str) -> Runner {
        Runner {
            command: vec!["sh".into(), "-c".into(), script.into()],
        }
    }

    async fn outcome(script: &str, stop: &Halt) -> Outcome {
        let dir = tempfile::tempdir().unwrap();
        shell(script)
            .run(&job(dir.path()), stop, |_| ())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_child_that_dies_silently_is_a_crash_and_one_killed_ran_out_of_memory() {
        let never = Halt::default();
        assert!(matches!(
            outcome("exit 7", &never).await,
            Outcome::Crashed(Failure::Compute, _)
        ));
        assert!(matches!(
            outcome("kill -9 $$", &never).await,
            Outcome::Crashed(Failure::OutOfMemory, _)
        ));
        let failed = outcome(
            r#"echo nonsense; echo '{"event":"failed","kind":"input","detail":"d"}'; exit 1"#,
            &never,
        )
        .await;
        assert_eq!(failed, Outcome::Failed(Failure::Input, "d".into()));
        let refused = outcome(
            r#"echo '{"event":"refused","needed":9,"available":7}'"#,
            &never,
        )
        .await;
        assert_eq!(refused, Outcome::Refused(9, 7));
    }

    #[tokio::test]
    async fn stop_is_asked_for_first_and_enforced_within_five_seconds() {
        let stop = Halt::default();
        stop.soon.cancel();
        let polite = outcome(
            r#"read line; test "$line" = stop && echo '{"event":"cancelled"}'"#,
            &stop,
        )
        .await;
        assert_eq!(polite, Outcome::Stopped);
        let begin = std::time::Instant::now();
        assert_eq!(outcome("exec sleep 60", &stop).await, Outcome::Stopped);
        assert!(begin.elapsed() < Duration::from_secs(5));
        let gently = Halt::default();
        gently.after_step.cancel();
        let script = r#"read line; sleep 4; echo '{"event":"cancelled"}'"#;
        let begin = std::time::Instant::now();
        assert_eq!(outcome(script, &gently).await, Outcome::Stopped);
        assert!(
            begin.elapsed() >= Duration::from_secs(4),
            "a long step is not cut off"
        );
    }
}
