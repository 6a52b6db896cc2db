//! The subcommands.

pub mod archive;
pub mod bench;
pub mod chain;
pub mod create;
pub mod hop;
pub mod keygen;
pub mod ledger;
pub mod model;
pub mod prompt;

use crate::{
    cli::{ArchiveCommand, ChainCommand, Cli, Command, HopCommand, ModelCommand, PromptCommand},
    report::{Outcome, Output},
};

/// Runs the command asked for.
pub async fn run(cli: Cli, out: &Output) -> anyhow::Result<Outcome> {
    match cli.command {
        Command::Keygen(args) => keygen::run(&args, out),
        Command::Model(ModelCommand::Import(args)) => model::import(&args, out),
        Command::Model(ModelCommand::Calibrate(args)) => model::calibrate(&args, out),
        Command::Model(ModelCommand::Run(args)) => model::run(&args, out),
        Command::Prompt(PromptCommand::Check(args)) => prompt::check(&args, out),
        Command::Chain(ChainCommand::Create(args)) => create::run(&args, out).await,
        Command::Chain(ChainCommand::Wait(args)) => chain::wait(&args, out).await,
        Command::Chain(ChainCommand::Result(args)) => chain::result(&args, out).await,
        Command::Chain(ChainCommand::Verify(args)) => ledger::verify(&args, out).await,
        Command::Hop(HopCommand::Check(args)) => hop::check(&args, out).await,
        Command::Bench(args) => bench::run(&args, out),
        Command::Completions(shell) => {
            shell.print::<Cli>()?;
            Ok(Outcome::Success)
        }
        Command::Man(pages) => {
            let folder = pages.write::<Cli>()?;
            let text = format!("man pages are in {}", folder.display());
            out.result(&serde_json::json!({ "folder": folder }), &text)?;
            Ok(Outcome::Success)
        }
        Command::Archive(ArchiveCommand::Export(args)) => archive::export(&args, out).await,
        Command::Archive(ArchiveCommand::Import(args)) => archive::import(&args, out).await,
        Command::Archive(ArchiveCommand::Build(args)) => archive::build(&args, out).await,
    }
}
