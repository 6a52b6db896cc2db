//! A key holder, an operator and three volunteers who bring chains to their ends whatever dies, and write down all
//! they are told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cipherhop_proto::client::{ClientError, Connection, unary};
use cipherhop_proto::v1::acquire_response::Answer;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{BlobRole, ChainState, HopState};
use cipherhop_proto::{AttemptId, ChainId, Digest, Nonce, Reason, v1};
use futures::StreamExt as _;

use crate::common::{SET, capabilities, chain_of, ciphertext, connect, submit_request};
use crate::ledger::Ledger;

/// Of the ciphertexts here: small, so that many fit into a second.
const LEVEL: usize = 1;
const HOPS: u32 = 2;

pub type Shared = Arc<Mutex<Ledger>>;

pub struct Site {
    pub number: u32,
    pub url: String,
    pub admin: Connection,
    pub ledger: Shared,
    /// No new chain is begun.
    pub stop: Arc<AtomicBool>,
}

struct Volunteer {
    account: Vec<u8>,
    connection: Connection,
    /// Lets its leases run out before it works.
    slow: bool,
}

/// Repeats the call until the coordinator has answered it.
pub(super) async fn persist<T>(
    mut call: impl AsyncFnMut() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    loop {
        match call().await {
            Err(ClientError::Unreachable(_) | ClientError::Timeout(_)) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // As clients do.
            Err(busy) if busy.reason() == Some(Reason::StoreUnavailable) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            answer => return answer,
        }
    }
}

macro_rules! ask {
    ($connection:expr, $service:ident, $method:ident, $request:expr) => {{
        let request = $request;
        persist(async || {
            let mut call = $connection.$service();
            unary(Duration::from_secs(10), call.$method(request.clone())).await
        })
        .await
    }};
}
pub(super) use ask;

impl Site {
    pub(super) fn book(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    async fn token(&self, role: v1::TokenRole, account: &str) -> String {
        let request = v1::CreateTokenRequest {
            role: role.into(),
            account: account.into(),
            ..Default::default()
        };
        let made = ask!(self.admin, admin, create_token, request).unwrap();
        let hash = Digest::of(made.token.as_bytes());
        self.book().tokens.set(hash, ());
        made.token
    }

    async fn volunteer(&self, name: &str, slow: bool) -> Volunteer {
        let account = format!("{name} of site {}", self.number);
        let invite = self.token(v1::TokenRole::Invite, &account).await;
        let request = v1::EnrollRequest {
            invite,
            display_name: account,
            nonce: Nonce::generate().to_vec(),
            worker_version: "test".into(),
            ..Default::default()
        };
        let stranger = connect(&self.url, None);
        let made = ask!(stranger, volunteer, enroll, request).unwrap();
        let hash = Digest::of(made.token.as_bytes());
        self.book().tokens.set(hash, ());
        Volunteer {
            account: made.account_id,
            connection: connect(&self.url, Some(&made.token)),
            slow,
        }
    }

    /// Chains until told to stop.
    pub async fn run(self) {
        let account = format!("key holder {}", self.number);
        let token = self.token(v1::TokenRole::Owner, &account).await;
        let owner = connect(&self.url, Some(&token));
        let mut crowd = vec![
            self.volunteer("ada", false).await,
            self.volunteer("bob", false).await,
        ];
        for number in 0.. {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // A new device each time, so that people are enrolled all the time.
            let carol = self.volunteer("carol", self.number == 0).await;
            crowd.push(carol);
            self.chain(number, &owner, &crowd).await;
            crowd.pop();
        }
    }

    fn output(&self, number: u32, hop: u32) -> Vec<u8> {
        let seed = (u64::from(self.number) << 40) + (u64::from(number) << 8) + u64::from(hop) + 2;
        ciphertext(SET, LEVEL, seed)
    }

    async fn chain(&self, number: u32, owner: &Connection, crowd: &[Volunteer]) {
        let name = format!("site {} chain {number}", self.number);
        let input = ciphertext(SET, LEVEL, u64::from(number) + 1);
        let weights = format!("weights of {name}").into_bytes();
        let new = chain_of(&name, LEVEL, input, vec![weights; HOPS as usize]);
        for (bytes, role) in &new.blobs {
            assert!(self.upload(owner, bytes, *role, None).await);
        }
        let request = new.request;
        let id = ChainId::from_slice(&request.chain_id).unwrap();
        ask!(owner, chain, create_chain, request).unwrap();
        self.book().heads.set(id, (0, 0));
        if number % 3 == 1 {
            for state in [ChainState::Paused, ChainState::Active] {
                let request = v1::SetChainStateRequest {
                    chain_id: id.to_vec(),
                    state: state.into(),
                    reason: "a test".into(),
                };
                let answer = ask!(self.admin, admin, set_chain_state, request);
                accepted_or(answer.map(drop), &[Reason::ChainStateConflict]);
            }
        }
        let mut to_invalidate = number % 2 == 1;
        loop {
            for volunteer in crowd {
                self.visit(volunteer, id, number).await;
                let state = self.look(owner, id).await;
                if state == ChainState::Completed {
                    self.book().completed += 1;
                    return;
                }
                assert_eq!(state, ChainState::Active);
                let head = self.book().heads.get(&id).copied().unwrap();
                if to_invalidate && head == (0, 1) {
                    to_invalidate = false;
                    let request = v1::InvalidateHopRequest {
                        chain_id: id.to_vec(),
                        hop: 0,
                        reason: "a test".into(),
                    };
                    let answer = ask!(self.admin, chain, invalidate_hop, request);
                    accepted_or(answer.map(drop), &[Reason::ChainStateConflict]);
                }
            }
        }
    }

    /// Reads the chain and keeps what it says.
    async fn look(&self, owner: &Connection, id: ChainId) -> ChainState {
        let request = v1::GetChainRequest {
            chain_id: id.to_vec(),
            name: String::new(),
        };
        let answer = ask!(owner, chain, get_chain, request).unwrap();
        let chain = answer.chain.unwrap();
        let mut book = self.book();
        let before = book.heads.get(&id).copied().unwrap_or_default();
        let now = (chain.generation, chain.head);
        assert!(now >= before, "I2: {now:?} after {before:?}");
        book.heads.set(id, now);
        for hop in &answer.hops {
            if hop.state() == HopState::Verified {
                let digest = Digest::from_slice(&hop.digest).unwrap();
                let key = (id, chain.generation, hop.hop);
                let known = book.verified.get(&key);
                assert!(known.is_none_or(|known| *known == digest), "I1");
                book.verified.set(key, digest);
            }
        }
        chain.state()
    }

    /// One volunteer asks for work on the chain and does what it is given.
    async fn visit(&self, volunteer: &Volunteer, chain: ChainId, number: u32) {
        let connection = &volunteer.connection;
        let request = v1::AcquireRequest {
            nonce: Nonce::generate().to_vec(),
            capabilities: Some(capabilities(1)),
            chain_id: chain.to_vec(),
            ..Default::default()
        };
        let answer = ask!(connection, volunteer, acquire, request.clone()).unwrap();
        let Some(Answer::Assignment(given)) = answer.answer else {
            return;
        };
        let attempt = AttemptId::from_slice(&given.attempt_id).unwrap();
        self.book().leases.set(attempt, given.epoch);
        let again = ask!(connection, volunteer, acquire, request).unwrap();
        let Some(Answer::Assignment(again)) = again.answer else {
            panic!("a lease is forgotten: {again:?}");
        };
        assert_eq!(
            (again.attempt_id, again.epoch),
            (given.attempt_id.clone(), given.epoch)
        );
        if volunteer.slow {
            tokio::time::sleep(Duration::from_millis(1300)).await;
        }
        let request = v1::SyncRequest {
            attempt_id: given.attempt_id.clone(),
            epoch: given.epoch,
            phase: v1::AttemptPhase::Computing.into(),
            progress: None,
        };
        let answer = ask!(connection, volunteer, sync, request);
        accepted_or(answer.map(drop), GONE);
        self.read_input(connection, &given).await;
        self.hand_in(volunteer, &given, attempt, &self.output(number, given.hop))
            .await;
    }

    async fn read_input(&self, connection: &Connection, given: &v1::Assignment) {
        let blob = given.blobs.iter().find(|b| b.role() == BlobRole::Input);
        let request = v1::ReadRequest {
            digest: blob.unwrap().digest.clone(),
            attempt_id: given.attempt_id.clone(),
            ..Default::default()
        };
        let read = persist(async || {
            let mut stream = connection.blob().read(request.clone()).await?.into_inner();
            let mut bytes = Vec::new();
            while let Some(frame) = stream.next().await {
                bytes.extend(frame?.data);
            }
            match bytes.len() as u64 == blob.unwrap().size {
                true => Ok(bytes),
                // The stream of a killed server may just end.
                false => Err(ClientError::Unreachable("cut off".into())),
            }
        });
        match read.await {
            Ok(bytes) => assert_eq!(Digest::of(&bytes).to_vec(), request.digest),
            Err(refused) => accepted_or(Err(refused), GONE),
        }
    }

    async fn hand_in(
        &self,
        volunteer: &Volunteer,
        given: &v1::Assignment,
        attempt: AttemptId,
        output: &[u8],
    ) {
        let trace = crate::common::trace(given);
        let request = submit_request(given, output, &trace);
        for _ in 0..20 {
            let answer = ask!(volunteer.connection, volunteer, submit, request.clone());
            let answer = match answer {
                Ok(answer) => answer,
                Err(refused) => return accepted_or(Err(refused), GONE),
            };
            if answer.outcome() != Outcome::NeedUpload {
                assert_ne!(answer.outcome(), Outcome::AcceptedMismatched);
                if answer.outcome() != Outcome::HopClosed {
                    let said = (Digest::of(output), answer.outcome());
                    self.book().submits.set(attempt, said);
                }
                return;
            }
            let known = self.book().submits.get(&attempt).cloned();
            assert!(known.is_none(), "I5: {known:?} was forgotten");
            for blob in &answer.need_upload {
                let (bytes, role) = match blob.digest == request.output_digest {
                    true => (output, BlobRole::Output),
                    false => (&trace[..], BlobRole::Trace),
                };
                if !self
                    .upload(&volunteer.connection, bytes, role, Some(given))
                    .await
                {
                    return;
                }
            }
        }
        panic!(
            "{} is asked for its bytes again and again",
            hex::encode(&volunteer.account)
        );
    }
}

/// The attempt is over, because of another's result or a new generation.
pub(super) const GONE: &[Reason] = &[
    Reason::AttemptClosed,
    Reason::HopClosed,
    Reason::HopVerified,
    Reason::ChainCompleted,
    Reason::BlobNotAllowed,
];

pub(super) fn accepted_or(answer: Result<(), ClientError>, fine: &[Reason]) {
    if let Err(error) = answer {
        let reason = error.reason();
        assert!(
            reason.is_some_and(|reason| fine.contains(&reason)),
            "refused: {error}"
        );
    }
}
