//! `pack` and `unpack`: hops and results as files, for machines without a connection. `run-packed` is between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cipherhop_proto::client::Backoff;
use cipherhop_proto::{AttemptId, Digest};
use serde_json::json;

use super::{Context, chain_id, find_chain};
use crate::agent::{Agent, Delivery, Options, Request, Wanted, deliver, leave_request};
use crate::child::Runner;
use crate::cli::{Pack, Unpack};
use crate::error::WorkerError;
use crate::folder::Folder;
use crate::hours::{Hours, Minute};
use crate::journal::{Claim, Finished, Journal, Lease, Work, WorkState};
use crate::pack::{Card, Member, PackError, Reader, write};
use crate::preferences::{Choices, Preferences};
use crate::report::Reporter;
use crate::units;

pub(super) async fn pack(context: &Context, options: Pack) -> Result<(), WorkerError> {
    refuse_existing(&options.out)?;
    let folder = context.folder()?;
    if let Some(attempt) = options.attempt {
        let mut state = Journal::read_only(&folder.journal())?;
        let work = state.works.remove(&attempt);
        if let Some((work, result)) = work.and_then(|w| w.state.result().cloned().map(|r| (w, r))) {
            return pack_result(context, &folder, work.lease, result, &options.out);
        }
    }
    let flags = Choices {
        allow_insecure: options.allow_insecure.then_some(true),
        ..Choices::default()
    };
    let preferences = Preferences::load(&context.root, &flags)?;
    let agent = agent(context, &preferences, options.for_memory)?;
    let wanted = match (&options.chain, options.attempt) {
        (Some(chain), _) => {
            let answer = find_chain(&agent.connection, chain).await?;
            if let Some(chain) = &answer.chain
                && chain.insecure
                && !agent.options.allow_insecure
            {
                // Before anything is leased.
                return Err(WorkerError::Insecure(
                    chain.name.clone(),
                    chain.parameter_set.clone(),
                ));
            }
            Wanted::Hop(Claim {
                chain: chain_id(&answer)?,
                hops: options.hops,
            })
        }
        (None, Some(attempt)) => Wanted::Attempt(attempt),
        (None, None) => {
            return Err(WorkerError::Request(
                "say --chain NAME or --attempt ID".into(),
            ));
        }
    };
    let Some((lease, pins)) = agent.lease_for_pack(wanted).await? else {
        return Err(WorkerError::NotDone(
            "stopped; a leased hop stays with this worker, say the command again".into(),
        ));
    };
    let card = Card::new(lease, None);
    let members: Vec<Member> = card
        .members()
        .map_err(refused(&options.out))?
        .into_iter()
        .filter(|member| !(options.no_keys && member.optional))
        .collect();
    let (out, cache) = (options.out.clone(), agent.cache.clone());
    let written = {
        let (card, members, cache) = (card.clone(), members.clone(), cache.clone());
        tokio::task::spawn_blocking(move || write(&out, &card, &members, |m| cache.path(&m.digest)))
            .await
    };
    drop(pins);
    match written.map_err(|_| WorkerError::Request("packing was broken off".into()))? {
        Err(PackError::Source(path)) => {
            // Fetched again by the next try.
            if let Some(Ok(digest)) = Path::new(&path)
                .file_name()
                .and_then(|n| n.to_str())
                .map(str::parse::<Digest>)
            {
                cache.discard(&digest)?;
            }
            return Err(refused(&options.out)(PackError::Source(path)));
        }
        other => other.map_err(refused(&options.out))?,
    }
    agent.carried_away(&card.lease)?;
    let bytes = members.iter().map(|m| m.size).sum::<u64>();
    let lease = &card.lease;
    let text = format!(
        "hop {} of {} is in {} ({} blobs, {}; attempt {}); carry it to the other machine and say there: \
         cipherhop-worker run-packed {} --out RESULT; bring RESULT back and say here: cipherhop-worker unpack RESULT",
        lease.hop,
        lease.chain_name,
        options.out.display(),
        members.len(),
        units::bytes(bytes),
        lease.attempt,
        options.out.display(),
    );
    context.print(
        &json!({
            "attempt": lease.attempt, "chain": lease.chain, "hop": lease.hop, "pack": options.out,
            "blobs": members.len(), "bytes": bytes, "keys": !options.no_keys,
        }),
        &text,
    );
    Ok(())
}

fn pack_result(
    context: &Context,
    folder: &Folder,
    lease: Lease,
    result: Finished,
    out: &Path,
) -> Result<(), WorkerError> {
    let spool = folder.spool(lease.attempt);
    let card = Card::new(lease, Some(result));
    let members = card.members().map_err(refused(out))?;
    write(out, &card, &members, |m| spool.join(&m.name)).map_err(refused(out))?;
    let text = format!(
        "the result of hop {} of {} is in {}",
        card.lease.hop,
        card.lease.chain_name,
        out.display()
    );
    let object = json!({ "attempt": card.lease.attempt, "hop": card.lease.hop, "pack": out, "result": true });
    context.print(&object, &text);
    Ok(())
}

pub(super) async fn unpack(context: &Context, options: Unpack) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    folder.identity()?;
    let preferences = Preferences::load(&context.root, &Choices::default())?;
    if let Some(attempt) = options.give_back {
        return agent(context, &preferences, None)?.give_back(attempt).await;
    }
    let Some(pack) = options.pack else {
        return Err(WorkerError::Request("name the pack".into()));
    };
    let state = Journal::read_only(&folder.journal())?;
    let reader = Reader::open(&pack).map_err(refused(&pack))?;
    let spools = folder.clone();
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut place = None;
        let read = reader.unpack(|head| {
            let result = head.card.result.clone().ok_or_else(|| {
                Refusal::Request(format!(
                    "{} holds a hop that is to be computed, not a result: cipherhop-worker run-packed {} --out RESULT",
                    pack.display(),
                    pack.display()
                ))
            })?;
            let work = state.works.get(&head.card.lease.attempt);
            belongs(&head.card.lease, work).map_err(Refusal::Request)?;
            let spool = spools.spool(head.card.lease.attempt);
            place = Some((head.card.lease.clone(), result));
            Ok(head.members.iter().map(|m| (m.name.clone(), spool.join(&m.name))).collect::<BTreeMap<_, _>>())
        });
        match read {
            Ok(_) => place.ok_or_else(|| WorkerError::Request("the pack held nothing".into())),
            Err(Refusal::Request(text)) => Err(WorkerError::Request(text)),
            Err(Refusal::Pack(error)) => Err(refused(&pack)(error)),
        }
    });
    let (lease, result) = unpacking
        .await
        .map_err(|_| WorkerError::Request("unpacking was broken off".into()))??;
    let request = Request::Computed(lease.attempt, result);
    let agent = match agent(context, &preferences, None) {
        Ok(agent) => agent,
        Err(WorkerError::FolderBusy(_)) => {
            leave_request(&folder, &request)?;
            let text = "checked; the running worker hands it in after its hop";
            context.print(
                &json!({ "attempt": lease.attempt, "left_to_running_worker": true }),
                text,
            );
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    agent.accept(request)?;
    match deliver(&agent, lease.attempt).await? {
        Delivery::Closed(_) => Ok(()),
        Delivery::Parked(reason) => Err(WorkerError::NotDone(format!(
            "refused: {reason}; it stays in the spool, see `status`"
        ))),
        Delivery::Stopped => Err(WorkerError::NotDone(
            "stopped; the result is in the spool, `resubmit` hands it in".into(),
        )),
    }
}

enum Refusal {
    Pack(PackError),
    Request(String),
}

impl From<PackError> for Refusal {
    fn from(error: PackError) -> Refusal {
        Refusal::Pack(error)
    }
}

/// A result is only taken for exactly what was leased here.
fn belongs(lease: &Lease, work: Option<&Work>) -> Result<(), String> {
    let attempt: AttemptId = lease.attempt;
    let Some(work) = work else {
        return Err(format!(
            "attempt {attempt} was not leased by this worker; hand the result in where the hop was packed (--data)"
        ));
    };
    if work.lease != *lease {
        return Err(format!(
            "the pack says something else of attempt {attempt} than the lease; pack the hop again and compute that"
        ));
    }
    if work.state.result().is_some() {
        return Err(format!(
            "the result of attempt {attempt} is in the spool already; `resubmit {attempt}` sends it again"
        ));
    }
    match &work.state {
        WorkState::Closed { outcome, .. }
            if outcome.starts_with("ACCEPTED_") || outcome == "DUPLICATE" =>
        {
            Err(format!(
                "attempt {attempt} was handed in already ({outcome})"
            ))
        }
        _ => Ok(()),
    }
}

/// Nothing of a person's is overwritten.
pub(super) fn refuse_existing(out: &Path) -> Result<(), WorkerError> {
    match out.symlink_metadata() {
        Ok(_) => Err(WorkerError::Request(format!(
            "{} is there already; choose another --out",
            out.display()
        ))),
        Err(_) => Ok(()),
    }
}

/// Names the file the error is about.
pub(super) fn refused(path: &Path) -> impl Fn(PackError) -> WorkerError + use<> {
    let path: PathBuf = path.to_owned();
    move |error| WorkerError::Pack {
        path: path.clone(),
        error,
    }
}

fn agent(
    context: &Context,
    preferences: &Preferences,
    memory_elsewhere: Option<u64>,
) -> Result<Agent, WorkerError> {
    let options = Options {
        threads: preferences.threads.value,
        cache_quota: preferences.cache.value,
        memory: preferences.memory.value,
        memory_elsewhere,
        allow_insecure: preferences.allow_insecure.value,
        // A person asks for this now.
        hours: Hours::default(),
        clock: Arc::new(Minute::now),
        chain: None,
        only_claims: true,
        backoff: Backoff::default(),
    };
    let reporter = Arc::new(Reporter::new(context.json));
    let agent = Agent::open(
        context.folder()?,
        Runner::of_this_program(None, 0)?,
        options,
        reporter,
        context.stop.clone(),
    )?;
    Ok(agent)
}
