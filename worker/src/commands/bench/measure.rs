//! Clocks, and one result.

use std::time::Instant;

use nix::time::ClockId;
use serde::{Serialize, Serializer};

use super::Setup;
use crate::units;

/// A run shorter than this repeats its operation, seconds; `compare/openfhe_ops.py` does the same.
const LEAST_RUN: f64 = 0.5;
const MOST_REPEATS: usize = 10_000;

/// Seconds of processor time of all threads so far, and of the clock on the wall.
fn clocks(origin: Instant) -> (f64, f64) {
    let wall = origin.elapsed().as_secs_f64();
    let cpu = ClockId::CLOCK_PROCESS_CPUTIME_ID.now();
    let cpu = cpu.map(|t| t.tv_sec() as f64 + t.tv_nsec() as f64 * 1e-9);
    (cpu.unwrap_or(wall), wall)
}

/// Sorted seconds of several runs.
#[derive(Debug, Default)]
pub(super) struct Times {
    runs: usize,
    repeats: usize,
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl Times {
    /// A warm-up, then `runs` runs. `operation` may return its profile; the one of the fastest run is kept.
    pub(super) fn of<E>(
        runs: usize,
        mut operation: impl FnMut() -> Result<Profile, E>,
    ) -> Result<(Times, Profile), E> {
        let origin = Instant::now();
        operation()?;
        let once = origin.elapsed().as_secs_f64().max(1e-7);
        let repeats = ((LEAST_RUN / once).ceil() as usize).clamp(1, MOST_REPEATS);
        let mut times = Times {
            runs,
            repeats,
            ..Times::default()
        };
        let (mut best, mut kept) = (f64::MAX, Profile::new());
        for _ in 0..runs {
            let begin = clocks(origin);
            let mut profile = Profile::new();
            for _ in 0..repeats {
                profile = operation()?;
            }
            let end = clocks(origin);
            let (cpu, wall) = (end.0 - begin.0, end.1 - begin.1);
            if wall < best {
                (best, kept) = (wall, profile);
            }
            times.cpu.push(cpu / repeats as f64);
            times.wall.push(wall / repeats as f64);
        }
        times.cpu.sort_by(f64::total_cmp);
        times.wall.sort_by(f64::total_cmp);
        Ok((times, kept))
    }
}

/// Minimum, median, maximum of sorted values.
fn spread(sorted: &[f64]) -> (f64, f64, f64) {
    let at = |i: usize| sorted.get(i).copied().unwrap_or(0.0);
    let (last, half) = (sorted.len().saturating_sub(1), sorted.len() / 2);
    let median = match sorted.len() % 2 {
        0 => (at(half.saturating_sub(1)) + at(half)) / 2.0,
        _ => at(half),
    };
    (at(0), median, at(last))
}

/// Seconds by stage or step, in their order; an object in JSON.
pub(super) type Profile = Vec<(String, f64)>;

fn as_object<S: Serializer>(profile: &Profile, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(profile.iter().map(|(name, seconds)| (name, seconds)))
}

/// One result, one JSON object.
#[derive(Debug, Default, Serialize)]
pub(super) struct Line {
    name: String,
    params: String,
    /// "128 bits" or "INSECURE".
    security: &'static str,
    threads: usize,
    isa: &'static str,
    runs: usize,
    /// How often a run repeats the operation; the seconds are of one.
    repeats: usize,
    min_s: f64,
    median_s: f64,
    max_s: f64,
    cpu_min_s: f64,
    cpu_median_s: f64,
    cpu_max_s: f64,
    peak_rss_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limbs: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<usize>,
    /// Bits of the worst and of the average error; null where no key holder's program measured them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst_bits: Option<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) average_bits: Option<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) levels_left: Option<usize>,
    /// Evaluation keys read, both halves, at the limbs used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_bytes: Option<u64>,
    /// Different keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<usize>,
    /// Key files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) download_bytes: Option<u64>,
    /// The same keys with their uniform halves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expanded_bytes: Option<u64>,
    #[serde(
        skip_serializing_if = "Profile::is_empty",
        serialize_with = "as_object"
    )]
    pub(super) profile: Profile,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

impl Line {
    /// Column titles of the table for people.
    pub(super) const TITLES: &str =
        "name                       median        min        max   cpu median   peak memory";

    pub(super) fn new(setup: &Setup, name: impl Into<String>, times: &Times) -> Line {
        let (min_s, median_s, max_s) = spread(&times.wall);
        let (cpu_min_s, cpu_median_s, cpu_max_s) = spread(&times.cpu);
        Line {
            name: name.into(),
            params: setup.params.name.clone(),
            security: match setup.params.is_insecure() {
                true => "INSECURE",
                false => "128 bits",
            },
            threads: setup.threads,
            isa: setup.isa.name(),
            runs: times.runs,
            repeats: times.repeats,
            min_s,
            median_s,
            max_s,
            cpu_min_s,
            cpu_median_s,
            cpu_max_s,
            peak_rss_bytes: peak_memory(),
            ..Line::default()
        }
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn text(&self) -> String {
        let name = match self.limbs {
            Some(limbs) => format!("{}, {limbs} limbs", self.name),
            None => self.name.clone(),
        };
        let mut out = format!(
            "{name:24} {:>8} {:>10} {:>10}   {:>10}   {:>11}",
            duration(self.median_s),
            duration(self.min_s),
            duration(self.max_s),
            duration(self.cpu_median_s),
            units::bytes(self.peak_rss_bytes)
        );
        let mut more = Vec::new();
        if let Some((worst, average)) = self.worst_bits.zip(self.average_bits) {
            let bits = |b: Option<f64>| b.map_or("unknown".into(), |b| format!("{b:.1}"));
            more.push(format!(
                "bits: {} worst, {} average",
                bits(worst),
                bits(average)
            ));
        }
        if let Some(tokens) = self.tokens {
            more.push(format!("{tokens} private token(s)"));
        }
        if let Some(levels) = self.levels_left {
            more.push(format!("{levels} levels left"));
        }
        if let Some(bytes) = self.key_bytes {
            more.push(format!("{} of keys read", units::bytes(bytes)));
        }
        if let Some(keys) = self.keys {
            more.push(format!("{keys} keys"));
        }
        if let Some((download, expanded)) = self.download_bytes.zip(self.expanded_bytes) {
            let (download, expanded) = (units::bytes(download), units::bytes(expanded));
            more.push(format!("download {download}, expanded {expanded}"));
        }
        if !self.profile.is_empty() {
            let whole: f64 = self.profile.iter().map(|(_, seconds)| seconds).sum();
            let part = |(name, s): &(String, f64)| {
                format!("{name} {} ({:.0} %)", duration(*s), 100.0 * s / whole)
            };
            more.push(self.profile.iter().map(part).collect::<Vec<_>>().join(", "));
        }
        if !self.note.is_empty() {
            more.push(self.note.clone());
        }
        for text in more {
            out.push_str("\n    ");
            out.push_str(&text);
        }
        out
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Most memory that was resident since the last [`forget_peak`], bytes; 0 where the system does not say.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Starts the peak of memory anew. Not every system allows it; the peak then stays that of the process.
pub(super) fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_runs_lies_between_the_middle_two() {
        assert_eq!(spread(&[1.0, 2.0, 9.0]), (1.0, 2.0, 9.0));
        assert_eq!(spread(&[1.0, 2.0, 4.0, 9.0]), (1.0, 3.0, 9.0));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
    }

    #[test]
    fn short_operations_are_repeated_and_profiles_kept() {
        let mut count = 0;
        let run = || -> Result<Profile, ()> {
            count += 1;
            Ok(vec![("all".into(), 1.0)])
        };
        let (times, profile) = Times::of(3, run).unwrap();
        assert_eq!((times.wall.len(), times.cpu.len()), (3, 3));
        assert!(times.repeats > 1 && count == 1 + 3 * times.repeats);
        assert_eq!(profile.len(), 1);
    }

    #[test]
    fn processor_time_passes_with_work() {
        let origin = Instant::now();
        let (begin, _) = clocks(origin);
        std::hint::black_box((0..30_000_000u64).fold(0, |a, b| a ^ b.wrapping_mul(a | 1)));
        let (end, wall) = clocks(origin);
        assert!(end > begin && wall > 0.0);
    }
}
