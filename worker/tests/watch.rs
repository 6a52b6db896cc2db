//! The full-screen view on a real terminal: `script` gives the program one, and what it writes is read as a terminal
//! shows it.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use cipherhop_worker::agent::{Goal, run};
use common::{Coordinator, agent, create_chain, script, until};

#[test]
#[ignore = "the coordinator's process, started by the other tests"]
fn coordinator_process() {
    common::coordinator_process();
}

const ROWS: u16 = 14;
const COLUMNS: u16 = 100;

struct Pty {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pty {
    /// `watch` on a terminal of its own; the terminal's settings afterwards are the last it shows.
    fn watch(data: &Path, chain: &str) -> Pty {
        let line = format!(
            "stty rows {ROWS} cols {COLUMNS}; '{}' --data '{}' watch {chain}; echo \"code $?\"; stty -a | grep -o -w -e '-*icanon'",
            env!("CARGO_BIN_EXE_cipherhop-worker"),
            data.display()
        );
        let mut child = Command::new("script")
            .args(["-qfec", &line, "/dev/null"])
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script (Debian: bsdutils, util-linux) is needed");
        let mut out = child.stdout.take().unwrap();
        let size = |n: u16| NonZeroU16::new(n).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(ROWS), size(COLUMNS), 0)));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..count]);
            }
        });
        Pty {
            keys: child.stdin.take().unwrap(),
            child,
            screen,
        }
    }

    fn shows(&self, text: &str) -> bool {
        self.screen
            .lock()
            .unwrap()
            .screen()
            .contents()
            .contains(text)
    }

    fn is_full(&self) -> bool {
        self.screen.lock().unwrap().screen().alternate_screen()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_watch_fills_the_screen_scrolls_and_gives_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    create_chain(&coordinator.owner().await, "seen", 40, 2).await;
    let data = coordinator.enroll(dir.path(), "alice").await;
    let mut pty = Pty::watch(&data, "seen");
    let all = [
        "seen  active",
        "0 of 40 hops verified",
        "hop 0 ready",
        "protects nothing",
        "q leaves",
    ];
    until("the view is there", async || {
        pty.is_full() && all.iter().all(|text| pty.shows(text))
    })
    .await;

    let go = dir.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let working = agent(
        &coordinator.enroll(dir.path(), "bob").await,
        script(dir.path(), 1, &wait),
    );
    let stop = working.stop.clone();
    let ended = common::apart(async move || run(&working, Goal::Once, None).await);
    until("bob is seen at work", async || {
        pty.shows("hop 0    bob") && pty.shows("left: unknown")
    })
    .await;
    stop.cancel();
    let _ = ended.await.unwrap();
    std::fs::write(&go, b"").unwrap();

    pty.press("q");
    until("the view is left", async || {
        pty.shows("code 0") && !pty.is_full()
    })
    .await;
    until("the terminal is as before", async || pty.shows("icanon")).await;
    assert!(!pty.shows("-icanon"));
    assert!(pty.child.wait().unwrap().success());

    // Ctrl-C is a key there, and leaves as well.
    let mut pty = Pty::watch(&data, "seen");
    until("the view is there", async || pty.is_full()).await;
    pty.press("\x1b[B\x03");
    until("the view is left", async || {
        pty.shows("code 0") && !pty.is_full()
    })
    .await;
    pty.child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_ends_with_its_chain_and_leaves_the_last_word_on_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(&dir.path().join("coordinator")).await;
    let chain = create_chain(&coordinator.owner().await, "short", 2, 2).await;
    let (alice, bob) = (
        coordinator.enroll(dir.path(), "alice").await,
        coordinator.enroll(dir.path(), "bob").await,
    );
    let mut pty = Pty::watch(&alice, "short");
    until("the view is there", async || {
        pty.is_full() && pty.shows("0 of 2 hops")
    })
    .await;
    let runner = script(dir.path(), 2, "");
    let id = cipherhop_proto::ChainId::from_slice(&chain).unwrap();
    let (a, b) = (agent(&alice, runner.clone()), agent(&bob, runner));
    let (first, second) = tokio::join!(
        run(&a, Goal::UntilDone(id), None),
        run(&b, Goal::UntilDone(id), None)
    );
    first.unwrap();
    second.unwrap();
    until("the last word", async || {
        pty.shows("code 0") && pty.shows("chain short: completed, 2 of 2 hops verified")
    })
    .await;
    assert!(!pty.is_full());
    pty.child.wait().unwrap();
}
