//! Active chains as this process last saw them, so that most requests for work go straight to a chain that has some.
//!
//! Nothing rests on it: the transaction that hands a hop out looks again, and that there is nothing is only said after
//! a fresh look. A chain that is missing or old here costs time, never a hop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cipherhop_proto::ChainId;

use super::acquire::Found;
use crate::domain::chain::{Chain, ChainState};
use crate::domain::command::{Effects, State};
use crate::domain::hop::Hop;

/// Age at which the whole picture is made anew; longer where making it takes long.
const RENEWED: Duration = Duration::from_millis(100);
/// Part of the time that may go into making it anew: one of this many.
const SHARE: u32 = 20;
/// Age, in times of the one above, from which it is not used.
const USELESS: u32 = 5;

/// A chain with its head hop and the attempts that matter, one transaction's order among the others of the chain, and
/// how many requests of this process are at it.
#[derive(Clone)]
struct Head {
    version: u64,
    state: Arc<State>,
    picked: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Picture {
    taken: Option<Instant>,
    cost: Duration,
    rechecks: bool,
    heads: HashMap<ChainId, Head>,
}

impl Picture {
    fn age(&self) -> Option<Duration> {
        Some(self.taken?.elapsed())
    }

    fn renewed(&self) -> Duration {
        RENEWED.max(self.cost * SHARE)
    }
}

/// Shared by all transactions of a process.
#[derive(Default)]
pub(super) struct Heads {
    picture: Mutex<Picture>,
    versions: AtomicU64,
    /// Held by who makes it anew.
    pub turn: tokio::sync::Mutex<()>,
}

/// What a transaction did to a chain; `None`: more than is written down here.
pub(super) type Change = (ChainId, u64, Option<State>);

/// Counts a request that goes for a chain until it is done.
pub(super) struct Pick(Arc<AtomicUsize>);

impl Pick {
    fn new(picked: &Arc<AtomicUsize>) -> Self {
        picked.fetch_add(1, Ordering::Relaxed);
        Self(picked.clone())
    }
}

impl Drop for Pick {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Heads {
    fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Greater for a later transaction on the same chain, where it is asked for while the chain is locked.
    pub fn version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether the picture was taken then or later.
    pub fn is_since(&self, moment: Instant) -> bool {
        self.picture().taken.is_some_and(|taken| taken >= moment)
    }

    pub fn has_rechecks(&self) -> bool {
        self.picture().rechecks
    }

    pub fn is_old(&self) -> bool {
        let picture = self.picture();
        picture.age().is_none_or(|age| age > picture.renewed())
    }

    /// `before`: a version from before the first row was read; `begun`: the time then.
    pub fn fill(&self, before: u64, begun: Instant, rechecks: bool, states: Vec<State>) {
        let mut picture = self.picture();
        let mut old = std::mem::take(&mut picture.heads);
        let mut heads: HashMap<ChainId, Head> = HashMap::with_capacity(states.len());
        for state in states {
            let known = old.remove(&state.chain.id);
            let head = match known {
                Some(known) if known.version > before => known,
                known => Head {
                    version: before,
                    picked: known.map(|known| known.picked).unwrap_or_default(),
                    state: Arc::new(state),
                },
            };
            heads.insert(head.state.chain.id, head);
        }
        *picture = Picture {
            taken: Some(begun),
            cost: begun.elapsed(),
            rechecks,
            heads,
        };
    }

    /// Takes in what a committed transaction changed.
    pub fn note(&self, changes: Vec<Change>) {
        let mut picture = self.picture();
        for (id, version, state) in changes {
            let known = picture.heads.get(&id);
            if known.is_some_and(|known| known.version > version) {
                continue;
            }
            match state {
                Some(state) => {
                    let picked = known.map(|known| known.picked.clone()).unwrap_or_default();
                    let head = Head {
                        version,
                        state: Arc::new(state),
                        picked,
                    };
                    picture.heads.insert(id, head);
                }
                None => {
                    picture.heads.remove(&id);
                }
            }
        }
    }

    pub fn note_recheck(&self) {
        self.picture().rechecks = true;
    }

    /// What was said to be open was not.
    pub fn forget(&self, found: &Found) {
        if let Found::Open(chains) = found {
            let mut picture = self.picture();
            for id in chains {
                picture.heads.remove(id);
            }
        }
    }

    /// States for which `fits` says how good they are, with the number of requests that are at each; none where the
    /// picture is too old or a doubted hop goes first.
    pub fn fitting<T>(&self, fits: impl Fn(&State, usize) -> Option<T>) -> Vec<(T, Candidate)> {
        let picture = self.picture();
        let usable = picture
            .age()
            .is_some_and(|age| age < picture.renewed() * USELESS);
        if !usable || picture.rechecks {
            return Vec::new();
        }
        let fitting = picture.heads.values().filter_map(|head| {
            let picked = head.picked.load(Ordering::Relaxed);
            let good = fits(&head.state, picked)?;
            Some((good, Candidate(head.clone())))
        });
        fitting.collect()
    }
}

/// A chain that may have work.
pub(super) struct Candidate(Head);

impl Candidate {
    pub fn state(&self) -> &State {
        &self.0.state
    }

    pub fn pick(&self) -> Pick {
        Pick::new(&self.0.picked)
    }
}

/// The head hop's state after these effects; `None` where another hop is the head then, or the chain is not active.
pub(super) fn after(before: &State, effects: &Effects) -> Option<State> {
    let simple = effects.accept.is_none()
        && effects.fork.is_none()
        && !effects.cancel_hops
        && effects.chain.is_none();
    let (chain, hop): (&Chain, &Hop) = (&before.chain, effects.hop.as_ref().unwrap_or(&before.hop));
    let head = chain.state == ChainState::Active
        && hop.generation == chain.generation
        && hop.index == chain.head;
    if !simple || !head {
        return None;
    }
    let mut attempts = before.attempts.clone();
    for changed in &effects.attempts {
        match attempts.iter_mut().find(|known| known.id == changed.id) {
            Some(known) => *known = changed.clone(),
            None => attempts.push(changed.clone()),
        }
    }
    attempts.retain(|attempt| attempt.state.is_pending());
    Some(State {
        chain: chain.clone(),
        hop: hop.clone(),
        attempts,
        p95: None,
    })
}
