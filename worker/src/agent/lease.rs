//! Keeps a lease alive while the hop is fetched, computed and uploaded, and hears from the coordinator whether it is
//! still wanted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cipherhop_proto::client::{Backoff, Connection, UNARY_DEADLINE, unary};
use cipherhop_proto::v1::sync_response::Directive;
use cipherhop_proto::v1::{AttemptPhase, Progress, SyncRequest, SyncResponse};
use cipherhop_proto::{Reason, Retry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::journal::Lease;

/// Seconds between two reports unless the coordinator says otherwise.
const SYNC_SECONDS: f64 = 30.0;
/// Reports of a changed phase or step come at most this often.
const LEAST_PAUSE: Duration = Duration::from_millis(500);

/// What the coordinator is told.
#[derive(Clone, Debug, PartialEq)]
struct View {
    phase: AttemptPhase,
    progress: Progress,
}

/// The task that keeps one lease; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    view: watch::Sender<View>,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    unwanted: CancellationToken,
    reason: Mutex<String>,
    drain: AtomicBool,
}

impl Keeper {
    /// Starts with a report at once.
    pub(super) fn start(
        connection: &Connection,
        lease: &Lease,
        phase: AttemptPhase,
        compute_seconds: f64,
    ) -> Keeper {
        let progress = Progress {
            compute_seconds,
            ..Progress::default()
        };
        let (view, seen) = watch::channel(View { phase, progress });
        let shared = Arc::new(Shared {
            unwanted: CancellationToken::new(),
            reason: Mutex::default(),
            drain: AtomicBool::new(false),
        });
        let task = tokio::spawn(keep(
            connection.clone(),
            lease.clone(),
            seen,
            shared.clone(),
        ));
        Keeper { view, shared, task }
    }

    /// The attempt enters a phase; reported soon.
    pub(super) fn phase(&self, phase: AttemptPhase) {
        self.view.send_modify(|view| view.phase = phase);
    }

    /// Progress; reported with the next sync.
    pub(super) fn progress(&self, change: impl FnOnce(&mut Progress)) {
        self.view.send_modify(|view| change(&mut view.progress));
    }

    /// Cancelled when the coordinator does not want the attempt any more.
    pub(super) fn unwanted(&self) -> &CancellationToken {
        &self.shared.unwanted
    }

    /// Why it is not wanted.
    pub(super) fn reason(&self) -> String {
        self.shared
            .reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The coordinator asked to take no more work after this.
    pub(super) fn drain(&self) -> bool {
        self.shared.drain.load(Ordering::Relaxed)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    connection: Connection,
    lease: Lease,
    mut seen: watch::Receiver<View>,
    shared: Arc<Shared>,
) {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    loop {
        let view = seen.borrow_and_update().clone();
        let request = SyncRequest {
            attempt_id: lease.attempt.to_vec(),
            epoch: lease.epoch,
            phase: view.phase as i32,
            progress: Some(view.progress.clone()),
        };
        let wait = match unary(UNARY_DEADLINE, connection.volunteer().sync(request)).await {
            Ok(answer) => {
                backoff.reset();
                if !shared.heed(&answer) {
                    return;
                }
                let seconds = if answer.next_sync_seconds > 0.0 {
                    answer.next_sync_seconds
                } else {
                    SYNC_SECONDS
                };
                Duration::from_secs_f64(seconds.clamp(0.5, 120.0))
            }
            Err(error) => match (error.retry(), error.reason()) {
                (Retry::Same | Retry::BackOff, _) => {
                    tracing::debug!(attempt = %lease.attempt, %error, "sync failed");
                    backoff.next(error.retry_after())
                }
                // A late result is still judged, so what was begun is not thrown away.
                (_, Some(Reason::DeadlinePassed)) => Duration::from_secs_f64(SYNC_SECONDS),
                (Retry::NextHop, reason) => {
                    shared.cancel(reason.map(Reason::as_str).unwrap_or("UNKNOWN"));
                    return;
                }
                (Retry::AfterChange | Retry::Never, _) => {
                    tracing::warn!(attempt = %lease.attempt, %error, "the lease cannot be renewed; the computation goes on");
                    Duration::from_secs_f64(SYNC_SECONDS)
                }
            },
        };
        tokio::time::sleep(LEAST_PAUSE.min(wait)).await;
        let phase = view.phase;
        tokio::select! {
            () = tokio::time::sleep(wait.saturating_sub(LEAST_PAUSE)) => {}
            changed = seen.wait_for(|view| view.phase != phase) => if changed.is_err() { return },
        }
    }
}

impl Shared {
    /// Whether to go on.
    fn heed(&self, answer: &SyncResponse) -> bool {
        match answer.directive() {
            Directive::Cancel if answer.reason == Reason::DeadlinePassed.as_str() => true,
            Directive::Cancel => {
                self.cancel(&answer.reason);
                false
            }
            Directive::Drain => {
                self.drain.store(true, Ordering::Relaxed);
                true
            }
            Directive::Continue | Directive::Unspecified => true,
        }
    }

    fn cancel(&self, reason: &str) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason.to_owned();
        self.unwanted.cancel();
    }
}
