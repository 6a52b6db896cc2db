//! The first layer of the tiny Llama as a chain of one hop. The evaluation keys are pseudo-random, so no secret key is
//! needed: the plaintext is noise, the bytes are those of the circuit.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

#[path = "../../hop/tests/support/chain.rs"]
mod support;

use cipherhop_ckks::{Ciphertext, EvalKey, Params, ScaleId, ciphertext_size};
use cipherhop_hop::ckks_backend::Engine;
use cipherhop_hop::keys::{KEYS_FORMAT, KeyEntry, KeyManifest};
use cipherhop_proto::client::Connection;
use cipherhop_proto::{ChainId, Digest, v1};
use v1::BlobRole;

use crate::common::{SET, upload_all};

pub struct Tiny {
    request: v1::CreateChainRequest,
    blobs: Vec<(Vec<u8>, BlobRole)>,
}

impl Tiny {
    pub fn new() -> Tiny {
        let params = Params::by_name(SET).unwrap();
        let chain = support::chain("tiny-llama", 1);
        let (packs, _) = chain.packs(&[65]);
        let program = chain.program(&params, 1, &packs).unwrap();
        let engine = Engine::new(params.clone()).unwrap();
        let level = params.boot_out_level();
        let mut blobs = Vec::new();
        let mut manifest = KeyManifest {
            format: KEYS_FORMAT.into(),
            params_digest: hex::encode(params.digest()),
            keys: Vec::new(),
        };
        for spec in program.key_specs().unwrap() {
            let bytes = EvalKey::pseudorandom(&engine.ctx, spec, &[1; 32])
                .unwrap()
                .to_bytes(&engine.ctx);
            manifest.keys.push(KeyEntry {
                id: spec.id.to_string(),
                limbs: spec.limbs,
                digest: Digest::of(&bytes).to_string(),
                size: bytes.len() as u64,
            });
            blobs.push((bytes, BlobRole::EvaluationKey));
        }
        manifest.keys.sort_by(|a, b| a.id.cmp(&b.id));
        let key_digests = blobs
            .iter()
            .map(|(bytes, _)| Digest::of(bytes).to_vec())
            .collect();
        let input =
            Ciphertext::pseudorandom(&engine.ctx, level, ScaleId::Message, &[2; 32]).unwrap();
        let (program, manifest) = (program.to_bytes().unwrap(), manifest.to_bytes());
        let input = input.to_bytes(&engine.ctx);
        let request = v1::CreateChainRequest {
            program_digest: Digest::of(&program).to_vec(),
            parameter_set: SET.into(),
            parameter_digest: params.digest().to_vec(),
            key_manifest_digest: Digest::of(&manifest).to_vec(),
            key_digests,
            input_digest: Digest::of(&input).to_vec(),
            hops: vec![v1::HopInputs {
                hop: 0,
                weights_digest: Digest::of(&packs[0]).to_vec(),
                archived_digest: Vec::new(),
            }],
            quorum: 2,
            allow_insecure: true,
            boundary_level: level as u32,
            boundary_bytes: ciphertext_size(&params, level) as u64,
            worker_memory_bytes: 1 << 20,
            ..Default::default()
        };
        blobs.push((program, BlobRole::Program));
        blobs.push((manifest, BlobRole::KeyManifest));
        blobs.push((packs[0].clone(), BlobRole::Weights));
        blobs.push((input, BlobRole::Input));
        Tiny { request, blobs }
    }

    /// Uploads what is not there yet and creates the chain; its id.
    pub async fn create(&self, owner: &Connection, name: &str) -> Vec<u8> {
        upload_all(owner, &self.blobs).await;
        let request = v1::CreateChainRequest {
            chain_id: ChainId::generate().to_vec(),
            name: name.into(),
            ..self.request.clone()
        };
        owner.chain().create_chain(request.clone()).await.unwrap();
        request.chain_id
    }
}
