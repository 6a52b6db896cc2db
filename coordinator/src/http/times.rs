//! How long accepted results took, as their volunteers report it: the traces that came with the results have a time for
//! every step, also of steps that ran before an interruption. Nobody can check these times, and nothing rests on them.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use cipherhop_proto::Digest;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Site;
use crate::blobs::{BlobError, read_all};
use crate::domain::view::{ChainStatus, HopView};

/// Larger traces are not looked into: a trace of a hop has some 20 KiB.
const MOST_BYTES: u64 = 1 << 20;
const MOST_STEPS: usize = 4096;
/// A step that claims to have taken longer, in seconds (about four months), was not measured.
const LONGEST_STEP: f64 = 1e7;
/// So many traces are remembered; a hundred bytes each.
const REMEMBERED: usize = 1 << 16;

/// Seconds of one hop's steps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StepTimes {
    /// The layer's forward part.
    lay: f64,
    /// The refresh at the end.
    boot: f64,
    /// Stages of all bootstraps, of which `lay` has some too; in the order of [`STAGES`].
    stages: [f64; 4],
}

/// Stages of a bootstrap: name on pages, name in the API.
const STAGES: [(&str, &str); 4] = [
    ("StC", "stc_seconds"),
    ("ModRaise", "modraise_seconds"),
    ("CtS", "cts_seconds"),
    ("EvalMod", "evalmod_seconds"),
];

/// What the pages want of a trace's line.
#[derive(Deserialize)]
struct Line {
    name: String,
    seconds: f64,
}

impl StepTimes {
    /// Reads the times out of a trace; `None` where it has none that could be.
    fn read(trace: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(trace).ok()?;
        let mut times = Self::default();
        let mut steps = 0;
        for line in text.lines() {
            steps += 1;
            let line: Line = serde_json::from_str(line).ok()?;
            if steps > MOST_STEPS || !(0.0..=LONGEST_STEP).contains(&line.seconds) {
                return None;
            }
            times.count(&line);
        }
        (steps > 0).then_some(times)
    }

    /// Steps are named `boot.STAGE` in the refresh at the end, `residual2` joins it, and `PART.STAGE` before.
    fn count(&mut self, line: &Line) {
        let refresh = line.name.starts_with("boot.") || line.name == "residual2";
        *(if refresh {
            &mut self.boot
        } else {
            &mut self.lay
        }) += line.seconds;
        let stage = match line.name.rsplit('.').next().unwrap_or_default() {
            "stc" => 0,
            "modraise" => 1,
            "cts" => 2,
            "evalmod" | "evalmod-re" | "evalmod-im" => 3,
            _ => return,
        };
        self.stages[stage] += line.seconds;
    }

    fn add(&mut self, other: &Self) {
        self.lay += other.lay;
        self.boot += other.boot;
        for (sum, seconds) in self.stages.iter_mut().zip(other.stages) {
            *sum += seconds;
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({ "lay_seconds": self.lay, "boot_seconds": self.boot });
        for ((_, name), seconds) in STAGES.iter().zip(self.stages) {
            value["bootstraps"][name] = json!(seconds);
        }
        value
    }
}

/// Times of a chain's hops.
pub(super) struct Times {
    hops: BTreeMap<u32, StepTimes>,
    total: StepTimes,
    /// Seconds of every accepted result together, also of those whose trace tells no steps.
    given: f64,
}

impl Site {
    /// Times of the verified hops, each from the first accepted result that tells them.
    pub(super) async fn times(&self, status: &ChainStatus) -> Times {
        let mut times = Times {
            hops: BTreeMap::new(),
            total: StepTimes::default(),
            given: 0.0,
        };
        for hop in &status.hops {
            let reports = hop.reports.iter();
            times.given += reports.map(|r| r.compute.as_secs_f64()).sum::<f64>();
            if let Some(told) = self.times_of(hop).await {
                times.total.add(&told);
                times.hops.insert(hop.index, told);
            }
        }
        times
    }

    async fn times_of(&self, hop: &HopView) -> Option<StepTimes> {
        for report in &hop.reports {
            if let Some(times) = self.read_times(report.trace).await {
                return Some(times);
            }
        }
        None
    }

    /// Each trace is read once: its bytes never change.
    async fn read_times(&self, trace: Digest) -> Option<StepTimes> {
        let lock = || self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&trace).copied() {
            return known;
        }
        let times = match read_all(&*self.pages.blobs, trace, MOST_BYTES).await {
            Ok(bytes) => StepTimes::read(&bytes),
            Err(BlobError::TooLarge { .. }) => None,
            Err(error) => {
                tracing::warn!(%trace, %error, "the times of a trace cannot be shown");
                return None;
            }
        };
        let mut known = lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(trace, times);
        times
    }
}

impl Times {
    /// Of a hop, for the API: null where no accepted result reports any.
    pub(super) fn hop_json(&self, hop: u32) -> Value {
        self.hops.get(&hop).map_or(Value::Null, StepTimes::json)
    }

    /// Of the chain.
    pub(super) fn json(&self) -> Value {
        let mut value = self.total.json();
        value["hops_reported"] = json!(self.hops.len());
        value["all_results_compute_seconds"] = json!(self.given);
        value
    }
}

/// 0.42 -> "0.42 s", 75.3 -> "75.3 s".
fn seconds(value: f64) -> String {
    match value {
        10.0.. => format!("{value:.1} s"),
        _ => format!("{value:.2} s"),
    }
}

/// Widths of the two kinds of bars, in pixels.
const BAR: f64 = 220.0;

/// Parts one after another: the whole is as wide as it is long compared with the longest.
fn bar(parts: &[(&str, &str, f64)], longest: f64) -> Markup {
    let wide = |s: f64| s / longest.max(f64::MIN_POSITIVE) * BAR;
    let mut at = 0.0;
    let mut placed = Vec::new();
    for (class, name, s) in parts {
        placed.push((class, name, *s, at));
        at += wide(*s);
    }
    let label: Vec<String> = parts
        .iter()
        .map(|(_, name, s)| format!("{name} {}", seconds(*s)))
        .collect();
    html! {
        svg.time role="img" aria-label=(label.join(", ")) viewBox={ "0 0 " (BAR) " 14" } width=(BAR) height="14" {
            @for (class, name, s, x) in placed {
                rect class=(class) x=(format!("{x:.2}")) y="1" width=(format!("{:.2}", wide(s))) height="12" {
                    title { (name) ": " (seconds(s)) }
                }
            }
        }
    }
}

fn parts_bar(times: &StepTimes, longest: f64) -> Markup {
    bar(
        &[("lay", "lay", times.lay), ("boot", "boot", times.boot)],
        longest,
    )
}

fn stages_bar(times: &StepTimes, longest: f64) -> Markup {
    const CLASSES: [&str; 4] = ["stc", "modraise", "cts", "evalmod"];
    let parts: Vec<(&str, &str, f64)> = (0..STAGES.len())
        .map(|i| (CLASSES[i], STAGES[i].0, times.stages[i]))
        .collect();
    bar(&parts, longest)
}

/// A row behind the hop's number; the bars' full lengths stand for `longest` and `stages` seconds.
fn cells(times: &StepTimes, longest: f64, stages: f64) -> Markup {
    html! {
        td data-label="lay" { (seconds(times.lay)) }
        td data-label="boot" { (seconds(times.boot)) }
        td.whole { (parts_bar(times, longest)) }
        @for ((name, _), s) in STAGES.iter().zip(times.stages) { td data-label=(name) { (seconds(s)) } }
        td.whole { (stages_bar(times, stages)) }
    }
}

/// The ledger of times: lay and boot of every verified hop, and the stages of its bootstraps.
pub(super) fn ledger(status: &ChainStatus, times: &Times) -> Markup {
    let verified: Vec<u32> = (status.hops.iter())
        .filter(|hop| hop.accepted.is_some())
        .map(|hop| hop.index)
        .collect();
    if verified.is_empty() {
        return html! {};
    }
    let most = |of: fn(&StepTimes) -> f64| times.hops.values().map(of).fold(0.0, f64::max);
    let longest = most(|t| t.lay + t.boot);
    let stages = most(|t| t.stages.iter().sum());
    let total = &times.total;
    html! {
        h2 { "Time" }
        p {
            "As reported by the volunteers, for the first accepted result of each hop; nobody can check these times. All \
             accepted results together took " (seconds(times.given)) "."
        }
        div.wide { table.cards aria-label="Time" {
            thead { tr {
                th { "Hop" } th { "Lay" } th { "Boot" } th { "Lay, then boot" }
                @for (name, _) in STAGES { th { (name) } }
                th { "All bootstraps of the hop" }
            } }
            tbody {
                @for hop in &verified {
                    tr {
                        td data-label="hop" { (hop) }
                        @match times.hops.get(hop) {
                            Some(t) => {
                                (cells(t, longest, stages))
                            },
                            None => td colspan="8" { "not reported" },
                        }
                    }
                }
                @if !times.hops.is_empty() {
                    tr {
                        td { "All" }
                        (cells(total, total.lay + total.boot, total.stages.iter().sum()))
                    }
                }
            }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&str, &str)]) -> Option<StepTimes> {
        let lines = lines
            .iter()
            .map(|(name, s)| format!("{{\"step\":0,\"name\":\"{name}\",\"seconds\":{s}}}\n"));
        StepTimes::read(lines.collect::<String>().as_bytes())
    }

    #[test]
    fn steps_count_for_lay_or_boot_and_for_their_stage() {
        let times = read(&[
            ("qkv", "1"),
            ("softmax.stc", "2"),
            ("softmax.evalmod-re", "4"),
            ("softmax.evalmod-im", "8"),
            ("boot.stc", "16"),
            ("boot.modraise", "32"),
            ("boot.cts", "64"),
            ("boot.evalmod", "128"),
            ("residual2", "256"),
        ])
        .unwrap();
        assert_eq!((times.lay, times.boot), (15.0, 496.0));
        assert_eq!(times.stages, [18.0, 32.0, 64.0, 140.0]);
    }

    #[test]
    fn times_that_cannot_be_are_not_shown() {
        assert!(read(&[("a", "1e7")]).is_some());
        for wrong in ["-1", "1.1e7", "1e999", "null", "\"1\""] {
            assert_eq!(read(&[("a", "1"), ("b", wrong)]), None, "{wrong}");
        }
        assert_eq!(StepTimes::read(b""), None);
        assert_eq!(StepTimes::read(&[0xff]), None);
        assert_eq!(read(&vec![("a", "1"); MOST_STEPS + 1]), None);
    }
}
