//! Chains: created, read, changed by people.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use cipherhop_proto::{AccountId, ChainId, Digest, Reason};

use super::Work;
use super::accounts::check_name;
use crate::domain::attempt::AttemptState;
use crate::domain::chain::{Chain, ChainChange, ChainState, MAX_HOPS, MAX_QUORUM, NewChain};
use crate::domain::command::{Command, Refusal, Reply};
use crate::domain::event::{EventKind, NewEvent};
use crate::domain::hop::{Hop, HopState};
use crate::domain::time::Timestamp;
use crate::domain::view::{Accuracy, ChainStatus, HopResult, HopView};
use crate::store::types::{Disputed, Imported, Reopened, Result};

/// Most evaluation keys a chain may name.
const MAX_KEYS: usize = 65_536;

impl Work {
    pub(super) async fn chain(&mut self, id: ChainId) -> Result<Chain> {
        let unknown = || Refusal::new(Reason::ChainNotFound, format!("no chain {id}"));
        Ok(self.tx.chain(id).await?.ok_or_else(unknown)?)
    }

    pub(super) async fn chain_by_name(&mut self, name: &str) -> Result<Chain> {
        let shown: String = name.chars().take(128).collect();
        let unknown = || Refusal::new(Reason::ChainNotFound, format!("no chain {shown:?}"));
        Ok(self.tx.chain_by_name(name).await?.ok_or_else(unknown)?)
    }

    pub(super) async fn create_chain(&mut self, new: NewChain, now: Timestamp) -> Result<Chain> {
        check_new_chain(&new)?;
        if let Some(known) = self.tx.chain(new.id).await? {
            return match self.same_chain(&known, &new).await? {
                true => Ok(known),
                false => Err(Reason::ChainExists.into()),
            };
        }
        if self.tx.chain_by_name(&new.name).await?.is_some() {
            let detail = format!("the name {:?} is taken", new.name);
            return Err(Refusal::new(Reason::ChainExists, detail).into());
        }
        self.check_blobs(&new).await?;
        let chain = Chain {
            id: new.id,
            name: new.name.clone(),
            owner: new.owner,
            state: ChainState::Active,
            hops: new.hops.len() as u32,
            head: 0,
            generation: 0,
            policy: new.policy.clone(),
            spec: new.spec.clone(),
            created: now,
        };
        self.tx.insert_chain(&chain, &new).await?;
        for (index, given) in (0u32..).zip(&new.hops) {
            let mut hop = Hop::new(&chain, index, given.weights, new.input, now);
            hop.expected = given.archived;
            self.tx.insert_hop(&hop).await?;
        }
        cipherhop_failpoint::at("chain.commit.before");
        self.event(new.id, EventKind::ChainCreated, None, now)
            .await?;
        self.event(new.id, EventKind::HopReady, Some(0), now)
            .await?;
        Ok(chain)
    }

    async fn event(
        &mut self,
        chain: ChainId,
        kind: EventKind,
        hop: Option<u32>,
        now: Timestamp,
    ) -> Result<()> {
        let event = NewEvent {
            kind,
            hop,
            attempt: None,
            detail: String::new(),
        };
        self.opens |= event.kind.may_open();
        self.last_event = self.tx.append_event(chain, &event, now).await?;
        Ok(())
    }

    async fn same_chain(&mut self, known: &Chain, new: &NewChain) -> Result<bool> {
        let keys = self.tx.chain_keys(known.id).await?;
        let hops = self.tx.hops(known.id, 0).await?;
        let same_hops = hops.len() == new.hops.len()
            && hops.iter().zip(&new.hops).all(|(hop, given)| {
                hop.weights == given.weights
                    && (given.archived.is_none() || hop.expected == given.archived)
            });
        Ok(known.name == new.name
            && known.owner == new.owner
            && known.spec == new.spec
            && known.policy.quorum == new.policy.quorum
            && keys
                .iter()
                .map(|key| key.digest)
                .eq(new.keys.iter().copied())
            && hops.first().is_some_and(|hop| hop.input == Some(new.input))
            && same_hops)
    }

    async fn check_blobs(&mut self, new: &NewChain) -> Result<()> {
        let needed = [new.spec.program, new.spec.key_manifest, new.input].into_iter();
        let needed = needed.chain(new.keys.iter().copied());
        let mut seen = HashMap::new();
        for digest in needed.chain(new.hops.iter().map(|hop| hop.weights)) {
            if seen.contains_key(&digest) {
                continue;
            }
            let Some(blob) = self.tx.blob(digest).await? else {
                let detail = format!("blob {digest} is not uploaded");
                return Err(Refusal::new(Reason::BlobNotFound, detail).into());
            };
            seen.insert(digest, blob.size);
        }
        let (size, expected) = (seen.get(&new.input).copied(), new.spec.boundary_bytes);
        if size != Some(expected) {
            let detail = format!("the input has {} bytes, not {expected}", size.unwrap_or(0));
            return Err(Refusal::new(Reason::BlobSizeMismatch, detail).into());
        }
        Ok(())
    }

    pub(super) async fn status(&mut self, id: ChainId) -> Result<ChainStatus> {
        let chain = self.chain(id).await?;
        let hops = self.tx.hops(id, chain.generation).await?;
        let attempts = self.tx.attempts_of_chain(id, chain.generation).await?;
        let accuracies = self.tx.accuracies(id, chain.generation).await?;
        let sequence = self.tx.last_sequence(id).await?;
        let mut names: BTreeMap<AccountId, String> = BTreeMap::new();
        for attempt in &attempts {
            if let Entry::Vacant(unknown) = names.entry(attempt.account) {
                unknown.insert(self.tx.account_name(attempt.account).await?);
            }
        }
        let view = |hop: &Hop| {
            let start = attempts.partition_point(|attempt| attempt.hop < hop.index);
            let end = attempts.partition_point(|attempt| attempt.hop <= hop.index);
            let figures = accuracies.iter().find(|figures| figures.hop == hop.index);
            let name = |account| names.get(&account).cloned().unwrap_or_default();
            HopView::of(hop, &attempts[start..end], name, figures.copied())
        };
        let hops = hops.iter().map(view).collect();
        Ok(ChainStatus {
            chain,
            hops,
            sequence,
        })
    }

    pub(super) async fn results(&mut self, id: ChainId) -> Result<Vec<HopResult>> {
        let chain = self.chain(id).await?;
        let hops = self.tx.hops(id, chain.generation).await?;
        let result = |hop: Hop| HopResult {
            hop: hop.index,
            input: hop.input,
            output: hop.accepted.map(|accepted| accepted.digest),
        };
        Ok(hops.into_iter().map(result).collect())
    }

    pub(super) async fn import_archive(
        &mut self,
        id: ChainId,
        digests: Vec<(u32, Digest)>,
        now: Timestamp,
    ) -> Result<Imported> {
        let generation = self.chain(id).await?.generation;
        let mut imported = Imported::default();
        for (hop, digest) in digests {
            let state = self.load(id, generation, hop).await?;
            let (effects, _) = self.run(&state, Command::Expect(digest), now).await?;
            match effects.reply {
                Reply::Expected(true) => imported.imported += 1,
                _ => imported.already_known += 1,
            }
        }
        Ok(imported)
    }

    pub(super) async fn publish_accuracy(
        &mut self,
        id: ChainId,
        figures: Vec<Accuracy>,
        now: Timestamp,
    ) -> Result<()> {
        let generation = self.chain(id).await?.generation;
        for given in figures {
            let finite = given.max_err_over_f.is_finite() && given.worst_rel_rms.is_finite();
            if !finite || given.max_err_over_f < 0.0 || given.worst_rel_rms < 0.0 {
                let detail = "accuracy figures are finite and not negative";
                return Err(Refusal::new(Reason::BadRequest, detail).into());
            }
            let hop = self
                .tx
                .hop(id, generation, given.hop)
                .await?
                .ok_or(Reason::HopNotFound)?;
            if hop.state != HopState::Verified {
                let detail = format!("hop {} is not verified yet", given.hop);
                return Err(Refusal::new(Reason::ChainStateConflict, detail).into());
            }
            self.tx.put_accuracy(id, generation, given).await?;
            self.event(id, EventKind::AccuracyPublished, Some(given.hop), now)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn change_chain(
        &mut self,
        id: ChainId,
        change: ChainChange,
        now: Timestamp,
    ) -> Result<Chain> {
        let chain = self.chain(id).await?;
        let hop = chain.head.min(chain.hops.saturating_sub(1));
        let state = self.load(id, chain.generation, hop).await?;
        let command = match change {
            ChainChange::Pause(note) => Command::Pause(note),
            ChainChange::Resume => Command::Resume,
            ChainChange::Cancel(note) => Command::Cancel(note),
        };
        let (effects, _) = self.run(&state, command, now).await?;
        Ok(effects.chain.unwrap_or(chain))
    }

    pub(super) async fn disputes(&mut self) -> Result<Vec<Disputed>> {
        let mut disputes = Vec::new();
        for chain in self.tx.chains().await? {
            if matches!(
                chain.state,
                ChainState::Completed | ChainState::Cancelled(_)
            ) {
                continue;
            }
            let (generation, head) = (chain.generation, chain.head);
            let Some(hop) = self.tx.hop(chain.id, generation, head).await? else {
                continue;
            };
            let disputable = matches!(
                hop.state,
                HopState::Running | HopState::Verifying | HopState::Stuck(Reason::QuorumDisagrees)
            );
            let Some(input) = hop.input.filter(|_| disputable && hop.expected.is_none()) else {
                continue;
            };
            let mut attempts = self.tx.attempts_of_hop(chain.id, generation, head).await?;
            attempts.retain(|attempt| attempt.state == AttemptState::Submitted);
            let outputs = attempts.iter().filter_map(|a| a.claim.as_ref());
            let outputs: BTreeSet<Digest> = outputs.map(|claim| claim.output).collect();
            if outputs.len() > 1 {
                disputes.push(Disputed {
                    chain,
                    generation,
                    hop: head,
                    input,
                    attempts,
                });
            }
        }
        Ok(disputes)
    }

    pub(super) async fn drop_archived(
        &mut self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<HopState> {
        let generation = self.chain(id).await?.generation;
        let state = self.load(id, generation, hop).await?;
        let mut stored = BTreeSet::new();
        for claim in state.attempts.iter().filter_map(|a| a.claim.as_ref()) {
            if self.tx.blob(claim.output).await?.is_some() {
                stored.insert(claim.output);
            }
        }
        let command = Command::DropArchived(stored, note);
        Ok(self.run(&state, command, now).await?.1)
    }

    pub(super) async fn invalidate(
        &mut self,
        id: ChainId,
        hop: u32,
        note: String,
        now: Timestamp,
    ) -> Result<Chain> {
        let chain = self.chain(id).await?;
        let state = self.load(id, chain.generation, hop).await?;
        let (effects, _) = self.run(&state, Command::Invalidate(note), now).await?;
        Ok(effects.chain.unwrap_or(chain))
    }

    /// `command` is Requeue or Reopen.
    pub(super) async fn open_again(
        &mut self,
        id: ChainId,
        hop: u32,
        command: Command,
        now: Timestamp,
    ) -> Result<Reopened> {
        let generation = self.chain(id).await?.generation;
        let state = self.load(id, generation, hop).await?;
        let (effects, hop_state) = self.run(&state, command, now).await?;
        let was = match effects.reply {
            Reply::Reopened(was) => was,
            _ => None,
        };
        Ok(Reopened { hop_state, was })
    }
}

fn check_new_chain(new: &NewChain) -> Result<()> {
    check_name("chain name", &new.name)?;
    let wrong = |detail: String| Err(Refusal::new(Reason::BadRequest, detail).into());
    if new.hops.is_empty() || new.hops.len() > MAX_HOPS as usize {
        return wrong(format!("a chain has 1 to {MAX_HOPS} hops"));
    }
    if !(2..=MAX_QUORUM).contains(&new.policy.quorum) {
        return wrong(format!("the quorum is 2 to {MAX_QUORUM}"));
    }
    if new.keys.len() > MAX_KEYS {
        return wrong(format!("a chain has at most {MAX_KEYS} keys"));
    }
    if new.spec.boundary_bytes == 0 {
        return wrong("boundary_bytes is zero".to_owned());
    }
    Ok(())
}
