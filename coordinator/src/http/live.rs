//! Server-sent events: "something changed, look again". What changed is on the page itself.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream;

use super::{Problem, Site};

/// Shortest time between two messages to one browser.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two looks: progress of a step is no event.
const LOOK: Duration = Duration::from_secs(5);

pub(super) async fn chain(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    site.view(&name).await?;
    Ok(changes(site, Some(name)))
}

pub(super) async fn all(
    State(site): State<Site>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    changes(site, None)
}

/// A message after each change of the chain (of any, without a name), and every few seconds; ends at shutdown.
fn changes(
    site: Site,
    chain: Option<String>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let news = site.pages.store.changes();
    let start = (site, chain, news, 0);
    let messages = stream::unfold(start, |(site, chain, mut news, mut last)| async move {
        let shutdown = site.pages.shutdown.clone();
        loop {
            let waited = async {
                tokio::time::sleep(PAUSE).await;
                let _ = tokio::time::timeout(LOOK, news.changed()).await;
            };
            shutdown.run_until_cancelled(waited).await?;
            let newest = match &chain {
                Some(name) => match site.view(name).await {
                    Ok(view) => {
                        let status = &view.status;
                        let running = status.hops.iter().any(|hop| !hop.running.is_empty());
                        status.sequence.max(if running { last + 1 } else { 0 })
                    }
                    Err(_) => last,
                },
                None => *news.borrow_and_update(),
            };
            if newest != last {
                last = newest;
                let message = Event::default().id(newest.to_string()).data("changed");
                return Some((Ok(message), (site, chain, news, last)));
            }
        }
    });
    Sse::new(messages).keep_alive(KeepAlive::default())
}
