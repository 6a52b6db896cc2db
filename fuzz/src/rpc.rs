//! Frames into the coordinator's services.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use cipherhop_ckks::{Params, ciphertext_size};
use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::blobs::{Blobs, LocalBlobs};
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::config::Config;
use cipherhop_coordinator::service::Core;
use cipherhop_coordinator::store::{NewToken, Role, open_memory};
use cipherhop_proto::v1::acquire_response::Answer;
use cipherhop_proto::v1::admin_service_server::AdminServiceServer;
use cipherhop_proto::v1::blob_service_server::BlobServiceServer;
use cipherhop_proto::v1::chain_service_server::ChainServiceServer;
use cipherhop_proto::v1::volunteer_service_server::VolunteerServiceServer;
use cipherhop_proto::{ChainId, Digest, TokenId, v1};
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tonic::codegen::{Bytes, Service as _, http};

const SET: &str = "n10-INSECURE";
/// Level of the boundary: the smallest ciphertexts.
const LEVEL: usize = 0;
/// Longest time one call may take.
const LONGEST: Duration = Duration::from_secs(10);
/// Inputs after which the coordinator and its folder are made anew.
const USES: usize = 100;

/// Every call, in the order that the input's numbers mean.
pub const CALLS: &[&str] = &[
    "VolunteerService/Hello",
    "VolunteerService/Enroll",
    "VolunteerService/Acquire",
    "VolunteerService/Sync",
    "VolunteerService/Submit",
    "VolunteerService/Fail",
    "VolunteerService/Release",
    "VolunteerService/ListWantedInputs",
    "VolunteerService/AcquireStep",
    "VolunteerService/SubmitStep",
    "VolunteerService/Reopen",
    "ChainService/CreateChain",
    "ChainService/ListChains",
    "ChainService/GetChain",
    "ChainService/WatchChain",
    "ChainService/GetResults",
    "ChainService/ExportArchive",
    "ChainService/ImportArchive",
    "ChainService/DropArchived",
    "ChainService/InvalidateHop",
    "ChainService/PublishAccuracy",
    "BlobService/OpenUpload",
    "BlobService/Append",
    "BlobService/Finish",
    "BlobService/Read",
    "BlobService/Stat",
    "AdminService/CreateToken",
    "AdminService/RevokeToken",
    "AdminService/SetChainState",
    "AdminService/RequeueHop",
    "AdminService/QuarantineDevice",
    "AdminService/SetReferee",
    "AdminService/ListDevices",
    "AdminService/ListAudit",
    "ChainService/GetLedger",
];

/// What an input writes where a value is only known when the calls run: 16 of the same byte.
const CHAIN: u8 = 0xc0;
const ATTEMPT: u8 = 0xc1;
const UPLOAD: u8 = 0xc2;
const DEVICE: u8 = 0xc3;

const ROLES: [Role; 4] = [Role::Volunteer, Role::Owner, Role::Admin, Role::Observer];

struct World {
    runtime: Runtime,
    session: Session,
    _folder: TempDir,
    uses: usize,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::new()));

pub fn prepare() {
    LazyLock::force(&WORLD);
    LazyLock::force(&PARTS);
}

fn must<T, E: std::fmt::Debug>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|e| panic!("{what}: {e:?}"))
}

/// The blobs of the chain that is there when an input begins.
static PARTS: LazyLock<Vec<(Vec<u8>, v1::BlobRole)>> = LazyLock::new(|| {
    let params = must("the set", Params::by_name(SET));
    let mut input = vec![0; ciphertext_size(&params, LEVEL)];
    input[..12].copy_from_slice(&[b'C', b'H', b'C', b'T', 2, 0, 1, 2, LEVEL as u8, 0, 0, 0]);
    input[12..44].copy_from_slice(&params.digest());
    vec![
        (
            br#"{"format":"cipherhop-program/1"}"#.to_vec(),
            v1::BlobRole::Program,
        ),
        (br#"{"keys":[]}"#.to_vec(), v1::BlobRole::KeyManifest),
        (b"an evaluation key".to_vec(), v1::BlobRole::EvaluationKey),
        (input, v1::BlobRole::Input),
        (b"weights of layer 0".to_vec(), v1::BlobRole::Weights),
        (b"weights of layer 1".to_vec(), v1::BlobRole::Weights),
    ]
});

impl World {
    fn new() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = must("a runtime", runtime);
        let folder = must("a folder", tempfile::tempdir());
        let limits = config().blobs.local_limits();
        let blobs: Blobs = Arc::new(must("blobs", LocalBlobs::open(folder.path(), limits)));
        let session = runtime.block_on(Session::new(blobs));
        World {
            runtime,
            session,
            _folder: folder,
            uses: 0,
        }
    }
}

fn config() -> Config {
    let mut config = Config::default();
    config.blobs.headroom_bytes = 0;
    config.blobs.max_blob_bytes = 1 << 20;
    config.leases.backoff_base_millis = 1;
    config.limits.calls_per_second = 0;
    config
}

/// One coordinator with a chain of two hops, and the tokens of everybody.
struct Session {
    /// Long polls and watches end at once.
    hurried: Core,
    /// For streams that a server going down would refuse.
    patient: Core,
    tokens: Vec<String>,
    chain: [u8; 16],
    attempt: [u8; 16],
    upload: [u8; 16],
    device: [u8; 16],
}

impl Session {
    async fn new(blobs: Blobs) -> Session {
        let store = open_memory();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let mut tokens = Vec::new();
        for role in ROLES {
            // The volunteer's stands first and starts as an invite.
            let made = if role == Role::Volunteer {
                Role::Invite
            } else {
                role
            };
            let token = must("a token", Token::generate(made));
            let new = NewToken {
                id: TokenId::generate(),
                hash: token.hash(),
                role: made,
                account_name: format!("{role:?}"),
            };
            must("a token", store.create_token(new, clock.now()).await);
            tokens.push(token.reveal().to_owned());
        }
        let down = CancellationToken::new();
        down.cancel();
        let core = |stop| Core::new(store.clone(), blobs.clone(), clock.clone(), config(), stop);
        let mut session = Session {
            hurried: core(down),
            patient: core(CancellationToken::new()),
            tokens,
            chain: [0; 16],
            attempt: [0; 16],
            upload: [0; 16],
            device: [0; 16],
        };
        session.enroll().await;
        session.create().await;
        session
    }

    async fn ask<T: Message + Default>(
        &mut self,
        call: &str,
        token: usize,
        request: impl Message,
    ) -> T {
        let answer = self
            .send(call, token, framed(&request.encode_to_vec()))
            .await;
        let message = answer.get(5..).unwrap_or_default();
        must(call, T::decode(message))
    }

    async fn enroll(&mut self) {
        let request = v1::EnrollRequest {
            invite: self.tokens[0].clone(),
            display_name: "machine".into(),
            nonce: vec![1; 16],
            ..Default::default()
        };
        let answer: v1::EnrollResponse = self.ask("VolunteerService/Enroll", 9, request).await;
        self.tokens[0] = answer.token;
        self.device.copy_from_slice(&answer.device_id);
    }

    async fn create(&mut self) {
        let owner = 1;
        for (bytes, role) in PARTS.iter() {
            let blob = Some(v1::BlobRef {
                digest: Digest::of(bytes).to_vec(),
                size: bytes.len() as u64,
                role: (*role).into(),
                name: String::new(),
            });
            let request = v1::OpenUploadRequest {
                blob,
                ..Default::default()
            };
            let opened: v1::OpenUploadResponse =
                self.ask("BlobService/OpenUpload", owner, request).await;
            if opened.complete {
                continue;
            }
            let request = v1::AppendRequest {
                upload_id: opened.upload_id.clone(),
                offset: 0,
                data: bytes.clone(),
                ..Default::default()
            };
            let _: v1::AppendResponse = self.ask("BlobService/Append", owner, request).await;
            let request = v1::FinishRequest {
                upload_id: opened.upload_id,
            };
            let _: v1::FinishResponse = self.ask("BlobService/Finish", owner, request).await;
        }
        let digest = |part: usize| Digest::of(&PARTS[part].0).to_vec();
        let params = must("the set", Params::by_name(SET));
        let hop = |hop: u32| v1::HopInputs {
            hop,
            weights_digest: digest(4 + hop as usize),
            archived_digest: Vec::new(),
        };
        let request = v1::CreateChainRequest {
            chain_id: ChainId::from_bytes([7; 16]).to_vec(),
            name: "demo".into(),
            program_digest: digest(0),
            parameter_set: SET.into(),
            parameter_digest: params.digest().to_vec(),
            key_manifest_digest: digest(1),
            key_digests: vec![digest(2)],
            input_digest: digest(3),
            hops: vec![hop(0), hop(1)],
            quorum: 2,
            allow_insecure: true,
            boundary_level: LEVEL as u32,
            boundary_bytes: PARTS[3].0.len() as u64,
            worker_memory_bytes: 1,
        };
        self.chain = [7; 16];
        let _: v1::CreateChainResponse = self.ask("ChainService/CreateChain", owner, request).await;
    }

    /// Calls with a whole body; the answer's body.
    async fn send(&self, call: &str, token: usize, body: Vec<u8>) -> Bytes {
        let mut request = http::Request::post(format!("/cipherhop.v1.{call}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = self.tokens.get(token) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = must("a request", request.body(Full::new(Bytes::from(body))));
        let core = match call {
            "BlobService/Append" | "BlobService/Read" => &self.patient,
            _ => &self.hurried,
        };
        let answer = match call.split('/').next().unwrap_or_default() {
            "VolunteerService" => {
                VolunteerServiceServer::new(core.clone())
                    .call(request)
                    .await
            }
            "ChainService" => ChainServiceServer::new(core.clone()).call(request).await,
            "BlobService" => BlobServiceServer::new(core.clone()).call(request).await,
            _ => AdminServiceServer::new(core.clone()).call(request).await,
        };
        let Ok(answer) = answer;
        if call == "ChainService/WatchChain" {
            // Has no end; what matters is that it began.
            return Bytes::new();
        }
        answer
            .into_body()
            .collect()
            .await
            .map(|all| all.to_bytes())
            .unwrap_or_default()
    }

    /// Puts what is only known now in the place of the marks.
    fn fill(&self, payload: &mut [u8]) {
        for (mark, value) in [
            (CHAIN, self.chain),
            (ATTEMPT, self.attempt),
            (UPLOAD, self.upload),
            (DEVICE, self.device),
        ] {
            let mut at = 0;
            while at + 16 <= payload.len() {
                if payload[at..at + 16] == [mark; 16] {
                    payload[at..at + 16].copy_from_slice(&value);
                }
                at += 1;
            }
        }
    }

    /// Keeps what later calls may want to name.
    fn learn(&mut self, call: &str, answer: &[u8]) {
        let message = answer.get(5..).unwrap_or_default();
        match call {
            "VolunteerService/Acquire" => {
                if let Ok(v1::AcquireResponse {
                    answer: Some(Answer::Assignment(given)),
                }) = v1::AcquireResponse::decode(message)
                {
                    self.attempt = given.attempt_id.try_into().unwrap_or(self.attempt);
                }
            }
            "BlobService/OpenUpload" => {
                if let Ok(opened) = v1::OpenUploadResponse::decode(message) {
                    self.upload = opened.upload_id.try_into().unwrap_or(self.upload);
                }
            }
            _ => {}
        }
    }
}

/// The frame of one message.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend((message.len() as u32).to_be_bytes());
    out.extend(message);
    out
}

/// Up to eight calls, each: number, token (high bit: the payload has its own frames), length of 16 bits, payload.
pub fn calls(bytes: &[u8]) -> usize {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    if world.uses == USES {
        *world = World::new();
    }
    world.uses += 1;
    let World {
        runtime, session, ..
    } = &mut *world;
    runtime.block_on(async {
        let mut rest = bytes;
        for _ in 0..8 {
            let Some(([call, token, a, b], after)) = rest.split_first_chunk::<4>() else {
                break;
            };
            let length = usize::from(u16::from_le_bytes([*a, *b])).min(after.len());
            let (payload, after) = after.split_at(length);
            rest = after;
            let call = CALLS[usize::from(*call) % CALLS.len()];
            let mut payload = payload.to_vec();
            session.fill(&mut payload);
            let body = if token & 0x80 == 0 {
                framed(&payload)
            } else {
                payload
            };
            let done = session.send(call, usize::from(token % 5), body);
            let answer = tokio::time::timeout(LONGEST, done).await;
            let answer = answer.unwrap_or_else(|_| panic!("{call} took longer than {LONGEST:?}"));
            session.learn(call, &answer);
        }
    });
    bytes.len()
}
