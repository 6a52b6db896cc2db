//! Runs one hop step by step, with a trace, checkpoints and resume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cipherhop_ckks::{Ciphertext, KeyId, KeySource, KeySpec, ScaleId};
use sha2::{Digest, Sha256};

use crate::circuit::{Circuit, Step};
use crate::ckks_backend::{Ckks, Engine};
use crate::error::HopError;
use crate::program::Program;
use crate::registers::{JobId, TraceLine, WorkDir, digests, trace_bytes, trace_root};
use crate::schedule::step_keys;

/// Everything one hop needs.
#[derive(Clone)]
pub struct HopJob {
    /// Program text (canonical JSON).
    pub program: Vec<u8>,
    /// Decoder layer.
    pub layer: u32,
    /// Weight pack of that layer.
    pub weights: Vec<u8>,
    /// Input ciphertext, wire format.
    pub input: Vec<u8>,
    /// Evaluation keys.
    pub keys: Arc<dyn KeySource>,
    /// Registers and trace live here; a second run with the same folder resumes.
    pub work_dir: PathBuf,
    /// Threads to use; the result does not depend on it.
    pub threads: usize,
}

/// Progress of a hop.
#[derive(Debug, Clone, PartialEq)]
pub enum HopEvent {
    /// Before the first step.
    Started {
        /// Steps of this hop.
        steps_total: u32,
        /// Steps found complete in the work folder.
        steps_done: u32,
    },
    /// A step begins.
    StepStarted {
        /// Step number from 0.
        index: u32,
        /// Steps of this hop.
        total: u32,
        /// Step name.
        name: String,
    },
    /// A step is complete and on disk.
    StepDone {
        /// Step number from 0.
        index: u32,
        /// Steps of this hop.
        total: u32,
        /// Step name.
        name: String,
        /// Wall time of the computation.
        seconds: f64,
    },
}

/// Seconds spent in the stages of all bootstraps of a hop.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BootSeconds {
    /// Slots to coefficients.
    pub stc: f64,
    /// Sparse encapsulation and modulus raising.
    pub modraise: f64,
    /// Coefficients to slots.
    pub cts: f64,
    /// Approximate reduction modulo q0.
    pub evalmod: f64,
    /// Bootstrap calls (a complex one counts once).
    pub count: u32,
    /// Bytes of evaluation keys that all of them read.
    pub key_bytes: u64,
}

/// A finished hop.
#[derive(Debug, Clone, PartialEq)]
pub struct HopOutput {
    /// Output ciphertext, wire format.
    pub output: Vec<u8>,
    /// SHA-256 of `output`.
    pub digest: [u8; 32],
    /// JSON lines, one per step.
    pub trace: Vec<u8>,
    /// SHA-256 over the trace without the times.
    pub trace_root: [u8; 32],
    /// Seconds of all steps (as measured when they ran, across resumes).
    pub compute_seconds: f64,
    /// Seconds of the layer's forward part.
    pub lay_seconds: f64,
    /// Seconds of the final refresh.
    pub boot_seconds: f64,
    /// Stages of all bootstraps.
    pub boot_profile: BootSeconds,
}

/// Runs the hop, or the rest of it after an interruption.
pub fn run_hop(
    job: &HopJob,
    on_event: &mut dyn FnMut(HopEvent),
    cancel: &AtomicBool,
) -> Result<HopOutput, HopError> {
    let program = Program::parse(&job.program)?;
    let engine = Engine::shared(program.params()?)?;
    run_hop_on(&engine, &program, job, on_event, cancel)
}

/// The same with tables and a program made before, for callers that run several hops.
pub fn run_hop_on(
    engine: &Engine,
    program: &Program,
    job: &HopJob,
    on_event: &mut dyn FnMut(HopEvent),
    cancel: &AtomicBool,
) -> Result<HopOutput, HopError> {
    run_hop_keeping(engine, program, job, None, on_event, cancel)
}

/// The same, with every register kept under its digest in a folder, also after the hop is done: for a dispute about
/// a single step.
pub fn run_hop_keeping(
    engine: &Engine,
    program: &Program,
    job: &HopJob,
    keep: Option<&Path>,
    on_event: &mut dyn FnMut(HopEvent),
    cancel: &AtomicBool,
) -> Result<HopOutput, HopError> {
    let layer = job.layer as usize;
    let layout = program.layout()?;
    let weights = program.weights(layer, &job.weights)?;
    let input = read_input(engine, &job.input)?;
    let id = JobId {
        program: hex::encode(Sha256::digest(&job.program)),
        layer: job.layer,
        weights: hex::encode(Sha256::digest(&job.weights)),
        input: hex::encode(Sha256::digest(&job.input)),
    };
    let dir = WorkDir::open(&job.work_dir, &id)?.keeping(keep)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(job.threads.max(1))
        .build()
        .map_err(|e| HopError::Internal(e.to_string()))?;
    let backend = engine.backend(job.keys.clone());
    program.with_circuit(layer, &layout, &weights, |circuit| {
        let schedule = step_keys(circuit, &engine.boot)?;
        let mut run = Run {
            keys: &*job.keys,
            schedule: KeySchedule::new(&schedule),
            engine,
            backend: &backend,
            circuit,
            steps: circuit.steps(),
            dir,
            lines: Vec::new(),
            regs: BTreeMap::new(),
        };
        run.resume(input, &id.input)?;
        run.all(&pool, on_event, cancel)
    })?
}

fn read_input(engine: &Engine, bytes: &[u8]) -> Result<Ciphertext, HopError> {
    let input = Ciphertext::from_bytes(&engine.ctx, bytes)?;
    let level = engine.ctx.params().boot_out_level();
    if input.level() != level || input.scale_id() != ScaleId::Message {
        return Err(HopError::BadInput(format!(
            "ciphertext at level {} on scale row {:?}; a hop starts at level {level} on the message row",
            input.level(),
            input.scale_id()
        )));
    }
    Ok(input)
}

struct Register {
    value: Arc<Ciphertext>,
    digest: String,
}

/// The keys of all steps in one list, and where each step's begin.
struct KeySchedule {
    ids: Vec<KeyId>,
    starts: Vec<usize>,
}

impl KeySchedule {
    fn new(steps: &[Vec<KeySpec>]) -> KeySchedule {
        let mut ids = Vec::new();
        let mut starts = vec![0];
        for keys in steps {
            // the same key many times in a row is one use
            let mut keys: Vec<KeyId> = keys.iter().map(|spec| spec.id).collect();
            keys.dedup();
            ids.extend(keys);
            starts.push(ids.len());
        }
        KeySchedule { ids, starts }
    }

    /// Keys of a step, and of all that follow it.
    fn of_step(&self, step: usize) -> (&[KeyId], &[KeyId]) {
        let at = |i: usize| self.starts.get(i).copied().unwrap_or(self.ids.len());
        let rest = &self.ids[at(step)..];
        rest.split_at(at(step + 1) - at(step))
    }
}

struct Run<'a> {
    keys: &'a dyn KeySource,
    schedule: KeySchedule,
    engine: &'a Engine,
    backend: &'a Ckks,
    circuit: &'a Circuit<'a>,
    steps: Vec<Step>,
    dir: WorkDir,
    lines: Vec<TraceLine>,
    regs: BTreeMap<String, Register>,
}

/// Name of the register that holds the hop's input.
const INPUT: &str = "x";

impl Run<'_> {
    /// Registers that steps from `next` on read, or that are the result.
    fn live(&self, next: usize) -> BTreeSet<&str> {
        let written: BTreeSet<&str> = self.steps[..next]
            .iter()
            .flat_map(|s| s.writes.iter().map(String::as_str))
            .collect();
        let read = self.steps[next..].iter().flat_map(|s| s.reads.iter());
        let last = self.steps.last().into_iter().flat_map(|s| s.writes.iter());
        read.chain(last)
            .map(String::as_str)
            .filter(|r| written.contains(r))
            .collect()
    }

    /// Finds the last complete step whose registers are whole, and loads them.
    fn resume(&mut self, input: Ciphertext, digest: &str) -> Result<(), HopError> {
        let names: Vec<&str> = self.steps.iter().map(|s| s.name.as_str()).collect();
        let lines = self.dir.trace(&names);
        let mut done = lines.len();
        let mut loaded = BTreeMap::new();
        while done > 0 {
            let known = digests(&lines[..done]);
            match self.load(self.live(done), &known) {
                Some(regs) => {
                    loaded = regs;
                    break;
                }
                None => done -= 1,
            }
        }
        if done < lines.len() || done == 0 {
            self.dir.rewrite_trace(&lines[..done])?;
        }
        self.lines = lines[..done].to_vec();
        self.regs = loaded;
        let value = Arc::new(input);
        let digest = digest.to_string();
        self.regs.insert(INPUT.into(), Register { value, digest });
        Ok(())
    }

    fn load(
        &self,
        names: BTreeSet<&str>,
        known: &BTreeMap<&str, &str>,
    ) -> Option<BTreeMap<String, Register>> {
        let mut out = BTreeMap::new();
        for name in names {
            let digest = known.get(name)?.to_string();
            let bytes = self.dir.load(name, &digest)?;
            let value = Arc::new(Ciphertext::from_bytes(&self.engine.ctx, &bytes).ok()?);
            out.insert(name.to_string(), Register { value, digest });
        }
        Some(out)
    }

    fn all(
        mut self,
        pool: &rayon::ThreadPool,
        on_event: &mut dyn FnMut(HopEvent),
        cancel: &AtomicBool,
    ) -> Result<HopOutput, HopError> {
        let total = self.steps.len() as u32;
        let steps_done = self.lines.len() as u32;
        on_event(HopEvent::Started {
            steps_total: total,
            steps_done,
        });
        for index in steps_done..total {
            if cancel.load(Ordering::Relaxed) {
                return Err(HopError::Cancelled);
            }
            let name = self.steps[index as usize].name.clone();
            on_event(HopEvent::StepStarted {
                index,
                total,
                name: name.clone(),
            });
            let seconds = pool.install(|| self.step(index as usize))?;
            on_event(HopEvent::StepDone {
                index,
                total,
                name,
                seconds,
            });
        }
        self.finish()
    }

    fn step(&mut self, index: usize) -> Result<f64, HopError> {
        let start = Instant::now();
        let (now, later) = self.schedule.of_step(index);
        self.keys.expect(now, later);
        let step = &self.steps[index];
        let missing =
            |r: &str| HopError::Internal(format!("step {}: register {r} is missing", step.name));
        let mut inputs = Vec::with_capacity(step.reads.len());
        let mut read = Vec::with_capacity(step.reads.len());
        for name in &step.reads {
            let reg = self.regs.get(name).ok_or_else(|| missing(name))?;
            inputs.push(Ciphertext::clone(&reg.value));
            read.push((name.clone(), reg.digest.clone()));
        }
        let outputs = self.circuit.exec(self.backend, &step.op, &inputs)?;
        cipherhop_failpoint::at("step.computed");
        if outputs.len() != step.writes.len() {
            return Err(HopError::Internal(format!(
                "step {}: {} outputs",
                step.name,
                outputs.len()
            )));
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut written = Vec::with_capacity(outputs.len());
        for (name, value) in step.writes.iter().zip(outputs) {
            let bytes = value.to_bytes(&self.engine.ctx);
            let (saved, digest) = rayon::join(
                || self.dir.save(name, &bytes),
                || hex::encode(Sha256::digest(&bytes)),
            );
            saved?;
            self.dir.keep(name, &digest)?;
            written.push((name.clone(), digest.clone()));
            let value = Arc::new(value);
            self.regs.insert(name.clone(), Register { value, digest });
        }
        let line = TraceLine {
            step: index as u32,
            name: step.name.clone(),
            inputs: read,
            outputs: written,
            seconds,
        };
        self.dir.append_trace(&line)?;
        cipherhop_failpoint::at("step.traced");
        self.lines.push(line);
        self.forget(index);
        Ok(seconds)
    }

    /// Drops what no later step reads; on disk one step later, so that a damaged output can be made again.
    fn forget(&mut self, index: usize) {
        let live: BTreeSet<String> = self.live(index + 1).into_iter().map(String::from).collect();
        self.regs
            .retain(|name, _| name == INPUT || live.contains(name));
        if index > 0 {
            let needed = self.live(index);
            for name in self.live(index - 1).difference(&needed) {
                if !live.contains(*name) {
                    self.dir.remove(name);
                }
            }
        }
    }

    fn finish(self) -> Result<HopOutput, HopError> {
        let last = self.steps.last().and_then(|s| s.writes.first());
        let result = last
            .and_then(|name| self.regs.get(name))
            .ok_or_else(|| HopError::Internal("no result".into()))?;
        let output = result.value.to_bytes(&self.engine.ctx);
        let digest: [u8; 32] = Sha256::digest(&output).into();
        let mut boot_profile = BootSeconds::default();
        let (mut lay_seconds, mut boot_seconds) = (0.0, 0.0);
        for line in &self.lines {
            let last_refresh = line.name.starts_with("boot.") || line.name == "residual2";
            *(if last_refresh {
                &mut boot_seconds
            } else {
                &mut lay_seconds
            }) += line.seconds;
            boot_profile.count_step(&line.name, line.seconds);
        }
        let complex = self
            .lines
            .iter()
            .filter(|l| l.name.ends_with("evalmod-im"))
            .count() as u64;
        let boot = &self.engine.boot;
        boot_profile.key_bytes = (u64::from(boot_profile.count) - complex) * boot.key_bytes(1)
            + complex * boot.key_bytes(2);
        Ok(HopOutput {
            output,
            digest,
            trace: trace_bytes(&self.lines)?,
            trace_root: trace_root(&self.lines),
            compute_seconds: lay_seconds + boot_seconds,
            lay_seconds,
            boot_seconds,
            boot_profile,
        })
    }
}

impl BootSeconds {
    fn count_step(&mut self, name: &str, seconds: f64) {
        let stage = name.rsplit('.').next().unwrap_or_default();
        match stage {
            "stc" => {
                self.stc += seconds;
                self.count += 1;
            }
            "modraise" => self.modraise += seconds,
            "cts" => self.cts += seconds,
            "evalmod" | "evalmod-re" | "evalmod-im" => self.evalmod += seconds,
            _ => {}
        }
    }

    /// Seconds of all stages together.
    pub fn total(&self) -> f64 {
        self.stc + self.modraise + self.cts + self.evalmod
    }
}
