//! Whether the worker may work now: a person may pause it or ask it to leave through files in the data folder, and it
//! keeps to the hours of the day.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::durable::write_atomic;
use crate::error::WorkerError;
use crate::folder::Folder;
use crate::hours::{Hours, Minute};

/// How often files and clock are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Tells the minute of the day.
pub type Clock = Arc<dyn Fn() -> Minute + Send + Sync>;

/// What is allowed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Work.
    Work,
    /// Nothing: a person paused the worker.
    Paused,
    /// Nothing before this time of the day.
    Rest(Minute),
}

/// Watches files and clock of one worker.
pub struct Permit {
    folder: Folder,
    hours: Hours,
    clock: Clock,
    state: watch::Sender<Permission>,
    leave: CancellationToken,
}

impl Permit {
    /// `leave` is cancelled when a person asks the worker to quit. An old request to quit is forgotten.
    pub fn new(
        folder: Folder,
        hours: Hours,
        clock: Clock,
        leave: CancellationToken,
    ) -> Result<Permit, WorkerError> {
        take(&folder.quit())?;
        let permit = Permit {
            folder,
            hours,
            clock,
            state: watch::Sender::new(Permission::Work),
            leave,
        };
        permit.look();
        Ok(permit)
    }

    /// What is allowed now.
    pub fn now(&self) -> Permission {
        *self.state.borrow()
    }

    /// Looks at once.
    pub fn look(&self) {
        match take(&self.folder.quit()) {
            Ok(true) => self.leave.cancel(),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "a request to quit could not be read"),
        }
        let now = (self.clock)();
        let found = if self.folder.paused().exists() {
            Permission::Paused
        } else if self.hours.contains(now) {
            Permission::Work
        } else {
            Permission::Rest(self.hours.next_begin(now).unwrap_or(now))
        };
        self.state
            .send_if_modified(|state| std::mem::replace(state, found) != found);
    }

    /// Looks for as long as it is polled.
    pub async fn follow(&self) -> Infallible {
        loop {
            self.look();
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Until work is allowed.
    pub async fn granted(&self) {
        // The sender lives as long as this.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| *state == Permission::Work)
            .await;
    }

    /// Until work is not allowed.
    pub async fn withdrawn(&self) {
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| *state != Permission::Work)
            .await;
    }
}

/// Pauses whoever works in the folder, now and after a restart, until [`resume`].
pub fn pause(folder: &Folder) -> Result<(), WorkerError> {
    write_atomic(&folder.paused(), b"", true)
}

/// Takes a pause back; whether there was one.
pub fn resume(folder: &Folder) -> Result<bool, WorkerError> {
    take(&folder.paused())
}

/// Asks whoever works in the folder to end after its running step.
pub fn quit(folder: &Folder) -> Result<(), WorkerError> {
    write_atomic(&folder.quit(), b"", true)
}

/// Removes a file; whether it was there.
fn take(path: &std::path::Path) -> Result<bool, WorkerError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WorkerError::file(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU16, Ordering};

    #[test]
    fn a_pause_counts_more_than_the_hours_and_quitting_is_heard_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(&dir.path().join("data")).unwrap();
        quit(&folder).unwrap();
        let hour = Arc::new(AtomicU16::new(9));
        let clock = {
            let hour = hour.clone();
            Arc::new(move || Minute::new(hour.load(Ordering::Relaxed), 0))
        };
        let leave = CancellationToken::new();
        let hours = "08:00-10:00".parse().unwrap();
        let permit = Permit::new(folder.clone(), hours, clock, leave.clone()).unwrap();
        assert!(
            !leave.is_cancelled(),
            "a request to an earlier run is no request to this one"
        );
        assert_eq!(permit.now(), Permission::Work);
        hour.store(10, Ordering::Relaxed);
        permit.look();
        assert_eq!(permit.now(), Permission::Rest(Minute::new(8, 0)));
        pause(&folder).unwrap();
        permit.look();
        assert_eq!(permit.now(), Permission::Paused);
        hour.store(8, Ordering::Relaxed);
        permit.look();
        assert_eq!(permit.now(), Permission::Paused);
        assert!(resume(&folder).unwrap() && !resume(&folder).unwrap());
        permit.look();
        assert_eq!(permit.now(), Permission::Work);
        quit(&folder).unwrap();
        permit.look();
        assert!(leave.is_cancelled() && !folder.quit().exists());
    }
}
