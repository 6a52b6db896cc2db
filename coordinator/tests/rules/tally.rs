//! What a run of random steps came across, so that a run which tried nothing is noticed.

use cipherhop_coordinator::domain::attempt::AttemptState;

use crate::bench::Bench;
use crate::steps::{Call, Step};

#[derive(Debug, Default)]
pub struct Tally {
    pub steps: u64,
    pub chains: u64,
    pub clock_back: u64,
    pub clock_hours_on: u64,
    /// Calls with an epoch that is not the attempt's.
    pub stale: u64,
    /// Submits of an attempt that had handed in before.
    pub duplicates: u64,
    /// Submits of an attempt that was over.
    pub late: u64,
    /// Submits of a wrong digest.
    pub lying: u64,
    pub verified_hops: u64,
    pub disputed_hops: u64,
    pub forks: u64,
}

impl Tally {
    pub fn count(&mut self, before: &Bench, after: &Bench, step: &Step) {
        self.steps += 1;
        match step {
            Step::Pass(seconds) if *seconds < 0 => self.clock_back += 1,
            Step::Pass(seconds) if *seconds >= 3600 => self.clock_hours_on += 1,
            Step::Call(which, off, call) => {
                let newest = before.attempts.len().checked_sub(1 + *which as usize);
                self.stale += u64::from(*off != 0);
                if let (Some(at), Call::Submit(output, _)) = (newest, call) {
                    let attempt = &before.attempts[at];
                    let waits = attempt.state == AttemptState::Submitted;
                    let over = !attempt.state.is_live() && !waits;
                    self.duplicates += u64::from(attempt.claim.is_some());
                    self.late += u64::from(over && attempt.claim.is_none());
                    self.lying += u64::from(*output != 0);
                }
            }
            _ => {}
        }
        self.verified_hops += after.archive.len().saturating_sub(before.archive.len()) as u64;
        self.forks += u64::from(after.chain.generation - before.chain.generation);
        let disputed = |bench: &Bench| {
            let attempts = bench.attempts_of(bench.head());
            let waits = attempts
                .iter()
                .filter(|a| a.state == AttemptState::Submitted)
                .filter_map(|a| a.claim.as_ref().map(|claim| claim.output));
            waits.collect::<std::collections::BTreeSet<_>>().len() > 1
        };
        self.disputed_hops += u64::from(disputed(after) && !disputed(before));
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "steps": self.steps,
            "chains": self.chains,
            "clock_back": self.clock_back,
            "clock_hours_on": self.clock_hours_on,
            "stale_epochs": self.stale,
            "duplicate_submits": self.duplicates,
            "late_submits": self.late,
            "lying_submits": self.lying,
            "verified_hops": self.verified_hops,
            "disputed_hops": self.disputed_hops,
            "new_generations": self.forks,
        })
    }
}
