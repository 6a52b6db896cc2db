//! The one entry to the rules.

use super::command::{Command, Effects, Refusal, State};
use super::time::Timestamp;
use super::turn::Turn;
use super::{arbitrate, lease, operate, recheck, verify};

/// What follows from `command` at `now`, or why it is refused. Pure: the caller writes the effects,
/// all of them or none, before it answers.
pub fn decide(state: &State, command: Command, now: Timestamp) -> Result<Effects, Refusal> {
    let mut turn = Turn::new(state, now);
    let reply = match command {
        Command::Lease(asker) => lease::lease(&mut turn, asker),
        Command::Probe(asker) => recheck::probe(&mut turn, asker),
        Command::Recheck(asker, excluded) => recheck::lease(&mut turn, asker, &excluded),
        Command::Sync(holder, phase, progress) => {
            lease::renew(&mut turn, holder, Some((phase, progress)))
        }
        Command::Touch(holder) => lease::renew(&mut turn, holder, None),
        Command::Submit(holder, claim, check, chance) => {
            verify::submit(&mut turn, holder, claim, check, chance)
        }
        Command::Fail(holder, kind, detail) => lease::fail(&mut turn, holder, kind, detail),
        Command::Release(holder) => lease::release(&mut turn, holder),
        Command::Tick => Ok(lease::tick(&mut turn)),
        Command::Evict(device) => Ok(lease::evict(&mut turn, device)),
        Command::Requeue(note) => operate::requeue(&mut turn, note),
        Command::Reopen(note) => operate::reopen(&mut turn, note),
        Command::Expect(digest) => verify::expect(&mut turn, digest),
        Command::DropArchived(stored, note) => operate::drop_archived(&mut turn, &stored, note),
        Command::Invalidate(note) => recheck::invalidate(&mut turn, note),
        Command::Doubt => Ok(recheck::doubt(&mut turn)),
        Command::Convict(guilty, upheld) => arbitrate::convict(&mut turn, &guilty, upheld),
        Command::Pause(note) => operate::pause(&mut turn, note),
        Command::Resume => operate::resume(&mut turn),
        Command::Cancel(note) => operate::cancel(&mut turn, note),
    }?;
    Ok(turn.finish(state, reply))
}
