//! The child's side: runs one hop and reports in JSON lines on standard output.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cipherhop_ckks::{CkksError, Isa};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::error::HopError;
use cipherhop_hop::keys::{DirKeys, KeyManifest, KeyUse};
use cipherhop_hop::memory::HopMemory;
use cipherhop_hop::program::Program;
use cipherhop_hop::run::{HopEvent, HopJob, HopOutput, run_hop_keeping};
use cipherhop_proto::Digest;

use super::{CheckedFile, Failure, Job, Line, Profile};
use crate::durable::{make_folder, write_atomic};
use crate::folder::lock_file;
use crate::journal::Finished;
use crate::machine;

struct Trouble(Failure, String);

/// Runs the job of a file and returns the exit code: 0 finished or cancelled, 1 failed.
///
/// The agent writes `stop` to standard input to have it end after the running step; when standard input closes the
/// agent is gone and so goes the child, at once: checkpoints are durable.
pub fn exec(job_file: &Path, isa: Option<Isa>) -> u8 {
    // Where memory runs out, the kernel is to take this process and not the agent. Not everywhere allowed.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = cancel.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line == "stop" => flag.store(true, Ordering::SeqCst),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        std::process::exit(1);
    });
    let (line, code) = match run(job_file, isa, &cancel) {
        Ok(line) => (line, 0),
        Err(Trouble(kind, detail)) => (Line::Failed { kind, detail }, 1),
    };
    say(&line);
    code
}

fn say(line: &Line) {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    let mut out = std::io::stdout().lock();
    // Nobody listening means that the agent is gone; the watcher of standard input ends the process.
    let _ = out.write_all(&text).and_then(|()| out.flush());
}

fn run(job_file: &Path, isa: Option<Isa>, cancel: &AtomicBool) -> Result<Line, Trouble> {
    let text = std::fs::read(job_file).map_err(disk("reading the job"))?;
    let job: Job = serde_json::from_slice(&text)
        .map_err(|e| Trouble(Failure::Disk, format!("damaged job file: {e}")))?;
    make_folder(&job.work).map_err(|e| Trouble(Failure::Disk, e.to_string()))?;
    let _lock = own_work_folder(&job.work)?;
    let text = read(&job.program)?;
    let program = Program::parse(&text).map_err(|e| trouble(e.into()))?;
    let params = program.params().map_err(|e| trouble(e.into()))?;
    if params.name != job.parameter_set {
        let detail = format!(
            "the program is for {}, the hop for {}",
            params.name, job.parameter_set
        );
        return Err(Trouble(Failure::Input, detail));
    }
    let isa = isa.unwrap_or_else(Isa::best);
    let manifest = KeyManifest::parse(&read(&job.key_manifest)?).map_err(trouble)?;
    let keys = manifest.specs().map_err(trouble)?;
    let memory =
        HopMemory::on_threads(&program, keys, job.threads).map_err(|e| trouble(e.into()))?;
    let Some(budget) = memory.key_budget(job.memory) else {
        return Ok(Line::Refused {
            needed: memory.least(),
            available: job.memory,
        });
    };
    cipherhop_ckks::keep_free_memory(memory.to_spare(job.memory));
    let engine = Engine::on(isa, params).map_err(|e| trouble(e.into()))?;
    let keys = DirKeys::open(engine.ctx.clone(), job.keys.clone(), manifest).map_err(trouble)?;
    let keys = Arc::new(keys.with_budget(budget));
    let hop = HopJob {
        program: text,
        layer: job.layer,
        weights: read(&job.weights)?,
        input: read(&job.input)?,
        keys: keys.clone(),
        // A folder of its own: the names in it are the hop crate's.
        work_dir: job.work.join("hop"),
        threads: job.threads,
    };
    let mut on_event = |event| say(&to_line(event));
    let keep = job.spool.join("steps");
    match run_hop_keeping(&engine, &program, &hop, Some(&keep), &mut on_event, cancel) {
        Ok(output) => store(&job, &output, keys.usage()),
        Err(HopError::Cancelled) => Ok(Line::Cancelled),
        Err(error) => Err(trouble(error)),
    }
}

/// A child of an agent that was killed may still be about to notice it; two must not write the same checkpoints.
fn own_work_folder(work: &Path) -> Result<crate::folder::FolderLock, Trouble> {
    for _ in 0..100 {
        match lock_file(&work.join("lock")).map_err(|e| Trouble(Failure::Disk, e.to_string()))? {
            Some(lock) => return Ok(lock),
            None => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    }
    Err(Trouble(
        Failure::Compute,
        "another process works in this attempt's folder".into(),
    ))
}

fn to_line(event: HopEvent) -> Line {
    match event {
        HopEvent::Started {
            steps_total,
            steps_done,
        } => Line::Started {
            steps_total,
            steps_done,
        },
        HopEvent::StepStarted { index, name, .. } => Line::StepStarted { index, name },
        HopEvent::StepDone {
            index,
            name,
            seconds,
            ..
        } => Line::StepDone {
            index,
            name,
            seconds,
        },
    }
}

fn store(job: &Job, output: &HopOutput, keys: KeyUse) -> Result<Line, Trouble> {
    let keep = |name: &str, bytes: &[u8]| write_atomic(&job.spool.join(name), bytes, false);
    make_folder(&job.spool)
        .and_then(|()| keep("output", &output.output))
        .inspect(|()| cipherhop_failpoint::at("spool.output.written"))
        .and_then(|()| keep("trace", &output.trace))
        .and_then(|()| crate::durable::sync_folder(job.spool.parent().unwrap_or(&job.spool)))
        .map_err(|e| Trouble(Failure::Disk, e.to_string()))?;
    cipherhop_failpoint::at("spool.written");
    let result = Finished {
        output: Digest::of(&output.output),
        output_size: output.output.len() as u64,
        trace: Digest::of(&output.trace),
        trace_size: output.trace.len() as u64,
        trace_root: Digest::from_bytes(output.trace_root),
        compute_seconds: output.compute_seconds,
    };
    let stages = output.boot_profile;
    let profile = Profile {
        lay: output.lay_seconds,
        boot: output.boot_seconds,
        bootstraps: stages.count,
        stc: stages.stc,
        modraise: stages.modraise,
        cts: stages.cts,
        evalmod: stages.evalmod,
        key_bytes: stages.key_bytes,
        peak_memory: machine::peak_memory(),
        key_loads: keys.loads,
        key_seconds: keys.seconds,
    };
    Ok(Line::Finished { result, profile })
}

fn read(file: &CheckedFile) -> Result<Vec<u8>, Trouble> {
    let bytes = std::fs::read(&file.path).map_err(disk("reading a blob"))?;
    if Digest::of(&bytes) == file.digest {
        Ok(bytes)
    } else {
        Err(Trouble(
            Failure::Input,
            format!("blob {} is damaged on disk", file.digest),
        ))
    }
}

fn disk(what: &'static str) -> impl FnOnce(std::io::Error) -> Trouble {
    move |error| Trouble(Failure::Disk, format!("{what}: {error}"))
}

fn trouble(error: HopError) -> Trouble {
    let kind = match &error {
        HopError::Plan(_) | HopError::BadInput(_) => Failure::Input,
        HopError::Engine(engine) if about_bytes(engine) => Failure::Input,
        HopError::Io { .. } => Failure::Disk,
        HopError::Cancelled
        | HopError::Engine(_)
        | HopError::OutOfInterval { .. }
        | HopError::Internal(_) => Failure::Compute,
    };
    Trouble(kind, error.to_string())
}

/// Keys and ciphertexts as they came, as opposed to what was computed with them.
fn about_bytes(error: &CkksError) -> bool {
    matches!(
        error,
        CkksError::MissingKey(_)
            | CkksError::KeyTooSmall { .. }
            | CkksError::Truncated { .. }
            | CkksError::Oversize { .. }
            | CkksError::BadMagic(_)
            | CkksError::BadHeader(_)
            | CkksError::ForeignParams
            | CkksError::ResidueOutOfRange { .. }
            | CkksError::Unreadable(_)
    )
}
