//! Puts the view on the terminal: a thread of its own draws and reads keys, so that a slow connection never makes the
//! keys wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cipherhop_proto::v1::Chain;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio_util::sync::CancellationToken;

use super::screen::{Move, Screen};

/// Keys are looked for this often, and at most so long something new waits to be drawn.
const LOOK: Duration = Duration::from_millis(100);
/// Drawn anew at least this often: ages and estimates move.
const REDRAW: Duration = Duration::from_secs(1);
/// Lines of a page key.
const PAGE: isize = 10;

/// Whether the terminal is ours now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The full screen, until dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    screen: Mutex<Screen>,
    changed: AtomicBool,
    over: AtomicBool,
}

impl Terminal {
    /// Takes the terminal. `left` is cancelled when a person leaves by a key.
    pub(super) fn open(chain: Chain, left: CancellationToken) -> std::io::Result<Terminal> {
        let terminal = ratatui::try_init()?;
        TAKEN.store(true, Ordering::SeqCst);
        let shared = Arc::new(Shared {
            screen: Mutex::new(Screen::new(chain)),
            changed: AtomicBool::new(true),
            over: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            if let Err(error) = show(terminal, &of_thread, &left) {
                tracing::warn!(%error, "the terminal is gone");
                left.cancel();
            }
        });
        Ok(Terminal {
            shared,
            thread: Some(thread),
        })
    }

    /// Changes what is shown.
    pub(super) fn change(&self, change: impl FnOnce(&mut Screen)) {
        change(&mut self.shared.screen());
        self.shared.changed.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn screen(&self) -> std::sync::MutexGuard<'_, Screen> {
        // What is half changed is drawn anew with the next news.
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed when it happened.
            let _ = thread.join();
        }
        leave();
    }
}

/// Gives the terminal back, if it is ours.
pub(super) fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        ratatui::restore();
    }
}

fn show(
    mut terminal: DefaultTerminal,
    shared: &Shared,
    left: &CancellationToken,
) -> std::io::Result<()> {
    let mut drawn = Instant::now();
    while !shared.over.load(Ordering::SeqCst) {
        let changed = shared.changed.swap(false, Ordering::SeqCst);
        if changed || drawn.elapsed() >= REDRAW {
            drawn = Instant::now();
            terminal.draw(|frame| shared.screen().draw(frame, drawn))?;
        }
        if !event::poll(LOOK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match meaning(key) {
                Some(Key::Leave) => {
                    left.cancel();
                    return Ok(());
                }
                Some(Key::Scroll(to)) => shared.screen().scroll(to),
                None => continue,
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        shared.changed.store(true, Ordering::SeqCst);
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Key {
    Leave,
    Scroll(Move),
}

/// On a raw terminal Ctrl-C is a key like others.
fn meaning(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if control => Key::Leave,
        KeyCode::Char('q') | KeyCode::Esc => Key::Leave,
        KeyCode::Up | KeyCode::Char('k') => Key::Scroll(Move::By(-1)),
        KeyCode::Down | KeyCode::Char('j') => Key::Scroll(Move::By(1)),
        KeyCode::PageUp => Key::Scroll(Move::By(-PAGE)),
        KeyCode::PageDown | KeyCode::Char(' ') => Key::Scroll(Move::By(PAGE)),
        KeyCode::Home => Key::Scroll(Move::Top),
        KeyCode::End => Key::Scroll(Move::Bottom),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_leave_and_scroll() {
        let press = |code| meaning(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(press(KeyCode::Char('q')), Some(Key::Leave));
        assert_eq!(press(KeyCode::Char('c')), None);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(meaning(interrupt), Some(Key::Leave));
        assert_eq!(press(KeyCode::Down), Some(Key::Scroll(Move::By(1))));
        assert_eq!(press(KeyCode::End), Some(Key::Scroll(Move::Bottom)));
        assert_eq!(press(KeyCode::Tab), None);
    }
}
