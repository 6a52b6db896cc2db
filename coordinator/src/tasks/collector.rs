//! Removes what crashes and abandoned uploads left in blob storage.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::BlobSettings;
use crate::service::Core;

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(3600);

/// Longest wait for the first round.
const FIRST: Duration = Duration::from_secs(60);

/// One round soon after the start and one every hour, until `stop`. A failing store is logged and tried again.
pub async fn run(core: Core, settings: BlobSettings, stop: CancellationToken) {
    let orphan = Duration::from_secs(settings.orphan_seconds);
    let mut wait = FIRST.min(orphan);
    let abandoned = Duration::from_secs(settings.abandoned_upload_seconds);
    while stop
        .run_until_cancelled(tokio::time::sleep(wait))
        .await
        .is_some()
    {
        wait = EVERY;
        if let Err(error) = core.collect_orphans(orphan, abandoned).await {
            tracing::error!(%error, "blobs that nobody needs could not be removed");
        }
    }
}
