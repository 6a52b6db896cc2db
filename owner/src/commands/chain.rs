//! `chain wait` and `chain result`.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use cipherhop_proto::{
    Digest,
    client::{ClientError, Connection, TransferPolicy, UNARY_DEADLINE, download, unary},
    v1::{
        BlobRef, Chain, ChainState as State, GetChainRequest, GetChainResponse, GetResultsRequest,
        HopAccuracy, HopState, PublishAccuracyRequest,
    },
};
use serde_json::json;

use crate::{
    chainfolder::ChainFolder,
    cli::{ChainResult, ChainWait},
    decrypt::Decryptor,
    files::{private_folder, read_bounded},
    reference::{Reference, compare},
    report::{Outcome, Output, Unit},
};

/// `chain wait`
pub async fn wait(args: &ChainWait, out: &Output) -> anyhow::Result<Outcome> {
    let folder = ChainFolder::open(&args.chain)?;
    let connection = folder.connect()?;
    let started = Instant::now();
    let mut bar = None;
    let mut last = String::new();
    loop {
        let request = GetChainRequest {
            chain_id: folder.state.chain_id.to_vec(),
            name: String::new(),
        };
        let answer = match unary(UNARY_DEADLINE, connection.chain().get_chain(request)).await {
            Ok(answer) => answer,
            // The coordinator may be restarting; the chain is not in danger.
            Err(ClientError::Unreachable(_) | ClientError::Timeout(_)) => {
                if args
                    .timeout
                    .is_some_and(|t| started.elapsed() > Duration::from_secs(t))
                {
                    bail!("the coordinator does not answer");
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let chain = answer
            .chain
            .clone()
            .context("the coordinator sent no chain")?;
        let bar = bar.get_or_insert_with(|| {
            out.progress("verified hops", u64::from(chain.hops), Unit::Steps)
        });
        bar.set(u64::from(chain.head));
        let line = describe(&answer);
        if line != last {
            out.note(&line);
            last = line;
        }
        let state = chain.state();
        let over = args
            .timeout
            .is_some_and(|t| started.elapsed() > Duration::from_secs(t));
        if matches!(state, State::Completed | State::Cancelled | State::Stuck) || over {
            bar.finish();
            let seconds = started.elapsed().as_secs_f64();
            let value = json!({ "chain_id": folder.state.chain_id, "state": state.as_str_name(), "reason": chain.state_reason, "hops": chain.hops,
                "verified": chain.head, "seconds": seconds });
            out.result(
                &value,
                &format!("{}{}", last, if over { "; gave up waiting" } else { "" }),
            )?;
            return Ok(if state == State::Completed {
                Outcome::Success
            } else {
                Outcome::Incomplete
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn describe(answer: &GetChainResponse) -> String {
    let Some(chain) = &answer.chain else {
        return String::new();
    };
    let state = chain
        .state()
        .as_str_name()
        .trim_start_matches("CHAIN_STATE_")
        .to_lowercase();
    let mut text = format!(
        "{}: {state}, {}/{} hops verified",
        chain.name, chain.head, chain.hops
    );
    if !chain.state_reason.is_empty() {
        text += &format!(" ({})", chain.state_reason);
    }
    for hop in &answer.hops {
        match hop.state() {
            HopState::Running | HopState::Verifying => {
                let who: Vec<&str> = hop.running.iter().map(|r| r.volunteer.as_str()).collect();
                text += &format!(
                    "; hop {} running at {} with {} result(s)",
                    hop.hop,
                    if who.is_empty() {
                        "nobody".into()
                    } else {
                        who.join(", ")
                    },
                    hop.results_waiting
                );
            }
            HopState::Stuck => text += &format!("; hop {} stuck: {}", hop.hop, hop.reason),
            _ => {}
        }
    }
    text
}

/// Verified outputs by hop, from the first without a gap.
pub(crate) async fn verified_outputs(
    folder: &ChainFolder,
    connection: &Connection,
) -> anyhow::Result<(Chain, Vec<BlobRef>)> {
    let request = GetResultsRequest {
        chain_id: folder.state.chain_id.to_vec(),
    };
    let answer = unary(UNARY_DEADLINE, connection.chain().get_results(request)).await?;
    let chain = answer.chain.context("the coordinator sent no chain")?;
    let mut outputs = Vec::new();
    for (result, hop) in answer.results.into_iter().zip(0..) {
        match result.output {
            Some(blob) if result.hop == hop => outputs.push(blob),
            _ => break,
        }
    }
    Ok((chain, outputs))
}

/// Downloads a hop's output into the chain folder.
pub(crate) async fn fetch_output(
    folder: &ChainFolder,
    connection: &Connection,
    hop: u32,
    blob: &BlobRef,
) -> anyhow::Result<PathBuf> {
    let outputs = folder.path("outputs");
    private_folder(&outputs)?;
    let digest = Digest::from_slice(&blob.digest)?;
    // Named by digest: a new generation of the chain never meets an old file.
    let path = outputs.join(format!("hop-{hop:03}-{}.ct", &digest.to_string()[..16]));
    if !path.exists() || Digest::of(&read_bounded(&path, 1 << 30)?) != digest {
        download(
            connection,
            blob,
            &path,
            None,
            &TransferPolicy::default(),
            &|_| {},
        )
        .await?;
    }
    Ok(path)
}

/// `chain result`
pub async fn result(args: &ChainResult, out: &Output) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let folder = ChainFolder::open(&args.chain)?;
    let decryptor = Decryptor::open(&folder)?;
    let reference = Reference::run(
        &decryptor.model,
        &decryptor.calibration,
        &folder.state.tokens,
    )?;
    let connection = folder.connect()?;
    let (chain, outputs) = verified_outputs(&folder, &connection).await?;
    let hops = chain.hops;
    let bar = out.progress("decrypting hops", outputs.len() as u64, Unit::Steps);
    let mut found = Vec::with_capacity(outputs.len());
    for (hop, blob) in outputs.iter().enumerate() {
        let path = fetch_output(&folder, &connection, hop as u32, blob).await?;
        found.push(tokio::task::block_in_place(|| decryptor.residual(&path))?);
        bar.set(hop as u64 + 1);
    }
    bar.finish();
    let comparison = compare(&decryptor.model, &decryptor.calibration, &reference, &found);
    let complete = found.len() == hops as usize && hops > 0;
    let accepted = complete && comparison.verdict.accepted;
    if args.publish {
        publish(&folder, &connection, &comparison.hops).await?;
    }
    let tokenizer = &decryptor.model.tokenizer;
    let name = |id: u32| tokenizer.decode(&[id]);
    let next = complete.then_some(&comparison.next);
    let value = json!({
        "chain_id": folder.state.chain_id, "hops": hops, "verified": found.len(), "complete": complete, "accepted": accepted,
        "next_token_id": next.map(|n| n.id), "next_token": next.map(|n| name(n.id)),
        "expected_token_id": reference.next.id, "expected_token": name(reference.next.id), "expected_margin": reference.next.margin,
        "worst_max_err_over_f": comparison.verdict.worst_max_err_over_f, "worst_rel_rms": comparison.verdict.worst_rel_rms,
        "per_hop": comparison.hops, "problems": comparison.verdict.problems, "seconds": started.elapsed().as_secs_f64(),
    });
    let mut text = String::new();
    for h in &comparison.hops {
        let rms: Vec<String> = h.rel_rms.iter().map(|r| format!("{r:.1e}")).collect();
        text += &format!(
            "hop {:>2}  max|err|/F {:.1e}  relative rms per token {}\n",
            h.hop,
            h.max_err_over_f,
            rms.join(" ")
        );
    }
    let expected = format!(
        "{} {:?} (margin {:.3})",
        reference.next.id,
        name(reference.next.id),
        reference.next.margin
    );
    match next {
        Some(n) => {
            text += &format!(
                "next token {} {:?}; plaintext model {expected}\n",
                n.id,
                name(n.id)
            )
        }
        None => {
            text += &format!(
                "{} of {hops} hops verified; plaintext model's next token {expected}\n",
                found.len()
            )
        }
    }
    let verdict = match (complete, accepted) {
        (false, _) => "the chain is not complete".to_string(),
        (true, true) => "accepted: all errors are within the limits".to_string(),
        (true, false) => format!("NOT accepted: {}", comparison.verdict.problems.join("; ")),
    };
    out.result(&value, &(text + &verdict))?;
    Ok(match (complete, accepted) {
        (false, _) => Outcome::Incomplete,
        (true, true) => Outcome::Success,
        (true, false) => Outcome::NotAccepted,
    })
}

/// One significant digit: raw decryptions, and figures fine enough to hint at them, stay here (CKKS is IND-CPA only).
fn rounded(value: f64) -> f64 {
    format!("{value:.0e}").parse().unwrap_or(f64::NAN)
}

async fn publish(
    folder: &ChainFolder,
    connection: &Connection,
    hops: &[crate::accuracy::HopErrors],
) -> anyhow::Result<()> {
    let hops = hops.iter().map(|h| HopAccuracy {
        hop: h.hop,
        max_err_over_f: rounded(h.max_err_over_f),
        worst_rel_rms: rounded(h.worst_rel_rms),
    });
    let request = PublishAccuracyRequest {
        chain_id: folder.state.chain_id.to_vec(),
        hops: hops.collect(),
    };
    unary(UNARY_DEADLINE, connection.chain().publish_accuracy(request)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn published_figures_have_one_digit() {
        assert_eq!(super::rounded(1.234e-4), 1e-4);
        assert_eq!(super::rounded(0.0266), 0.03);
    }
}
