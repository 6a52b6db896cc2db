//! `claim`: says which hops this worker takes first. It reserves nothing at the coordinator: hops are leased one by
//! one when they open, so a volunteer who vanishes blocks nobody.

use cipherhop_proto::client::ClientError;
use cipherhop_proto::v1::HopState;
use serde_json::json;

use super::{Context, chain_id, find_chain};
use crate::agent::{Request, leave_request};
use crate::cli::Claim as Options;
use crate::error::WorkerError;
use crate::journal::{Claim, Entry, Journal};

pub(super) async fn claim(context: &Context, options: Options) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    let connection = context.connect()?;
    let answer = find_chain(&connection, &options.chain).await?;
    let chain = answer
        .chain
        .as_ref()
        .ok_or(ClientError::Protocol("no chain in the answer"))?;
    if let Some(hops) = options.hops
        && hops.last >= chain.hops
    {
        return Err(WorkerError::Request(format!(
            "chain {} has the hops 0 to {}; {hops} goes beyond",
            chain.name,
            chain.hops.saturating_sub(1)
        )));
    }
    let claim = Claim {
        chain: chain_id(&answer)?,
        hops: options.hops,
    };
    let wanted = |hop: u32| claim.hops.is_none_or(|hops| hops.contains(hop));
    let count = |state: HopState| {
        answer
            .hops
            .iter()
            .filter(|h| wanted(h.hop) && h.state() == state)
            .count()
    };
    let (verified, open) = (count(HopState::Verified), count(HopState::Ready));
    let all = answer.hops.iter().filter(|h| wanted(h.hop)).count();
    let running = match folder.lock() {
        Ok(_lock) => {
            let entry = if options.remove {
                Entry::Unclaimed(claim.clone())
            } else {
                Entry::Claimed(claim.clone())
            };
            Journal::open(&folder.journal())?.append(entry)?;
            false
        }
        Err(WorkerError::FolderBusy(_)) => {
            let request = if options.remove {
                Request::Unclaim(claim.clone())
            } else {
                Request::Claim(claim.clone())
            };
            leave_request(&folder, &request)?;
            true
        }
        Err(error) => return Err(error),
    };
    let hops = claim
        .hops
        .map(|hops| hops.to_string())
        .unwrap_or_else(|| "all".into());
    let done = if options.remove {
        "withdrew the claim on"
    } else {
        "claimed"
    };
    let next = if running {
        "the running worker takes it up after its hop"
    } else {
        "next: cipherhop-worker run"
    };
    context.print(
        &json!({ "chain": claim.chain, "hops": hops, "removed": options.remove, "hops_in_claim": all, "verified": verified, "open": open }),
        &format!(
            "{done} hops {hops} of {} ({all} hops: {verified} verified, {open} open now); {next}",
            chain.name
        ),
    );
    Ok(())
}
