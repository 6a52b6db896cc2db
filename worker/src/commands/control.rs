//! `pause`, `resume` and `quit`: they leave a file in the data folder, which the running worker heeds within a second.

use std::time::Duration;

use serde_json::json;

use super::Context;
use crate::error::WorkerError;
use crate::folder::Folder;
use crate::permit;

/// How often `quit` looks whether the worker has ended.
const LOOK: Duration = Duration::from_millis(200);

fn is_running(folder: &Folder) -> Result<bool, WorkerError> {
    match folder.lock() {
        Ok(_lock) => Ok(false),
        Err(WorkerError::FolderBusy(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

pub(super) fn pause(context: &Context) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    permit::pause(&folder)?;
    let running = is_running(&folder)?;
    let text = if running {
        "paused: the worker rests after its running step and keeps the checkpoint; a finished result is still handed in; \
         `cipherhop-worker resume` goes on"
    } else {
        "paused: no worker runs here now, and one that is started rests until `cipherhop-worker resume`"
    };
    context.print(&json!({ "paused": true, "running": running }), text);
    Ok(())
}

pub(super) fn resume(context: &Context) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    let was_paused = permit::resume(&folder)?;
    let running = is_running(&folder)?;
    let text = match (was_paused, running) {
        (true, true) => "the worker goes on",
        (true, false) => {
            "not paused any more; no worker runs here: start it with `cipherhop-worker run`"
        }
        (false, true) => "it was not paused",
        (false, false) => {
            "it was not paused; no worker runs here: start it with `cipherhop-worker run`"
        }
    };
    context.print(
        &json!({ "paused": false, "was_paused": was_paused, "running": running }),
        text,
    );
    Ok(())
}

pub(super) async fn quit(context: &Context, wait: bool) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    if !is_running(&folder)? {
        context.print(&json!({ "was_running": false }), "no worker runs here");
        return Ok(());
    }
    permit::quit(&folder)?;
    if !wait {
        let text = "asked the worker to end after its running step";
        context.print(&json!({ "was_running": true, "ended": false }), text);
        return Ok(());
    }
    if !context.json {
        crate::report::say(
            "waiting for the running step to end; the checkpoint is kept (Ctrl-C here only ends the waiting)",
        );
    }
    while is_running(&folder)? {
        tokio::select! {
            () = context.stop.cancelled() => {
                return Err(WorkerError::NotDone("the worker has not ended yet; it ends after its running step".into()));
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    context.print(
        &json!({ "was_running": true, "ended": true }),
        "the worker has ended; `cipherhop-worker run` goes on from its checkpoint",
    );
    Ok(())
}
