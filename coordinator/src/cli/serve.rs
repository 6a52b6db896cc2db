//! `serve`: opens the data folder, makes the admin token, runs the server until a signal.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use cipherhop_proto::TokenId;
use cipherhop_proto::signing::PublicKey;
use fs4::fs_std::FileExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{Failure, ServeArgs};
use crate::auth::Token;
use crate::blobs::{Blobs, LocalBlobs, S3Blobs, S3Error};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::database;
use crate::domain::time::Timestamp;
use crate::files;
use crate::http::{self, Pages};
use crate::ledger_key;
use crate::metrics::{Counters, Disk};
use crate::service::{self, Core};
use crate::store::{AuditStart, LedgerKeyChange, NewToken, Role, Store};
use crate::tasks::{self, certificate};
use crate::tls::ServerCertificate;

pub(super) async fn serve(args: ServeArgs, json: bool) -> Result<(), Failure> {
    let place = args.blobs.place.as_deref();
    let mut config = Config::load_with(args.config.as_deref(), place).map_err(Failure::config)?;
    if args.tls_cert.is_some() {
        (config.server.tls_certificate, config.server.tls_key) = (args.tls_cert, args.tls_key);
    }
    let certificate = match (&config.server.tls_certificate, &config.server.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(ServerCertificate::load(certificate, key).map_err(Failure::config)?)
        }
        _ => None,
    };
    let plaintext_allowed = args.insecure_bind || config.server.allow_plaintext;
    let open = [Some(args.listen), args.admin_listen];
    let mut open = open.into_iter().flatten().filter(|a| !a.ip().is_loopback());
    if let Some(address) = open
        .next()
        .filter(|_| certificate.is_none() && !plaintext_allowed)
    {
        return Err(Failure::config(format!(
            "{address} is not a loopback address and there is no certificate: tokens could be read on the network. Give \
             --tls-cert and --tls-key (`cipherhop-coordinator dev-cert` makes some), or say --insecure-bind behind a \
             proxy that speaks TLS"
        )));
    }
    start_log(json);
    let _lock = open_data(&args.data)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let url = args.database.as_ref().or(config.database.url.as_ref());
    let store: Arc<dyn Store> = database::open(url, config.database.connections, &args.data)
        .await
        .map_err(|e| Failure::other(format!("cannot open the database: {e}")))?;
    let blobs = open_blobs(&args.data, &config, &*store).await?;
    ensure_admin_token(&args.data, &*store, &*clock).await?;
    // Only coordinators with a database server and a bucket can be several.
    let alone = url.is_none() || config.blobs.bucket().is_none();
    let replace = args.replace_ledger_key || alone;
    let path = ledger_key::path(&args.data, &config.ledger);
    sign_ledger(&path, &*store, replace, clock.now()).await?;
    let listener = bind(args.listen, "").await?;
    let address = listener.local_addr().map_err(Failure::other)?;
    let pages = match args.http {
        Some(address) => Some(bind(address, " for HTTP").await?),
        None => None,
    };
    let admin = match args.admin_listen {
        Some(address) => Some(bind(address, " for administration").await?),
        None => None,
    };

    let shutdown = CancellationToken::new();
    let reaper = tokio::spawn(tasks::reaper::run(
        store.clone(),
        clock.clone(),
        shutdown.clone(),
    ));
    if config.blobs.bucket().is_none() {
        tokio::spawn(database::keep_local_blobs(store.clone(), shutdown.clone()));
    }
    stop_on_signal(shutdown.clone())?;
    let hangup = signal(SignalKind::hangup()).map_err(Failure::other)?;
    let files = config.server.tls_certificate.clone();
    let files = files.zip(config.server.tls_key.clone());
    let files = files.map(|(certificate, key)| certificate::Files { certificate, key });
    let reloaded = certificate.clone().zip(files);
    tokio::spawn(certificate::run(reloaded, hangup, shutdown.clone()));
    let scheme = if certificate.is_some() {
        "https"
    } else {
        "http"
    };
    if let Some(warning) = certificate.as_ref().and_then(ServerCertificate::warning) {
        tracing::warn!("{warning}");
    }
    let counters = Arc::new(Counters::default());
    if let Some(pages) = pages {
        tracing::info!(address = %pages.local_addr().map_err(Failure::other)?, "HTTP pages");
        let state = Pages {
            store: store.clone(),
            blobs: blobs.clone(),
            clock: clock.clone(),
            counters: counters.clone(),
            disk: Disk {
                folder: args.data.clone(),
                headroom_bytes: config.blobs.headroom_bytes,
            },
            coordinator: format!("{scheme}://{address}"),
            shutdown: shutdown.clone(),
        };
        tokio::spawn(http::serve(state, pages));
    }
    announce(&format!("{scheme}://{address}"), json)?;
    tracing::info!(%address, scheme, "ready");
    let settings = config.blobs.clone();
    let mut core =
        Core::new(store.clone(), blobs, clock, config, shutdown.clone()).with_counters(counters);
    if let Some(certificate) = certificate {
        core = core.with_tls(certificate);
    }
    tokio::spawn(tasks::collector::run(
        core.clone(),
        settings,
        shutdown.clone(),
    ));
    if let Some(listener) = admin {
        tracing::info!(address = %listener.local_addr().map_err(Failure::other)?, scheme, "admin listener");
        let core = core.clone();
        tokio::spawn(async move {
            if let Err(error) = service::serve_admin(core, listener).await {
                tracing::error!(%error, "the admin listener ended");
            }
        });
    }
    let served = service::serve(core, listener).await;
    shutdown.cancel();
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), reaper).await;
    store.close().await;
    tracing::info!("stopped");
    served.map_err(|e| Failure::other(format!("server: {e}")))
}

/// The bucket, or the folder, which only one coordinator of a database may have.
async fn open_blobs(data: &Path, config: &Config, store: &dyn Store) -> Result<Blobs, Failure> {
    if let Some(bucket) = config.blobs.bucket() {
        let opened = S3Blobs::open(bucket.clone(), config.blobs.max_blob_bytes).await;
        let blobs = opened.map_err(|e| {
            let text = format!("cannot keep blobs in {}: {e}", bucket.place());
            match e {
                S3Error::Storage(_) => Failure::other(text),
                _ => Failure::config(text),
            }
        })?;
        tracing::info!(place = bucket.place(), "blobs are in a bucket");
        return Ok(Arc::new(blobs));
    }
    let sole = database::claim_local_blobs(store)
        .await
        .map_err(|e| Failure::other(format!("the database failed: {e}")))?;
    if !sole {
        return Err(Failure::in_use(
            "another coordinator with blobs in a folder of its own uses this database: end it, or keep blobs in a \
             bucket that both see (--blobs s3://BUCKET, or [blobs.s3] of the configuration)",
        ));
    }
    let blobs = LocalBlobs::open(&data.join("blobs"), config.blobs.local_limits());
    Ok(Arc::new(blobs.map_err(Failure::other)?))
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
    let start = AuditStart {
        token: new.id,
        account: new.account_name.clone(),
        action: "create_token",
        target: new.id.to_string(),
        detail: "role admin, by serve in the data folder".into(),
    };
    let entry = store.begin_audit(start, clock.now()).await;
    let entry = entry.map_err(|e| cannot(&e))?;
    store
        .create_token(new, clock.now())
        .await
        .map_err(|e| cannot(&e))?;
    cipherhop_failpoint::at("admin_token.stored");
    store
        .end_audit(entry, "done")
        .await
        .map_err(|e| cannot(&e))?;
    let file = files::secret_line(data, token.reveal()).map_err(|e| cannot(&e))?;
    cipherhop_failpoint::at("admin_token.rename.before");
    file.persist(&path).map_err(|e| cannot(&e))?;
    files::sync_folder(data).map_err(|e| cannot(&e))?;
    tracing::info!(path = %path.display(), "admin token written");
    Ok(())
}

/// Listens on an address; `purpose` ends the error's first words.
async fn bind(address: SocketAddr, purpose: &str) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|e| Failure::other(format!("cannot listen on {address}{purpose}: {e}")))
}

/// Takes up the key that signs the archive; makes one where there is none yet.
async fn sign_ledger(
    path: &Path,
    store: &dyn Store,
    replace: bool,
    now: Timestamp,
) -> Result<(), Failure> {
    let database = |e| Failure::other(format!("the database failed: {e}"));
    let another = |known: PublicKey| {
        Failure::config(format!(
            "the coordinators of this database sign the archive with the key {known}, and the secret to it is not in {}: \
             bring it there, or name its file in ledger.key_file. Only if it is lost, or to change it on purpose, start \
             one coordinator with --replace-ledger-key",
            path.display()
        ))
    };
    let key = match ledger_key::read(path).map_err(Failure::config)? {
        Some(key) => key,
        None => {
            let known = store.ledger_keys().await.map_err(database)?;
            if let Some(known) = known.last().filter(|_| !replace) {
                return Err(another(*known));
            }
            ledger_key::make(path).map_err(Failure::config)?
        }
    };
    let public = key.public();
    let change = store.sign_ledger(key, replace, now).await;
    match change.map_err(database)? {
        LedgerKeyChange::Known => {}
        LedgerKeyChange::First => tracing::info!(%public, "the archive is signed from now on"),
        LedgerKeyChange::Replaced { before } => {
            tracing::warn!(%public, %before, "the archive is signed with another key from now on: tell the key holders");
        }
        LedgerKeyChange::Refused { known } => return Err(another(known)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::open_memory;

    /// Several coordinators of one database: the second needs the key of the first.
    #[tokio::test]
    async fn a_coordinator_beside_others_needs_their_ledger_key() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let store = open_memory();
        sign_ledger(&first, &*store, false, now).await.ok().unwrap();
        sign_ledger(&first, &*store, false, now).await.ok().unwrap();
        let refused = sign_ledger(&second, &*store, false, now).await;
        let text = format!("{:?}", refused.err().unwrap());
        assert!(text.contains("ledger.key_file"), "{text}");
        assert!(!second.exists(), "a key that is of no use is not made");
        ledger_key::make(&second).unwrap();
        assert!(sign_ledger(&second, &*store, false, now).await.is_err());
        assert_eq!(store.ledger_keys().await.unwrap().len(), 1);
        sign_ledger(&second, &*store, true, now).await.ok().unwrap();
        assert_eq!(store.ledger_keys().await.unwrap().len(), 2);
    }
}
