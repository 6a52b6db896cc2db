//! `serve`: opens the data folder, makes the admin token, runs the server until a signal.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use cipherhop_proto::TokenId;
use fs4::fs_std::FileExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{Failure, ServeArgs};
use crate::auth::Token;
use crate::blobs::LocalBlobs;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::service::{self, Core};
use crate::store::{self, NewToken, Role, Store};
use crate::tasks;

pub(super) async fn serve(args: ServeArgs, json: bool) -> Result<(), Failure> {
    let config = Config::load(args.config.as_deref()).map_err(Failure::config)?;
    if !args.listen.ip().is_loopback() && !args.insecure_bind {
        return Err(Failure::config(format!(
            "{} is not a loopback address and this build speaks plaintext: tokens could be read on the network. \
             Put a TLS proxy in front, or say --insecure-bind",
            args.listen
        )));
    }
    start_log(json);
    let _lock = open_data(&args.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let store: Arc<dyn Store> = store::open_sqlite(&args.data.join("coordinator.db"))
        .await
        .map_err(|e| Failure::other(format!("cannot open the database: {e}")))?;
    let blobs = LocalBlobs::open(&args.data.join("blobs"), config.blobs.local_limits())
        .map_err(Failure::other)?;
    ensure_admin_token(&args.data, &*store, &*clock).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|e| Failure::other(format!("cannot listen on {}: {e}", args.listen)))?;
    let address = listener.local_addr().map_err(Failure::other)?;

    let shutdown = CancellationToken::new();
    let reaper = tokio::spawn(tasks::reaper::run(
        store.clone(),
        clock.clone(),
        shutdown.clone(),
    ));
    stop_on_signal(shutdown.clone())?;
    announce(&format!("http://{address}"), json)?;
    tracing::info!(%address, "ready");
    let core = Core::new(
        store.clone(),
        Arc::new(blobs),
        clock,
        config,
        shutdown.clone(),
    );
    let served = service::serve(core, listener).await;
    shutdown.cancel();
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), reaper).await;
    store.close().await;
    tracing::info!("stopped");
    served.map_err(|e| Failure::other(format!("server: {e}")))
}

/// One line that a script can wait for.
fn announce(url: &str, json: bool) -> Result<(), Failure> {
    let line = if json {
        serde_json::json!({ "ready": true, "url": url }).to_string()
    } else {
        format!("cipherhop-coordinator listening on {url}")
    };
    let mut out = std::io::stdout().lock();
    // Nobody reading the line is no reason not to serve.
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::other(e)),
        _ => Ok(()),
    }
}

/// Logs go to standard error; RUST_LOG chooses what is logged.
fn start_log(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A log that was set up before (tests) is kept.
    let _ = if json {
        log.json().try_init()
    } else {
        log.try_init()
    };
}

/// Makes the data folder and takes its lock, which is held as long as the file is open.
fn open_data(data: &Path) -> Result<File, Failure> {
    let failed = |e| {
        Failure::other(format!(
            "cannot open the data folder {}: {e}",
            data.display()
        ))
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .map_err(failed)?;
    let path = data.join("coordinator.lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    match FileExt::try_lock_exclusive(&lock) {
        Ok(true) => Ok(lock),
        Ok(false) => Err(Failure::in_use(format!(
            "{} is in use by another coordinator",
            data.display()
        ))),
        Err(e) => Err(failed(e)),
    }
}

/// Keeps DIR/admin.token if the database knows it; makes a new one otherwise.
async fn ensure_admin_token(
    data: &Path,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let path = data.join("admin.token");
    let cannot =
        |e: &dyn std::fmt::Display| Failure::other(format!("cannot make {}: {e}", path.display()));
    if let Ok(text) = fs::read_to_string(&path) {
        let known = match text.trim().parse::<Token>() {
            Ok(token) => store.identify(token.hash()).await.is_ok(),
            Err(_) => false,
        };
        if known {
            return Ok(());
        }
        tracing::warn!(path = %path.display(), "admin.token is not valid for this database; making a new one");
    }
    let token = Token::generate(Role::Admin).map_err(|e| cannot(&e))?;
    let new = NewToken {
        id: TokenId::generate(),
        hash: token.hash(),
        role: Role::Admin,
        account_name: "admin".into(),
    };
    store
        .create_token(new, clock.now())
        .await
        .map_err(|e| cannot(&e))?;
    let mut file = tempfile::NamedTempFile::new_in(data).map_err(|e| cannot(&e))?;
    let write = |file: &mut tempfile::NamedTempFile| {
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(0o600))?;
        writeln!(file, "{}", token.reveal())?;
        file.as_file().sync_all()
    };
    write(&mut file).map_err(|e| cannot(&e))?;
    file.persist(&path).map_err(|e| cannot(&e))?;
    File::open(data)
        .and_then(|d| d.sync_all())
        .map_err(|e| cannot(&e))?;
    tracing::info!(path = %path.display(), "admin token written");
    Ok(())
}

/// The first SIGINT or SIGTERM asks for a shutdown, the second one ends the process at once.
fn stop_on_signal(shutdown: CancellationToken) -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::other)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::other)?;
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        tracing::info!("shutting down");
        shutdown.cancel();
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        std::process::exit(1);
    });
    Ok(())
}
