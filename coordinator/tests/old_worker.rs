//! A worker of the first version against this coordinator: it speaks from `proto/descriptors/v1-first.binpb`, so it
//! knows no field and no call that came later, and computes a hop to the end.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use cipherhop_proto::v1::TokenRole;
use cipherhop_proto::{Digest, Nonce, Reason, v1};
use common::*;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

/// Messages of the first version, in and out.
#[derive(Clone)]
struct FirstCodec(MessageDescriptor);

impl Codec for FirstCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = FirstCodec;
    type Decoder = FirstCodec;

    fn encoder(&mut self) -> FirstCodec {
        self.clone()
    }

    fn decoder(&mut self) -> FirstCodec {
        self.clone()
    }
}

impl Encoder for FirstCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(into)
            .map_err(|e| Status::internal(e.to_string()))
    }
}

impl Decoder for FirstCodec {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        DynamicMessage::decode(self.0.clone(), from)
            .map(Some)
            .map_err(|e| Status::internal(e.to_string()))
    }
}

/// The first version's worker.
struct OldWorker {
    pool: DescriptorPool,
    channel: Channel,
    token: Option<String>,
}

fn bytes(value: &[u8]) -> Value {
    Value::Bytes(value.to_vec().into())
}

impl OldWorker {
    fn new(url: &str) -> OldWorker {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../proto/descriptors/v1-first.binpb"
        );
        let channel = Channel::from_shared(url.to_owned()).unwrap();
        OldWorker {
            pool: DescriptorPool::decode(&std::fs::read(path).unwrap()[..]).unwrap(),
            channel: channel.connect_lazy(),
            token: None,
        }
    }

    fn message(&self, name: &str, fields: &[(&str, Value)]) -> DynamicMessage {
        let name = format!("cipherhop.v1.{name}");
        let mut message = DynamicMessage::new(self.pool.get_message_by_name(&name).unwrap());
        for (field, value) in fields {
            message.set_field_by_name(field, value.clone());
        }
        message
    }

    /// A call of one or more requests.
    async fn call(
        &self,
        service: &str,
        method: &str,
        requests: Vec<DynamicMessage>,
    ) -> Result<DynamicMessage, Status> {
        let service = format!("cipherhop.v1.{service}");
        let found = self.pool.get_service_by_name(&service).unwrap();
        let found = found.methods().find(|m| m.name() == method).unwrap();
        let codec = FirstCodec(found.output());
        let path: PathAndQuery = format!("/{service}/{method}").parse().unwrap();
        let mut request = tonic::Request::new(futures::stream::iter(requests));
        if let Some(token) = &self.token {
            let header = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", header);
        }
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let answer = client.client_streaming(request, path, codec).await?;
        Ok(answer.into_inner())
    }

    async fn volunteer(&self, method: &str, fields: &[(&str, Value)]) -> DynamicMessage {
        let request = self.message(&format!("{method}Request"), fields);
        self.call("VolunteerService", method, vec![request])
            .await
            .unwrap_or_else(|e| panic!("{method}: {e}"))
    }

    async fn upload(&self, blob: &[u8], role: i32, attempt: &[(&str, Value)]) {
        let blob_ref = self.message(
            "BlobRef",
            &[
                ("digest", bytes(Digest::of(blob).as_bytes())),
                ("size", Value::U64(blob.len() as u64)),
                ("role", Value::EnumNumber(role)),
            ],
        );
        let fields = [&[("blob", Value::Message(blob_ref))], attempt].concat();
        let open = self.message("OpenUploadRequest", &fields);
        let opened = self.call("BlobService", "OpenUpload", vec![open]).await;
        let id = get(&opened.unwrap(), "upload_id");
        let half = blob.len() / 2;
        let frames = vec![
            self.message(
                "AppendRequest",
                &[
                    ("upload_id", id.clone()),
                    ("offset", Value::U64(0)),
                    ("data", bytes(&blob[..half])),
                ],
            ),
            self.message("AppendRequest", &[("data", bytes(&blob[half..]))]),
        ];
        let appended = self.call("BlobService", "Append", frames).await.unwrap();
        assert_eq!(get(&appended, "committed"), Value::U64(blob.len() as u64));
        let finish = self.message("FinishRequest", &[("upload_id", id)]);
        self.call("BlobService", "Finish", vec![finish])
            .await
            .unwrap();
    }
}

fn get(message: &DynamicMessage, field: &str) -> Value {
    message.get_field_by_name(field).unwrap().into_owned()
}

/// Submit, with the outcome's name in the first version's enum.
async fn submit(worker: &OldWorker, fields: &[(&str, Value)]) -> String {
    let answer = worker.volunteer("Submit", fields).await;
    let outcomes = worker
        .pool
        .get_enum_by_name("cipherhop.v1.SubmitResponse.Outcome")
        .unwrap();
    let number = get(&answer, "outcome").as_enum_number().unwrap();
    outcomes.get_value(number).unwrap().name().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_the_first_version_computes_a_hop_to_the_end() {
    let server = Server::start().await;
    let owner = server.owner().await;
    let chain = new_chain("demo", 1).create(&owner).await;
    let mut worker = OldWorker::new(&server.url);

    let versions = [
        ("protocol_min", Value::U32(1)),
        ("protocol_max", Value::U32(1)),
    ];
    let hello = worker.volunteer("Hello", &versions).await;
    assert_eq!(get(&hello, "protocol"), Value::U32(1));

    let invite = server.token(TokenRole::Invite, "ada").await;
    let enrolled = worker
        .volunteer(
            "Enroll",
            &[
                ("invite", Value::String(invite)),
                ("display_name", Value::String("an old machine".into())),
                ("nonce", bytes(Nonce::generate().as_bytes())),
            ],
        )
        .await;
    worker.token = Some(get(&enrolled, "token").as_str().unwrap().to_owned());

    let able = worker.message(
        "Capabilities",
        &[
            ("memory_bytes", Value::U64(8 << 30)),
            ("disk_bytes", Value::U64(8 << 30)),
            ("threads", Value::U32(2)),
            ("isa", Value::String("old".into())),
            (
                "program_formats",
                Value::List(vec![Value::String("cipherhop-program/1".into())]),
            ),
            ("golden_digest", bytes(&[0; 32])),
        ],
    );
    let acquired = worker
        .volunteer(
            "Acquire",
            &[
                ("nonce", bytes(Nonce::generate().as_bytes())),
                ("capabilities", Value::Message(able)),
            ],
        )
        .await;
    let assignment = get(&acquired, "assignment");
    let assignment = assignment.as_message().unwrap();
    let attempt = [
        ("attempt_id", get(assignment, "attempt_id")),
        ("epoch", get(assignment, "epoch")),
    ];
    let out = output(0);
    let trace = b"{\"step\":0}\n";
    let claim = [
        ("output_digest", bytes(Digest::of(&out).as_bytes())),
        ("output_size", Value::U64(out.len() as u64)),
        ("trace_root", bytes(Digest::of(b"root").as_bytes())),
        ("trace_digest", bytes(Digest::of(trace).as_bytes())),
        ("trace_size", Value::U64(trace.len() as u64)),
        ("compute_seconds", Value::F64(1.0)),
    ];
    let claim = [&attempt[..], &claim].concat();
    assert_eq!(submit(&worker, &claim).await, "OUTCOME_NEED_UPLOAD");
    worker
        .upload(&out, v1::BlobRole::Output.into(), &attempt)
        .await;
    worker
        .upload(trace, v1::BlobRole::Trace.into(), &attempt)
        .await;
    assert_eq!(submit(&worker, &claim).await, "OUTCOME_ACCEPTED_VERIFYING");

    // A worker of today agrees with it.
    let bob = server.volunteer("bob").await;
    let given = bob.acquire(0).await.unwrap();
    bob.hand_in(&given, &out).await.unwrap();
    let state = status(&owner, &chain).await.chain.unwrap();
    assert_eq!(state.state(), v1::ChainState::Completed);
    assert_eq!(submit(&worker, &claim).await, "OUTCOME_DUPLICATE");
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_takes_the_highest_common_version_and_names_what_it_can() {
    let server = Server::start().await;
    let stranger = connect(&server.url, None);
    let hello = async |low, high| {
        let request = v1::HelloRequest {
            protocol_min: low,
            protocol_max: high,
            features: vec!["something-of-tomorrow".into()],
            ..Default::default()
        };
        Ok::<_, Status>(stranger.volunteer().hello(request).await?.into_inner())
    };
    let answer = hello(1, 9).await.unwrap();
    assert_eq!(answer.protocol, cipherhop_proto::PROTOCOL_RANGE.1);
    for feature in ["cipherhop-program/1", "device-signatures", "token-scopes"] {
        assert!(answer.features.iter().any(|f| f == feature), "{feature}");
    }
    for (low, high) in [(2, 9), (0, 0), (9, 2)] {
        assert_eq!(
            reason(hello(low, high).await),
            Reason::ProtocolUnsupported,
            "{low} to {high}"
        );
    }
}
