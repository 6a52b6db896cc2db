//! `bench`: how long the engine's operations take here, with random keys and data. What each figure means:
//! docs/benchmarks.md. Every benchmark of `all` runs in a process of its own, so that its memory is free again
//! for the next one and the peak is its own.

mod engine;
mod hop;
mod measure;
mod precision;

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use cipherhop_ckks::{Context as Tables, Isa, Params, kernel_for};
use cipherhop_hop::error::HopError;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Context;
use crate::error::WorkerError;
use crate::{machine, units};
use measure::Line;

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct Options {
    /// What to time; `list` says what there is.
    #[arg(value_enum, default_value = "list")]
    name: Name,
    /// Parameter set; the sets called INSECURE are quick and protect nothing.
    #[arg(long, default_value = "n16-128", value_name = "SET")]
    params: String,
    /// Threads of the computation.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Vector instructions: avx512ifma, avx2, neon or scalar; the best of this machine by default.
    #[arg(long, value_name = "SET")]
    isa: Option<Isa>,
    /// Runs after the warm-up.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// The key holder's program, which measures the precision of a bootstrap; by default the one beside this one.
    #[arg(long, value_name = "FILE")]
    owner: Option<PathBuf>,
    /// Private tokens of a hop; by default 6 for SmolLM2 and 4 for Qwen3-2B, or as many as fit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=63))]
    tokens: Option<u16>,
}

/// What can be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// The names and what they time.
    List,
    /// All of them, one after another.
    All,
    /// Forward and inverse number theoretic transform of one limb.
    Ntt,
    /// Key switch of one polynomial.
    Keyswitch,
    /// One rotation, and eight rotations of one ciphertext (hoisted).
    Rotate,
    /// Product of two ciphertexts, relinearised and rescaled.
    Multiply,
    /// Dense matrices 512 -> 2048 and 2048 -> 2048 times an encrypted vector, at 10 limbs.
    Matvec,
    /// Bootstrap of all N/2 slots, real and complex, with its precision.
    Bootstrap,
    /// A hop of SmolLM2-135M's shape.
    HopSmollm2,
    /// A hop of Qwen3-2B's shape.
    HopQwen3,
    /// Bytes of the evaluation keys of both models, and the time to read one.
    Keys,
}

impl Name {
    fn timed() -> impl Iterator<Item = Name> {
        let all = Name::value_variants().iter().copied();
        all.filter(|name| !matches!(name, Name::List | Name::All))
    }

    fn text(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    fn help(self) -> String {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }
}

/// What one benchmark needs.
struct Setup {
    params: Params,
    isa: Isa,
    threads: usize,
    runs: usize,
    tokens: Option<usize>,
    json: bool,
}

impl Setup {
    fn tables(&self) -> Result<Arc<Tables>, HopError> {
        Ok(Tables::with_kernel(
            self.params.clone(),
            kernel_for(self.isa)?,
        )?)
    }

    /// Prints a result.
    fn say(&self, line: &Line) {
        crate::report::say(&if self.json { line.json() } else { line.text() });
    }
}

pub(super) async fn bench(context: &Context, options: Options) -> Result<(), WorkerError> {
    let params = Params::by_name(&options.params).map_err(|error| {
        let names = Params::names().join(", ");
        WorkerError::Request(format!("{error}; parameter sets: {names}"))
    })?;
    let isa = options.isa.unwrap_or_else(Isa::best);
    kernel_for(isa).map_err(|error| WorkerError::Request(error.to_string()))?;
    match options.name {
        Name::List => list(context),
        Name::All => all(context, &options, isa).await,
        name => {
            let setup = Setup {
                params,
                isa,
                threads: options.threads.into(),
                runs: options.runs.into(),
                tokens: options.tokens.map(usize::from),
                json: context.json,
            };
            if !context.json {
                heading(&setup);
            }
            one(context, name, setup, options.owner).await
        }
    }
}

fn list(context: &Context) -> Result<(), WorkerError> {
    for name in Name::timed() {
        let (text, help) = (name.text(), name.help());
        context.print(
            &json!({ "name": text, "what": help }),
            &format!("{text:12} {help}"),
        );
    }
    Ok(())
}

fn heading(setup: &Setup) {
    let secure = match setup.params.is_insecure() {
        true => " (INSECURE: for tests, protects nothing)",
        false => "",
    };
    crate::report::say(&format!(
        "{}{secure}, {} thread(s), {}, {}\n{}",
        setup.params.name,
        setup.threads,
        setup.isa,
        machine::cpu(),
        Line::TITLES
    ));
}

async fn one(
    context: &Context,
    name: Name,
    setup: Setup,
    owner: Option<PathBuf>,
) -> Result<(), WorkerError> {
    warn_of_memory(name, &setup);
    let precision = match name {
        Name::Bootstrap => precision::measure(&setup, owner, &context.stop).await?,
        _ => precision::Precision::default(),
    };
    let work = tokio::task::spawn_blocking(move || -> Result<(), HopError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(setup.threads)
            .build()
            .map_err(|error| HopError::Internal(error.to_string()))?;
        pool.install(|| match name {
            Name::List | Name::All => Ok(()),
            Name::Ntt => engine::ntt(&setup),
            Name::Keyswitch => engine::key_switch(&setup),
            Name::Rotate => engine::rotate(&setup),
            Name::Multiply => engine::multiply(&setup),
            Name::Matvec => engine::matvec(&setup),
            Name::Bootstrap => engine::bootstrap(&setup, &precision),
            Name::HopSmollm2 => hop::hop(&setup, hop::SMOLLM2),
            Name::HopQwen3 => hop::hop(&setup, hop::QWEN3),
            Name::Keys => hop::keys(&setup),
        })
    });
    let done = tokio::select! {
        done = work => done,
        _ = context.stop.cancelled() => return Err(WorkerError::NotDone("stopped".into())),
    };
    done.map_err(|_| WorkerError::Request("the benchmark was broken off".into()))?
        .map_err(|error| WorkerError::Request(error.to_string()))
}

/// Keys and tables of the largest benchmark, roughly, against what is available.
fn warn_of_memory(name: Name, setup: &Setup) {
    let per_limb = (setup.params.n() * 8) as u64;
    let limbs = match name {
        Name::List | Name::All | Name::Ntt | Name::Keyswitch => 500,
        Name::Keys => 2000,
        Name::Multiply => 700,
        Name::Rotate => 3500,
        Name::Matvec => 4500,
        Name::Bootstrap => 11_500,
        Name::HopSmollm2 | Name::HopQwen3 => 15_500,
    };
    let (need, have) = (limbs * per_limb, machine::memory().available);
    if need > have {
        eprintln!(
            "cipherhop-worker: this takes about {} of memory, {} are available",
            units::bytes(need),
            units::bytes(have)
        );
    }
}

/// Every benchmark, each in a process of its own; those that fail do not keep the others from running.
async fn all(context: &Context, options: &Options, isa: Isa) -> Result<(), WorkerError> {
    let program = std::env::current_exe()
        .map_err(WorkerError::file(std::path::Path::new("/proc/self/exe")))?;
    let mut failed = Vec::new();
    for name in Name::timed() {
        let mut command = tokio::process::Command::new(&program);
        command.args(["bench", &name.text(), "--params", &options.params]);
        command.args(["--threads", &options.threads.to_string()]);
        command.args(["--runs", &options.runs.to_string()]);
        command.args(["--isa", isa.name()]);
        if context.json {
            command.arg("--json");
        }
        if let Some(owner) = &options.owner {
            command.arg("--owner").arg(owner);
        }
        if let Some(tokens) = options.tokens {
            command.args(["--tokens", &tokens.to_string()]);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(WorkerError::file(&program))?;
        let status = tokio::select! {
            status = child.wait() => status.map_err(WorkerError::file(&program))?,
            _ = context.stop.cancelled() => return Err(WorkerError::NotDone("stopped".into())),
        };
        if !status.success() {
            failed.push(name.text());
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(WorkerError::NotDone(format!(
            "these benchmarks failed: {}",
            failed.join(", ")
        ))),
    }
}
