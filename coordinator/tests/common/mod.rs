//! A coordinator on a real socket with the real stores, and a volunteer's and key holder's moves against it.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

#[path = "../store/cluster.rs"]
pub mod cluster;
pub mod pages;

use std::collections::BTreeMap;
use std::sync::Arc;

use cipherhop_ckks::{Params, ScaleId, ciphertext_size, pack};
use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::blobs::{Blobs, LocalBlobs};
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::config::Config;
use cipherhop_coordinator::metrics::Counters;
use cipherhop_coordinator::service::{Core, serve};
use cipherhop_coordinator::store::{NewToken, Role, Store, open_sqlite};
use cipherhop_proto::client::{
    AttemptRef, BearerToken, ConnectOptions, Connection, Source, TransferPolicy, upload,
};
use cipherhop_proto::status::reason_of;
use cipherhop_proto::v1::acquire_response::Answer;
use cipherhop_proto::v1::submit_response::Outcome;
use cipherhop_proto::{ChainId, Digest, Nonce, Reason, TokenId, v1};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub const SET: &str = "n10-INSECURE";
pub const LEVEL: usize = 18;

pub fn connect(url: &str, token: Option<&str>) -> Connection {
    let token = token.map(BearerToken::new);
    Connection::lazy(&ConnectOptions {
        url: url.into(),
        token,
        ca: None,
        allow_plaintext: false,
    })
    .unwrap()
}

/// The reason of a refusal; panics when the call succeeded.
pub fn reason<T: std::fmt::Debug>(answer: Result<T, Status>) -> Reason {
    let status = answer.expect_err("the call should have been refused");
    reason_of(&status).unwrap_or_else(|| panic!("no reason in {status:?}"))
}

/// A coordinator in this process.
pub struct Server {
    pub url: String,
    pub admin: String,
    pub dir: TempDir,
    pub store: Arc<dyn Store>,
    pub blobs: Blobs,
    pub core: Core,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<()>,
}

pub fn quick_config() -> Config {
    let mut config = Config::default();
    config.blobs.headroom_bytes = 0;
    config.leases.backoff_base_millis = 1;
    config
}

impl Server {
    pub async fn start() -> Server {
        Server::start_with(quick_config()).await
    }

    pub async fn start_with(config: Config) -> Server {
        Server::on_sqlite(config, Arc::default()).await
    }

    /// One that counts into these counters.
    pub async fn counting(counters: Arc<Counters>) -> Server {
        Server::on_sqlite(quick_config(), counters).await
    }

    async fn on_sqlite(config: Config, counters: Arc<Counters>) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let store = open_sqlite(&dir.path().join("coordinator.db"))
            .await
            .unwrap();
        let blobs =
            LocalBlobs::open(&dir.path().join("blobs"), config.blobs.local_limits()).unwrap();
        Server::over_counting(store, Arc::new(blobs), config, dir, counters).await
    }

    /// A coordinator over these stores; `dir` lives as long as it.
    pub async fn over(store: Arc<dyn Store>, blobs: Blobs, config: Config, dir: TempDir) -> Server {
        Server::over_counting(store, blobs, config, dir, Arc::default()).await
    }

    async fn over_counting(
        store: Arc<dyn Store>,
        blobs: Blobs,
        config: Config,
        dir: TempDir,
        counters: Arc<Counters>,
    ) -> Server {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let token = Token::generate(Role::Admin).unwrap();
        let new = NewToken {
            id: TokenId::generate(),
            hash: token.hash(),
            role: Role::Admin,
            account_name: "admin".into(),
        };
        store.create_token(new, clock.now()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let core = Core::new(
            store.clone(),
            blobs.clone(),
            clock,
            config,
            shutdown.clone(),
        )
        .with_counters(counters);
        let served = core.clone();
        let task = tokio::spawn(async move { serve(served, listener).await.unwrap() });
        Server {
            core,
            url,
            admin: token.reveal().into(),
            dir,
            store,
            blobs,
            shutdown,
            task,
        }
    }

    pub fn connect(&self, token: &str) -> Connection {
        connect(&self.url, Some(token))
    }

    pub fn admin(&self) -> Connection {
        self.connect(&self.admin)
    }

    pub async fn token(&self, role: v1::TokenRole, account: &str) -> String {
        new_token(&self.url, &self.admin, role, account).await
    }

    pub async fn owner(&self) -> Connection {
        self.connect(&self.token(v1::TokenRole::Owner, "key holder").await)
    }

    pub async fn volunteer(&self, account: &str) -> Volunteer {
        Volunteer::enroll(&self.url, &self.admin, account).await
    }
}

pub async fn new_token(url: &str, admin: &str, role: v1::TokenRole, account: &str) -> String {
    let request = v1::CreateTokenRequest {
        role: role.into(),
        account: account.into(),
        ..Default::default()
    };
    connect(url, Some(admin))
        .admin()
        .create_token(request)
        .await
        .unwrap()
        .into_inner()
        .token
}

/// Well-formed bytes of a ciphertext whose residues follow from `seed`.
pub fn ciphertext(set: &str, level: usize, seed: u64) -> Vec<u8> {
    let params = Params::by_name(set).unwrap();
    let mut bytes = Vec::with_capacity(ciphertext_size(&params, level));
    bytes.extend_from_slice(b"CHCT");
    bytes.extend_from_slice(&2u16.to_le_bytes());
    bytes.extend_from_slice(&[1, 2, level as u8, ScaleId::Message as u8, 0, 0]);
    bytes.extend_from_slice(&params.digest());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _component in 0..2 {
        for q in &params.q[..=level] {
            let residues: Vec<u64> = (0..params.n())
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % q
                })
                .collect();
            pack(&residues, *q, &mut bytes);
        }
    }
    assert_eq!(bytes.len(), ciphertext_size(&params, level));
    bytes
}

pub fn output(hop: u32) -> Vec<u8> {
    ciphertext(SET, LEVEL, 1000 + u64::from(hop))
}

pub fn blob_ref(bytes: &[u8], role: v1::BlobRole) -> v1::BlobRef {
    v1::BlobRef {
        digest: Digest::of(bytes).to_vec(),
        size: bytes.len() as u64,
        role: role.into(),
        name: String::new(),
    }
}

pub async fn send(
    connection: &Connection,
    bytes: &[u8],
    role: v1::BlobRole,
    attempt: Option<&AttemptRef>,
) {
    let policy = TransferPolicy::default();
    upload(
        connection,
        &blob_ref(bytes, role),
        Source::Bytes(bytes),
        attempt,
        &policy,
        &|_| (),
    )
    .await
    .unwrap();
}

/// A chain of synthetic blobs, ready to be created.
pub struct NewChain {
    pub request: v1::CreateChainRequest,
    pub blobs: Vec<(Vec<u8>, v1::BlobRole)>,
}

pub fn new_chain(name: &str, hops: u32) -> NewChain {
    let key = b"an evaluation key".to_vec();
    let weights = (0..hops).map(|h| format!("weights of layer {h}").into_bytes());
    let mut new = chain_of(name, LEVEL, ciphertext(SET, LEVEL, 1), weights.collect());
    new.request.key_digests = vec![Digest::of(&key).to_vec()];
    new.request.worker_memory_bytes = 1 << 20;
    new.blobs.insert(2, (key, v1::BlobRole::EvaluationKey));
    new
}

/// A chain without evaluation keys; `input` is a ciphertext at `level`, each hop has weights.
pub fn chain_of(name: &str, level: usize, input: Vec<u8>, weights: Vec<Vec<u8>>) -> NewChain {
    let params = Params::by_name(SET).unwrap();
    let program = br#"{"format":"cipherhop-program/1","name":"test"}"#.to_vec();
    let manifest = br#"{"keys":[]}"#.to_vec();
    let request = v1::CreateChainRequest {
        chain_id: ChainId::generate().to_vec(),
        name: name.into(),
        program_digest: Digest::of(&program).to_vec(),
        parameter_set: SET.into(),
        parameter_digest: params.digest().to_vec(),
        key_manifest_digest: Digest::of(&manifest).to_vec(),
        key_digests: Vec::new(),
        input_digest: Digest::of(&input).to_vec(),
        hops: (0..)
            .zip(&weights)
            .map(|(hop, weights)| v1::HopInputs {
                hop,
                weights_digest: Digest::of(weights).to_vec(),
                archived_digest: Vec::new(),
            })
            .collect(),
        quorum: 2,
        allow_insecure: true,
        boundary_level: level as u32,
        boundary_bytes: ciphertext_size(&params, level) as u64,
        worker_memory_bytes: 1,
    };
    let mut blobs = vec![
        (program, v1::BlobRole::Program),
        (manifest, v1::BlobRole::KeyManifest),
        (input, v1::BlobRole::Input),
    ];
    let mut weights = weights;
    weights.dedup();
    blobs.extend(weights.into_iter().map(|w| (w, v1::BlobRole::Weights)));
    NewChain { request, blobs }
}

impl NewChain {
    pub async fn upload(&self, owner: &Connection) {
        for (bytes, role) in &self.blobs {
            send(owner, bytes, *role, None).await;
        }
    }

    /// Uploads everything, creates the chain, returns its id.
    pub async fn create(&self, owner: &Connection) -> Vec<u8> {
        self.upload(owner).await;
        owner
            .chain()
            .create_chain(self.request.clone())
            .await
            .unwrap();
        self.request.chain_id.clone()
    }
}

/// Of a machine that can take any hop of these tests.
pub fn capabilities(threads: u32) -> v1::Capabilities {
    v1::Capabilities {
        memory_bytes: 8 << 30,
        disk_bytes: 8 << 30,
        threads,
        isa: "test".into(),
        program_formats: vec!["cipherhop-program/1".into()],
        golden_digest: vec![0; 32],
    }
}

pub async fn status(connection: &Connection, chain: &[u8]) -> v1::GetChainResponse {
    let request = v1::GetChainRequest {
        chain_id: chain.to_vec(),
        name: String::new(),
    };
    connection
        .chain()
        .get_chain(request)
        .await
        .unwrap()
        .into_inner()
}

/// One enrolled device.
#[derive(Clone)]
pub struct Volunteer {
    pub connection: Connection,
    pub token: String,
    pub device: Vec<u8>,
}

impl Volunteer {
    pub async fn enroll(url: &str, admin: &str, account: &str) -> Volunteer {
        let invite = new_token(url, admin, v1::TokenRole::Invite, account).await;
        let request = v1::EnrollRequest {
            invite,
            display_name: format!("{account}'s machine"),
            nonce: Nonce::generate().to_vec(),
            worker_version: "test".into(),
            ..Default::default()
        };
        let answer = connect(url, None)
            .volunteer()
            .enroll(request)
            .await
            .unwrap()
            .into_inner();
        Volunteer {
            connection: connect(url, Some(&answer.token)),
            token: answer.token,
            device: answer.device_id,
        }
    }

    pub fn acquire_request(&self, wait_seconds: u32) -> v1::AcquireRequest {
        v1::AcquireRequest {
            nonce: Nonce::generate().to_vec(),
            capabilities: Some(capabilities(2)),
            wait_seconds,
            ..Default::default()
        }
    }

    pub async fn acquire(&self, wait_seconds: u32) -> Result<v1::Assignment, v1::NoWork> {
        let request = self.acquire_request(wait_seconds);
        match self
            .connection
            .volunteer()
            .acquire(request)
            .await
            .unwrap()
            .into_inner()
            .answer
            .unwrap()
        {
            Answer::Assignment(given) => Ok(given),
            Answer::NoWork(none) => Err(none),
        }
    }

    pub async fn submit(&self, request: v1::SubmitRequest) -> Result<v1::SubmitResponse, Status> {
        Ok(self
            .connection
            .volunteer()
            .submit(request)
            .await?
            .into_inner())
    }

    /// Submit, upload what is asked for, submit again.
    pub async fn hand_in(&self, given: &v1::Assignment, output: &[u8]) -> Result<Outcome, Status> {
        self.hand_in_with(given, output, &trace(given)).await
    }

    /// The same with this trace.
    pub async fn hand_in_with(
        &self,
        given: &v1::Assignment,
        output: &[u8],
        trace: &[u8],
    ) -> Result<Outcome, Status> {
        let request = submit_request(given, output, trace);
        let blobs: BTreeMap<Vec<u8>, (&[u8], v1::BlobRole)> = [
            (Digest::of(output).to_vec(), (output, v1::BlobRole::Output)),
            (Digest::of(trace).to_vec(), (trace, v1::BlobRole::Trace)),
        ]
        .into();
        let first = self.submit(request.clone()).await?;
        if first.outcome() != Outcome::NeedUpload {
            return Ok(first.outcome());
        }
        for needed in first.need_upload {
            let (bytes, role) = blobs[&needed.digest];
            send(&self.connection, bytes, role, Some(&attempt_ref(given))).await;
        }
        Ok(self.submit(request).await?.outcome())
    }
}

pub fn trace(given: &v1::Assignment) -> Vec<u8> {
    format!(
        "{{\"step\":0,\"attempt\":\"{}\"}}\n",
        hex::encode(&given.attempt_id)
    )
    .into_bytes()
}

pub fn attempt_ref(given: &v1::Assignment) -> AttemptRef {
    AttemptRef {
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
    }
}

pub fn submit_request(given: &v1::Assignment, output: &[u8], trace: &[u8]) -> v1::SubmitRequest {
    v1::SubmitRequest {
        attempt_id: given.attempt_id.clone(),
        epoch: given.epoch,
        output_digest: Digest::of(output).to_vec(),
        output_size: output.len() as u64,
        trace_root: Digest::of(b"root").to_vec(),
        trace_digest: Digest::of(trace).to_vec(),
        trace_size: trace.len() as u64,
        compute_seconds: 1.5,
        ..Default::default()
    }
}

/// Every open hop is done by both volunteers until the chain is completed.
pub async fn complete(a: &Volunteer, b: &Volunteer, hops: u32) {
    complete_from(a, b, 0, hops).await;
}

/// The same from a hop on.
pub async fn complete_from(a: &Volunteer, b: &Volunteer, first: u32, hops: u32) {
    for hop in first..hops {
        for (volunteer, expected) in [
            (a, Outcome::AcceptedVerifying),
            (b, Outcome::AcceptedMatched),
        ] {
            let given = volunteer.acquire(5).await.unwrap();
            assert_eq!(given.hop, hop);
            assert_eq!(
                volunteer.hand_in(&given, &output(hop)).await.unwrap(),
                expected
            );
        }
    }
}
