//! What an operator's monitoring reads, and when it should ring.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cipherhop_proto::v1::submit_response::Outcome;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::domain::hop::HopState;
use crate::domain::trust::DeviceState;
use crate::store::Overview;

/// Content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric and the alarm it is for.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its label; empty for none.
    pub label: &'static str,
    /// What it counts, with the unit.
    pub help: &'static str,
    /// When to look, and what to do.
    pub alarm: &'static str,
}

const fn metric(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    alarm: &'static str,
) -> Metric {
    Metric {
        name,
        label,
        help,
        alarm,
    }
}

/// Every metric, in the order of the page.
pub const METRICS: &[Metric] = &[
    metric(
        "cipherhop_chains",
        "state",
        "Chains by state",
        "`Stuck` above 0: `cipherhop-coordinator chain show` names the reason; `hop requeue` opens the hop again",
    ),
    metric(
        "cipherhop_hops",
        "state",
        "Head hops of active chains by state",
        "`Ready` above 0 for hours: no volunteer takes them; see oldest_ready",
    ),
    metric(
        "cipherhop_devices",
        "state",
        "Devices by state",
        "`Quarantined` grows: results were refuted; `device list` has the notes",
    ),
    metric(
        "cipherhop_leases",
        "",
        "Live leases",
        "0 while hops are Ready: volunteers are gone or refused; look at their reasons",
    ),
    metric(
        "cipherhop_leases_silent",
        "",
        "Live leases past their soft expiry and grace",
        "more than a tenth of the leases for an hour: volunteers lose their connection",
    ),
    metric(
        "cipherhop_oldest_lease_seconds",
        "",
        "Seconds since the oldest live lease was handed out",
        "above leases.deadline_floor_seconds: a worker hangs; the reaper ends it at its deadline",
    ),
    metric(
        "cipherhop_longest_silence_seconds",
        "",
        "Seconds since the last sign of life of the quietest live lease",
        "above the soft lease and its grace, while leases_silent is 0: the reaper does not run",
    ),
    metric(
        "cipherhop_oldest_ready_seconds",
        "",
        "Seconds that the longest waiting ready hop has waited",
        "above an hour: nobody can or may take it; invite volunteers, or see why they are refused",
    ),
    metric(
        "cipherhop_oldest_verifying_seconds",
        "",
        "Seconds that the longest waiting result has waited for a second one",
        "above a few times a hop's time: too few accounts for the quorum; invite one more",
    ),
    metric(
        "cipherhop_rechecks",
        "",
        "Verified hops that wait to be run again, because a device lost its trust",
        "above 0 for a day: other accounts are needed to run them",
    ),
    metric(
        "cipherhop_uploads",
        "",
        "Uploads in progress",
        "grows without end: uploads are begun and not finished",
    ),
    metric(
        "cipherhop_event_lag",
        "",
        "Events that the watchers of this process were not told of yet",
        "above 0 for a minute: notifications of the database do not arrive; polling still finds them",
    ),
    metric(
        "cipherhop_disk_free_bytes",
        "",
        "Bytes free on the disk of the data folder",
        "below twice disk_headroom_bytes: make room before uploads are refused with STORAGE_FULL",
    ),
    metric(
        "cipherhop_disk_headroom_bytes",
        "",
        "Bytes of blobs.headroom_bytes, which uploads leave free",
        "for the ratio only",
    ),
    metric(
        "cipherhop_results",
        "outcome",
        "Results taken by this process since it started, by outcome (a counter)",
        "the rate of mismatches above 2 % of all: a faulty machine or an attack; `device list` and the audit log",
    ),
];

/// What this process counted since it started.
#[derive(Debug)]
pub struct Counters {
    results: Family<Vec<(String, String)>, Counter>,
}

impl Default for Counters {
    /// Every outcome stands there from the start: a rate sees the first result only after a 0.
    fn default() -> Self {
        let results = Family::default();
        for outcome in (1..).map_while(|number| Outcome::try_from(number).ok()) {
            drop(results.get_or_create(&labels(outcome)));
        }
        Self { results }
    }
}

impl Counters {
    /// Counts an answered submit.
    pub fn result(&self, outcome: Outcome) {
        self.results.get_or_create(&labels(outcome)).inc();
    }
}

fn labels(outcome: Outcome) -> Vec<(String, String)> {
    vec![("outcome".into(), outcome.as_str_name().into())]
}

/// The disk of the data folder.
#[derive(Debug, Clone)]
pub struct Disk {
    /// A folder on it.
    pub folder: PathBuf,
    /// Space that uploads leave free, bytes.
    pub headroom_bytes: u64,
}

impl Disk {
    /// Bytes an ordinary user may still take; `None` where the system does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        let about = nix::sys::statvfs::statvfs(&self.folder).ok()?;
        // the types of both differ between systems
        #[allow(clippy::useless_conversion)]
        u64::from(about.blocks_available()).checked_mul(u64::from(about.fragment_size()))
    }
}

/// States of a chain.
const CHAINS: &[&str] = &["Active", "Paused", "Stuck", "Completed", "Cancelled"];
/// States of the head hop of an active chain.
const HOPS: &[&str] = &[
    HopState::Ready.name(),
    HopState::Running.name(),
    HopState::Verifying.name(),
];
/// States of a device.
const DEVICES: &[&str] = &[
    DeviceState::New.name(),
    DeviceState::Probation.name(),
    DeviceState::Trusted.name(),
    DeviceState::Quarantined.name(),
    DeviceState::Banned.name(),
];

type Value = Gauge<f64, AtomicU64>;

struct Page(Registry);

impl Page {
    fn about(&self, name: &'static str) -> &'static str {
        METRICS
            .iter()
            .find(|m| m.name == name)
            .map_or("", |m| m.help)
    }

    fn one(&mut self, name: &'static str, value: f64) {
        let gauge = Value::default();
        gauge.set(value);
        let help = self.about(name);
        self.0.register(name, help, gauge);
    }

    /// Every state stands there, also with 0: alarms need a value.
    fn by_state(
        &mut self,
        name: &'static str,
        states: &[&'static str],
        counts: &BTreeMap<&'static str, u64>,
    ) {
        let family = Family::<Vec<(String, String)>, Value>::default();
        for state in states {
            let label = vec![("state".to_owned(), (*state).to_owned())];
            let count = counts.get(state).copied().unwrap_or(0);
            family.get_or_create(&label).set(count as f64);
        }
        let help = self.about(name);
        self.0.register(name, help, family);
    }

    fn seconds(&mut self, name: &'static str, time: Duration) {
        self.one(name, time.as_secs_f64());
    }
}

/// The page: OpenMetrics text. `told`: sequence number of the newest event that watchers were told of.
pub fn render(
    view: &Overview,
    told: u64,
    counters: &Counters,
    disk: &Disk,
) -> Result<String, fmt::Error> {
    let mut page = Page(Registry::default());
    page.by_state("cipherhop_chains", CHAINS, &view.chains);
    page.by_state("cipherhop_hops", HOPS, &view.hops);
    page.by_state("cipherhop_devices", DEVICES, &view.devices);
    page.one("cipherhop_leases", view.leases as f64);
    page.one("cipherhop_leases_silent", view.silent as f64);
    page.seconds("cipherhop_oldest_lease_seconds", view.oldest_lease);
    page.seconds("cipherhop_longest_silence_seconds", view.longest_silence);
    page.seconds("cipherhop_oldest_ready_seconds", view.oldest_ready);
    page.seconds("cipherhop_oldest_verifying_seconds", view.oldest_verifying);
    page.one("cipherhop_rechecks", view.rechecks as f64);
    page.one("cipherhop_uploads", view.uploads as f64);
    page.one(
        "cipherhop_event_lag",
        view.newest_event.saturating_sub(told) as f64,
    );
    if let Some(free) = disk.free_bytes() {
        page.one("cipherhop_disk_free_bytes", free as f64);
    }
    page.one("cipherhop_disk_headroom_bytes", disk.headroom_bytes as f64);
    let help = page.about("cipherhop_results");
    page.0
        .register("cipherhop_results", help, counters.results.clone());
    let mut text = String::new();
    encode(&mut text, &page.0)?;
    Ok(text)
}
