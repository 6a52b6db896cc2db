//! Pages for people and programs that watch the coordinator: the chains as HTML and JSON, `/healthz`, `/readyz` and
//! `/metrics`. They only read, and show what observers may see: no digest before Verified (I7), no token, no blob.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cipherhop_proto::Digest;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::blobs::Blobs;
use crate::clock::Clock;
use crate::metrics::{self, Counters, Disk};
use crate::store::Store;

mod accuracy;
mod api;
mod cache;
mod live;
mod pages;
mod problem;
mod range;
mod times;

use cache::Cache;
use problem::{ApiProblem, Problem};

/// What the pages read.
#[derive(Clone)]
pub struct Pages {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The blobs, for the times in the traces of accepted results.
    pub blobs: Blobs,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// What this process counted.
    pub counters: Arc<Counters>,
    /// The disk of the data folder.
    pub disk: Disk,
    /// Address of the gRPC server, for the commands that the pages show.
    pub coordinator: String,
    /// Cancelled when the coordinator goes down: `/readyz` then says so.
    pub shutdown: CancellationToken,
}

#[derive(Clone)]
struct Site {
    pages: Pages,
    cache: Arc<Cache>,
    /// Times by the digest of the trace that has them.
    traces: Arc<Mutex<HashMap<Digest, Option<times::StepTimes>>>>,
}

/// Serves the pages until the coordinator goes down and open answers are sent.
pub async fn serve(pages: Pages, listener: TcpListener) {
    let shutdown = pages.shutdown.clone();
    let site = Site {
        pages,
        cache: Arc::default(),
        traces: Arc::default(),
    };
    let router = Router::new()
        .route("/", get(pages::chains))
        .route("/chains/{name}", get(pages::chain))
        .route("/chains/{name}/manifest.sha256", get(api::manifest))
        .route("/chains/{name}/live", get(live::chain))
        .route("/live", get(live::all))
        .route("/volunteers", get(pages::volunteers))
        .route("/lend", get(pages::lend))
        .route(
            "/style.css",
            get(|| asset("text/css; charset=utf-8", pages::STYLE)),
        )
        .route(
            "/live.js",
            get(|| asset("text/javascript; charset=utf-8", pages::SCRIPT)),
        )
        .route("/icon.svg", get(|| asset("image/svg+xml", pages::ICON)))
        // browsers ask for it where a page names no icon, as on /metrics
        .route("/favicon.ico", get(|| asset("image/svg+xml", pages::ICON)))
        .nest("/api/v1", api())
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(text))
        .fallback(|| async { Problem::NoPage })
        .method_not_allowed_fallback(|| async { Problem::OnlyRead })
        .layer(middleware::from_fn(guarded))
        .with_state(site);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move { shutdown.cancelled().await });
    if let Err(error) = served.await {
        tracing::error!(%error, "the HTTP pages failed");
    }
}

fn api() -> Router<Site> {
    Router::new()
        .route("/chains", get(api::chains))
        .route("/chains/{name}", get(api::chain))
        .route("/chains/{name}/events", get(api::events))
        .route("/volunteers", get(api::volunteers))
        .fallback(|| async { ApiProblem::from(Problem::NoPage) })
        .method_not_allowed_fallback(|| async { ApiProblem::from(Problem::OnlyRead) })
}

/// Nothing from elsewhere runs in the pages, and they are in nobody's frame.
async fn guarded(request: axum::extract::Request, next: Next) -> Response {
    const HEADERS: [(HeaderName, &str); 3] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
             frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let mut answer = next.run(request).await;
    for (name, value) in HEADERS {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Whether the coordinator takes work: the database answers and no shutdown has begun.
async fn ready(State(site): State<Site>) -> Response {
    let pages = &site.pages;
    if pages.shutdown.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    // one row is enough to know, and probes ask often
    match pages.store.audit(1, 1).await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => problem::line(error.into()),
    }
}

async fn text(State(site): State<Site>) -> Result<Response, Problem> {
    let pages = &site.pages;
    // what watchers were told must not be read after what there is to tell
    let told = *pages.store.changes().borrow();
    let view = pages.store.overview(pages.clock.now()).await?;
    Ok(
        match metrics::render(&view, told, &pages.counters, &pages.disk) {
            Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
            Err(error) => {
                tracing::error!(%error, "metrics could not be written");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        },
    )
}
