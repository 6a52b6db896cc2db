//! The pages for people. Tables work without JavaScript; `live.js` only brings in new content.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use cipherhop_proto::v1;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Deserialize;

use super::accuracy::accuracy;
use super::cache::View;
use super::{Problem, Site, range, times};
use crate::domain::event::{Event, EventKind};
use crate::domain::time::Timestamp;
use crate::present::{chain_state, duration, eta, hop_state, method, phase};
use crate::service::convert;

pub(super) const STYLE: &str = include_str!("style.css");
pub(super) const SCRIPT: &str = include_str!("live.js");
pub(super) const ICON: &str = include_str!("icon.svg");

/// Most events on a chain's page.
const HISTORY: usize = 40;

/// The pages without a chain, by their titles.
const NAVIGATION: [(&str, &str); 3] = [
    ("/", "Chains"),
    ("/volunteers", "Volunteers"),
    ("/lend", "Lend your machine"),
];

fn layout(title: &str, live: Option<&str>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Cipherhop" }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                @if live.is_some() {
                    script src="/live.js" defer {}
                    noscript { meta http-equiv="refresh" content="20"; }
                }
            }
            body data-live=[live] {
                a.skip href="#content" { "Skip to the content" }
                header {
                    strong { "Cipherhop" }
                    nav aria-label="Pages" {
                        @for (path, name) in NAVIGATION {
                            a href=(path) aria-current=[(name == title).then_some("page")] { (name) }
                        }
                    }
                    span #live role="status" {}
                }
                main #content tabindex="-1" { (content) }
            }
        }
    }
}

pub(super) fn problem(text: &str) -> Markup {
    layout(
        "Problem",
        None,
        &html! {
            h1 { "Nothing to show" }
            p { (text) "." }
            p { a href="/" { "All chains" } }
        },
    )
}

fn insecure(chain: &v1::Chain) -> Markup {
    html! {
        code { (chain.parameter_set) }
        @if chain.insecure { " " span.badge.stuck { "INSECURE: a test, protects nothing" } }
    }
}

fn state(state: &str) -> Markup {
    html! { span class={ "state " (state) } { (state) } }
}

pub(super) async fn chains(State(site): State<Site>) -> Result<Markup, Problem> {
    let now = site.pages.clock.now();
    let chains = site.pages.store.chains().await?;
    let chains: Vec<v1::Chain> = chains.iter().map(|c| convert::chain(c, now)).collect();
    let content = html! {
        h1 { "Chains" }
        @if chains.is_empty() {
            p { "There is no chain yet. A key holder makes one with " code { "cipherhop-owner chain create" } "." }
        } @else {
            div.wide { table.cards aria-label="Chains" {
                thead { tr { th { "Chain" } th { "State" } th { "Verified hops" } th { "Parameters" } th { "Age" } } }
                tbody {
                    @for chain in &chains {
                        tr id={ "chain-" (address(chain)) } {
                            td.whole { a href={ "/chains/" (address(chain)) } { (chain.name) } }
                            td {
                                (state(chain_state(chain.state)))
                                @if !chain.state_reason.is_empty() { " " span.soft { (chain.state_reason) } }
                            }
                            td data-label="verified" { (chain.head) " of " (chain.hops) }
                            td.whole.last { (insecure(chain)) }
                            td data-label="age" { (duration(chain.age_seconds)) }
                        }
                    }
                }
            } }
        }
    };
    Ok(layout("Chains", Some("/live"), &content))
}

/// The id: names may hold anything.
fn address(chain: &v1::Chain) -> String {
    cipherhop_proto::ChainId::from_slice(&chain.chain_id)
        .map_or_else(|_| String::new(), |id| id.to_string())
}

#[derive(Deserialize)]
pub(super) struct Filter {
    #[serde(default)]
    hops: String,
    #[serde(default)]
    open: Option<String>,
}

pub(super) async fn chain(
    State(site): State<Site>,
    Path(name): Path<String>,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Result<(StatusCode, Markup), Problem> {
    let Query(filter) = filter.map_err(|_| Problem::BadQuery)?;
    let view = site.view(&name).await?;
    if filter.hops.is_empty() && filter.open.is_none() {
        let page = view.page.get_or_init(|| chain_page(&view, &filter).1.0);
        return Ok((StatusCode::OK, PreEscaped(page.clone())));
    }
    Ok(chain_page(&view, &filter))
}

fn chain_page(view: &View, filter: &Filter) -> (StatusCode, Markup) {
    let ranges = range::parse(&filter.hops);
    let readable = ranges.is_some();
    let ranges = ranges.unwrap_or_default();
    let (status, now) = (&view.status, view.now);
    let chain = convert::chain(&status.chain, now);
    let hops: Vec<v1::HopStatus> = status.hops.iter().map(|h| convert::hop(h, now)).collect();
    let open = |hop: &v1::HopStatus| {
        filter.open.is_none() || !matches!(hop_state(hop.state), "verified" | "cancelled")
    };
    let shown: Vec<&v1::HopStatus> = hops
        .iter()
        .filter(|hop| range::holds(&ranges, hop.hop) && open(hop))
        .collect();
    let address = address(&chain);
    let content = html! {
        h1 { (chain.name) }
        p {
            (state(chain_state(chain.state)))
            @if !chain.state_reason.is_empty() { ": " (chain.state_reason) }
            ". " (chain.head) " of " (chain.hops) " hops verified, quorum " (chain.quorum) ", "
            @if chain.generation > 0 { "generation " (chain.generation) ", " }
            (duration(chain.age_seconds)) " old. Parameters: " (insecure(&chain)) "."
        }
        ol.strip aria-label="States of the hops" {
            @for hop in &hops {
                li class=(hop_state(hop.state)) {
                    a href={ "#hop-" (hop.hop) } {
                        b { (hop.hop) } small { (hop_state(hop.state)) @if hop.archived { " ·a" } }
                    }
                }
            }
        }
        h2 { "Hops" }
        form method="get" {
            label for="hops" { "Hops" }
            input #hops type="text" name="hops" value=(filter.hops) placeholder="5-25"
                aria-invalid=[(!readable).then_some("true")] aria-describedby=[(!readable).then_some("hops-error")];
            label { input type="checkbox" name="open" value="1" checked[filter.open.is_some()]; " open ones only" }
            button { "Show" }
        }
        @if !readable {
            p #hops-error.stuck role="alert" { "“" (filter.hops) "” names no hops: give them like 7, 5-25 or 1,3,9-12." }
        }
        div.wide { table.cards aria-label="Hops" {
            thead { tr { th { "Hop" } th { "State" } th { "For" } th { "Who" } th { "Step" } th { "Time left" } th { "Notes" } } }
            tbody {
                @for hop in &shown { (hop_row(hop)) }
                @if shown.is_empty() { tr { td colspan="7" { "No hop fits the filter." } } }
            }
        } }
        p.soft { "“·a”: an archived digest is known; it is shown once the hop is verified." }
        (accuracy(&hops))
        (times::ledger(status, &view.times))
        (ledger(&hops, &address))
        (history(&view.events, now))
    };
    let live = format!("/chains/{address}/live");
    let code = match readable {
        true => StatusCode::OK,
        false => StatusCode::BAD_REQUEST,
    };
    // a page that says what is wrong with the filter stays until that is mended
    let live = readable.then_some(live.as_str());
    (code, layout(&chain.name, live, &content))
}

fn hop_row(hop: &v1::HopStatus) -> Markup {
    let progress = |r: &v1::RunningAttempt| r.progress.clone().unwrap_or_default();
    html! {
        tr id={ "hop-" (hop.hop) } {
            td data-label="hop" { (hop.hop) }
            td { (state(hop_state(hop.state))) }
            td data-label="for" { (duration(hop.seconds_in_state)) }
            td data-label="by" {
                @for r in &hop.running { div { (r.volunteer) } }
                @if hop.running.is_empty() { (hop.verified_by.join(", ")) }
            }
            td.whole {
                @for r in &hop.running {
                    @let p = progress(r);
                    div {
                        (phase(r.phase))
                        @if p.steps_total > 0 { " " (p.steps_done) "/" (p.steps_total) " " (p.step) }
                    }
                }
            }
            td data-label="left" {
                @for r in &hop.running {
                    div {
                        @match eta(&progress(r)) {
                            Some([low, high]) => { (duration(low)) " to " (duration(high)) },
                            None => "unknown",
                        }
                    }
                }
            }
            td.whole {
                @match hop.results_waiting {
                    0 => {},
                    1 => div { "1 result waits for agreement" },
                    more => div { (more) " results wait for agreement" },
                }
                @if hop.attempts > 2 { div { (hop.attempts) " attempts" } }
                (hop.reason)
            }
        }
    }
}

/// What was verified, how and by whom.
fn ledger(hops: &[v1::HopStatus], address: &str) -> Markup {
    let verified: Vec<&v1::HopStatus> = hops.iter().filter(|h| !h.digest.is_empty()).collect();
    html! {
        h2 { "Reproduction" }
        @if verified.is_empty() {
            p { "No hop is verified yet." }
        } @else {
            p {
                a href={ "/chains/" (address) "/manifest.sha256" } { "manifest.sha256" }
                " has the digests of all verified outputs, as " code { "sha256sum -c" } " reads them."
            }
            div.wide { table.cards aria-label="Verified outputs" {
                thead { tr { th { "Hop" } th { "SHA-256 of the output" } th { "Verified by" } th { "Accounts" } } }
                tbody {
                    @for hop in verified {
                        tr {
                            td data-label="hop" { (hop.hop) }
                            td.whole { code { (hex::encode(&hop.digest)) } }
                            td data-label="by" { (method(hop.method).unwrap_or("unknown")) }
                            td data-label="of" { (hop.verified_by.join(", ")) }
                        }
                    }
                }
            } }
        }
    }
}

/// Phases of attempts are in the table of hops while they last.
fn told(event: &Event) -> bool {
    event.event.kind != EventKind::AttemptPhase
}

fn history(events: &[Event], now: Timestamp) -> Markup {
    html! {
        h2 { "What happened lately" }
        @if events.is_empty() { p { "Nothing." } }
        div.wide { table.cards aria-label="What happened lately" {
            tbody {
                @for event in events.iter().rev().filter(|e| told(e)).take(HISTORY) {
                    tr id={ "event-" (event.sequence) } {
                        td { (duration(now.since(event.at).as_secs_f64())) " ago" }
                        td { (event.event.kind.as_str()) }
                        td { @if let Some(hop) = event.event.hop { "hop " (hop) } }
                        td.whole { (event.event.detail) }
                    }
                }
            }
        } }
    }
}

pub(super) async fn volunteers(State(site): State<Site>) -> Result<Markup, Problem> {
    let volunteers = site.volunteers().await?;
    let content = html! {
        h1 { "Volunteers" }
        @if volunteers.is_empty() {
            p { "Nobody has enrolled yet. " a href="/lend" { "Lend your machine." } }
        } @else {
            div.wide { table.cards aria-label="Volunteers" {
                thead { tr { th { "Account" } th { "Devices" } th { "Valid results" } th { "Time given" } th { "Last seen" } } }
                tbody {
                    @for v in &volunteers {
                        tr {
                            td.whole { (v.name) }
                            td data-label="devices" { (v.devices) }
                            td data-label="valid results" { (v.valid_results) }
                            td data-label="time given" { (duration(v.hop_seconds)) }
                            td data-label="seen" { (duration(v.seconds_since_seen)) " ago" }
                        }
                    }
                }
            } }
        }
    };
    Ok(layout("Volunteers", Some("/live"), &content))
}

pub(super) async fn lend(State(site): State<Site>) -> Markup {
    let url = &site.pages.coordinator;
    let content = html! {
        h1 { "Lend your machine" }
        p {
            "Your machine runs one layer of a language model at a time on encrypted numbers. It never has the key, so it cannot "
            "see the prompt; what it computes counts only when another account gets the same bytes."
        }
        ol {
            li { "Ask the operator of this coordinator for an invite." }
            li { "Build the program: " code { "cargo build --release" } " in a clone of the project (Rust 1.95, a C compiler)." }
            li { "Check the machine, enrol it, and run:" }
        }
        pre {
            "cipherhop-worker doctor\n"
            "cipherhop-worker enroll \\\n  --coordinator " (url) " \\\n  --invite INVITE --name my-machine\n"
            "cipherhop-worker run\n"
        }
        p {
            "Want certain layers? " code { "cipherhop-worker claim --chain NAME --hops 5-25" } " before " code { "run" } ". "
            "A hop at 128 bits takes a minute or two, up to 8 GiB of memory and 3 GiB of keys to download once. "
            "Ctrl-C stops at once and keeps the work; " code { "run" } " goes on from there."
        }
    };
    layout("Lend your machine", None, &content)
}
