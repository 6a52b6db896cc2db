//! The HTTP pages of a running coordinator, and docs/metrics.md.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cipherhop_coordinator::metrics::{Counters, METRICS};
use cipherhop_proto::{ChainId, Digest, v1};
use common::*;
use sqlx::{Connection as _, SqliteConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Head and body of the answer to one request.
async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Status line and body of one GET.
async fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let (head, body) = ask(address, "GET", path).await;
    (head.lines().next().unwrap().to_owned(), body)
}

/// Value by name and labels.
fn values(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .filter_map(|l| l.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_a_chain_and_readyz_the_shutdown() {
    let counters = Arc::new(Counters::default());
    let server = Server::counting(counters.clone()).await;
    let address = server.pages(counters).await;
    assert!(get(address, "/healthz").await.0.contains("200"));
    assert_eq!(get(address, "/readyz").await.1, "ready\n");
    assert!(get(address, "/admin").await.0.contains("404"));

    let owner = server.owner().await;
    new_chain("demo", 2).create(&owner).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let first = ada.acquire(5).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (status, text) = get(address, "/metrics").await;
    assert!(status.contains("200"), "{status}");
    let seen = values(&text);
    assert_eq!(seen[r#"cipherhop_chains{state="Active"}"#], 1.0, "{text}");
    assert_eq!(seen[r#"cipherhop_hops{state="Running"}"#], 1.0);
    assert_eq!(seen[r#"cipherhop_devices{state="New"}"#], 2.0);
    assert_eq!(seen["cipherhop_leases"], 1.0);
    assert_eq!(seen["cipherhop_leases_silent"], 0.0);
    assert!(seen["cipherhop_oldest_lease_seconds"] > 0.01);
    assert!(seen["cipherhop_disk_free_bytes"] > 0.0);
    assert_eq!(seen["cipherhop_disk_headroom_bytes"], 4096.0);
    assert_eq!(seen["cipherhop_event_lag"], 0.0);
    let refuted = r#"cipherhop_results_total{outcome="OUTCOME_ACCEPTED_MISMATCHED"}"#;
    assert_eq!(
        seen[refuted], 0.0,
        "a counter stands there before its first count"
    );

    ada.hand_in(&first, &output(0)).await.unwrap();
    let seen = values(&get(address, "/metrics").await.1);
    assert_eq!(seen[r#"cipherhop_hops{state="Verifying"}"#], 1.0);
    assert!(seen["cipherhop_oldest_verifying_seconds"] > 0.0);
    let second = bob.acquire(5).await.unwrap();
    bob.hand_in(&second, &output(0)).await.unwrap();
    complete_from(&ada, &bob, 1, 2).await;
    let (_, text) = get(address, "/metrics").await;
    let seen = values(&text);
    assert_eq!(seen[r#"cipherhop_chains{state="Completed"}"#], 1.0);
    assert_eq!(seen["cipherhop_leases"], 0.0);
    let matched = r#"cipherhop_results_total{outcome="OUTCOME_ACCEPTED_MATCHED"}"#;
    assert_eq!(seen[matched], 2.0, "{text}");

    // every metric of the table is on the page, and no other
    let mut named: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE "))
        .map(|l| l.split(' ').next().unwrap())
        .collect();
    let mut expected: Vec<&str> = METRICS.iter().map(|m| m.name).collect();
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);

    server.shutdown.cancel();
}

/// I7, I11: a chain from nothing to completed on the pages and in the API: escaped, filtered, without what observers must not see.
#[tokio::test(flavor = "multi_thread")]
async fn i7_the_pages_show_a_chain_and_nothing_secret() {
    let server = Server::start().await;
    let address = server.pages(Arc::default()).await;
    let empty = get(address, "/").await.1;
    assert!(empty.contains("There is no chain yet"), "{empty}");
    assert!(
        get(address, "/volunteers")
            .await
            .1
            .contains("Nobody has enrolled")
    );
    assert!(get(address, "/lend").await.1.contains(&server.url));

    let owner = server.owner().await;
    let mut new = new_chain("<b>demo</b>", 3);
    let archived = Digest::of(&output(1));
    new.request.hops[1].archived_digest = archived.to_vec();
    let id = new.create(&owner).await;
    let id = ChainId::from_slice(&id).unwrap();
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let given = ada.acquire(5).await.unwrap();
    let page = format!("/chains/{id}");
    let json = format!("/api/v1/chains/{id}");
    let (status, text) = get(address, &page).await;
    assert!(status.contains("200"), "{status}");
    assert!(
        text.contains("&lt;b&gt;demo&lt;/b&gt;") && !text.contains("<b>demo"),
        "{text}"
    );
    assert!(text.contains("unknown"), "no basis for an ETA yet");
    assert!(get(address, "/").await.1.contains("&lt;b&gt;demo"));
    let hidden = archived.to_string();
    let secrets = [hidden.as_str(), ada.token.rsplit('_').next().unwrap()];
    let everything = async || {
        let mut all = String::new();
        for path in [
            &page,
            &json,
            &format!("{json}/events"),
            &format!("{page}/manifest.sha256"),
        ] {
            all += &get(address, path).await.1;
        }
        all
    };
    let all = everything().await;
    assert!(secrets.iter().all(|secret| !all.contains(secret)));

    ada.hand_in(&given, &output(0)).await.unwrap();
    let second = bob.acquire(5).await.unwrap();
    bob.hand_in(&second, &output(0)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let first = Digest::of(&output(0)).to_string();
    let manifest = get(address, &format!("{page}/manifest.sha256")).await.1;
    assert!(
        manifest.contains(&format!("{first}  hop-000.ct")),
        "{manifest}"
    );
    let all = everything().await;
    assert!(all.contains(&first) && secrets.iter().all(|secret| !all.contains(secret)));
    let value: serde_json::Value = {
        let text = get(address, &json).await.1;
        let (start, end) = (text.find('{').unwrap(), text.rfind('}').unwrap());
        serde_json::from_str(&text[start..=end]).unwrap()
    };
    assert_eq!(value["chain"]["head"], 1);
    assert_eq!(
        value["hops"][0]["verified_by"],
        serde_json::json!(["ada", "bob"])
    );
    let filtered = get(address, &format!("{page}?hops=1-2&open=1")).await.1;
    assert!(filtered.contains("id=\"hop-1\"") && !filtered.contains("id=\"hop-0\""));
    let (status, text) = get(address, &format!("{page}?hops=2-1")).await;
    assert!(
        status.contains("400") && text.contains("5-25"),
        "{status} {text}"
    );
    assert!(get(address, "/chains/none").await.0.contains("404"));
    assert!(get(address, "/volunteers").await.1.contains("ada"));

    let accuracy = v1::PublishAccuracyRequest {
        chain_id: id.to_vec(),
        hops: vec![v1::HopAccuracy {
            hop: 0,
            max_err_over_f: 2e-5,
            worst_rel_rms: 3e-4,
        }],
    };
    owner.chain().publish_accuracy(accuracy).await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let text = get(address, &page).await.1;
    assert!(
        text.contains("<svg") && text.contains("2e-5") && text.contains("3e-4"),
        "{text}"
    );

    // a live update arrives after a change
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {page}/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = String::new();
    let mut piece = [0; 1024];
    let told = async {
        while seen.matches("data: changed").count() < 2 {
            let count = stream.read(&mut piece).await.unwrap();
            assert!(count > 0, "{seen}");
            seen += &String::from_utf8_lossy(&piece[..count]);
            if seen.matches("data: changed").count() == 1 && seen.len() < 900 {
                let pause = v1::SetChainStateRequest {
                    chain_id: id.to_vec(),
                    state: v1::ChainState::Paused.into(),
                    reason: "<i>tea</i>".into(),
                };
                let _ = server.admin().admin().set_chain_state(pause).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told)
        .await
        .unwrap();
    let text = get(address, &page).await.1;
    assert!(text.contains("&lt;i&gt;tea&lt;/i&gt;"), "{text}");
    server.shutdown.cancel();
}

/// Times come from the traces of accepted results: shown once the hop is verified, and left out where they cannot be.
#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_of_times_shows_what_accepted_results_report() {
    let server = Server::start().await;
    let address = server.pages(Arc::default()).await;
    let owner = server.owner().await;
    new_chain("demo", 3).create(&owner).await;
    let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
    let api = async || {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let (_, body) = get(address, "/api/v1/chains/demo").await;
        let (start, end) = (body.find('{').unwrap(), body.rfind('}').unwrap());
        serde_json::from_str::<serde_json::Value>(&body[start..=end]).unwrap()
    };
    let timed = |steps: &[(&str, f64)]| {
        let lines = steps.iter().map(|(name, seconds)| {
            format!(
                "{}\n",
                serde_json::json!({ "name": name, "seconds": seconds })
            )
        });
        lines.collect::<String>().into_bytes()
    };
    let first = timed(&[("softmax.cts", 3.25), ("ffn", 4.5), ("boot.evalmod", 21.5)]);
    let impossible = timed(&[("softmax.cts", 3.25), ("boot.cts", -5.0)]);
    let second = timed(&[("ffn", 2.0), ("boot.stc", 1.0)]);

    let given = ada.acquire(5).await.unwrap();
    ada.hand_in_with(&given, &output(0), &first).await.unwrap();
    let early = api().await;
    assert!(early["hops"][0]["reported_times"].is_null(), "{early}");
    assert_eq!(early["reported_times"]["all_results_compute_seconds"], 0.0);
    let given = bob.acquire(5).await.unwrap();
    bob.hand_in(&given, &output(0)).await.unwrap();
    let given = ada.acquire(5).await.unwrap();
    ada.hand_in_with(&given, &output(1), &impossible)
        .await
        .unwrap();
    let given = bob.acquire(5).await.unwrap();
    bob.hand_in_with(&given, &output(1), &second).await.unwrap();
    complete_from(&ada, &bob, 2, 3).await;

    let shown = api().await;
    let hop = &shown["hops"][0]["reported_times"];
    assert_eq!(hop["lay_seconds"], 7.75, "{shown}");
    assert_eq!(hop["boot_seconds"], 21.5);
    assert_eq!(hop["bootstraps"]["cts_seconds"], 3.25);
    assert_eq!(hop["bootstraps"]["evalmod_seconds"], 21.5);
    let hop = &shown["hops"][1]["reported_times"];
    assert_eq!(hop["lay_seconds"], 2.0, "the other account's times");
    assert!(shown["hops"][2]["reported_times"].is_null());
    let total = &shown["reported_times"];
    assert_eq!(total["hops_reported"], 2);
    assert_eq!(total["lay_seconds"], 9.75);
    assert_eq!(total["boot_seconds"], 22.5);
    assert_eq!(total["all_results_compute_seconds"], 9.0);
    let (_, body) = get(address, "/api/v1/volunteers").await;
    assert_eq!(body.matches("\"hop_seconds\":4.5").count(), 2, "{body}");
    let (_, page) = get(address, "/chains/demo").await;
    for text in [
        "lay 7.75 s, boot 21.5 s",
        "StC 0.00 s, ModRaise 0.00 s, CtS 3.25 s, EvalMod 21.5 s",
        "As reported",
        "not reported",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    server.shutdown.cancel();
}

/// Programs get JSON for every answer of the API, people a page, probes a line; the database here lost two tables.
#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_reader_gets_errors_in_its_own_form() {
    let server = Server::start().await;
    let address = server.pages(Arc::default()).await;
    let owner = server.owner().await;
    new_chain("demo", 1).create(&owner).await;
    let told = async |method: &str, path: &str| {
        let (head, body) = ask(address, method, path).await;
        assert!(head.contains("application/json"), "{path}: {head}");
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(!value["error"]["message"].as_str().unwrap().is_empty());
        let code: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, value["error"]["reason"].as_str().unwrap().to_owned())
    };
    for (method, path, code, reason) in [
        ("GET", "/api/v1/chains/none", 404, "CHAIN_NOT_FOUND"),
        ("GET", "/api/v1/chains/none/events", 404, "CHAIN_NOT_FOUND"),
        (
            "GET",
            "/api/v1/chains/demo/events?after=x",
            400,
            "BAD_REQUEST",
        ),
        ("GET", "/api/v1/chains/%ff", 400, "BAD_REQUEST"),
        ("GET", "/api/v1/nothing", 404, "BAD_REQUEST"),
        ("POST", "/api/v1/chains", 405, "BAD_REQUEST"),
    ] {
        assert_eq!(told(method, path).await, (code, reason.into()), "{path}");
    }
    let (head, body) = ask(address, "POST", "/volunteers").await;
    assert!(head.contains(" 405 ") && body.contains("use GET"), "{head}");

    let file = server.dir.path().join("coordinator.db");
    let mut database = SqliteConnection::connect(&format!("sqlite://{}", file.display()))
        .await
        .unwrap();
    for table in ["audit", "attempts"] {
        let gone = format!("ALTER TABLE {table} RENAME TO {table}_gone");
        sqlx::raw_sql(sqlx::AssertSqlSafe(gone))
            .execute(&mut database)
            .await
            .unwrap();
    }
    let unavailable = (503, "STORE_UNAVAILABLE".to_owned());
    assert_eq!(told("GET", "/api/v1/chains/demo").await, unavailable);
    let (head, body) = ask(address, "GET", "/chains/demo").await;
    assert!(head.contains(" 503 ") && body.contains("<h1>"), "{head}");
    assert!(!body.contains("attempts"), "what failed stays in the log");
    let (head, body) = ask(address, "GET", "/readyz").await;
    assert!(head.contains(" 503 "), "{head}");
    assert_eq!(body, "the database does not answer\n");
    server.shutdown.cancel();
}

/// The database is gone between the two halves: what was just read serves everybody who asks at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn many_browsers_of_one_chain_cost_one_reading() {
    let server = Server::start().await;
    let address = server.pages(Arc::default()).await;
    new_chain("demo", 1).create(&server.owner().await).await;
    let file = server.dir.path().join("coordinator.db");
    let mut database = SqliteConnection::connect(&format!("sqlite://{}", file.display()))
        .await
        .unwrap();
    let mut rename = async |from: &str, to: &str| {
        let change = format!("ALTER TABLE {from} RENAME TO {to}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(change))
            .execute(&mut database)
            .await
            .unwrap();
    };
    // a machine that stands still for a moment gets another try
    for attempt in 0.. {
        let (status, first) = get(address, "/chains/demo").await;
        assert!(status.contains("200"), "{status}");
        rename("attempts", "attempts_gone").await;
        let (start, mut all) = (Instant::now(), Vec::new());
        for _ in 0..50 {
            all.push(tokio::spawn(get(address, "/chains/demo")));
        }
        let mut same = 0;
        for asked in all {
            let (status, text) = asked.await.unwrap();
            same += usize::from(status.contains("200") && text == first);
        }
        let quick = start.elapsed() < Duration::from_millis(300);
        rename("attempts_gone", "attempts").await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        if quick || attempt == 5 {
            assert_eq!(same, 50);
            break;
        }
    }
    server.shutdown.cancel();
}

#[test]
fn the_document_is_the_table() {
    let mut text = String::from(
        "# Metrics\n\n`cipherhop-coordinator serve --http 127.0.0.1:7071` serves `/metrics` (OpenMetrics text, for Prometheus),\n\
         `/healthz` (the process answers) and `/readyz` (the database answers and no shutdown has begun; 503 otherwise).\n\
         Counts of the database are the same from every replica; `cipherhop_results` and `cipherhop_event_lag` are of one process.\n\n\
         This page is made from the table in `coordinator/src/metrics.rs`; a test compares them (`UPDATE_DOCS=1` writes it anew).\n\n\
         | metric | label | what | when to look |\n|---|---|---|---|\n",
    );
    for m in METRICS {
        writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            m.name, m.label, m.help, m.alarm
        )
        .unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        text,
        "run the test with UPDATE_DOCS=1"
    );
}
