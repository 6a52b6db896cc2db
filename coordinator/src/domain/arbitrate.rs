//! Verdicts of a referee: two results disagreed, the first step in which their traces differ was run again.

use std::collections::BTreeSet;

use cipherhop_proto::{AttemptId, Reason};

use super::attempt::Purpose;
use super::command::{Refusal, Reply};
use super::failure::{self, Budget};
use super::hop::{HopState, Method};
use super::schedule;
use super::turn::Turn;
use super::verify::{self, accept, output_of, refute};

/// Refutes the `guilty`; where only the result of `upheld` is left, it is accepted.
pub(super) fn convict(
    turn: &mut Turn,
    guilty: &BTreeSet<AttemptId>,
    upheld: Option<AttemptId>,
) -> Result<Reply, Refusal> {
    if let Some(reason) = turn.closed() {
        return Err(reason.into());
    }
    let disputed =
        turn.hop.state.is_open() || turn.hop.state == HopState::Stuck(Reason::QuorumDisagrees);
    if !disputed {
        return Ok(Reply::Convicted(false));
    }
    let mut any = false;
    for index in turn.submitted() {
        let attempt = &turn.attempts[index];
        if attempt.purpose != Purpose::Work || !guilty.contains(&attempt.id) {
            continue;
        }
        any = true;
        refute(turn, index, None);
        let why = Reason::ResultMismatch;
        failure::count(turn, index, Budget::Mismatch, why, String::new());
    }
    if !any {
        return Ok(Reply::Convicted(false));
    }
    let standing = turn.submitted().into_iter().find(|index| {
        let attempt = &turn.attempts[*index];
        Some(attempt.id) == upheld
    });
    let classes = schedule::classes(&turn.attempts);
    match standing.and_then(|index| output_of(turn, index)) {
        Some(digest) if classes.len() == 1 && turn.hop.expected.is_none() => {
            accept(turn, digest, Method::Referee);
        }
        _ => {
            if turn.hop.state == HopState::Stuck(Reason::QuorumDisagrees) && classes.len() < 2 {
                turn.reopen();
            }
            verify::evaluate(turn, false);
            failure::check(turn, Budget::Mismatch);
        }
    }
    Ok(Reply::Convicted(true))
}
