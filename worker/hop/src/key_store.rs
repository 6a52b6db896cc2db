//! Evaluation keys streamed from a folder under a memory budget.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cipherhop_ckks::{
    CkksError, Context, EvalKey, KeyId, KeySource, KeySpec, SpareBlocks, expanded_key_size,
    key_size,
};
use sha2::{Digest, Sha256};

use crate::error::HopError;
use crate::keys::{KeyManifest, refused};

/// Keys in a folder, one file per key named by its digest (lower-case hex), loaded when they are used and kept for
/// as long as the budget allows. What has to go is what will be used last, if the source was told what to expect
/// ([`KeySource::expect`]), else what was not used for the longest time.
///
/// A key that is loaded again is read from its file and expanded from its seed again.
pub struct DirKeys {
    ctx: Arc<Context>,
    files: HashMap<KeyId, KeyFile>,
    budget: u64,
    state: Mutex<State>,
}

struct KeyFile {
    path: PathBuf,
    spec: KeySpec,
    digest: String,
    /// Bytes on disk and in memory.
    size: u64,
    expanded: u64,
    /// Its digest was right once in this process.
    checked: AtomicBool,
}

/// What a store of keys has done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyUse {
    /// Keys asked for.
    pub asked: u64,
    /// Keys read from disk, first and later times.
    pub loads: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Most bytes in memory at a time, of keys and of memory kept for them.
    pub peak_bytes: u64,
    /// Seconds spent loading.
    pub seconds: f64,
}

#[derive(Default)]
struct State {
    held: HashMap<KeyId, Held>,
    /// Bytes of the keys held and of those being loaded.
    bytes: u64,
    /// Memory of keys that went, as far as the budget has room for it.
    spare: SpareBlocks,
    /// Counts uses.
    clock: u64,
    /// Positions at which each key is expected, ascending.
    expected: HashMap<KeyId, Vec<usize>>,
    /// Keys of the running step that it has not asked for yet.
    pending: HashSet<KeyId>,
    /// Position reached, and the end of the running step.
    at: usize,
    step_end: usize,
    usage: KeyUse,
}

struct Held {
    key: Arc<EvalKey>,
    bytes: u64,
    used: u64,
}

impl State {
    fn next_use(&self, id: KeyId) -> usize {
        let all = self.expected.get(&id).map_or(&[][..], Vec::as_slice);
        let from = if self.pending.contains(&id) {
            0
        } else {
            self.at
        };
        let next = all.partition_point(|&p| p < from);
        all.get(next).copied().unwrap_or(usize::MAX)
    }

    /// Notes a use. Within a step the order may be another than was told, so a position is passed only there, and
    /// what has not been used yet in the step still counts.
    fn note_use(&mut self, id: KeyId) {
        self.clock += 1;
        self.usage.asked += 1;
        self.pending.remove(&id);
        let next = self.next_use(id);
        if next < self.step_end {
            self.at = next + 1;
        }
    }

    /// Makes room for `bytes`; keys in use stay.
    fn make_room(&mut self, bytes: u64, budget: u64) {
        while self.bytes + bytes > budget {
            let idle = self
                .held
                .iter()
                .filter(|(_, h)| Arc::strong_count(&h.key) == 1);
            let last = idle.max_by_key(|(id, h)| (self.next_use(**id), u64::MAX - h.used));
            let Some(id) = last.map(|(id, _)| *id) else {
                return;
            };
            if let Some(gone) = self.held.remove(&id) {
                self.bytes -= gone.bytes;
                if let Ok(key) = Arc::try_unwrap(gone.key) {
                    key.recycle(&mut self.spare);
                }
            }
        }
    }
}

impl DirKeys {
    /// Checks that every listed file is there with the right size; reads none of them yet.
    pub fn open(
        ctx: Arc<Context>,
        dir: PathBuf,
        manifest: KeyManifest,
    ) -> Result<DirKeys, HopError> {
        if hex::encode(ctx.params_digest()) != manifest.params_digest {
            return Err(refused("made under another parameter set"));
        }
        let mut files = HashMap::new();
        for key in manifest.keys {
            let id: KeyId = key.id.parse()?;
            let limbs = key.limbs;
            let spec = KeySpec { id, limbs };
            spec.check(&ctx)?;
            let path = dir.join(&key.digest);
            let what = || format!("key {} at {}", key.id, path.display());
            let size = fs::metadata(&path)
                .map_err(|source| HopError::Io {
                    what: what(),
                    source,
                })?
                .len();
            if size != key.size || size != key_size(ctx.params(), spec) as u64 {
                return Err(HopError::BadInput(format!("{}: {size} bytes", what())));
            }
            let file = KeyFile {
                path,
                spec,
                digest: key.digest,
                size,
                expanded: expanded_key_size(ctx.params(), spec) as u64,
                checked: AtomicBool::new(false),
            };
            files.insert(id, file);
        }
        Ok(DirKeys {
            ctx,
            files,
            budget: u64::MAX,
            state: Mutex::default(),
        })
    }

    /// Keeps at most `budget` bytes of keys in memory, but for those in use.
    pub fn with_budget(mut self, budget: u64) -> DirKeys {
        self.budget = budget;
        self
    }

    /// What it has done so far.
    pub fn usage(&self) -> KeyUse {
        self.state().usage
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic happens between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, file: &KeyFile, spare: &mut SpareBlocks) -> Result<EvalKey, CkksError> {
        let unreadable =
            |e: std::io::Error| CkksError::Unreadable(format!("{}: {e}", file.path.display()));
        let mut from = File::open(&file.path).map_err(unreadable)?;
        let size = from.metadata().map_err(unreadable)?.len();
        let checked = file.checked.load(Ordering::Relaxed);
        let mut hash = Sha256::new();
        let key = EvalKey::read(
            &self.ctx,
            &mut from,
            size,
            (!checked).then_some(&mut hash),
            spare,
        )?;
        if !checked && hex::encode(hash.finalize()) != file.digest {
            return Err(CkksError::BadHeader("digest of the key file"));
        }
        if key.spec() != file.spec {
            return Err(CkksError::BadHeader("key id"));
        }
        file.checked.store(true, Ordering::Relaxed);
        Ok(key)
    }
}

impl KeySource for DirKeys {
    fn key(&self, id: KeyId) -> Result<Arc<EvalKey>, CkksError> {
        let file = self.files.get(&id).ok_or(CkksError::MissingKey(id))?;
        let mut spare = {
            let mut state = self.state();
            state.note_use(id);
            let clock = state.clock;
            if let Some(held) = state.held.get_mut(&id) {
                held.used = clock;
                return Ok(held.key.clone());
            }
            state.make_room(file.expanded, self.budget);
            state.bytes += file.expanded;
            let spare = state.spare.split_for(self.ctx.params(), file.spec);
            let room = self.budget.saturating_sub(state.bytes);
            state.spare.shrink_to(room);
            let held = state.bytes + state.spare.bytes();
            state.usage.peak_bytes = state.usage.peak_bytes.max(held);
            spare
        };
        // Loaded without the lock: reading a key runs parallel loops whose tasks may ask for keys themselves.
        let begin = Instant::now();
        let loaded = self.load(file, &mut spare);
        let mut state = self.state();
        let key = match loaded {
            Ok(key) => Arc::new(key),
            Err(error) => {
                state.bytes -= file.expanded;
                return Err(error);
            }
        };
        state.usage.loads += 1;
        state.usage.bytes_read += file.size;
        state.usage.seconds += begin.elapsed().as_secs_f64();
        if let Some(other) = state.held.get(&id) {
            // Two tasks asked at the same time.
            let other = other.key.clone();
            state.bytes -= file.expanded;
            return Ok(other);
        }
        let held = Held {
            key: key.clone(),
            bytes: file.expanded,
            used: state.clock,
        };
        state.held.insert(id, held);
        Ok(key)
    }

    fn expect(&self, now: &[KeyId], later: &[KeyId]) {
        let mut expected: HashMap<KeyId, Vec<usize>> = HashMap::new();
        for (position, id) in now.iter().chain(later).enumerate() {
            expected.entry(*id).or_default().push(position);
        }
        let mut state = self.state();
        state.expected = expected;
        state.pending = now.iter().copied().collect();
        state.at = 0;
        state.step_end = now.len();
    }
}
