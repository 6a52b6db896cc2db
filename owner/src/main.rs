//! `cipherhop-owner`: the key holder's command line.

use std::process::ExitCode;

use cipherhop_owner::{cli::Cli, commands, report::Output};
use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let out = Output::new(cli.json);
    match commands::run(cli, &out).await {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(error) => out.error(&error),
    }
}
