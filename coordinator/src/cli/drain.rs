//! `drain`: no new leases anywhere, and a wait for those that run.

use std::time::Duration;

use cipherhop_proto::v1::{self, ChainState};
use serde_json::json;
use tokio::time::Instant;

use super::admin::Session;
use super::{DrainArgs, Failure, output};

/// What a drained chain's note begins with: `--undo` resumes these and no others.
const MARK: &str = "drained: ";
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn drain(args: DrainArgs, json: bool) -> Result<(), Failure> {
    let session = Session::open(args.connect)?;
    let chains = session.chains().await?;
    if args.undo {
        let drained = chains
            .iter()
            .filter(|c| c.state() == ChainState::Paused && c.state_reason.starts_with(MARK));
        let mut resumed = 0;
        for chain in drained {
            session
                .change(&chain.chain_id, ChainState::Active, String::new())
                .await?;
            resumed += 1;
        }
        let text = format!("{resumed} chains resumed");
        return output::print_either(json, json!({ "resumed": resumed }), || text);
    }
    let mut paused = 0;
    for chain in chains.iter().filter(|c| c.state() == ChainState::Active) {
        let note = format!("{MARK}{}", args.reason);
        session
            .change(&chain.chain_id, ChainState::Paused, note)
            .await?;
        paused += 1;
    }
    let until = Instant::now() + Duration::from_secs(args.wait);
    let mut running = session.running(&chains).await?;
    while running > 0 && Instant::now() < until {
        tokio::time::sleep(LOOK).await;
        running = session.running(&chains).await?;
    }
    let value = json!({ "paused": paused, "running": running });
    output::print_either(json, value, || {
        format!(
            "{paused} chains paused; {running} leases still run; `drain --undo` hands out hops again"
        )
    })?;
    match running {
        0 => Ok(()),
        _ => Err(Failure::other(format!(
            "{running} leases still run after {} s. Stopping now loses nothing: workers keep their checkpoints and go on",
            args.wait
        ))),
    }
}

impl Session {
    /// Live leases of these chains.
    async fn running(&self, chains: &[v1::Chain]) -> Result<usize, Failure> {
        let mut running = 0;
        for chain in chains {
            let request = v1::GetChainRequest {
                chain_id: chain.chain_id.clone(),
                name: String::new(),
            };
            let answer = self.ask(self.connection.chain().get_chain(request)).await?;
            running += answer.hops.iter().map(|h| h.running.len()).sum::<usize>();
        }
        Ok(running)
    }
}
