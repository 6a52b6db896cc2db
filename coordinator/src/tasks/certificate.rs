//! Takes up a renewed certificate while the coordinator runs.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use crate::tls::ServerCertificate;

/// Time between two looks at the files.
const LOOK: Duration = Duration::from_secs(60);

/// Where the server's certificate and its key are.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, its issuers after it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Files {
    fn changed(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.key].map(|path| std::fs::metadata(path).ok()?.modified().ok())
    }
}

/// Loads the files again at each SIGHUP, and when one of them has changed, until `stop`. What cannot be used is logged,
/// and the certificate before it stays. Without TLS, SIGHUP does nothing.
pub async fn run(
    tls: Option<(ServerCertificate, Files)>,
    mut hangup: Signal,
    stop: CancellationToken,
) {
    let mut seen = tls.as_ref().map(|(_, files)| files.changed());
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return,
            _ = hangup.recv() => true,
            () = tokio::time::sleep(LOOK) => false,
        };
        let Some((in_use, files)) = &tls else {
            continue;
        };
        let now = Some(files.changed());
        if !asked && now == seen {
            continue;
        }
        seen = now;
        match ServerCertificate::load(&files.certificate, &files.key) {
            Ok(new) => {
                in_use.replace(&new);
                tracing::info!(
                    subject = new.subject,
                    not_after = new.not_after,
                    "the certificate was loaded again"
                );
                if let Some(warning) = new.warning() {
                    tracing::warn!("{warning}");
                }
            }
            Err(error) => {
                tracing::error!(%error, "the certificate cannot be used; the one before it stays")
            }
        }
    }
}
