//! Ends and silences leases whose time has come, so that nothing runs for ever (I8).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{self, Duty, ReapReport, Store};

/// Longest sleep between two looks; leases handed out meanwhile are much longer than this.
const LONGEST: Duration = Duration::from_secs(1);
/// Shortest sleep, so that a due lease that cannot be ended does not spin.
const SHORTEST: Duration = Duration::from_millis(50);

/// Looks at every lease when it is due, until `stop`; of several replicas only the one whose duty it is. A failing
/// store is logged and tried again.
pub async fn run(store: Arc<dyn Store>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let mut wait = SHORTEST;
    while stop
        .run_until_cancelled(tokio::time::sleep(wait))
        .await
        .is_some()
    {
        wait = match round(&*store, &*clock).await {
            Ok(None) => LONGEST,
            Ok(Some(report)) => {
                if report.silent > 0 || report.expired > 0 {
                    let (silent, expired) = (report.silent, report.expired);
                    tracing::info!(silent, expired, "leases ran out");
                }
                let next = report.next_wake.map(|wake| wake.since(clock.now()));
                next.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST)
            }
            Err(error) => {
                tracing::error!(%error, "the reaper could not look at the leases");
                LONGEST
            }
        };
    }
}

/// `None` where another replica does it.
async fn round(store: &dyn Store, clock: &dyn Clock) -> store::Result<Option<ReapReport>> {
    match store.leads(Duty::Reaper).await? {
        true => store
            .reap(clock.now())
            .await
            .map(Some)
            .inspect(|_| cipherhop_failpoint::at("reaper.round.after")),
        false => Ok(None),
    }
}
