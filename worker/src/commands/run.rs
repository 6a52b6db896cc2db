//! `run`: the self-test, then the agent's loop.

use std::sync::Arc;
use std::time::Duration;

use cipherhop_proto::client::Backoff;

use super::{Context, chain_id, find_chain};
use crate::agent::{Agent, Goal, Options, run as work};
use crate::child::Runner;
use crate::cli::Run;
use crate::error::WorkerError;
use crate::hours::Minute;
use crate::preferences::Preferences;
use crate::report::{Event, Reporter};
use crate::selftest;

pub(super) async fn run(context: &Context, options: Run) -> Result<(), WorkerError> {
    let preferences = Preferences::load(&context.root, &options.choices)?;
    let isa = selftest::usable(preferences.isa.value)?;
    let reporter = Arc::new(Reporter::new(context.json));
    let chosen = Options {
        threads: preferences.threads.value,
        cache_quota: preferences.cache.value,
        memory: preferences.memory.value,
        memory_elsewhere: None,
        allow_insecure: preferences.allow_insecure.value,
        hours: preferences.hours.value,
        clock: Arc::new(Minute::now),
        chain: None,
        only_claims: options.only_claims,
        backoff: Backoff::default(),
    };
    let mut agent = Agent::open(
        context.folder()?,
        Runner::of_this_program(preferences.isa.value, preferences.nice.value)?,
        chosen,
        reporter.clone(),
        context.stop.clone(),
    )?;
    let (folder, threads) = (agent.folder.clone(), agent.options.threads);
    let testing =
        tokio::task::spawn_blocking(move || selftest::run_or_recall(&folder, isa, threads));
    let tested = tokio::select! {
        () = agent.leave.cancelled() => {
            return match options.once || options.until_done.is_some() {
                true => Err(WorkerError::NotDone("stopped in the self-test".into())),
                false => Ok(()),
            };
        }
        tested = testing => tested.map_err(|_| WorkerError::Request("the self-test was broken off".into()))??,
    };
    agent.golden = Some(tested.check()?);
    let mut goal = if options.once {
        Goal::Once
    } else {
        Goal::Forever
    };
    if let Some(text) = options.until_done.as_ref().or(options.chain.as_ref()) {
        let chain = chain_id(&find_chain(&agent.connection, text).await?)?;
        agent.options.chain = Some(chain);
        if options.until_done.is_some() {
            goal = Goal::UntilDone(chain);
        }
    }
    let reason = work(&agent, goal, options.idle_exit.map(Duration::from_secs)).await?;
    reporter.tell(&Event::Done { reason });
    Ok(())
}
