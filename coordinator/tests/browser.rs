//! The pages in a real browser: a coordinator with a chain in every state, and `browser/*.test.mjs` that look at it.
//! A picture of every page is left in the target folder under `tmp/pages`.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "browser/site.rs"]
mod site;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Server, cluster};
use site::Site;
use tokio::process::Command;

/// Oldest Node.js that the browser's driver runs on.
const NODE: u32 = 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser")
}

/// The browser: `CIPHERHOP_TEST_BROWSER`, or a Chromium in PATH.
fn browser() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("CIPHERHOP_TEST_BROWSER") {
        return Some(set.into());
    }
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.exists())
}

/// The browser, or what this machine lacks and what to do about it.
async fn tools() -> Result<PathBuf, String> {
    let version = Command::new("node").arg("--version").output().await;
    let version = version.map_or_else(
        |_| "none".into(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    );
    let major = version.trim_start_matches('v').split('.').next();
    let major: Option<u32> = major.and_then(|number| number.parse().ok());
    if major.is_none_or(|major| major < NODE) {
        return Err(format!(
            "install Node.js {NODE} or newer (found: {version})"
        ));
    }
    if !folder().join("node_modules/playwright-core").exists() {
        return Err("run npm ci in coordinator/tests/browser".into());
    }
    browser().ok_or("install the package chromium or set CIPHERHOP_TEST_BROWSER".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn people_can_read_and_use_the_pages() {
    let browser = match tools().await {
        Ok(browser) => browser,
        Err(what) => return cluster::skipped(&format!("pages in a browser: {what}")),
    };
    let site = Arc::new(Site::build().await);
    let pages = site.server.pages(Arc::default()).await;
    let empty = Server::start().await;
    let empty_pages = empty.pages(Arc::default()).await;
    let told = serde_json::json!({
        "pages": format!("http://{pages}"), "empty": format!("http://{empty_pages}"),
        "control": format!("http://{}", site.clone().controlled(empty, empty_pages).await),
        "grpc": site.server.url, "chains": site.chains, "browser": browser,
        "pictures": Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages"),
    });
    let run = Command::new("node")
        .args(["--test-reporter=spec", "--test-timeout=1200000", "--test"])
        .args(["--test-concurrency=1", "."])
        .current_dir(folder())
        .env("CIPHERHOP_SITE", told.to_string())
        .kill_on_drop(true)
        .status()
        .await
        .unwrap();
    assert!(run.success(), "see the failed checks above");
    site.server.shutdown.cancel();
}
