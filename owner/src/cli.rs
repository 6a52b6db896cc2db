//! Command line of `cipherhop-owner`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The key holder's program: the only one that ever sees a secret key.
///
/// Exit codes: 0 success; 1 failure; 2 wrong usage; 3 refused for safety (insecure parameters, a prompt outside the
/// calibration, too many tokens, a special token); 4 the result is outside the acceptance limits; 5 the chain is not complete.
#[derive(Debug, Parser)]
#[command(name = "cipherhop-owner", version)]
pub struct Cli {
    /// Print one JSON object on standard output instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a secret key.
    Keygen(Keygen),
    /// Look at models and calibrate them.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Look at private prompts.
    #[command(subcommand)]
    Prompt(PromptCommand),
    /// Create, follow and decrypt encrypted chains.
    #[command(subcommand)]
    Chain(ChainCommand),
    /// Look at single hops.
    #[command(subcommand)]
    Hop(HopCommand),
    /// Archives of expected digests (manifest.sha256).
    #[command(subcommand)]
    Archive(ArchiveCommand),
    /// Measure the precision of a bootstrap with a key made for it and forgotten.
    Bench(Bench),
    /// Print a script that completes this program's commands and options in a shell.
    Completions(cipherhop_usage::Completions),
    /// Write the man pages into a folder.
    Man(cipherhop_usage::Man),
}

/// `bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Parameter set; needs no --allow-insecure, since the data are random.
    #[arg(long, default_value = "n16-128")]
    pub params: String,
    /// Threads; the result does not depend on it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Vector instructions: avx512ifma, avx2, neon or scalar; the best of this machine by default.
    #[arg(long)]
    pub isa: Option<cipherhop_ckks::Isa>,
}

/// `keygen`
#[derive(Debug, Args)]
pub struct Keygen {
    /// Parameter set, for example n16-128 (128-bit security) or n11-INSECURE (tests).
    #[arg(long)]
    pub params: String,
    /// Allow a parameter set without security.
    #[arg(long)]
    pub allow_insecure: bool,
    /// New folder for the key.
    #[arg(long)]
    pub out: PathBuf,
}

/// `model ...`
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Read a model completely and say what it is.
    Import(ModelImport),
    /// Make a calibration file from a public corpus.
    Calibrate(ModelCalibrate),
    /// Run a prompt in the clear, checked against a calibration where one is given.
    Run(ModelRun),
}

/// `model import`
#[derive(Debug, Args)]
pub struct ModelImport {
    /// A .gguf file, a folder with safetensors, or tiny-llama or tiny-qwen3.
    pub model: String,
    /// Expected SHA-256 of the weights; another one is an error.
    #[arg(long)]
    pub sha256: Option<String>,
}

/// `model calibrate`
#[derive(Debug, Args)]
pub struct ModelCalibrate {
    /// A .gguf file, a folder with safetensors, or tiny-llama or tiny-qwen3.
    pub model: String,
    /// Most private tokens a prompt may have.
    #[arg(long)]
    pub tokens: usize,
    /// Public corpus, one text per line (\n, \t and \\ spelled out); the one shipped with the program by default.
    #[arg(long)]
    pub corpus: Option<PathBuf>,
    /// Public prefix, special tokens allowed; start marker and newline by default.
    #[arg(long)]
    pub prefix: Option<String>,
    /// Most windows of text to run.
    #[arg(long, default_value_t = 600)]
    pub windows: usize,
    /// Calibration file to write. Without it the file goes to the user's cache folder under a name that depends on the
    /// model, prefix, corpus, options and code; one that is there already is used again.
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// `model run`
#[derive(Debug, Args)]
pub struct ModelRun {
    /// A .gguf file, a folder with safetensors, or tiny-llama or tiny-qwen3.
    pub model: String,
    /// Prompt.
    #[arg(long)]
    pub prompt: String,
    /// Calibration to check the run against.
    #[arg(long)]
    pub calibration: Option<PathBuf>,
}

/// `prompt ...`
#[derive(Debug, Subcommand)]
pub enum PromptCommand {
    /// Count a prompt's tokens and refuse what does not fit; needs neither keys nor a calibration.
    Check(PromptCheck),
}

/// `prompt check`
#[derive(Debug, Args)]
pub struct PromptCheck {
    /// A .gguf file, a folder with safetensors, or tiny-llama or tiny-qwen3.
    pub model: String,
    /// Parameter set the chain will use.
    #[arg(long)]
    pub params: String,
    /// Private prompt.
    #[arg(
        long,
        required_unless_present = "prompt_file",
        conflicts_with = "prompt_file"
    )]
    pub prompt: Option<String>,
    /// File with the private prompt, read as it is.
    #[arg(long)]
    pub prompt_file: Option<PathBuf>,
    /// Public prefix, special tokens allowed; start marker and newline by default.
    #[arg(long, conflicts_with = "calibration")]
    pub prefix: Option<String>,
    /// Calibration the chain will use.
    #[arg(long)]
    pub calibration: Option<PathBuf>,
    /// Most tokens of a calibration still to be made.
    #[arg(long, conflicts_with = "calibration")]
    pub tokens: Option<usize>,
}

/// How to reach the coordinator.
#[derive(Debug, Clone, Args)]
pub struct Coordinator {
    /// Address, for example https://host:7443 or http://127.0.0.1:7443.
    #[arg(long, env = "CIPHERHOP_COORDINATOR")]
    pub coordinator: String,
    /// File with the owner token.
    #[arg(long, env = "CIPHERHOP_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// Certificate authority to trust (PEM).
    #[arg(long)]
    pub ca: Option<PathBuf>,
    /// Allow http:// to another machine.
    #[arg(long)]
    pub allow_plaintext: bool,
}

/// `chain ...`
#[derive(Debug, Subcommand)]
pub enum ChainCommand {
    /// Plan, upload and start a chain; run it again with the same --out to go on after an interruption.
    Create(Box<ChainCreate>),
    /// Wait until all hops are verified.
    Wait(ChainWait),
    /// Decrypt, show the next token and judge the accuracy.
    Result(ChainResult),
    /// Check the archive's hash chain and signatures, and that the outputs are what it names.
    Verify(ChainVerify),
}

/// `chain create`
#[derive(Debug, Args)]
pub struct ChainCreate {
    /// How to reach the coordinator.
    #[command(flatten)]
    pub coordinator: Coordinator,
    /// Folder made by keygen.
    #[arg(long)]
    pub keys: PathBuf,
    /// A .gguf file, a folder with safetensors, or tiny-llama or tiny-qwen3.
    #[arg(long)]
    pub model: String,
    /// Calibration file.
    #[arg(long)]
    pub calibration: PathBuf,
    /// Private prompt.
    #[arg(
        long,
        required_unless_present = "prompt_file",
        conflicts_with = "prompt_file"
    )]
    pub prompt: Option<String>,
    /// File with the private prompt, read as it is.
    #[arg(long)]
    pub prompt_file: Option<PathBuf>,
    /// Name shown to volunteers.
    #[arg(long)]
    pub name: String,
    /// Agreeing results of distinct accounts a hop needs.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=16))]
    pub quorum: u32,
    /// Allow a parameter set without security.
    #[arg(long)]
    pub allow_insecure: bool,
    /// Folder for the chain's private state.
    #[arg(long)]
    pub out: PathBuf,
}

/// `chain wait`
#[derive(Debug, Args)]
pub struct ChainWait {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// Give up after so many seconds.
    #[arg(long)]
    pub timeout: Option<u64>,
}

/// `chain result`
#[derive(Debug, Args)]
pub struct ChainResult {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// Publish the rounded error figures of every hop.
    #[arg(long)]
    pub publish: bool,
}

/// `chain verify`
#[derive(Debug, Args)]
pub struct ChainVerify {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// Also trust this ledger key (64 hexadecimal digits, from the operator by another way) from now on.
    #[arg(long, value_name = "KEY")]
    pub trust_key: Option<String>,
}

/// `hop ...`
#[derive(Debug, Subcommand)]
pub enum HopCommand {
    /// Decrypt one hop's output and compare it with the plaintext model.
    Check(HopCheck),
}

/// `hop check`
#[derive(Debug, Args)]
pub struct HopCheck {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// Hop number.
    #[arg(long)]
    pub hop: u32,
    /// Ciphertext file; by default the verified output is downloaded.
    #[arg(long)]
    pub file: Option<PathBuf>,
}

/// `archive ...`
#[derive(Debug, Subcommand)]
pub enum ArchiveCommand {
    /// Write the verified digests.
    Export(ArchiveExport),
    /// Give the coordinator expected digests.
    Import(ArchiveImport),
    /// Run hops here and write their outputs and digests.
    Build(ArchiveBuild),
}

/// `archive export`
#[derive(Debug, Args)]
pub struct ArchiveExport {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// File to write, usually manifest.sha256.
    #[arg(long)]
    pub out: PathBuf,
}

/// `archive import`
#[derive(Debug, Args)]
pub struct ArchiveImport {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// A manifest.sha256.
    #[arg(long)]
    pub manifest: PathBuf,
}

/// `archive build`
#[derive(Debug, Args)]
pub struct ArchiveBuild {
    /// Folder made by chain create.
    #[arg(long)]
    pub chain: PathBuf,
    /// Hops, for example 0-2 or 5.
    #[arg(long, value_parser = hop_range)]
    pub hops: HopRange,
    /// Folder for the outputs and manifest.sha256; outputs already there are built upon.
    #[arg(long)]
    pub out: PathBuf,
    /// Threads; the result does not depend on it.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

/// Inclusive range of hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopRange {
    /// First hop.
    pub first: u32,
    /// Last hop.
    pub last: u32,
}

fn hop_range(text: &str) -> Result<HopRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(HopRange { first, last }),
        _ => Err("write a hop like 5 or a range like 5-25".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert_eq!(hop_range("5-25"), Ok(HopRange { first: 5, last: 25 }));
        assert_eq!(hop_range("3"), Ok(HopRange { first: 3, last: 3 }));
        assert!(hop_range("7-2").is_err() && hop_range("a").is_err());
    }
}
