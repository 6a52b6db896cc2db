//! Command line of the volunteer's program.

use std::process::ExitCode;
use std::time::Duration;

use cipherhop_worker::cli::{Cli, Command};
use cipherhop_worker::commands::{dispatch, leave_screen};
use cipherhop_worker::error::EXIT_FAILURE;
use clap::Parser as _;
use tokio_util::sync::CancellationToken;

/// From the first signal to the end, whatever hangs.
const STOP_LIMIT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .init();
    if let Command::HopExec { job, isa, nice } = &cli.command {
        // Before there are threads: it counts for this one and those it starts.
        if let Err(error) = rustix::process::nice(i32::from(*nice)) {
            tracing::warn!(%error, "the niceness was not changed");
        }
        return ExitCode::from(cipherhop_worker::child::exec(job, *isa));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cipherhop-worker: no runtime: {error}");
            return ExitCode::from(EXIT_FAILURE);
        }
    };
    let json = cli.json;
    let stop = CancellationToken::new();
    let result = runtime.block_on(async {
        if let Err(error) = listen(stop.clone()) {
            tracing::warn!(%error, "signals are not handled");
        }
        dispatch(cli, stop).await
    });
    // A file operation that hangs must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if json {
                let reason = error.reason().map(|reason| reason.as_str());
                cipherhop_worker::report::say(
                    &serde_json::json!({ "event": "error", "error": error.to_string(), "reason": reason }).to_string(),
                );
            }
            eprintln!("cipherhop-worker: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// The first SIGINT or SIGTERM asks everything to stop and starts the clock; the second ends the process at once.
fn listen(stop: CancellationToken) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if !first {
                leave_screen();
                std::process::exit(130);
            }
            eprintln!("cipherhop-worker: stopping, the checkpoint is kept (again to end at once)");
            stop.cancel();
            tokio::spawn(async {
                tokio::time::sleep(STOP_LIMIT).await;
                leave_screen();
                eprintln!("cipherhop-worker: stopping took too long");
                std::process::exit(i32::from(EXIT_FAILURE));
            });
        }
    });
    Ok(())
}
