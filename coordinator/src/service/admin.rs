//! What an operator calls.

use std::collections::BTreeMap;

use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::status::{bad_request, reason_of, status};
use cipherhop_proto::v1::admin_service_server::AdminService;
use cipherhop_proto::{ChainId, DeviceId, Reason, TokenId, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::authorize::ADMIN;
use super::error::of_store;
use super::{Core, convert, parse, scrub};
use crate::auth::{Token, role_name};
use crate::domain::chain::ChainChange;
use crate::store::{AuditStart, Identity, NewToken, Role};

type Answered<T> = Result<Response<T>, Status>;

/// Audit entries in one answer: unless asked for otherwise, and at most.
const AUDIT_ENTRIES: (u32, u32) = (100, 1000);

impl Core {
    /// Does an operator's action with an entry in the audit log: written before, so that nothing is done without a
    /// trace, and completed with how it went.
    pub(super) async fn audited<T>(
        &self,
        caller: &Identity,
        action: &'static str,
        target: impl ToString,
        detail: String,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let start = AuditStart {
            token: caller.token,
            account: caller.account_name.clone(),
            action,
            target: target.to_string(),
            detail,
        };
        let number = self
            .store
            .begin_audit(start, self.clock.now())
            .await
            .map_err(of_store(action))?;
        cipherhop_failpoint::at("audit.begun");
        let result = work.await;
        cipherhop_failpoint::at("audit.done");
        let outcome = match &result {
            Ok(_) => "done",
            Err(refused) => reason_of(refused).map_or("INTERNAL", Reason::as_str),
        };
        if let Err(error) = self.store.end_audit(number, outcome).await {
            // The action is done; an error now would have the operator repeat it.
            tracing::error!(%error, number, outcome, "an audit entry is without its outcome");
        }
        result
    }
}

#[tonic::async_trait]
impl AdminService for Core {
    type ScrubStream = ReceiverStream<Result<v1::ScrubResponse, Status>>;

    async fn scrub(&self, request: Request<v1::ScrubRequest>) -> Answered<Self::ScrubStream> {
        let caller = self.limited(&request, ADMIN).await?;
        tracing::info!(by = %caller.token, "a scrub of all blobs begins");
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(scrub::scrub(self.clone(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Answered<v1::CreateTokenResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let role = match asked.role() {
            v1::TokenRole::Invite => Role::Invite,
            v1::TokenRole::Owner => Role::Owner,
            v1::TokenRole::Admin => Role::Admin,
            v1::TokenRole::Observer => Role::Observer,
            v1::TokenRole::Unspecified => return Err(bad_request("role", "must be set")),
        };
        let account_name = parse::name("account", asked.account)?;
        let scope: Option<ChainId> = parse::optional("chain_id", &asked.chain_id)?;
        if role == Role::Admin && scope.is_some() {
            return Err(bad_request("chain_id", "an admin token is for every chain"));
        }
        let token = Token::generate(role).map_err(|e| {
            tracing::error!(error = %e, "no token made");
            status(Reason::Internal, "")
        })?;
        let new = NewToken {
            id: TokenId::generate(),
            hash: token.hash(),
            role,
            account_name,
        };
        let (id, now) = (new.id, self.clock.now());
        let detail = match scope {
            Some(chain) => format!(
                "role {}, account {}, chain {chain}",
                role_name(role),
                new.account_name
            ),
            None => format!("role {}, account {}", role_name(role), new.account_name),
        };
        let work = async {
            let made = self.store.create_scoped_token(new, scope, now).await;
            made.map_err(of_store("create_token"))
        };
        let made = self
            .audited(&caller, "create_token", id, detail, work)
            .await?;
        tracing::info!(
            token = %made.token, role = role_name(role), account = %made.account_name, by = %caller.token,
            "a token was made"
        );
        Ok(Response::new(v1::CreateTokenResponse {
            token: token.reveal().to_owned(),
            token_id: made.token.to_vec(),
        }))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Answered<v1::RevokeTokenResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let token: TokenId = parse::field("token_id", &request.into_inner().token_id)?;
        let work = async {
            let revoked = self.store.revoke_token(token, self.clock.now()).await;
            revoked.map_err(of_store("revoke_token"))
        };
        self.audited(&caller, "revoke_token", token, String::new(), work)
            .await?;
        tracing::info!(%token, by = %caller.token, "a token was revoked");
        Ok(Response::new(v1::RevokeTokenResponse {}))
    }

    async fn set_chain_state(
        &self,
        request: Request<v1::SetChainStateRequest>,
    ) -> Answered<v1::SetChainStateResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let note = parse::words(&asked.reason);
        let detail = format!("{}: {note}", asked.state().as_str_name());
        let change = match asked.state() {
            v1::ChainState::Active => ChainChange::Resume,
            v1::ChainState::Paused => ChainChange::Pause(note),
            v1::ChainState::Cancelled => ChainChange::Cancel(note),
            _ => return Err(bad_request("state", "must be ACTIVE, PAUSED or CANCELLED")),
        };
        let id: ChainId = parse::field("chain_id", &asked.chain_id)?;
        let now = self.clock.now();
        let work = async {
            let changed = self.store.change_chain(id, change, now).await;
            changed.map_err(of_store("set_chain_state"))
        };
        let chain = self
            .audited(&caller, "set_chain_state", id, detail, work)
            .await?;
        tracing::info!(chain = %id, state = chain.state.name(), by = %caller.token, "a chain's state was changed");
        Ok(Response::new(v1::SetChainStateResponse {
            chain: Some(convert::chain(&chain, now)),
        }))
    }

    async fn requeue_hop(
        &self,
        request: Request<v1::RequeueHopRequest>,
    ) -> Answered<v1::RequeueHopResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let id: ChainId = parse::field("chain_id", &asked.chain_id)?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let detail = format!("hop {}: {note}", asked.hop);
        let work = async {
            let done = self.store.requeue(id, asked.hop, note, now).await;
            done.map_err(of_store("requeue_hop"))
        };
        let done = self
            .audited(&caller, "requeue_hop", id, detail, work)
            .await?;
        tracing::info!(chain = %id, hop = asked.hop, by = %caller.token, "a hop was requeued");
        Ok(Response::new(v1::RequeueHopResponse {
            hop_state: convert::hop_state(done.hop_state).into(),
        }))
    }

    async fn quarantine_device(
        &self,
        request: Request<v1::QuarantineDeviceRequest>,
    ) -> Answered<v1::QuarantineDeviceResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let device: DeviceId = parse::field("device_id", &asked.device_id)?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let action = match asked.lift {
            true => "lift_quarantine",
            false => "quarantine_device",
        };
        let detail = note.clone();
        let work = async {
            let row = self.store.quarantine(device, asked.lift, note, now).await;
            row.map_err(of_store("quarantine_device"))
        };
        let row = self.audited(&caller, action, device, detail, work).await?;
        tracing::info!(%device, state = row.state.name(), by = %caller.token, "a device's quarantine was changed");
        Ok(Response::new(v1::QuarantineDeviceResponse {}))
    }

    async fn set_referee(
        &self,
        request: Request<v1::SetRefereeRequest>,
    ) -> Answered<v1::SetRefereeResponse> {
        let caller = self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let device: DeviceId = parse::field("device_id", &asked.device_id)?;
        let detail = format!("referee {}", asked.referee);
        let work = async {
            let set = self.store.set_referee(device, asked.referee).await;
            set.map_err(of_store("set_referee"))
        };
        self.audited(&caller, "set_referee", device, detail, work)
            .await?;
        tracing::info!(%device, referee = asked.referee, by = %caller.token, "a device's office was changed");
        Ok(Response::new(v1::SetRefereeResponse {}))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Answered<v1::ListDevicesResponse> {
        self.limited(&request, ADMIN).await?;
        let now = self.clock.now();
        let devices = self
            .store
            .devices()
            .await
            .map_err(of_store("list_devices"))?;
        let keys = self
            .store
            .device_keys()
            .await
            .map_err(of_store("list_devices"))?;
        let keys: BTreeMap<DeviceId, PublicKey> = keys.into_iter().collect();
        let devices = devices.iter().map(|device| v1::Device {
            public_key: keys
                .get(&device.id)
                .map(|key| key.as_bytes().to_vec())
                .unwrap_or_default(),
            ..convert::device(device, now)
        });
        Ok(Response::new(v1::ListDevicesResponse {
            devices: devices.collect(),
        }))
    }

    async fn list_audit(
        &self,
        request: Request<v1::ListAuditRequest>,
    ) -> Answered<v1::ListAuditResponse> {
        self.limited(&request, ADMIN).await?;
        let asked = request.into_inner();
        let before = match asked.before {
            0 => i64::MAX as u64,
            number => number,
        };
        let limit = match asked.limit {
            0 => AUDIT_ENTRIES.0,
            limit => limit.min(AUDIT_ENTRIES.1),
        };
        let now = self.clock.now();
        let entries = self
            .store
            .audit(before, limit)
            .await
            .map_err(of_store("list_audit"))?;
        Ok(Response::new(v1::ListAuditResponse {
            entries: entries
                .into_iter()
                .map(|e| convert::audit(e, now))
                .collect(),
        }))
    }
}
