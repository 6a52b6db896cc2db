//! The key holder and the volunteers of the simulation, and the book of what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cipherhop_proto::client::{
    AttemptRef, ClientError, Connection, Source, TransferPolicy, unary, upload,
};
use cipherhop_proto::v1::acquire_response::Answer;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::v1::{self, BlobRole, ChainState, HopState};
use cipherhop_proto::{AccountId, AttemptId, Digest, Nonce, Reason};
use rand::prelude::*;

use crate::common::{SET, blob_ref, capabilities, chain_of, ciphertext, submit_request, trace};
use crate::wire::connect;

pub const CHAINS: u32 = 2;
pub const HOPS: u32 = 3;
pub const VOLUNTEERS: [&str; 3] = ["ada", "bob", "eve"];
const LEVEL: usize = 1;
const DEADLINE: Duration = Duration::from_secs(10);

/// The hop's one right output.
fn output(chain: &[u8], hop: u32) -> Vec<u8> {
    ciphertext(SET, LEVEL, u64::from(chain[15]) * 1000 + u64::from(hop) + 2)
}

pub fn right(chain: &[u8], hop: u32) -> Digest {
    Digest::of(&output(chain, hop))
}

/// How much happened.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Calls that got no answer.
    pub unreachable: u32,
    /// Submits said again after their answer.
    pub repeated: u32,
    /// Results after the lease had run out.
    pub late: u32,
    /// Submits under another epoch than the lease's.
    pub stale: u32,
}

impl Count {
    pub fn add(&mut self, other: &Count) {
        self.unreachable += other.unreachable;
        self.repeated += other.repeated;
        self.late += other.late;
        self.stale += other.stale;
    }
}

/// Everything that was said.
#[derive(Default)]
pub struct Book {
    pub count: Count,
    pub chains: Vec<Vec<u8>>,
    pub accounts: Vec<AccountId>,
    pub leases: u32,
    /// What each volunteer is at.
    pub doing: BTreeMap<String, String>,
    /// Results that were acknowledged.
    pub taken: BTreeMap<AttemptId, Outcome>,
    heads: BTreeMap<Vec<u8>, u32>,
    digests: BTreeMap<(Vec<u8>, u32), Vec<u8>>,
}

#[derive(Clone)]
pub struct Crowd {
    seed: u64,
    /// False: a stale epoch is as the right one, as for a coordinator that does not compare them.
    fence: bool,
    book: Arc<Mutex<Book>>,
    /// The chains are there and everybody is enrolled.
    pub ready: Arc<AtomicBool>,
    enrolled: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

type Failed = Box<dyn std::error::Error>;

/// What a volunteer may be told when a result comes too late.
const OVER: &[Reason] = &[
    Reason::AttemptClosed,
    Reason::HopClosed,
    Reason::HopVerified,
    Reason::ChainCompleted,
    Reason::DeadlinePassed,
    Reason::BlobNotAllowed,
];

impl Crowd {
    pub fn new(seed: u64, fence: bool, book: Arc<Mutex<Book>>) -> Crowd {
        Crowd {
            seed,
            fence,
            book,
            ready: Arc::default(),
            enrolled: Arc::default(),
            done: Arc::default(),
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Repeats until there is an answer.
    async fn persist<T>(
        &self,
        mut call: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            match call().await {
                Err(ClientError::Unreachable(_) | ClientError::Timeout(_)) => {
                    self.book().count.unreachable += 1;
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
                answer => return answer,
            }
        }
    }

    /// Makes the chains, then follows them to their end over a link that is never cut.
    pub async fn owner(&self, token: &str) -> Result<(), Failed> {
        let connection = connect(Some(token));
        for number in 0..CHAINS {
            self.create(&connection, number).await?;
        }
        while self.enrolled.load(Ordering::SeqCst) < VOLUNTEERS.len() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.ready.store(true, Ordering::SeqCst);
        let chains = self.book().chains.clone();
        loop {
            let mut completed = 0;
            for id in &chains {
                let request = v1::GetChainRequest {
                    chain_id: id.clone(),
                    name: String::new(),
                };
                let answer = unary(DEADLINE, connection.chain().get_chain(request)).await?;
                self.look(id, &answer);
                completed += usize::from(answer.chain.unwrap().state() == ChainState::Completed);
            }
            if completed == chains.len() {
                self.done.store(true, Ordering::SeqCst);
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }

    fn look(&self, id: &[u8], answer: &v1::GetChainResponse) {
        let chain = answer.chain.as_ref().unwrap();
        assert_ne!(chain.state(), ChainState::Stuck, "{answer:?}");
        let mut book = self.book();
        let before = book.heads.insert(id.to_vec(), chain.head).unwrap_or(0);
        assert!(
            chain.head >= before,
            "I2: head {} after {before}",
            chain.head
        );
        for hop in &answer.hops {
            if hop.state() == HopState::Verified {
                let key = (id.to_vec(), hop.hop);
                let known = book
                    .digests
                    .entry(key)
                    .or_insert_with(|| hop.digest.clone());
                assert_eq!(*known, hop.digest, "I1: another digest of hop {}", hop.hop);
            }
        }
    }

    async fn create(&self, owner: &Connection, number: u32) -> Result<(), Failed> {
        let mut id = [number as u8 + 1; 16];
        id[0] = 1;
        let input = ciphertext(SET, LEVEL, u64::from(number) + 1);
        let weights = format!("weights of chain {number}").into_bytes();
        let name = format!("chain {number}");
        let mut new = chain_of(&name, LEVEL, input, vec![weights; HOPS as usize]);
        new.request.chain_id = id.to_vec();
        for (bytes, role) in &new.blobs {
            self.send(owner, bytes, *role, None).await?;
        }
        let request = new.request;
        unary(DEADLINE, owner.chain().create_chain(request)).await?;
        self.book().chains.push(id.to_vec());
        Ok(())
    }

    async fn send(
        &self,
        connection: &Connection,
        bytes: &[u8],
        role: BlobRole,
        attempt: Option<&AttemptRef>,
    ) -> Result<(), ClientError> {
        let (blob, policy) = (blob_ref(bytes, role), TransferPolicy::default());
        self.persist(async || {
            let source = Source::Bytes(bytes);
            upload(connection, &blob, source, attempt, &policy, &|_| ()).await
        })
        .await
    }

    /// Works until the chains are done.
    pub async fn volunteer(&self, name: &str, invite: &str) -> Result<(), Failed> {
        let nonce = Nonce::generate().to_vec();
        let stranger = connect(None);
        let made = self
            .persist(async || {
                let request = v1::EnrollRequest {
                    invite: invite.into(),
                    display_name: name.into(),
                    nonce: nonce.clone(),
                    worker_version: "test".into(),
                    ..Default::default()
                };
                unary(DEADLINE, stranger.volunteer().enroll(request)).await
            })
            .await?;
        self.enrolled.fetch_add(1, Ordering::SeqCst);
        let account = AccountId::from_slice(&made.account_id)?;
        self.book().accounts.push(account);
        let connection = connect(Some(&made.token));
        let mut rng = StdRng::seed_from_u64(self.seed ^ u64::from(name.as_bytes()[0]) << 32);
        while !self.done.load(Ordering::SeqCst) {
            self.at(name, "asking for work");
            match self.acquire(&connection).await? {
                Ok(given) => self.work(name, &connection, &given, &mut rng).await?,
                Err(why) => {
                    self.at(name, &why);
                    let pause = rng.random_range(500..3000);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
        Ok(())
    }

    async fn acquire(
        &self,
        connection: &Connection,
    ) -> Result<Result<v1::Assignment, String>, ClientError> {
        let request = v1::AcquireRequest {
            nonce: Nonce::generate().to_vec(),
            capabilities: Some(capabilities(1)),
            ..Default::default()
        };
        // The same nonce each time: an answer that got lost is given again.
        let answer = self
            .persist(async || {
                unary(DEADLINE, connection.volunteer().acquire(request.clone())).await
            })
            .await?;
        match answer.answer {
            Some(Answer::Assignment(given)) => {
                self.book().leases += 1;
                Ok(Ok(given))
            }
            Some(Answer::NoWork(none)) => Ok(Err(none.reason)),
            None => Ok(Err("nothing".into())),
        }
    }

    fn at(&self, name: &str, what: &str) {
        self.book().doing.insert(name.into(), what.into());
    }

    async fn work(
        &self,
        name: &str,
        connection: &Connection,
        given: &v1::Assignment,
        rng: &mut StdRng,
    ) -> Result<(), Failed> {
        self.at(name, "computing");
        let begin = tokio::time::Instant::now();
        let bytes = output(&given.chain_id, given.hop);
        tokio::time::sleep(Duration::from_millis(rng.random_range(200..6000))).await;
        if rng.random_bool(0.3) {
            // Longer than the lease, and sometimes than the deadline.
            let long = rng.random_range(15..150);
            tokio::time::sleep(Duration::from_secs(long)).await;
        }
        if rng.random_bool(0.3) {
            self.at(name, "submitting under another epoch");
            self.stale(connection, given, rng).await?;
        }
        self.at(name, "submitting");
        let traced = trace(given);
        let request = submit_request(given, &bytes, &traced);
        let outcome = self
            .submit(connection, given, &request, &bytes, &traced)
            .await?;
        if begin.elapsed() > Duration::from_secs(12) {
            self.book().count.late += 1;
        }
        if let Some(outcome) = outcome {
            let attempt = AttemptId::from_slice(&given.attempt_id)?;
            self.book().taken.insert(attempt, outcome);
            while rng.random_bool(0.4) {
                self.book().count.repeated += 1;
                let again = self
                    .persist(async || {
                        unary(DEADLINE, connection.volunteer().submit(request.clone())).await
                    })
                    .await;
                match again {
                    Ok(again) => assert_ne!(again.outcome(), Outcome::NeedUpload, "I5: forgotten"),
                    Err(refused) => over(&refused),
                }
            }
        }
        Ok(())
    }

    /// What was acknowledged, `None` where the hop is over.
    async fn submit(
        &self,
        connection: &Connection,
        given: &v1::Assignment,
        request: &v1::SubmitRequest,
        output: &[u8],
        trace: &[u8],
    ) -> Result<Option<Outcome>, Failed> {
        for _ in 0..10 {
            let answer = self
                .persist(async || {
                    unary(DEADLINE, connection.volunteer().submit(request.clone())).await
                })
                .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(refused) => {
                    over(&refused);
                    return Ok(None);
                }
            };
            match answer.outcome() {
                Outcome::NeedUpload => {}
                Outcome::HopClosed => return Ok(None),
                outcome => {
                    assert_ne!(outcome, Outcome::AcceptedMismatched, "the right result");
                    return Ok(Some(outcome));
                }
            }
            for needed in &answer.need_upload {
                let (bytes, role) = match needed.digest == request.output_digest {
                    true => (output, BlobRole::Output),
                    false => (trace, BlobRole::Trace),
                };
                let attempt = AttemptRef {
                    attempt_id: given.attempt_id.clone(),
                    epoch: given.epoch,
                };
                if let Err(refused) = self.send(connection, bytes, role, Some(&attempt)).await {
                    over(&refused);
                    return Ok(None);
                }
            }
        }
        Err("its bytes are asked for again and again".into())
    }

    /// A result under an epoch that is not the lease's, as of a machine restored from an old copy.
    async fn stale(
        &self,
        connection: &Connection,
        given: &v1::Assignment,
        rng: &mut StdRng,
    ) -> Result<(), Failed> {
        let other = match rng.random_bool(0.5) {
            true => given.epoch + 1,
            false => given.epoch.wrapping_sub(1),
        };
        let bytes = output(&given.chain_id, given.hop);
        let mut request = submit_request(given, &bytes, &trace(given));
        request.epoch = if self.fence { other } else { given.epoch };
        self.book().count.stale += 1;
        let answer = self
            .persist(async || unary(DEADLINE, connection.volunteer().submit(request.clone())).await)
            .await;
        match answer {
            Ok(answer) => panic!("I4: a stale epoch was answered with {:?}", answer.outcome()),
            Err(refused) => assert!(
                refused.reason() == Some(Reason::StaleEpoch)
                    || refused
                        .reason()
                        .is_some_and(|reason| OVER.contains(&reason)),
                "I4: {refused}"
            ),
        }
        Ok(())
    }
}

fn over(refused: &ClientError) {
    let reason = refused.reason();
    assert!(
        reason.is_some_and(|reason| OVER.contains(&reason)),
        "refused: {refused}"
    );
}
