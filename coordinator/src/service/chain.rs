//! Chains: created by the key holder, followed by anybody with a token.

use std::pin::Pin;

use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::v1::chain_service_server::ChainService;
use cipherhop_proto::{ChainId, Digest, Reason, ledger, manifest, v1};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::authorize::{LOOK, OWN, in_scope, own_chain};
use super::error::{of_blob, of_store};
use super::watch::Watch;
use super::{Core, convert, parse, verify};
use crate::domain::chain::{Chain, ChainSpec, MAX_HOPS, MAX_QUORUM, NewChain, NewHop};
use crate::domain::view::{Accuracy, BlobRole, NeededBlob};
use crate::store::{Identity, Role};

type Answered<T> = Result<Response<T>, Status>;

/// Most evaluation keys of a chain.
const MAX_KEYS: usize = 16_384;
/// Most rows of the archive in one answer.
const MAX_LEDGER_ROWS: usize = 1000;

#[tonic::async_trait]
impl ChainService for Core {
    type WatchChainStream =
        Pin<Box<dyn Stream<Item = Result<v1::WatchChainResponse, Status>> + Send>>;

    async fn create_chain(
        &self,
        request: Request<v1::CreateChainRequest>,
    ) -> Answered<v1::CreateChainResponse> {
        let identity = self.limited(&request, &[Role::Owner]).await?;
        let asked = request.into_inner();
        let new = self.new_chain(&identity, asked)?;
        in_scope(&identity, new.id)?;
        for digest in new
            .hops
            .iter()
            .map(|h| h.weights)
            .chain(new.keys.iter().copied())
        {
            self.must_be_complete(digest).await?;
        }
        for digest in [new.spec.program, new.spec.key_manifest, new.input] {
            self.must_be_complete(digest).await?;
        }
        self.check_program(new.spec.program).await?;
        self.check_stored_ciphertext(&new.spec, new.input)
            .await?
            .map_err(|unsound| {
                status(
                    unsound.reason,
                    format!("the input ciphertext: {}", unsound.detail),
                )
            })?;
        let now = self.clock.now();
        let chain = self
            .store
            .create_chain(new, now)
            .await
            .map_err(of_store("create_chain"))?;
        tracing::info!(chain = %chain.id, name = %chain.name, hops = chain.hops, "a chain was created");
        Ok(Response::new(v1::CreateChainResponse {
            chain: Some(convert::chain(&chain, now)),
        }))
    }

    async fn list_chains(
        &self,
        request: Request<v1::ListChainsRequest>,
    ) -> Answered<v1::ListChainsResponse> {
        let identity = self.limited(&request, LOOK).await?;
        let now = self.clock.now();
        let chains = self.store.chains().await.map_err(of_store("list_chains"))?;
        let chains = chains.iter().filter(|c| in_scope(&identity, c.id).is_ok());
        let chains = chains.map(|c| convert::chain(c, now)).collect();
        Ok(Response::new(v1::ListChainsResponse { chains }))
    }

    async fn get_chain(
        &self,
        request: Request<v1::GetChainRequest>,
    ) -> Answered<v1::GetChainResponse> {
        let identity = self.limited(&request, LOOK).await?;
        let asked = request.into_inner();
        let id = match parse::optional("chain_id", &asked.chain_id)? {
            Some(id) => id,
            None => {
                self.store
                    .chain_by_name(&asked.name)
                    .await
                    .map_err(of_store("get_chain"))?
                    .id
            }
        };
        in_scope(&identity, id)?;
        let now = self.clock.now();
        let state = self.store.status(id).await.map_err(of_store("get_chain"))?;
        Ok(Response::new(v1::GetChainResponse {
            chain: Some(convert::chain(&state.chain, now)),
            hops: state.hops.iter().map(|h| convert::hop(h, now)).collect(),
            sequence: state.sequence,
        }))
    }

    async fn watch_chain(
        &self,
        request: Request<v1::WatchChainRequest>,
    ) -> Answered<Self::WatchChainStream> {
        let identity = self.limited(&request, LOOK).await?;
        let asked = request.into_inner();
        let id: ChainId = parse::field("chain_id", &asked.chain_id)?;
        in_scope(&identity, id)?;
        // An unknown chain is told at once, not in the stream.
        self.store
            .chain(id)
            .await
            .map_err(of_store("watch_chain"))?;
        let (sender, receiver) = mpsc::channel(64);
        let core = self.clone();
        tokio::spawn(async move {
            let shutdown = core.shutdown.clone();
            let watch = Watch::new(core, id, asked.after_sequence, sender);
            tokio::select! {
                () = watch.run() => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_results(
        &self,
        request: Request<v1::GetResultsRequest>,
    ) -> Answered<v1::GetResultsResponse> {
        let identity = self.limited(&request, OWN).await?;
        let chain = self
            .owned_chain(&identity, &request.into_inner().chain_id)
            .await?;
        let rows = self
            .store
            .results(chain.id)
            .await
            .map_err(of_store("get_results"))?;
        let size = chain.spec.boundary_bytes;
        let blob = |digest: Option<Digest>, role| {
            digest.map(|digest| convert::blob(&NeededBlob { digest, size, role }))
        };
        let results = rows.iter().map(|row| v1::HopResult {
            hop: row.hop,
            input: blob(row.input, BlobRole::Input),
            output: blob(row.output, BlobRole::Output),
        });
        let results = results.collect();
        Ok(Response::new(v1::GetResultsResponse {
            chain: Some(convert::chain(&chain, self.clock.now())),
            results,
        }))
    }

    async fn export_archive(
        &self,
        request: Request<v1::ExportArchiveRequest>,
    ) -> Answered<v1::ExportArchiveResponse> {
        let identity = self.limited(&request, LOOK).await?;
        let id = parse::field("chain_id", &request.into_inner().chain_id)?;
        in_scope(&identity, id)?;
        let state = self
            .store
            .status(id)
            .await
            .map_err(of_store("export_archive"))?;
        Ok(Response::new(v1::ExportArchiveResponse {
            manifest: state.manifest(),
            ledger_key: self.ledger_key(),
        }))
    }

    async fn get_ledger(
        &self,
        request: Request<v1::GetLedgerRequest>,
    ) -> Answered<v1::GetLedgerResponse> {
        let identity = self.limited(&request, LOOK).await?;
        let asked = request.into_inner();
        let id = parse::field("chain_id", &asked.chain_id)?;
        in_scope(&identity, id)?;
        let archive = self.store.archive(id).await;
        let archive = archive.map_err(of_store("get_ledger"))?;
        let rows = archive.iter().filter(|row| row.position >= asked.position);
        let mut rows = rows
            .map(|row| ledger::message(&row.entry(), row.previous, row.hash, row.seal.as_ref()));
        Ok(Response::new(v1::GetLedgerResponse {
            rows: rows.by_ref().take(MAX_LEDGER_ROWS).collect(),
            more: rows.next().is_some(),
            ledger_key: self.ledger_key(),
        }))
    }

    async fn import_archive(
        &self,
        request: Request<v1::ImportArchiveRequest>,
    ) -> Answered<v1::ImportArchiveResponse> {
        let identity = self.limited(&request, OWN).await?;
        let asked = request.into_inner();
        let chain = self.owned_chain(&identity, &asked.chain_id).await?;
        let digests = manifest::parse(&asked.manifest)
            .map_err(|e| status(Reason::ArchiveFormat, e.to_string()))?;
        let digests = digests.into_iter().collect();
        let now = self.clock.now();
        let done = self
            .store
            .import_archive(chain.id, digests, now)
            .await
            .map_err(of_store("import_archive"))?;
        tracing::info!(chain = %chain.id, imported = done.imported, "an archive was imported");
        Ok(Response::new(v1::ImportArchiveResponse {
            imported: done.imported,
            already_known: done.already_known,
        }))
    }

    async fn drop_archived(
        &self,
        request: Request<v1::DropArchivedRequest>,
    ) -> Answered<v1::DropArchivedResponse> {
        let identity = self.limited(&request, OWN).await?;
        let asked = request.into_inner();
        let chain = self.owned_chain(&identity, &asked.chain_id).await?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let detail = format!("hop {}: {note}", asked.hop);
        let work = async {
            let dropped = self.store.drop_archived(chain.id, asked.hop, note, now);
            dropped.await.map_err(of_store("drop_archived"))
        };
        let state = self
            .audited(&identity, "drop_archived", chain.id, detail, work)
            .await?;
        tracing::info!(chain = %chain.id, hop = asked.hop, by = %identity.token, "an archived digest was dropped");
        Ok(Response::new(v1::DropArchivedResponse {
            hop_state: convert::hop_state(state).into(),
        }))
    }

    async fn invalidate_hop(
        &self,
        request: Request<v1::InvalidateHopRequest>,
    ) -> Answered<v1::InvalidateHopResponse> {
        let identity = self.limited(&request, OWN).await?;
        let asked = request.into_inner();
        let chain = self.owned_chain(&identity, &asked.chain_id).await?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let detail = format!("hop {}: {note}", asked.hop);
        let work = async {
            let invalidated = self.store.invalidate(chain.id, asked.hop, note, now);
            invalidated.await.map_err(of_store("invalidate_hop"))
        };
        let chain = self
            .audited(&identity, "invalidate_hop", chain.id, detail, work)
            .await?;
        tracing::info!(chain = %chain.id, hop = asked.hop, generation = chain.generation, by = %identity.token,
            "a verified hop was invalidated");
        Ok(Response::new(v1::InvalidateHopResponse {
            chain: Some(convert::chain(&chain, now)),
        }))
    }

    async fn publish_accuracy(
        &self,
        request: Request<v1::PublishAccuracyRequest>,
    ) -> Answered<v1::PublishAccuracyResponse> {
        let identity = self.limited(&request, OWN).await?;
        let asked = request.into_inner();
        let chain = self.owned_chain(&identity, &asked.chain_id).await?;
        let mut figures = Vec::new();
        for hop in asked.hops {
            let (max_err_over_f, worst_rel_rms) = (hop.max_err_over_f, hop.worst_rel_rms);
            if !(max_err_over_f >= 0.0
                && worst_rel_rms >= 0.0
                && max_err_over_f + worst_rel_rms < f64::INFINITY)
            {
                return Err(bad_request(
                    "hops",
                    "figures must be finite and not negative",
                ));
            }
            figures.push(Accuracy {
                hop: hop.hop,
                max_err_over_f,
                worst_rel_rms,
            });
        }
        let now = self.clock.now();
        self.store
            .publish_accuracy(chain.id, figures, now)
            .await
            .map_err(of_store("publish_accuracy"))?;
        Ok(Response::new(v1::PublishAccuracyResponse {}))
    }
}

impl Core {
    async fn owned_chain(&self, identity: &Identity, id: &[u8]) -> Result<Chain, Status> {
        let chain = self
            .store
            .chain(parse::field("chain_id", id)?)
            .await
            .map_err(of_store("chain"))?;
        own_chain(identity, &chain)?;
        Ok(chain)
    }

    async fn must_be_complete(&self, digest: Digest) -> Result<(), Status> {
        let row = self
            .store
            .blob(digest)
            .await
            .map_err(of_store("create_chain"))?;
        let bytes = self.blobs.stat(digest).await.map_err(of_blob)?;
        match (row, bytes) {
            (Some(row), Some(bytes)) if row.size == bytes => Ok(()),
            _ => Err(status(
                Reason::BlobNotFound,
                format!("blob {digest} is not complete here; upload it first"),
            )),
        }
    }

    /// Parses a chain and checks its parameter set.
    fn new_chain(
        &self,
        identity: &Identity,
        asked: v1::CreateChainRequest,
    ) -> Result<NewChain, Status> {
        let hop_count = u32::try_from(asked.hops.len()).unwrap_or(u32::MAX);
        if !(1..=MAX_HOPS).contains(&hop_count) {
            return Err(bad_request(
                "hops",
                format!("a chain has 1 to {MAX_HOPS} hops"),
            ));
        }
        if !(2..=MAX_QUORUM).contains(&asked.quorum) {
            return Err(bad_request("quorum", format!("must be 2 to {MAX_QUORUM}")));
        }
        if asked.key_digests.len() > MAX_KEYS {
            return Err(bad_request(
                "key_digests",
                format!("at most {MAX_KEYS} keys"),
            ));
        }
        let parameters = parse::field("parameter_digest", &asked.parameter_digest)?;
        let (level, bytes) = (asked.boundary_level, asked.boundary_bytes);
        let params = verify::check_parameters(
            &asked.parameter_set,
            parameters,
            level,
            bytes,
            asked.allow_insecure,
        )?;
        let mut hops = Vec::with_capacity(asked.hops.len());
        for (expected, hop) in (0..).zip(&asked.hops) {
            if hop.hop != expected {
                return Err(bad_request(
                    "hops",
                    format!("hop {} stands where hop {expected} should", hop.hop),
                ));
            }
            hops.push(NewHop {
                weights: parse::field("hops.weights_digest", &hop.weights_digest)?,
                archived: parse::optional("hops.archived_digest", &hop.archived_digest)?,
            });
        }
        Ok(NewChain {
            id: parse::field("chain_id", &asked.chain_id)?,
            name: parse::name("name", asked.name)?,
            owner: identity.account,
            policy: self.config.leases.policy(asked.quorum),
            spec: ChainSpec {
                program: parse::field("program_digest", &asked.program_digest)?,
                insecure: params.is_insecure(),
                parameter_set: params.name,
                parameters,
                key_manifest: parse::field("key_manifest_digest", &asked.key_manifest_digest)?,
                boundary_level: level,
                boundary_bytes: bytes,
                worker_memory_bytes: asked.worker_memory_bytes,
            },
            keys: asked
                .key_digests
                .iter()
                .map(|d| parse::field("key_digests", d))
                .collect::<Result<_, _>>()?,
            input: parse::field("input_digest", &asked.input_digest)?,
            hops,
        })
    }
}
