//! Arbitration by one step: where two waiting results of a hop differ, the traces say in which step they part. Its
//! inputs, equal in both, are asked of the two workers; a referee runs that step; whose outputs differ from the
//! referee's is refuted, at the cost of a step and not of a hop.
//!
//! Nothing of this is stored: disputes follow from attempts and traces, and a coordinator that starts anew finds them
//! again. Limits: what the upheld attempt computed after that step rests on its own word, as with a trusted device,
//! and is run again when that device loses its trust.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use cipherhop_proto::status::status;
use cipherhop_proto::{AttemptId, ChainId, DeviceId, Digest, Reason};
use tokio::time::Instant;
use tonic::Status;

use super::Core;
use super::error::of_store;
use super::trace::{Compared, Differing, Trace};
use crate::blobs::read_all;
use crate::domain::attempt::Attempt;
use crate::store::{Disputed, Identity, Role};

/// Disputes are looked for this often at most.
const FRESH: Duration = Duration::from_secs(1);
/// A referee that asked within this time is at work.
const REFEREE_AWAY: Duration = Duration::from_secs(120);
/// A disputed hop is kept from third accounts for so long; then they may decide it instead.
const PATIENCE: Duration = Duration::from_secs(120);
/// Largest program, bytes.
const MAX_PROGRAM_BYTES: u64 = 64 << 20;
/// Steps of a hop that are looked at.
const MAX_STEPS: usize = 100_000;

/// Two results that differ, and where.
#[derive(Debug, Clone)]
pub(super) struct Dispute {
    pub case: Disputed,
    pub first: Attempt,
    pub second: Attempt,
    pub step: Differing,
    since: Instant,
}

type Pair = (AttemptId, AttemptId);

impl Dispute {
    pub fn pair(&self) -> Pair {
        (self.first.id, self.second.id)
    }
}

/// Disputes as last looked at.
#[derive(Default)]
pub(super) struct Board {
    looked: tokio::sync::Mutex<Option<Instant>>,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    disputes: Vec<Dispute>,
    /// Pairs whose traces tell nothing.
    unclear: HashMap<Pair, Instant>,
    referee: Option<Instant>,
}

impl Board {
    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        // Held for plain moves only.
        self.shown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A referee asked for work.
    pub fn referee_came(&self) {
        self.shown().referee = Some(Instant::now());
    }

    pub fn referee_is_near(&self) -> bool {
        self.shown()
            .referee
            .is_some_and(|at| at.elapsed() < REFEREE_AWAY)
    }

    pub fn disputes(&self) -> Vec<Dispute> {
        self.shown().disputes.clone()
    }

    /// Chains whose open hop a referee is about to decide.
    pub fn held(&self) -> Vec<ChainId> {
        let shown = self.shown();
        let young = shown
            .disputes
            .iter()
            .filter(|d| d.since.elapsed() < PATIENCE);
        young.map(|dispute| dispute.case.chain.id).collect()
    }
}

impl Core {
    /// Brings the board up to date, at most once a second. Traces that do not hang together convict by themselves.
    pub(super) async fn look_at_disputes(&self) -> Result<(), Status> {
        let mut looked = self.board.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let cases = self.store.disputes().await.map_err(of_store("disputes"))?;
        let known = self.board.disputes();
        let mut found = Vec::new();
        for case in cases {
            let Some((first, second)) = rivals(&case.attempts) else {
                continue;
            };
            let pair = (first.id, second.id);
            if let Some(dispute) = known.iter().find(|dispute| dispute.pair() == pair) {
                found.push(dispute.clone());
                continue;
            }
            if self.board.shown().unclear.contains_key(&pair) {
                continue;
            }
            match self.find_step(&case, &first, &second).await? {
                Found::Step(step) => {
                    tracing::info!(chain = %case.chain.id, hop = case.hop, step = step.step, name = %step.name,
                        first = %first.id, second = %second.id, "two results part in one step");
                    found.push(Dispute {
                        case,
                        first,
                        second,
                        step,
                        since: Instant::now(),
                    });
                }
                Found::Guilty(guilty) => {
                    self.convict(&case, guilty, None).await?;
                }
                Found::Nothing => {
                    let mut shown = self.board.shown();
                    shown
                        .unclear
                        .retain(|_, at| at.elapsed() < Duration::from_secs(24 * 3600));
                    shown.unclear.insert(pair, Instant::now());
                }
            }
        }
        self.board.shown().disputes = found;
        *looked = Some(Instant::now());
        Ok(())
    }

    /// Compares two traces. A hop whose program lists no steps cannot be looked into.
    async fn find_step(
        &self,
        case: &Disputed,
        first: &Attempt,
        second: &Attempt,
    ) -> Result<Found, Status> {
        let Some(steps) = self.steps_of(case).await else {
            return Ok(Found::Nothing);
        };
        let mut guilty = BTreeSet::new();
        let mut traces = Vec::new();
        for attempt in [first, second] {
            let Some(claim) = &attempt.claim else {
                return Ok(Found::Nothing);
            };
            let limit = self.config.blobs.max_trace_bytes;
            // A trace that cannot be read here is a fault of storage, not of its sender.
            let Ok(bytes) = read_all(&*self.blobs, claim.trace, limit).await else {
                return Ok(Found::Nothing);
            };
            match Trace::read(&bytes, claim, case.input, &steps) {
                Ok(trace) => traces.push(trace),
                Err(problem) => {
                    tracing::warn!(attempt = %attempt.id, device = %attempt.device, %problem, "a trace is not one");
                    guilty.insert(attempt.id);
                }
            }
        }
        let [one, two] = &traces[..] else {
            return Ok(Found::Guilty(guilty));
        };
        Ok(match one.compare(two) {
            Compared::At(step) => Found::Step(*step),
            Compared::Unclear => Found::Nothing,
        })
    }

    /// Names of the hop's steps, as the program lists them.
    async fn steps_of(&self, case: &Disputed) -> Option<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Layer {
            steps: Vec<String>,
        }
        #[derive(serde::Deserialize)]
        struct Program {
            layers: Vec<Layer>,
        }
        let program = case.chain.spec.program;
        let bytes = read_all(&*self.blobs, program, MAX_PROGRAM_BYTES)
            .await
            .ok()?;
        let mut program: Program = serde_json::from_slice(&bytes).ok()?;
        let layer = usize::try_from(case.hop).ok()?;
        let layer = (layer < program.layers.len()).then(|| program.layers.swap_remove(layer))?;
        (1..=MAX_STEPS)
            .contains(&layer.steps.len())
            .then_some(layer.steps)
    }

    async fn convict(
        &self,
        case: &Disputed,
        guilty: BTreeSet<AttemptId>,
        upheld: Option<AttemptId>,
    ) -> Result<bool, Status> {
        let (id, generation, hop) = (case.chain.id, case.generation, case.hop);
        let now = self.clock.now();
        self.store
            .convict(id, generation, hop, guilty, upheld, now)
            .await
            .map_err(of_store("convict"))
    }

    /// A referee's answer: the outputs it got for the disputed step. False when the dispute is over.
    pub(super) async fn judge_step(
        &self,
        pair: Pair,
        step: u32,
        outputs: &[Digest],
        seconds: f64,
    ) -> Result<bool, Status> {
        let disputes = self.board.disputes();
        let Some(dispute) = disputes
            .iter()
            .find(|d| d.pair() == pair && d.step.step == step)
        else {
            return Ok(false);
        };
        let mut guilty = BTreeSet::new();
        let mut upheld = None;
        for (attempt, said) in [
            (&dispute.first, &dispute.step.first),
            (&dispute.second, &dispute.step.second),
        ] {
            match said == outputs {
                true => upheld = Some(attempt.id),
                false => {
                    guilty.insert(attempt.id);
                }
            }
        }
        // Everybody with the same output as a guilty one claims the same wrong value.
        for attempt in &dispute.case.attempts {
            let same = |other: &Attempt| {
                other.claim.as_ref().map(|c| c.trace_root)
                    == attempt.claim.as_ref().map(|c| c.trace_root)
            };
            let of_guilty = [&dispute.first, &dispute.second]
                .into_iter()
                .any(|other| guilty.contains(&other.id) && same(other));
            if of_guilty {
                guilty.insert(attempt.id);
            }
        }
        let hop_seconds = dispute
            .first
            .claim
            .as_ref()
            .map_or(0.0, |c| c.compute.as_secs_f64());
        let settled = self.convict(&dispute.case, guilty.clone(), upheld).await?;
        tracing::info!(chain = %dispute.case.chain.id, hop = dispute.case.hop, step, name = %dispute.step.name,
            step_seconds = seconds, hop_seconds, refuted = guilty.len(), settled, "a referee decided");
        *self.board.looked.lock().await = None;
        Ok(settled)
    }

    /// Inputs of disputed steps that the device's attempts may have kept and that are not stored here.
    pub(super) async fn wanted_inputs(
        &self,
        device: DeviceId,
    ) -> Result<Vec<(Attempt, Differing, Vec<Digest>)>, Status> {
        let mut wanted = Vec::new();
        if !self.board.referee_is_near() {
            return Ok(wanted);
        }
        self.look_at_disputes().await?;
        for dispute in self.board.disputes() {
            let own = [&dispute.first, &dispute.second]
                .into_iter()
                .find(|attempt| attempt.device == device);
            let Some(attempt) = own else { continue };
            let missing = self.missing_inputs(&dispute).await?;
            if !missing.is_empty() {
                wanted.push((attempt.clone(), dispute.step.clone(), missing));
            }
        }
        Ok(wanted)
    }

    /// Inputs of the step that are not stored.
    pub(super) async fn missing_inputs(&self, dispute: &Dispute) -> Result<Vec<Digest>, Status> {
        let mut missing = Vec::new();
        for (_, digest) in &dispute.step.inputs {
            let blob = self.store.blob(*digest).await.map_err(of_store("blob"))?;
            if blob.is_none() && !missing.contains(digest) {
                missing.push(*digest);
            }
        }
        Ok(missing)
    }

    /// The volunteer may send this blob for its attempt though that takes no more bytes.
    pub(super) async fn is_wanted_input(
        &self,
        attempt: &Attempt,
        digest: Digest,
    ) -> Result<bool, Status> {
        let wanted = self.wanted_inputs(attempt.device).await?;
        let asked = |(own, _, missing): &(Attempt, Differing, Vec<Digest>)| {
            own.id == attempt.id && missing.contains(&digest)
        };
        Ok(wanted.iter().any(asked))
    }

    /// The calling referee's device; another device is refused.
    pub(super) async fn must_be_referee(&self, device: DeviceId) -> Result<(), Status> {
        let devices = self.store.devices().await.map_err(of_store("referee"))?;
        let row = devices.iter().find(|row| row.id == device);
        match row.is_some_and(|row| row.referee && row.state.may_work()) {
            true => Ok(()),
            false => Err(status(
                Reason::RoleNotAllowed,
                "an operator has to make this device a referee: `device referee`",
            )),
        }
    }

    /// A referee reads what a disputed step needs.
    pub(super) async fn referee_may_read(
        &self,
        identity: &Identity,
        digest: Digest,
    ) -> Result<bool, Status> {
        let (Role::Volunteer, Some(device)) = (identity.role, identity.device) else {
            return Ok(false);
        };
        if self.must_be_referee(device).await.is_err() {
            return Ok(false);
        }
        for dispute in self.board.disputes() {
            if dispute
                .step
                .inputs
                .iter()
                .any(|(_, input)| *input == digest)
            {
                return Ok(true);
            }
            let blobs = self
                .store
                .attempt_blobs(dispute.first.id)
                .await
                .map_err(of_store("read"))?;
            if blobs.iter().any(|blob| blob.digest == digest) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

enum Found {
    Step(Differing),
    Guilty(BTreeSet<AttemptId>),
    Nothing,
}

/// The first two waiting results that differ.
fn rivals(attempts: &[Attempt]) -> Option<(Attempt, Attempt)> {
    let output = |attempt: &Attempt| attempt.claim.as_ref().map(|claim| claim.output);
    let first = attempts.first()?;
    let second = attempts
        .iter()
        .find(|other| output(other) != output(first))?;
    Some((first.clone(), second.clone()))
}
