//! What a volunteer's worker calls.

use std::time::Duration;

use cipherhop_proto::features::COORDINATOR as FEATURES;
use cipherhop_proto::status::{bad_request, reason_of, status, status_with_retry};
use cipherhop_proto::v1::volunteer_service_server::VolunteerService;
use cipherhop_proto::v1::{
    self, acquire_response::Answer, sync_response::Directive as WireDirective,
};
use cipherhop_proto::{AttemptId, DeviceId, PROTOCOL_RANGE, Reason, TokenId};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use super::authorize::in_scope;
use super::error::{of_blob, of_store};
use super::{Core, convert, parse, verify};
use crate::auth::Token;
use crate::blobs::UploadKey;
use crate::config::Volunteers;
use crate::domain::attempt::{Attempt, Claim};
use crate::domain::command::{Directive, Holder, Outcome, OutputCheck, Refusal};
use crate::domain::reconcile::Held;
use crate::domain::trust::ProbeOdds;
use crate::store::{AcquireRequest, Acquired, Enrolment, Identity, Role};

type Answered<T> = Result<Response<T>, Status>;

/// Longest long poll.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Back-offs end without an event, so a long poll looks again now and then.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Most cached digests a request may list.
const MAX_CACHED: usize = 1024;
/// Most attempts a worker may ask about at once.
const MAX_HELD: usize = 256;

#[tonic::async_trait]
impl VolunteerService for Core {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Answered<v1::HelloResponse> {
        let caller = self.volunteer(&request).await;
        // Without a good token the call was counted as a stranger's.
        if let Err(refused) = &caller
            && reason_of(refused) == Some(Reason::RateLimited)
        {
            return Err(refused.clone());
        }
        let asked = request.into_inner();
        let (lowest, highest) = PROTOCOL_RANGE;
        let protocol = highest.min(asked.protocol_max);
        if protocol < lowest.max(asked.protocol_min) {
            let detail = format!(
                "this coordinator speaks protocol {lowest} to {highest}, the client {} to {}",
                asked.protocol_min, asked.protocol_max
            );
            return Err(status(Reason::ProtocolUnsupported, detail));
        }
        // Needs no token: who has none, or another's, just learns the versions.
        let (held, lost) = match caller {
            Ok((_, device)) => self.reconcile(device, &asked.held).await?,
            Err(_) => Default::default(),
        };
        Ok(Response::new(v1::HelloResponse {
            held,
            lost,
            protocol,
            coordinator_version: env!("CARGO_PKG_VERSION").to_owned(),
            features: verify::PROGRAM_FORMATS
                .iter()
                .chain(FEATURES)
                .map(|f| f.to_string())
                .collect(),
            sync_seconds: self.config.volunteers.sync_seconds,
            ledger_key: self.ledger_key(),
        }))
    }

    async fn enroll(&self, request: Request<v1::EnrollRequest>) -> Answered<v1::EnrollResponse> {
        self.stranger(&request)?;
        let asked = request.into_inner();
        let invite: Token = asked
            .invite
            .trim()
            .parse()
            .map_err(|_| status(Reason::InviteInvalid, ""))?;
        let token = Token::generate(Role::Volunteer).map_err(|e| {
            tracing::error!(error = %e, "no token made");
            status(Reason::Internal, "")
        })?;
        let nonce = parse::field("nonce", &asked.nonce)?;
        let key = self.enrolling_key(&asked, nonce, invite.hash())?;
        let enrolment = Enrolment {
            invite: invite.hash(),
            nonce,
            display_name: parse::name("display_name", asked.display_name)?,
            device: DeviceId::generate(),
            token: TokenId::generate(),
            token_hash: token.hash(),
        };
        let identity = self
            .store
            .enroll_with_key(enrolment, key, self.clock.now())
            .await
            .map_err(of_store("enroll"))?;
        cipherhop_failpoint::at("enroll.commit.after");
        let device = identity
            .device
            .ok_or_else(|| status(Reason::Internal, ""))?;
        tracing::info!(%device, account = %identity.account_name, signs = key.is_some(), "a device enrolled");
        Ok(Response::new(v1::EnrollResponse {
            device_id: device.to_vec(),
            account_id: identity.account.to_vec(),
            token: token.reveal().to_owned(),
        }))
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Answered<v1::AcquireResponse> {
        let (identity, device) = self.volunteer(&request).await?;
        self.limits.token(identity.token)?;
        let mut asked = request.into_inner();
        if let Some(scope) = identity.scope {
            match parse::optional("chain_id", &asked.chain_id)? {
                Some(chain) => in_scope(&identity, chain)?,
                None => asked.chain_id = scope.to_vec(),
            }
        }
        let wait = Duration::from_secs(asked.wait_seconds.into()).min(LONGEST_WAIT);
        let mut wanted = wanted(device, asked, &self.config.volunteers)?;
        let deadline = Instant::now() + wait;
        let mut openings = self.store.openings();
        loop {
            openings.mark_unchanged();
            wanted.attempt = AttemptId::generate();
            if self.board.referee_is_near() {
                self.look_at_disputes().await?;
                wanted.held = self.board.held();
            }
            let now = self.clock.now();
            let refusal = match self
                .store
                .acquire(wanted.clone(), now)
                .await
                .map_err(of_store("acquire"))?
            {
                Acquired::Assigned(given) => {
                    cipherhop_failpoint::at("claim.commit.after");
                    let answer = Answer::Assignment(convert::assignment(&given, now));
                    return Ok(Response::new(v1::AcquireResponse {
                        answer: Some(answer),
                    }));
                }
                Acquired::NoWork(refusal) => refusal,
            };
            if Instant::now() >= deadline {
                return Ok(no_work(refusal));
            }
            if !self.wait_for_work(&wanted, &mut openings, deadline).await? {
                return Ok(no_work(Reason::Draining.into()));
            }
        }
    }

    async fn sync(&self, request: Request<v1::SyncRequest>) -> Answered<v1::SyncResponse> {
        let (_, device) = self.volunteer(&request).await?;
        let asked = request.into_inner();
        let holder = holder(&asked.attempt_id, asked.epoch, device)?;
        let phase = parse::phase(asked.phase)?;
        let progress = parse::progress(asked.progress)?;
        let now = self.clock.now();
        let directive = self
            .store
            .sync(holder, phase, progress, now)
            .await
            .map_err(of_store("sync"))?;
        cipherhop_failpoint::at("sync.commit.after");
        let attempt = self
            .store
            .attempt(holder.attempt)
            .await
            .map_err(of_store("sync"))?;
        let lease = attempt.soft_expiry.since(now).as_secs_f64();
        let (directive, reason) = match directive {
            Directive::Continue => (WireDirective::Continue, String::new()),
            Directive::Cancel(reason) => (WireDirective::Cancel, reason.to_string()),
        };
        Ok(Response::new(v1::SyncResponse {
            directive: directive.into(),
            reason,
            soft_lease_seconds: lease,
            next_sync_seconds: f64::from(self.config.volunteers.sync_seconds).min(lease / 3.0),
        }))
    }

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Answered<v1::SubmitResponse> {
        let (identity, device) = self.volunteer(&request).await?;
        let asked = request.into_inner();
        let holder = holder(&asked.attempt_id, asked.epoch, device)?;
        let claim = Claim {
            output: parse::field("output_digest", &asked.output_digest)?,
            output_size: asked.output_size,
            trace_root: parse::field("trace_root", &asked.trace_root)?,
            trace: parse::field("trace_digest", &asked.trace_digest)?,
            trace_size: asked.trace_size,
            compute: parse::seconds("compute_seconds", asked.compute_seconds)?,
        };
        let attempt = self
            .store
            .attempt(holder.attempt)
            .await
            .map_err(of_store("submit"))?;
        let signature = self
            .signed(&identity, &attempt, &claim, &asked.signature)
            .await?;
        let need_upload = self.missing(&identity, &claim).await?;
        let (check, detail) = self
            .check_output(&attempt, holder, &claim, need_upload.is_empty())
            .await?;
        cipherhop_failpoint::at("verify.after");
        let now = self.clock.now();
        let answer = self
            .store
            .submit_signed(holder, claim, check, signature, now)
            .await
            .map_err(of_store("submit"))?;
        cipherhop_failpoint::at("submit.commit.after");
        self.counters.result(convert::outcome(answer.outcome));
        let need_upload = match answer.outcome {
            Outcome::Malformed(reason) => {
                tracing::warn!(attempt = %holder.attempt, %device, %reason, "a malformed output was refused");
                return Err(status(reason, detail));
            }
            Outcome::NeedUpload => need_upload,
            outcome => {
                tracing::info!(attempt = %holder.attempt, %device, hop = attempt.hop, ?outcome, "a result was taken");
                Vec::new()
            }
        };
        Ok(Response::new(v1::SubmitResponse {
            outcome: convert::outcome(answer.outcome).into(),
            need_upload,
            hop_state: convert::hop_state(answer.hop_state).into(),
        }))
    }

    async fn fail(&self, request: Request<v1::FailRequest>) -> Answered<v1::FailResponse> {
        let (_, device) = self.volunteer(&request).await?;
        let asked = request.into_inner();
        let holder = holder(&asked.attempt_id, asked.epoch, device)?;
        let kind = parse::fail_kind(asked.kind)?;
        let detail = parse::words(&asked.detail);
        tracing::info!(attempt = %holder.attempt, %device, ?kind, "a worker gave up");
        let now = self.clock.now();
        let state = self
            .store
            .fail(holder, kind, detail, now)
            .await
            .map_err(of_store("fail"))?;
        Ok(Response::new(v1::FailResponse {
            hop_state: convert::hop_state(state).into(),
        }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answered<v1::ReleaseResponse> {
        let (_, device) = self.volunteer(&request).await?;
        let asked = request.into_inner();
        let holder = holder(&asked.attempt_id, asked.epoch, device)?;
        self.store
            .release(holder, self.clock.now())
            .await
            .map_err(of_store("release"))?;
        Ok(Response::new(v1::ReleaseResponse {}))
    }

    async fn list_wanted_inputs(
        &self,
        request: Request<v1::ListWantedInputsRequest>,
    ) -> Answered<v1::ListWantedInputsResponse> {
        let (_, device) = self.volunteer(&request).await?;
        self.list_inputs(device, request.into_inner()).await
    }

    async fn acquire_step(
        &self,
        request: Request<v1::AcquireStepRequest>,
    ) -> Answered<v1::AcquireStepResponse> {
        let (_, device) = self.volunteer(&request).await?;
        self.next_step(device, request.into_inner()).await
    }

    async fn submit_step(
        &self,
        request: Request<v1::SubmitStepRequest>,
    ) -> Answered<v1::SubmitStepResponse> {
        let (_, device) = self.volunteer(&request).await?;
        self.take_step(device, request.into_inner()).await
    }

    async fn reopen(&self, request: Request<v1::ReopenRequest>) -> Answered<v1::ReopenResponse> {
        let (identity, device) = self.volunteer(&request).await?;
        self.limits.token(identity.token)?;
        let asked = request.into_inner();
        let chain = parse::field("chain_id", &asked.chain_id)?;
        in_scope(&identity, chain)?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let answer = self
            .store
            .reopen(chain, asked.hop, note, now)
            .await
            .map_err(of_store("reopen"))?;
        tracing::info!(%chain, hop = asked.hop, %device, "a volunteer had a hop opened again");
        Ok(Response::new(v1::ReopenResponse {
            hop_state: convert::hop_state(answer.hop_state).into(),
            was_stuck_reason: answer.was.map(|r| r.to_string()).unwrap_or_default(),
        }))
    }
}

fn holder(attempt: &[u8], epoch: u64, device: DeviceId) -> Result<Holder, Status> {
    Ok(Holder {
        attempt: parse::field("attempt_id", attempt)?,
        device,
        epoch,
    })
}

fn no_work(refusal: Refusal) -> Response<v1::AcquireResponse> {
    let answer = Answer::NoWork(v1::NoWork {
        reason: refusal.reason.to_string(),
        retry_after_seconds: refusal
            .retry_after
            .unwrap_or(Duration::from_secs(5))
            .as_secs_f64(),
    });
    Response::new(v1::AcquireResponse {
        answer: Some(answer),
    })
}

/// Parses a request for work and refuses workers that could not do any.
fn wanted(
    device: DeviceId,
    asked: v1::AcquireRequest,
    volunteers: &Volunteers,
) -> Result<AcquireRequest, Status> {
    let able = asked
        .capabilities
        .ok_or_else(|| bad_request("capabilities", "must be set"))?;
    if !able
        .program_formats
        .iter()
        .any(|f| verify::PROGRAM_FORMATS.contains(&f.as_str()))
    {
        let detail = format!(
            "the worker must run one of: {}",
            verify::PROGRAM_FORMATS.join(", ")
        );
        return Err(status(Reason::ProgramUnknown, detail));
    }
    let golden = &volunteers.golden_digests;
    if !golden.is_empty() && !golden.contains(&hex::encode(&able.golden_digest)) {
        return Err(status(Reason::SelfTestFailed, ""));
    }
    let hops = match (asked.hop_first, asked.hop_last) {
        (None, None) => None,
        (first, last) => {
            let (first, last) = (first.unwrap_or(0), last.unwrap_or(u32::MAX));
            if first > last {
                return Err(bad_request("hop_first", "must not be above hop_last"));
            }
            Some(first..=last)
        }
    };
    if asked.cached.len() > MAX_CACHED {
        return Err(bad_request(
            "cached",
            format!("at most {MAX_CACHED} digests"),
        ));
    }
    Ok(AcquireRequest {
        nonce: parse::field("nonce", &asked.nonce)?,
        device,
        attempt: AttemptId::generate(),
        chain: parse::optional("chain_id", &asked.chain_id)?,
        hops,
        memory_bytes: able.memory_bytes,
        disk_bytes: able.disk_bytes,
        cached: asked
            .cached
            .iter()
            .map(|d| parse::field("cached", d))
            .collect::<Result<_, _>>()?,
        held: Vec::new(),
        probes: ProbeOdds {
            fresh_permille: volunteers.probe_fresh_permille,
            trusted_permille: volunteers.probe_trusted_permille,
        },
        draw: rand::random(),
    })
}

impl Core {
    /// Waits until it is worth asking for work again, at the latest until the deadline; false when the server goes down.
    async fn wait_for_work(
        &self,
        wanted: &AcquireRequest,
        openings: &mut watch::Receiver<u64>,
        deadline: Instant,
    ) -> Result<bool, Status> {
        loop {
            let look_again = deadline.min(Instant::now() + LOOK_AGAIN);
            let heard = tokio::select! {
                () = self.shutdown.cancelled() => return Ok(false),
                // A closed channel or the time-out both just mean: look again.
                heard = timeout_at(look_again, openings.changed()) => heard.is_ok(),
            };
            let now = Instant::now();
            // What a referee holds back may be free by now.
            if now >= deadline || !wanted.held.is_empty() {
                return Ok(true);
            }
            // Nobody told of anything: a look that others had a moment ago will do.
            let since = if heard { now } else { now - LOOK_AGAIN / 4 };
            let (since, at) = (since.into_std(), self.clock.now());
            let worth = self.store.may_have_work(wanted, since, at).await;
            if worth.map_err(of_store("acquire"))? {
                return Ok(true);
            }
        }
    }

    /// What becomes of the attempts a worker holds, and those it has lost.
    async fn reconcile(
        &self,
        device: DeviceId,
        held: &[v1::HeldAttempt],
    ) -> Result<(Vec<v1::HeldAnswer>, Vec<v1::Assignment>), Status> {
        if held.len() > MAX_HELD {
            return Err(bad_request("held", format!("at most {MAX_HELD} attempts")));
        }
        let known = |held: &v1::HeldAttempt| {
            Ok::<_, Status>(Held {
                holder: holder(&held.attempt_id, held.epoch, device)?,
                finished: held.finished,
            })
        };
        let named = held.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        let now = self.clock.now();
        let answer = self
            .store
            .reconcile(device, named.clone(), now)
            .await
            .map_err(of_store("hello"))?;
        let pairs = named.iter().zip(answer.fates);
        let held = pairs
            .map(|(held, fate)| convert::held(held, fate))
            .collect();
        let lost = answer.lost.iter();
        let lost = lost.map(|given| convert::assignment(given, now)).collect();
        Ok((held, lost))
    }

    /// Claimed blobs that are not stored yet, each with the bytes that are already durable.
    async fn missing(
        &self,
        identity: &Identity,
        claim: &Claim,
    ) -> Result<Vec<v1::NeedUpload>, Status> {
        let mut missing = Vec::new();
        for (digest, size) in [
            (claim.output, claim.output_size),
            (claim.trace, claim.trace_size),
        ] {
            match self.store.blob(digest).await.map_err(of_store("submit"))? {
                Some(blob) if blob.size != size => {
                    let detail = format!(
                        "blob {digest} has {} bytes, the submit says {size}",
                        blob.size
                    );
                    return Err(status(Reason::BlobSizeMismatch, detail));
                }
                Some(_) => {}
                None => {
                    let key = UploadKey {
                        sender: *identity.account.as_bytes(),
                        digest,
                    };
                    let committed = self.blobs.committed(key).await.map_err(of_blob)?;
                    missing.push(v1::NeedUpload {
                        digest: digest.to_vec(),
                        committed,
                    });
                }
            }
        }
        Ok(missing)
    }

    /// What the server finds in the stored output. A claim whose sizes cannot be right is refused before it is
    /// recorded, so that the attempt stays open for a corrected one.
    async fn check_output(
        &self,
        attempt: &Attempt,
        holder: Holder,
        claim: &Claim,
        stored: bool,
    ) -> Result<(OutputCheck, String), Status> {
        // The store refuses these below, in its own words; nothing of theirs is worth reading.
        let repeated = attempt
            .claim
            .as_ref()
            .is_some_and(|first| first.output != claim.output);
        if attempt.device != holder.device || attempt.epoch != holder.epoch || repeated {
            return Ok((OutputCheck::Missing, String::new()));
        }
        let chain = self
            .store
            .chain(attempt.chain)
            .await
            .map_err(of_store("submit"))?;
        if claim.output_size != chain.spec.boundary_bytes {
            let detail = format!(
                "{} bytes; the chain's outputs have {}",
                claim.output_size, chain.spec.boundary_bytes
            );
            return Err(status(Reason::OutputWrongSize, detail));
        }
        if claim.trace_size > self.config.blobs.max_trace_bytes {
            let detail = format!(
                "a trace has at most {} bytes",
                self.config.blobs.max_trace_bytes
            );
            return Err(status_with_retry(Reason::BlobTooLarge, detail, None));
        }
        if !stored {
            return Ok((OutputCheck::Missing, String::new()));
        }
        cipherhop_failpoint::at("verify.before");
        Ok(
            match self
                .check_stored_ciphertext(&chain.spec, claim.output)
                .await?
            {
                Ok(()) => (OutputCheck::Sound, String::new()),
                Err(unsound) => (OutputCheck::Malformed(unsound.reason), unsound.detail),
            },
        )
    }
}
