//! What many browsers ask for at the same moment is read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cipherhop_proto::ChainId;

use super::times::Times;
use super::{Problem, Site, api};
use crate::domain::event::Event;
use crate::domain::time::Timestamp;
use crate::domain::view::ChainStatus;
use crate::store::Result as Stored;

/// A chain is read again only after this time.
const FRESH: Duration = Duration::from_millis(500);
/// How far back the numbers of a view's events reach.
const BACK: u64 = 400;

/// A chain as the pages show it.
pub(super) struct View {
    pub(super) status: ChainStatus,
    /// The latest events, in order.
    pub(super) events: Vec<Event>,
    /// What accepted results took.
    pub(super) times: Times,
    /// When it was read.
    pub(super) now: Timestamp,
    /// The page of all hops, once somebody wanted it.
    pub(super) page: OnceLock<String>,
}

/// When the last reading began, and what it brought unless the database failed. Whoever reads holds the lock.
type Slot = tokio::sync::Mutex<Option<(Instant, Option<Arc<View>>)>>;

/// Views by chain; only of chains that exist.
#[derive(Default)]
pub(super) struct Cache {
    names: Mutex<HashMap<String, ChainId>>,
    slots: Mutex<HashMap<ChainId, Arc<Slot>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site {
    /// The chain of this id or name, at most [`FRESH`] old. Those who ask while somebody reads wait for it.
    pub(super) async fn view(&self, name: &str) -> Result<Arc<View>, Problem> {
        let id = self.id(name).await?;
        let asked = Instant::now();
        let slot = lock(&self.cache.slots).entry(id).or_default().clone();
        let mut last = slot.lock().await;
        match &*last {
            Some((begun, Some(view))) if *begun >= asked || begun.elapsed() < FRESH => {
                return Ok(view.clone());
            }
            // whoever read has logged why
            Some((begun, None)) if *begun >= asked => return Err(Problem::Unavailable),
            _ => {}
        }
        let begun = Instant::now();
        let view = self.read(id).await.map(Arc::new).map_err(Problem::from);
        if matches!(view, Err(Problem::NoChain)) {
            lock(&self.cache.slots).remove(&id);
        } else {
            *last = Some((begun, view.as_ref().ok().cloned()));
        }
        view
    }

    async fn id(&self, name: &str) -> Result<ChainId, Problem> {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        // a chain keeps its name
        if let Some(id) = lock(&self.cache.names).get(name) {
            return Ok(*id);
        }
        let id = self.pages.store.chain_by_name(name).await?.id;
        lock(&self.cache.names).insert(name.to_owned(), id);
        Ok(id)
    }

    async fn read(&self, id: ChainId) -> Stored<View> {
        let store = &self.pages.store;
        let status = store.status(id).await?;
        let after = status.sequence.saturating_sub(BACK);
        Ok(View {
            events: store.events(id, after, api::EVENTS).await?,
            times: self.times(&status).await,
            now: self.pages.clock.now(),
            status,
            page: OnceLock::new(),
        })
    }
}
