//! The pages for people. Tables work without JavaScript; `live.js` only brings in new content.

use axum::extract::{Path, Query, State};
use cipherhop_proto::v1;
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use super::{Problem, Site, api, range};
use crate::domain::event::{Event, EventKind};
use crate::domain::time::Timestamp;
use crate::present::{chain_state, duration, eta, hop_state, method, phase};
use crate::service::convert;

pub(super) const STYLE: &str = include_str!("style.css");
pub(super) const SCRIPT: &str = include_str!("live.js");

/// Events on a chain's page, and how far back their numbers are looked through.
const HISTORY: (usize, u64) = (40, 400);

fn layout(title: &str, live: Option<&str>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Cipherhop" }
                link rel="stylesheet" href="/style.css";
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
                        a href="/" { "Chains" }
                        a href="/volunteers" { "Volunteers" }
                        a href="/lend" { "Lend your machine" }
                    }
                    span #live role="status" {}
                }
                main #content { (content) }
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
            div.wide { table {
                thead { tr { th { "Chain" } th { "State" } th { "Verified hops" } th { "Parameters" } th { "Age" } } }
                tbody {
                    @for chain in &chains {
                        tr {
                            td { a href={ "/chains/" (address(chain)) } { (chain.name) } }
                            td {
                                (state(chain_state(chain.state)))
                                @if !chain.state_reason.is_empty() { " " span.soft { (chain.state_reason) } }
                            }
                            td { (chain.head) " of " (chain.hops) }
                            td { (insecure(chain)) }
                            td { (duration(chain.age_seconds)) }
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
    Query(filter): Query<Filter>,
) -> Result<Markup, Problem> {
    let ranges = range::parse(&filter.hops).ok_or(Problem::BadRange)?;
    let now = site.pages.clock.now();
    let status = site.status(&name).await?;
    let (_, back) = HISTORY;
    let after = status.sequence.saturating_sub(back);
    let store = &site.pages.store;
    let events = store.events(status.chain.id, after, api::EVENTS).await?;
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
        ol.strip aria-label="Hops" {
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
            input #hops type="text" name="hops" value=(filter.hops) placeholder="5-25";
            label { input type="checkbox" name="open" value="1" checked[filter.open.is_some()]; " open ones only" }
            button { "Show" }
        }
        div.wide { table {
            thead { tr { th { "Hop" } th { "State" } th { "For" } th { "Who" } th { "Step" } th { "Time left" } th { "Notes" } } }
            tbody {
                @for hop in &shown { (hop_row(hop)) }
                @if shown.is_empty() { tr { td colspan="7" { "No hop fits the filter." } } }
            }
        } }
        p.soft { "“·a”: an archived digest is known; it is shown once the hop is verified." }
        (accuracy(&hops))
        (ledger(&hops, &address))
        (history(&events, now))
    };
    let live = format!("/chains/{address}/live");
    Ok(layout(&chain.name, Some(&live), &content))
}

fn hop_row(hop: &v1::HopStatus) -> Markup {
    let progress = |r: &v1::RunningAttempt| r.progress.clone().unwrap_or_default();
    html! {
        tr id={ "hop-" (hop.hop) } {
            td { (hop.hop) }
            td { (state(hop_state(hop.state))) }
            td { (duration(hop.seconds_in_state)) }
            td {
                @for r in &hop.running { div { (r.volunteer) } }
                @if hop.running.is_empty() { (hop.verified_by.join(", ")) }
            }
            td {
                @for r in &hop.running {
                    @let p = progress(r);
                    div {
                        (phase(r.phase))
                        @if p.steps_total > 0 { " " (p.steps_done) "/" (p.steps_total) " " (p.step) }
                    }
                }
            }
            td {
                @for r in &hop.running {
                    div {
                        @match eta(&progress(r)) {
                            Some([low, high]) => { (duration(low)) " to " (duration(high)) },
                            None => "unknown",
                        }
                    }
                }
            }
            td {
                @if hop.results_waiting > 0 { div { (hop.results_waiting) " results wait for agreement" } }
                @if hop.attempts > 2 { div { (hop.attempts) " attempts" } }
                (hop.reason)
            }
        }
    }
}

/// Errors of the hops on a logarithmic scale from 1e-7 to 1, and the figures.
fn accuracy(hops: &[v1::HopStatus]) -> Markup {
    const WIDTH: usize = 14;
    const HEIGHT: usize = 140;
    const LEFT: usize = 46;
    let known: Vec<(u32, f64, f64)> = hops
        .iter()
        .filter_map(|h| Some((h.hop, h.max_err_over_f?, h.worst_rel_rms?)))
        .collect();
    if known.is_empty() {
        return html! {};
    }
    let tall = |value: f64| {
        let share = (value.max(1e-7).log10() + 7.0) / 7.0;
        (share.clamp(0.0, 1.0) * HEIGHT as f64).round() as usize
    };
    let right = LEFT + known.len() * WIDTH;
    html! {
        h2 { "Accuracy" }
        p { "Published by the key holder, rounded: the largest error over the full scale F (left bars, blue), and the worst relative rms of a "
            "token (right bars, violet)." }
        div.wide {
            svg role="img" aria-label="Errors by hop, logarithmic; the table below has the figures"
                viewBox={ "0 0 " (right + 8) " " (HEIGHT + 24) } width=(right + 8) height=(HEIGHT + 24) {
                @for power in 0..=7 {
                    @let y = power * HEIGHT / 7 + 4;
                    line.grid x1=(LEFT) x2=(right) y1=(y) y2=(y) {}
                    text x="2" y=(y + 4) { @if power == 0 { "1" } @else { "1e-" (power) } }
                }
                @for (i, (hop, error, rms)) in known.iter().enumerate() {
                    @let (x, e, r) = (LEFT + i * WIDTH, tall(*error), tall(*rms));
                    rect.error x=(x + 1) y=(HEIGHT - e + 4) width="5" height=(e) {}
                    rect.rms x=(x + 7) y=(HEIGHT - r + 4) width="5" height=(r) {}
                    @if hop % 5 == 0 { text x=(x) y=(HEIGHT + 18) { (hop) } }
                }
            }
            table {
                thead { tr { th { "Hop" } th { "max abs(err)/F" } th { "relative rms" } } }
                tbody {
                    @for (hop, error, rms) in &known {
                        tr { td { (hop) } td { (format!("{error:.0e}")) } td { (format!("{rms:.0e}")) } }
                    }
                }
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
            div.wide { table {
                thead { tr { th { "Hop" } th { "SHA-256 of the output" } th { "Verified by" } th { "Accounts" } } }
                tbody {
                    @for hop in verified {
                        tr {
                            td { (hop.hop) }
                            td { code { (hex::encode(&hop.digest)) } }
                            td { (method(hop.method).unwrap_or("unknown")) }
                            td { (hop.verified_by.join(", ")) }
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
    let (most, _) = HISTORY;
    html! {
        h2 { "What happened lately" }
        @if events.is_empty() { p { "Nothing." } }
        div.wide { table {
            tbody {
                @for event in events.iter().rev().filter(|e| told(e)).take(most) {
                    tr {
                        td { (duration(now.since(event.at).as_secs_f64())) " ago" }
                        td { (event.event.kind.as_str()) }
                        td { @if let Some(hop) = event.event.hop { "hop " (hop) } }
                        td { (event.event.detail) }
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
            div.wide { table {
                thead { tr { th { "Account" } th { "Devices" } th { "Valid results" } th { "Last seen" } } }
                tbody {
                    @for v in &volunteers {
                        tr {
                            td { (v.name) } td { (v.devices) } td { (v.valid_results) }
                            td { (duration(v.seconds_since_seen)) " ago" }
                        }
                    }
                }
            } }
        }
    };
    Ok(layout("Volunteers", None, &content))
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
            "cipherhop-worker enroll --coordinator " (url) " --invite INVITE --name my-machine\n"
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
