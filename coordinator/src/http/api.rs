//! What the pages show, as JSON. Names stay as they are within /api/v1.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiProblem, Problem, Site};
use crate::domain::event::Event;
use crate::domain::time::Timestamp;
use crate::present::{chain_json, hop_json};
use crate::service::convert;
use crate::store::Result as Stored;

/// Most events in one answer.
pub(super) const EVENTS: u32 = 500;

pub(super) async fn chains(State(site): State<Site>) -> Result<Json<Value>, ApiProblem> {
    let now = site.pages.clock.now();
    let chains = site.pages.store.chains().await?;
    let chains: Vec<Value> = chains
        .iter()
        .map(|chain| chain_json(&convert::chain(chain, now)))
        .collect();
    let ledger_key = site.pages.store.ledger_key().map(|key| key.to_string());
    Ok(Json(json!({ "chains": chains, "ledger_key": ledger_key })))
}

pub(super) async fn chain(
    State(site): State<Site>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiProblem> {
    let Path(name) = name?;
    let now = site.pages.clock.now();
    let view = site.view(&name).await?;
    let (status, times) = (&view.status, &view.times);
    let hops = status.hops.iter().map(|hop| {
        let mut value = hop_json(&convert::hop(hop, now));
        value["reported_times"] = times.hop_json(hop.index);
        value
    });
    Ok(Json(json!({
        "chain": chain_json(&convert::chain(&status.chain, now)), "hops": hops.collect::<Vec<_>>(),
        "sequence": status.sequence, "reported_times": times.json(),
    })))
}

/// The digests of the verified hops, as `sha256sum -c` reads them.
pub(super) async fn manifest(
    State(site): State<Site>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Problem> {
    let view = site.view(&name).await?;
    let kind = "text/plain; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], view.status.manifest()))
}

#[derive(Deserialize)]
pub(super) struct After {
    #[serde(default)]
    after: u64,
}

pub(super) async fn events(
    State(site): State<Site>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<After>, QueryRejection>,
) -> Result<Json<Value>, ApiProblem> {
    let (Path(name), Query(query)) = (name?, query?);
    let now = site.pages.clock.now();
    let chain = site.view(&name).await?.status.chain.id;
    let events = site.pages.store.events(chain, query.after, EVENTS).await?;
    let events: Vec<Value> = events.iter().map(|event| event_json(event, now)).collect();
    Ok(Json(json!({ "events": events })))
}

fn event_json(event: &Event, now: Timestamp) -> Value {
    json!({
        "sequence": event.sequence, "kind": event.event.kind.as_str(), "hop": event.event.hop,
        "detail": event.event.detail, "age_seconds": now.since(event.at).as_secs_f64(),
    })
}

/// One account and what its devices did.
pub(super) struct Volunteer {
    pub(super) name: String,
    pub(super) devices: u64,
    pub(super) valid_results: u64,
    /// What the valid results took, as the devices say.
    pub(super) hop_seconds: f64,
    pub(super) seconds_since_seen: f64,
}

impl Site {
    /// Every account with a device, the most valid results first.
    pub(super) async fn volunteers(&self) -> Stored<Vec<Volunteer>> {
        let now = self.pages.clock.now();
        let mut devices = self.pages.store.devices().await?;
        devices.sort_by_key(|d| d.account);
        let mut volunteers = Vec::new();
        for own in devices.chunk_by(|a, b| a.account == b.account) {
            let seen = own.iter().map(|d| d.last_seen).max();
            volunteers.push(Volunteer {
                name: own[0].account_name.clone(),
                devices: own.len() as u64,
                valid_results: self.pages.store.credits(own[0].account).await?,
                hop_seconds: self.pages.store.credit_seconds(own[0].account).await?,
                seconds_since_seen: seen.map_or(0.0, |at| now.since(at).as_secs_f64()),
            });
        }
        volunteers.sort_by(|a, b| {
            let order = b.valid_results.cmp(&a.valid_results);
            order.then_with(|| a.name.cmp(&b.name))
        });
        Ok(volunteers)
    }
}

pub(super) async fn volunteers(State(site): State<Site>) -> Result<Json<Value>, ApiProblem> {
    let volunteers = site.volunteers().await?;
    let volunteers = volunteers.iter().map(|v| {
        json!({
            "name": v.name, "devices": v.devices, "valid_results": v.valid_results,
            "hop_seconds": v.hop_seconds,
            "seconds_since_seen": v.seconds_since_seen,
        })
    });
    Ok(Json(
        json!({ "volunteers": volunteers.collect::<Vec<_>>() }),
    ))
}
