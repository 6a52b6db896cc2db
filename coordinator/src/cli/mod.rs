//! The command line: arguments, exit codes, and which module does the work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod admin;
mod backup;
mod dev_cert;
mod doctor;
mod drain;
mod failure;
mod output;
mod serve;

use failure::Failure;

use crate::database::DatabaseUrl;

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
    /// Show what operators did.
    Audit(AuditArgs),
    /// Read every blob and compare it with its digest, while the coordinator runs. Exit code 1 where one is damaged.
    Scrub(ScrubArgs),
    /// Check the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Copy the database and all blobs into a new folder while the coordinator runs.
    Backup(BackupArgs),
    /// Check a backup and make a data folder of it.
    Restore(RestoreArgs),
    /// Before maintenance: hand out nothing new on any chain and wait for the leases that run.
    Drain(DrainArgs),
    /// Look whether settings, folder, database and blobs are in order; changes nothing.
    Doctor(DoctorArgs),
    /// Make a certificate authority and a server certificate, for tests and small sites.
    DevCert(DevCertArgs),
    /// Print a script that completes this program's commands and options in a shell.
    Completions(cipherhop_usage::Completions),
    /// Write the man pages into a folder.
    Man(cipherhop_usage::Man),
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// Folder of the database, the blobs and admin.token; made when new.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Address for HTTP: pages for people (/), /api/v1, /metrics, /healthz and /readyz. Everybody who reaches it may read
    /// what observers see: chains, names, progress, but no secret.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// A second address for operators: the same calls, and gRPC server reflection for general clients such as grpcurl.
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<SocketAddr>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's certificate (PEM, its issuers after it); instead of server.tls_certificate of the configuration.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM); instead of server.tls_key of the configuration.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PostgreSQL database (postgres://USER@HOST/DATABASE) instead of SQLite in DIR; also database.url.
    #[arg(
        long,
        value_name = "URL",
        env = "CIPHERHOP_DATABASE_URL",
        hide_env_values = true
    )]
    database: Option<DatabaseUrl>,
    #[command(flatten)]
    blobs: BlobsArg,
    /// Allow plaintext on an address that is not loopback: tokens can then be read on the network.
    #[arg(long)]
    insecure_bind: bool,
    /// Sign the archive with this coordinator's ledger key from now on, where the database knows another one.
    #[arg(long)]
    replace_ledger_key: bool,
}

#[derive(Args, Debug)]
struct BlobsArg {
    /// Bucket for the blobs (s3://BUCKET or s3://BUCKET/PREFIX) instead of DIR/blobs; also [blobs.s3] of the
    /// configuration, which has endpoint and region too. Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or
    /// blobs.s3.credentials_file.
    #[arg(long = "blobs", value_name = "URL", env = "CIPHERHOP_BLOBS")]
    place: Option<String>,
}

/// A backup is a folder with the database, blobs/ and manifest.sha256, which `sha256sum -c` checks.
#[derive(Args, Debug)]
struct BackupArgs {
    /// Data folder of the coordinator.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Folder for the backup, new or empty.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Its configuration file, which says where blobs are.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    blobs: BlobsArg,
    /// The database only. For blobs in a bucket that is copied by other means (versioning, replication).
    #[arg(long)]
    without_blobs: bool,
    /// Its PostgreSQL database, where it uses one; needs pg_dump.
    #[arg(
        long,
        value_name = "URL",
        env = "CIPHERHOP_DATABASE_URL",
        hide_env_values = true
    )]
    database: Option<DatabaseUrl>,
}

/// `serve` then goes on from the moment of the backup: volunteers hand in again what they finished since, tokens made since
/// are unknown.
#[derive(Args, Debug)]
struct RestoreArgs {
    /// The backup.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Data folder to make, new or empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Configuration file of the restored coordinator: with a bucket in it the blobs go there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    blobs: BlobsArg,
    /// An empty PostgreSQL database, for a backup of one; needs pg_restore.
    #[arg(
        long,
        value_name = "URL",
        env = "CIPHERHOP_DATABASE_URL",
        hide_env_values = true
    )]
    database: Option<DatabaseUrl>,
}

/// Pauses every active chain; results are still taken. Exit code 0 once no lease is left.
#[derive(Args, Debug)]
struct DrainArgs {
    #[command(flatten)]
    connect: Connect,
    /// Longest wait for running leases, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Shown to everybody who looks at a chain.
    #[arg(long, default_value = "maintenance")]
    reason: String,
    /// Resume the chains that a drain paused.
    #[arg(long, conflicts_with_all = ["wait", "reason"])]
    undo: bool,
}

/// Exit code 0 where nothing is bad; warnings are no failure.
#[derive(Args, Debug)]
struct DoctorArgs {
    /// Data folder of the coordinator, running or not.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Its configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    blobs: BlobsArg,
    /// Its PostgreSQL database, where it uses one.
    #[arg(
        long,
        value_name = "URL",
        env = "CIPHERHOP_DATABASE_URL",
        hide_env_values = true
    )]
    database: Option<DatabaseUrl>,
}

/// What `dev-cert` makes: DIR/ca.pem for clients, DIR/server.pem and DIR/server.key for `serve`.
#[derive(Args, Debug)]
struct DevCertArgs {
    /// Folder for the files; nothing in it is overwritten.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Host names and addresses the certificate is for.
    #[arg(long, value_name = "NAME", default_values = ["localhost", "127.0.0.1", "::1"])]
    host: Vec<String>,
    /// Days it is valid.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

#[derive(Args, Debug)]
struct ScrubArgs {
    #[command(flatten)]
    connect: Connect,
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
    /// A PEM file with a certificate authority to trust beside the system's, for https://.
    #[arg(long, value_name = "FILE", env = "CIPHERHOP_CA")]
    ca: Option<PathBuf>,
    /// Allow http:// to another machine: the token then travels unencrypted.
    #[arg(long)]
    allow_plaintext: bool,
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
        /// The one chain it is for, with every device enrolled by it; every chain without it. Its id, or, once it
        /// exists, its name.
        #[arg(long, value_name = "CHAIN")]
        chain: Option<String>,
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
    /// Forget a wrong archived digest of a hop that is not verified; results it refuted count again.
    DropArchived {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
        /// Hop number, counted from 0.
        hop: u32,
        /// Why the digest is wrong.
        #[arg(long, default_value = "dropped by an operator")]
        reason: String,
    },
    /// A verified hop is wrong: begin a new generation of the chain at it.
    Invalidate {
        #[command(flatten)]
        connect: Connect,
        /// Chain id or name.
        chain: String,
        /// Hop number, counted from 0.
        hop: u32,
        /// Why the result is wrong.
        #[arg(long, default_value = "invalidated by an operator")]
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
    /// Let the device run single steps of disputed hops (`cipherhop-worker referee`): its word decides.
    Referee {
        #[command(flatten)]
        connect: Connect,
        /// Device id.
        device: String,
        /// Take the office away again.
        #[arg(long)]
        off: bool,
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

#[derive(Args, Debug)]
struct AuditArgs {
    #[command(flatten)]
    connect: Connect,
    /// Most entries to show, the newest first.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only entries before this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    before: u64,
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
        Command::Audit(args) => admin::audit(args, json).await,
        Command::Scrub(args) => admin::scrub(args, json).await,
        Command::Config(ConfigCommand::Check { config }) => {
            let config = crate::config::Config::load(config.as_deref()).map_err(Failure::config)?;
            output::config(&config, json)
        }
        Command::Backup(args) => backup::backup(args, json).await,
        Command::Restore(args) => backup::restore(args, json).await,
        Command::Drain(args) => drain::drain(args, json).await,
        Command::Doctor(args) => doctor::doctor(args, json).await,
        Command::DevCert(args) => dev_cert::dev_cert(&args, json),
        Command::Completions(shell) => shell.print::<Cli>().map_err(Failure::other),
        Command::Man(pages) => {
            let folder = pages.write::<Cli>().map_err(Failure::other)?;
            output::print_either(json, serde_json::json!({ "folder": folder }), || {
                format!("man pages are in {}", folder.display())
            })
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
