//! Named points at which a test has the process killed, as by kill -9: nothing is flushed, no handler runs.
//!
//! A point is armed through the environment, so that real programs can be tested. Only builds with debug assertions
//! (the profiles dev and test) have the code: in a release build [`at`] is empty, and `.ci/run` looks that the variable's
//! name is not in the released programs. The crate `fail` compiles its points in by a cargo feature, which one build of
//! the whole workspace would turn on for everything.

/// `NAME=FILE` or `NAME*PASS=FILE`: the process dies when it passes the point for the PASS-th time (1 if not given).
/// FILE is made first and says that it happened; where it exists already, the point is not armed.
#[cfg(debug_assertions)]
pub const VARIABLE: &str = "CIPHERHOP_TEST_KILL";

/// A point that may kill the process.
#[inline(always)]
pub fn at(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod armed {
    use std::fs::File;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    struct Armed {
        name: String,
        passes_left: AtomicU32,
        file: PathBuf,
    }

    static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

    fn parse(text: &str) -> Option<Armed> {
        let (point, file) = text.split_once('=')?;
        let (name, pass) = match point.split_once('*') {
            Some((name, pass)) => (name, pass.parse().ok()?),
            None => (point, 1),
        };
        Some(Armed {
            name: name.to_owned(),
            passes_left: AtomicU32::new(pass),
            file: file.into(),
        })
    }

    pub fn pass(name: &str) {
        let armed = ARMED.get_or_init(|| parse(&std::env::var(super::VARIABLE).ok()?));
        let Some(armed) = armed.as_ref().filter(|armed| armed.name == name) else {
            return;
        };
        if armed.passes_left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        if File::create_new(&armed.file).is_err() {
            return;
        }
        let _ = kill(Pid::this(), Signal::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
