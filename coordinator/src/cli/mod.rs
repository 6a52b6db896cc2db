//! The command line: arguments, exit codes, and which module does the work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod admin;
mod failure;
mod output;
mod serve;

use failure::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed for another reason (the message says which)
  2  wrong usage
  3  the configuration file or a setting is wrong
  4  the coordinator cannot be reached
  5  the token is missing, unknown, revoked or of the wrong role
  6  the coordinator refused (the reason is printed, with --json as \"reason\")
  7  the data folder is in use by another coordinator";

/// Hands out the hops of encrypted chains, verifies results, keeps the archive.
#[derive(Parser, Debug)]
#[command(name = "cipherhop-coordinator", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    /// Print JSON for programs instead of text for people.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the coordinator until SIGINT or SIGTERM.
    #[command(after_help = EXIT_CODES)]
    Serve(ServeArgs),
    /// Make and revoke tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Look at chains, pause, resume, cancel them.
    #[command(subcommand)]
    Chain(ChainCommand),
    /// Act on one hop.
    #[command(subcommand)]
    Hop(HopCommand),
    /// Look at devices, quarantine them.
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Check the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// Folder of the database, the blobs and admin.token; made when new.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Allow plaintext on an address that is not loopback: tokens can then be read on the network.
    #[arg(long)]
    insecure_bind: bool,
}

/// How an admin command finds the coordinator and its token.
#[derive(Args, Debug)]
struct Connect {
    /// Address of the running coordinator.
    #[arg(
        long,
        value_name = "URL",
        env = "CIPHERHOP_COORDINATOR",
        default_value = "http://127.0.0.1:7070"
    )]
    coordinator: String,
    /// Admin token.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "CIPHERHOP_TOKEN",
        hide_env_values = true,
        conflicts_with = "data"
    )]
    token: Option<String>,
    /// The coordinator's data folder: its admin.token is used.
    #[arg(long, value_name = "DIR", env = "CIPHERHOP_DATA")]
    data: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// Enrols devices of one volunteer account.
    Invite,
    /// A key holder: creates chains.
    Owner,
    /// An operator.
    Admin,
    /// May only look.
    Observer,
}

#[derive(Subcommand, Debug)]
enum TokenCommand {
    /// Make a token; it is printed once and stored hashed.
    Create {
        #[command(flatten)]
        connect: Connect,
        /// What the token may do.
        #[arg(long)]
        role: RoleArg,
        /// Account it belongs to; made when new.
        #[arg(long, value_name = "NAME")]
        account: String,
    },
    /// Revoke a token by the id printed when it was made.
    Revoke {
        #[command(flatten)]
        connect: Connect,
        /// Token id.
        token_id: String,
    },
}

#[derive(Subcommand, Debug)]
enum ChainCommand {
    /// All chains.
    List {
        #[command(flatten)]
        connect: Connect,
    },
    /// One chain and its hops.
    Show {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
    },
    /// Hand out nothing new; running and finished work is still taken.
    Pause {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
        /// Shown to everybody who looks at the chain.
        #[arg(long, default_value = "paused by an operator")]
        reason: String,
    },
    /// Hand out hops again.
    Resume {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
    },
    /// End the chain for good.
    Cancel {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
        /// Shown to everybody who looks at the chain.
        #[arg(long, default_value = "cancelled by an operator")]
        reason: String,
    },
}

#[derive(Subcommand, Debug)]
enum HopCommand {
    /// Open a stuck hop again; why it was stuck stays on record.
    Requeue {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
        /// Hop number, counted from 0.
        hop: u32,
        /// Why it is opened again.
        #[arg(long, default_value = "requeued by an operator")]
        reason: String,
    },
}

#[derive(Subcommand, Debug)]
enum DeviceCommand {
    /// All devices.
    List {
        #[command(flatten)]
        connect: Connect,
    },
    /// Hand the device no more work.
    Quarantine {
        #[command(flatten)]
        connect: Connect,
        /// Device id.
        device: String,
        /// Why.
        #[arg(long, default_value = "quarantined by an operator")]
        reason: String,
    },
    /// Let the device work again, from probation.
    Unquarantine {
        #[command(flatten)]
        connect: Connect,
        /// Device id.
        device: String,
        /// Why.
        #[arg(long, default_value = "lifted by an operator")]
        reason: String,
    },
}

#[derive(Subcommand, Debug)]
enum ConfigCommand {
    /// Read the file, refuse unknown keys, print the effective values.
    Check {
        /// Configuration file (TOML); without it the defaults are printed.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// Parses the arguments, does the work, and says how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => return Failure::other(format!("cannot start: {e}")).report(json),
    };
    let result = runtime.block_on(run(cli));
    // Stuck blocking work must not hold the process up.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let json = cli.json;
    match cli.command {
        Command::Serve(args) => serve::serve(args, json).await,
        Command::Token(command) => admin::token(command, json).await,
        Command::Chain(command) => admin::chain(command, json).await,
        Command::Hop(command) => admin::hop(command, json).await,
        Command::Device(command) => admin::device(command, json).await,
        Command::Config(ConfigCommand::Check { config }) => {
            let config = crate::config::Config::load(config.as_deref()).map_err(Failure::config)?;
            output::config(&config, json)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent_and_the_exit_codes_documented() {
        let mut command = super::Cli::command();
        command.clone().debug_assert();
        assert!(command.render_help().to_string().contains("Exit codes"));
    }
}
