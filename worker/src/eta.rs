//! Remaining time of a hop as a range, from step times measured on this machine; unknown rather than wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable::write_atomic;
use crate::error::WorkerError;

/// Times kept per step.
const KEEP: usize = 6;

/// Measured seconds: (parameter set, steps of the hop, threads) -> step index -> last times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    #[serde(skip)]
    path: PathBuf,
    times: BTreeMap<String, BTreeMap<u32, Vec<f64>>>,
}

impl Timings {
    /// Reads the file; a missing or damaged one only means that nothing is known.
    pub fn open(path: &Path) -> Timings {
        let read = std::fs::read(path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Timings>(&bytes).ok());
        Timings {
            path: path.to_owned(),
            ..read.unwrap_or_default()
        }
    }

    /// Writes the file.
    pub fn save(&self) -> Result<(), WorkerError> {
        write_atomic(
            &self.path,
            &serde_json::to_vec(self).unwrap_or_default(),
            false,
        )
    }

    /// Adds a measurement.
    pub fn record(&mut self, key: &str, index: u32, seconds: f64) {
        if !(seconds.is_finite() && seconds >= 0.0) {
            return;
        }
        let times = self
            .times
            .entry(key.to_owned())
            .or_default()
            .entry(index)
            .or_default();
        times.push(seconds);
        if times.len() > KEEP {
            times.remove(0);
        }
    }

    fn of(&self, key: &str, index: u32) -> Option<(f64, f64)> {
        let times = self.times.get(key)?.get(&index)?;
        let low = times.iter().copied().reduce(f64::min)?;
        let high = times.iter().copied().reduce(f64::max)?;
        Some((low, high))
    }

    /// What lies under one key, for hops that look alike.
    pub fn key(parameter_set: &str, steps: u32, threads: usize) -> String {
        format!("{parameter_set}/{steps} steps/{threads} threads")
    }
}

/// Follows one hop.
#[derive(Clone, Debug)]
pub struct Estimator {
    key: String,
    total: u32,
    done: u32,
    /// Steps completed in this run, with their times.
    measured: Vec<(u32, f64)>,
}

impl Estimator {
    /// A hop of `total` steps of which `done` were found complete.
    pub fn new(parameter_set: &str, total: u32, done: u32, threads: usize) -> Estimator {
        Estimator {
            key: Timings::key(parameter_set, total, threads),
            total,
            done,
            measured: Vec::new(),
        }
    }

    /// A step was completed.
    pub fn step_done(&mut self, timings: &mut Timings, index: u32, seconds: f64) {
        timings.record(&self.key, index, seconds);
        self.measured.push((index, seconds));
        self.done = self.done.max(index.saturating_add(1)).min(self.total);
    }

    /// Completed steps.
    pub fn done(&self) -> u32 {
        self.done
    }

    /// All steps.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Lowest and highest estimate of the remaining seconds; `None` while too little is known.
    pub fn remaining(&self, timings: &Timings) -> Option<(f64, f64)> {
        let left: Vec<u32> = (self.done..self.total).collect();
        if left.is_empty() {
            return Some((0.0, 0.0));
        }
        let known: Option<Vec<(f64, f64)>> = left
            .iter()
            .map(|index| timings.of(&self.key, *index))
            .collect();
        if let Some(known) = known {
            let (low, high) = known
                .iter()
                .fold((0.0, 0.0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
            // Machines have other work too: a single earlier hop is no guarantee.
            return Some((low * 0.9, high * 1.2));
        }
        if self.measured.len() < 3 || self.measured.len() * 5 < self.total as usize {
            return None;
        }
        let mean = self.measured.iter().map(|(_, s)| s).sum::<f64>() / self.measured.len() as f64;
        let left = left.len() as f64;
        Some((0.4 * mean * left, 2.5 * mean * left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_claimed_before_something_is_known() {
        let mut timings = Timings::default();
        let mut hop = Estimator::new("n11", 40, 0, 2);
        assert_eq!(hop.remaining(&timings), None);
        for index in 0..10 {
            hop.step_done(&mut timings, index, 1.0);
        }
        let (low, high) = hop.remaining(&timings).unwrap();
        assert!(
            low <= 30.0 && 30.0 <= high && high > 2.0 * low,
            "{low} {high}"
        );
    }

    #[test]
    fn a_hop_seen_before_gives_a_narrow_range_that_holds_the_truth() {
        let mut timings = Timings::default();
        let mut hop = Estimator::new("n11", 10, 0, 2);
        for index in 0..10 {
            hop.step_done(&mut timings, index, f64::from(index));
        }
        assert_eq!(hop.remaining(&timings), Some((0.0, 0.0)));
        let next = Estimator::new("n11", 10, 4, 2);
        let (low, high) = next.remaining(&timings).unwrap();
        let truth = (4..10).sum::<i32>() as f64;
        assert!(low <= truth && truth <= high && high <= 1.5 * truth);
        // Another machine shape knows nothing of it.
        assert_eq!(Estimator::new("n11", 10, 4, 8).remaining(&timings), None);
    }

    #[test]
    fn times_survive_a_restart_and_a_damaged_file_is_only_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timings.json");
        let mut timings = Timings::open(&path);
        for _ in 0..20 {
            timings.record("k", 3, 2.0);
        }
        timings.record("k", 3, f64::NAN);
        timings.save().unwrap();
        assert_eq!(Timings::open(&path), timings);
        assert_eq!(timings.times["k"][&3].len(), KEEP);
        std::fs::write(&path, b"{").unwrap();
        assert!(Timings::open(&path).times.is_empty());
    }
}
