//! The subcommands: each parses its wishes, calls, and prints.

pub mod bench;
mod claim;
mod config;
mod control;
mod doctor;
mod enroll;
mod pack;
mod referee;
mod resubmit;
mod run;
mod run_packed;
mod status;
mod watch;

pub use watch::leave_screen;

use std::path::{Path, PathBuf};

use cipherhop_proto::ChainId;
use cipherhop_proto::client::{Connection, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::{GetChainRequest, GetChainResponse};
use tokio_util::sync::CancellationToken;

use crate::cli::{Cli, Command};
use crate::error::WorkerError;
use crate::folder::Folder;

/// What every subcommand gets.
struct Context {
    root: PathBuf,
    json: bool,
    stop: CancellationToken,
}

impl Context {
    fn folder(&self) -> Result<Folder, WorkerError> {
        Folder::open(&self.root)
    }

    /// Connects as the folder's device.
    fn connect(&self) -> Result<Connection, WorkerError> {
        let folder = self.folder()?;
        let identity = folder.identity()?;
        Ok(Connection::lazy(&folder.connect_options(&identity)?)?)
    }

    /// Prints one object or its text.
    fn print(&self, object: &serde_json::Value, text: &str) {
        if self.json {
            crate::report::say(&object.to_string());
        } else {
            crate::report::say(text);
        }
    }
}

/// Runs a subcommand.
pub async fn dispatch(cli: Cli, stop: CancellationToken) -> Result<(), WorkerError> {
    let context = Context {
        root: cli.data.unwrap_or_else(Folder::default_root),
        json: cli.json,
        stop,
    };
    match cli.command {
        Command::Enroll(options) => enroll::enroll(&context, options).await,
        Command::Run(options) => run::run(&context, options).await,
        Command::Claim(options) => claim::claim(&context, options).await,
        Command::Status => status::status(&context).await,
        Command::Watch(options) => watch::watch(&context, options).await,
        Command::Pause => control::pause(&context),
        Command::Resume => control::resume(&context),
        Command::Quit { no_wait } => control::quit(&context, !no_wait).await,
        Command::Config(command) => config::config(&context, command),
        Command::Pack(options) => pack::pack(&context, options).await,
        Command::RunPacked(options) => run_packed::run_packed(&context, options).await,
        Command::Unpack(options) => pack::unpack(&context, options).await,
        Command::Resubmit(options) => resubmit::resubmit(&context, options).await,
        Command::Referee(options) => referee::referee(&context, options).await,
        Command::Doctor(options) => doctor::doctor(&context, options).await,
        Command::Bench(options) => bench::bench(&context, options).await,
        Command::Completions(shell) => shell
            .print::<Cli>()
            .map_err(WorkerError::file(Path::new("standard output"))),
        Command::Man(pages) => {
            let folder = pages
                .write::<Cli>()
                .map_err(|e| WorkerError::Request(e.to_string()))?;
            context.print(
                &serde_json::json!({ "folder": folder }),
                &format!("man pages are in {}", folder.display()),
            );
            Ok(())
        }
        // The child runs without a runtime; `main` has taken it before.
        Command::HopExec { .. } => Ok(()),
    }
}

/// Finds a chain by id or name.
async fn find_chain(connection: &Connection, text: &str) -> Result<GetChainResponse, WorkerError> {
    let request = match text.parse::<ChainId>() {
        Ok(id) => GetChainRequest {
            chain_id: id.to_vec(),
            name: String::new(),
        },
        Err(_) => GetChainRequest {
            chain_id: Vec::new(),
            name: text.to_owned(),
        },
    };
    Ok(unary(UNARY_DEADLINE, connection.chain().get_chain(request)).await?)
}

/// The chain's id from such an answer.
fn chain_id(answer: &GetChainResponse) -> Result<ChainId, WorkerError> {
    let bytes = answer
        .chain
        .as_ref()
        .map(|chain| chain.chain_id.as_slice())
        .unwrap_or_default();
    ChainId::from_slice(bytes).map_err(|e| WorkerError::Answer(e.to_string()))
}
