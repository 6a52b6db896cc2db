//! A store with people, blobs and a clock that only moves when told.

#[path = "cluster.rs"]
pub mod cluster;

use std::sync::Arc;
use std::time::Duration;

use cipherhop_coordinator::domain::attempt::{Attempt, Claim};
use cipherhop_coordinator::domain::chain::{ChainSpec, NewChain, NewHop, Policy};
use cipherhop_coordinator::domain::command::{Holder, Outcome, OutputCheck};
use cipherhop_coordinator::domain::time::Timestamp;
use cipherhop_coordinator::domain::trust::ProbeOdds;
use cipherhop_coordinator::domain::view::{Assignment, BlobRole, HopView};
use cipherhop_coordinator::store::{
    AcquireRequest, Acquired, Enrolment, Identity, NewToken, NewUpload, OpenedUpload, Result, Role,
    Store, StoreError, Submitted, open_memory, open_postgres, open_sqlite,
};
use cipherhop_proto::{
    AccountId, AttemptId, ChainId, DeviceId, Digest, Nonce, Reason, TokenId, UploadId,
};
use tempfile::TempDir;

pub const OUTPUT_BYTES: u64 = 4096;
pub const GIB: u64 = 1 << 30;

pub struct World {
    pub store: Arc<dyn Store>,
    pub now: Timestamp,
    pub dir: Option<TempDir>,
    pub database: Option<cluster::Database>,
    pub owner: AccountId,
}

/// A volunteer's device.
#[derive(Clone, Copy)]
pub struct Device {
    pub id: DeviceId,
    pub account: AccountId,
}

pub fn second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What a refused call was refused for.
pub fn reason<T>(result: Result<T>) -> Reason {
    match result {
        Err(StoreError::Refused(refusal)) => refusal.reason,
        Err(other) => panic!("not a refusal: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

pub fn holder(attempt: &Attempt) -> Holder {
    Holder {
        attempt: attempt.id,
        device: attempt.device,
        epoch: attempt.epoch,
    }
}

impl World {
    pub fn memory() -> Self {
        Self::over(open_memory(), None)
    }

    pub async fn sqlite() -> Self {
        let dir = TempDir::new().unwrap();
        let store = open_sqlite(&dir.path().join("c.sqlite")).await.unwrap();
        Self::over(store, Some(dir))
    }

    /// `None` where there is no PostgreSQL.
    pub async fn postgres() -> Option<Self> {
        let database = cluster::database().await?;
        let store = open_postgres(&database.url, 8).await.unwrap();
        let mut world = Self::over(store, None);
        world.database = Some(database);
        Some(world)
    }

    fn over(store: Arc<dyn Store>, dir: Option<TempDir>) -> Self {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        Self {
            store,
            now,
            dir,
            database: None,
            owner: AccountId::from_bytes([0; 16]),
        }
    }

    /// Closes and opens the store again where it is durable.
    pub async fn restart(&mut self) {
        if let Some(dir) = &self.dir {
            self.store.close().await;
            self.store = open_sqlite(&dir.path().join("c.sqlite")).await.unwrap();
        }
        if let Some(database) = &self.database {
            self.store.close().await;
            self.store = open_postgres(&database.url, 8).await.unwrap();
        }
    }

    pub fn pass(&mut self, duration: Duration) {
        self.now = self.now.plus(duration);
    }

    pub async fn token(&self, role: Role, account: &str, secret: &str) -> Result<Identity> {
        let token = NewToken {
            id: TokenId::generate(),
            hash: Digest::of(secret.as_bytes()),
            role,
            account_name: account.to_owned(),
        };
        self.store.create_token(token, self.now).await
    }

    pub fn enrolment(secret: &str, nonce: u8) -> Enrolment {
        Enrolment {
            invite: Digest::of(secret.as_bytes()),
            nonce: Nonce::from_bytes([nonce; 16]),
            display_name: "box".to_owned(),
            device: DeviceId::generate(),
            token: TokenId::generate(),
            token_hash: Digest::of(DeviceId::generate().as_bytes()),
        }
    }

    /// A device of the named account.
    pub async fn device(&self, account: &str, nonce: u8) -> Device {
        let secret = format!("invite {account} {nonce}");
        self.token(Role::Invite, account, &secret).await.unwrap();
        let enrolment = Self::enrolment(&secret, nonce);
        let identity = self.store.enroll(enrolment, self.now).await.unwrap();
        Device {
            id: identity.device.unwrap(),
            account: identity.account,
        }
    }

    /// Devices of as many accounts.
    pub async fn crowd(&self, size: usize) -> Vec<Device> {
        let mut crowd = Vec::new();
        for number in 0..size {
            crowd.push(self.device(&format!("volunteer {number}"), 0).await);
        }
        crowd
    }

    pub fn upload(&self, digest: Digest, size: u64, account: AccountId) -> NewUpload {
        let id = UploadId::generate();
        NewUpload {
            id,
            digest,
            size,
            role: BlobRole::Output,
            account,
            attempt: None,
        }
    }

    /// A complete blob of that digest.
    pub async fn blob(&self, digest: Digest, size: u64) {
        let upload = self.upload(digest, size, self.owner);
        match self.store.open_upload(upload, self.now).await.unwrap() {
            OpenedUpload::Complete(_) => {}
            OpenedUpload::Open(record) => {
                self.store
                    .commit_upload(record.id, size, self.now)
                    .await
                    .unwrap();
                self.store
                    .complete_upload(record.id, self.now)
                    .await
                    .unwrap();
            }
        }
    }

    pub fn new_chain(&self, name: &str, hops: u32, archived: &[(u32, Digest)]) -> NewChain {
        let hop = |index: u32| NewHop {
            weights: Digest::of(format!("weights {index}").as_bytes()),
            archived: archived
                .iter()
                .find(|(hop, _)| *hop == index)
                .map(|(_, digest)| *digest),
        };
        NewChain {
            id: ChainId::generate(),
            name: name.to_owned(),
            owner: self.owner,
            policy: Policy::default(),
            spec: ChainSpec {
                program: Digest::of(b"program"),
                parameter_set: "n11-INSECURE".to_owned(),
                parameters: Digest::of(b"parameters"),
                insecure: true,
                key_manifest: Digest::of(b"manifest"),
                boundary_level: 18,
                boundary_bytes: OUTPUT_BYTES,
                worker_memory_bytes: GIB,
            },
            keys: vec![Digest::of(b"relin"), Digest::of(b"rot-1")],
            input: Digest::of(b"input"),
            hops: (0..hops).map(hop).collect(),
        }
    }

    /// Owner account and every blob the chain names.
    pub async fn prepare(&mut self, chain: &mut NewChain) {
        let owner = self
            .token(Role::Owner, "owner", &format!("owner {}", chain.id))
            .await
            .unwrap();
        self.owner = owner.account;
        chain.owner = owner.account;
        self.blob(chain.input, OUTPUT_BYTES).await;
        let others = [chain.spec.program, chain.spec.key_manifest];
        let weights = chain.hops.iter().map(|hop| hop.weights);
        for digest in others
            .into_iter()
            .chain(chain.keys.iter().copied())
            .chain(weights)
        {
            self.blob(digest, 1000).await;
        }
    }

    pub async fn chain(&mut self, hops: u32) -> ChainId {
        self.archived_chain(hops, &[]).await
    }

    pub async fn archived_chain(&mut self, hops: u32, archived: &[(u32, Digest)]) -> ChainId {
        let mut chain = self.new_chain("chain", hops, archived);
        self.prepare(&mut chain).await;
        self.store.create_chain(chain, self.now).await.unwrap().id
    }

    pub fn request(&self, device: Device) -> AcquireRequest {
        AcquireRequest {
            nonce: Nonce::generate(),
            device: device.id,
            attempt: AttemptId::generate(),
            chain: None,
            hops: None,
            memory_bytes: 8 * GIB,
            disk_bytes: 0,
            cached: Vec::new(),
            held: Vec::new(),
            probes: ProbeOdds::NEVER,
            draw: 0,
        }
    }

    pub async fn acquire(
        &self,
        request: AcquireRequest,
    ) -> std::result::Result<Assignment, Reason> {
        match self.store.acquire(request, self.now).await.unwrap() {
            Acquired::Assigned(assignment) => Ok(*assignment),
            Acquired::NoWork(refusal) => Err(refusal.reason),
        }
    }

    pub async fn ask(&self, device: Device) -> std::result::Result<Attempt, Reason> {
        Ok(self.acquire(self.request(device)).await?.attempt)
    }

    pub async fn lease(&self, device: Device) -> Attempt {
        self.ask(device).await.unwrap()
    }

    pub fn claim(&self, output: &str) -> Claim {
        Claim {
            output: Digest::of(output.as_bytes()),
            output_size: OUTPUT_BYTES,
            trace_root: Digest::of(format!("root {output}").as_bytes()),
            trace: Digest::of(format!("trace {output}").as_bytes()),
            trace_size: 300,
            compute: second(60),
        }
    }

    pub async fn hand_in(&self, attempt: &Attempt, claim: Claim) -> Result<Submitted> {
        self.blob(claim.output, OUTPUT_BYTES).await;
        self.blob(claim.trace, claim.trace_size).await;
        self.store
            .submit(holder(attempt), claim, OutputCheck::Sound, self.now)
            .await
    }

    /// Uploads and submits a sound result.
    pub async fn submit(&self, attempt: &Attempt, output: &str) -> Outcome {
        self.hand_in(attempt, self.claim(output))
            .await
            .unwrap()
            .outcome
    }

    pub async fn hop(&self, chain: ChainId, hop: u32) -> HopView {
        self.store
            .status(chain)
            .await
            .unwrap()
            .hops
            .swap_remove(hop as usize)
    }

    /// Names of the chain's events, oldest first.
    pub async fn events(&self, chain: ChainId) -> Vec<&'static str> {
        let events = self.store.events(chain, 0, 1000).await.unwrap();
        events
            .iter()
            .map(|event| event.event.kind.as_str())
            .collect()
    }
}
