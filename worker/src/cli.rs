//! The command line.

use std::path::PathBuf;

use cipherhop_ckks::Isa;
use clap::{Args, Parser, Subcommand};

use crate::error::EXIT_HELP;
use crate::preferences::Choices;
use crate::range::HopRange;
use crate::units::parse_bytes;

/// The volunteer's program: claims hops of encrypted chains, runs them, hands results in.
#[derive(Debug, Parser)]
#[command(name = "cipherhop-worker", version, about, after_help = EXIT_HELP)]
pub struct Cli {
    /// Data folder: identity, journal, cache, checkpoints, spool. One worker per folder.
    #[arg(long, global = true, env = "CIPHERHOP_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON (one object per line) for machines.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Turn an invite into this machine's identity.
    Enroll(Enroll),
    /// Work: ask for hops, run them, hand results in.
    Run(Run),
    /// Say which hops to work on first; `run` then takes them.
    Claim(Claim),
    /// Show identity, claims, attempts, spool, cache and the coordinator's chains.
    Status,
    /// Follow a chain live.
    Watch(Watch),
    /// Let the running worker rest after its step, and any later one, until `resume`. The checkpoint is kept.
    Pause,
    /// Take a `pause` back.
    Resume,
    /// Let the running worker end after its step. The checkpoint is kept.
    Quit {
        /// Only ask, do not wait until it has ended.
        #[arg(long)]
        no_wait: bool,
    },
    /// This machine's preferences: threads, memory, disk, hours and more.
    #[command(subcommand)]
    Config(Config),
    /// Put an open hop's inputs, or a finished result, into one file for a machine without a connection.
    Pack(Pack),
    /// Compute a packed hop; needs neither a connection nor an identity. Its result becomes a pack, too.
    RunPacked(RunPacked),
    /// Take the result of a packed hop and hand it in.
    Unpack(Unpack),
    /// Hand finished work in again, or ask for a failed hop to be opened again.
    Resubmit(Resubmit),
    /// Run single steps of disputed hops for the coordinator; an operator has to allow this device.
    Referee(Referee),
    /// Check processor, memory, disk, the self-test and the connection.
    Doctor(Doctor),
    /// Time the engine's operations on this machine (random data, no coordinator, no secret key).
    Bench(crate::commands::bench::Options),
    /// Print a script that completes this program's commands and options in a shell.
    Completions(cipherhop_usage::Completions),
    /// Write the man pages into a folder.
    Man(cipherhop_usage::Man),
    /// Computes one hop; started by `run`, not by people.
    #[command(hide = true)]
    HopExec {
        /// The job, written by the agent.
        job: PathBuf,
        /// Kernel to compute with.
        #[arg(long)]
        isa: Option<Isa>,
        /// Added to its niceness.
        #[arg(long, default_value_t = 0)]
        nice: u8,
    },
}

/// `config ...`
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Print the values in force and where each comes from: default, file or flag.
    Check(Choices),
    /// Print where the file lies, or would.
    Path,
    /// Write a file with every key explained and commented out.
    Init,
}

/// Options of `enroll`.
#[derive(Debug, Args)]
pub struct Enroll {
    /// Address, for example https://hops.example.org:7443.
    #[arg(long, value_name = "URL")]
    pub coordinator: String,
    /// The operator's invite; `-` reads it from standard input.
    #[arg(
        long,
        env = "CIPHERHOP_INVITE",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub invite: String,
    /// Name shown to observers.
    #[arg(long)]
    pub name: String,
    /// A PEM file with a certificate authority to trust beside the system's.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Allow http:// to another machine: the token then travels unencrypted.
    #[arg(long)]
    pub allow_plaintext: bool,
    /// Success where the folder is enrolled at this coordinator already, for scripts that run at every start.
    #[arg(long)]
    pub if_needed: bool,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// End after one hop; success only if its result was accepted.
    #[arg(long, conflicts_with = "until_done")]
    pub once: bool,
    /// End when no work came for this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Work on this chain (id or name) until it is completed.
    #[arg(long, value_name = "CHAIN")]
    pub until_done: Option<String>,
    /// Work on this chain (id or name) and on claims only.
    #[arg(long, value_name = "CHAIN", conflicts_with = "until_done")]
    pub chain: Option<String>,
    /// Work on claimed hops only.
    #[arg(long)]
    pub only_claims: bool,
    /// Override the preferences file.
    #[command(flatten)]
    pub choices: Choices,
}

/// Options of `claim`.
#[derive(Debug, Args)]
pub struct Claim {
    /// The chain, id or name.
    #[arg(long, value_name = "CHAIN")]
    pub chain: String,
    /// One hop or a range such as 5-25; all hops without it.
    #[arg(long, value_name = "A-B")]
    pub hops: Option<HopRange>,
    /// Withdraw the claim.
    #[arg(long)]
    pub remove: bool,
}

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct Watch {
    /// The chain, id or name.
    pub chain: String,
}

/// Options of `pack`.
#[derive(Debug, Args)]
pub struct Pack {
    /// Lease an open hop of this chain, id or name.
    #[arg(
        long,
        value_name = "CHAIN",
        required_unless_present = "attempt",
        conflicts_with = "attempt"
    )]
    pub chain: Option<String>,
    /// One hop or a range such as 5-25 to choose from; any without it.
    #[arg(long, value_name = "A-B", requires = "chain")]
    pub hops: Option<HopRange>,
    /// A begun attempt instead, or a finished one: then its result is packed.
    #[arg(long, value_name = "ID")]
    pub attempt: Option<cipherhop_proto::AttemptId>,
    /// The file to make.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Leave the evaluation keys out, which are most of a pack: the other machine has them from an earlier one.
    #[arg(long)]
    pub no_keys: bool,
    /// Memory of the machine that will compute, for example 8GiB; this machine's unless given.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub for_memory: Option<u64>,
    /// Take a chain whose parameter set protects nothing (tests).
    #[arg(long)]
    pub allow_insecure: bool,
}

/// Options of `run-packed`.
#[derive(Debug, Args)]
pub struct RunPacked {
    /// The pack.
    #[arg(value_name = "FILE")]
    pub pack: PathBuf,
    /// The file to make for the result.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Override the preferences file.
    #[command(flatten)]
    pub choices: Choices,
}

/// Options of `unpack`.
#[derive(Debug, Args)]
pub struct Unpack {
    /// The pack with the result.
    #[arg(
        value_name = "FILE",
        required_unless_present = "give_back",
        conflicts_with = "give_back"
    )]
    pub pack: Option<PathBuf>,
    /// The result of this attempt will not come back: give the hop to others.
    #[arg(long, value_name = "ATTEMPT")]
    pub give_back: Option<cipherhop_proto::AttemptId>,
}

/// Options of `resubmit`.
#[derive(Debug, Args)]
pub struct Resubmit {
    /// The attempt; without it, every finished result that was not judged.
    pub attempt: Option<cipherhop_proto::AttemptId>,
    /// Ask for a failed hop to be opened again, then send a finished result for it if there is one.
    #[arg(long, num_args = 2, value_names = ["CHAIN", "HOP"], requires = "reason", conflicts_with = "attempt")]
    pub reopen: Option<Vec<String>>,
    /// Why it should be opened again; kept on record.
    #[arg(long, requires = "reopen")]
    pub reason: Option<String>,
}

/// Options of `referee`.
#[derive(Debug, Args)]
pub struct Referee {
    /// End after one step.
    #[arg(long)]
    pub once: bool,
    /// End when no step came for this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<u64>,
    /// Override the preferences file.
    #[command(flatten)]
    pub choices: Choices,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Threads of the self-test.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set of the self-test: scalar, avx2, avx512ifma or neon; the fastest there is unless given.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
}
