//! Turns the lines of the computing process into progress for the coordinator and the person.

use std::time::Instant;

use super::Agent;
use super::lease::Keeper;
use crate::child::Line;
use crate::eta::Estimator;
use crate::journal::Lease;
use crate::report::Event;

/// Follows one run of the computing process.
pub(super) struct Follow<'a> {
    pub(super) agent: &'a Agent,
    pub(super) keeper: &'a Keeper,
    pub(super) lease: &'a Lease,
    pub(super) begin: Instant,
    pub(super) before: f64,
    pub(super) estimator: Option<Estimator>,
    pub(super) progressed: bool,
}

impl Follow<'_> {
    /// Takes one line.
    pub(super) fn line(&mut self, line: &Line) {
        let (agent, hop) = (self.agent, self.lease.hop);
        match line {
            Line::Started {
                steps_total,
                steps_done,
            } => {
                let (total, done) = (*steps_total, *steps_done);
                let threads = agent.options.threads;
                self.estimator = Some(Estimator::new(
                    &self.lease.parameter_set,
                    total,
                    done,
                    threads,
                ));
                agent.tell(Event::Computing {
                    hop,
                    steps_done: done,
                    steps_total: total,
                });
                self.report(None);
            }
            Line::StepStarted { name, .. } => self.report(Some(name)),
            Line::StepDone {
                index,
                name,
                seconds,
            } => {
                self.progressed = true;
                let Some(estimator) = &mut self.estimator else {
                    return;
                };
                let mut timings = agent.timings();
                estimator.step_done(&mut timings, *index, *seconds);
                let eta_seconds = estimator.remaining(&timings);
                drop(timings);
                let (steps_done, steps_total) = (estimator.done(), estimator.total());
                let (name, seconds) = (name.clone(), *seconds);
                agent.tell(Event::Step {
                    hop,
                    steps_done,
                    steps_total,
                    name,
                    seconds,
                    eta_seconds,
                });
                self.report(None);
            }
            Line::Finished { .. }
            | Line::Cancelled
            | Line::Refused { .. }
            | Line::Failed { .. } => {}
        }
    }

    fn report(&self, step: Option<&str>) {
        let Some(estimator) = &self.estimator else {
            return;
        };
        let (low, high) = estimator
            .remaining(&self.agent.timings())
            .unwrap_or_default();
        let compute_seconds = self.before + self.begin.elapsed().as_secs_f64();
        self.keeper.progress(|progress| {
            progress.steps_done = estimator.done();
            progress.steps_total = estimator.total();
            progress.compute_seconds = compute_seconds;
            progress.eta_low_seconds = low;
            progress.eta_high_seconds = high;
            if let Some(step) = step {
                step.clone_into(&mut progress.step);
            }
        });
    }
}
