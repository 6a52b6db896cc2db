//! What an operator calls.

use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::v1::admin_service_server::AdminService;
use cipherhop_proto::{ChainId, DeviceId, Reason, TokenId, v1};
use tonic::{Request, Response, Status};

use super::authorize::ADMIN;
use super::error::of_store;
use super::{Core, convert, parse};
use crate::auth::{Token, role_name};
use crate::domain::chain::ChainChange;
use crate::store::{NewToken, Role};

type Answered<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl AdminService for Core {
    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Answered<v1::CreateTokenResponse> {
        let caller = self.caller(&request, ADMIN).await?;
        let asked = request.into_inner();
        let role = match asked.role() {
            v1::TokenRole::Invite => Role::Invite,
            v1::TokenRole::Owner => Role::Owner,
            v1::TokenRole::Admin => Role::Admin,
            v1::TokenRole::Observer => Role::Observer,
            v1::TokenRole::Unspecified => return Err(bad_request("role", "must be set")),
        };
        let account_name = parse::name("account", asked.account)?;
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
        let made = self
            .store
            .create_token(new, self.clock.now())
            .await
            .map_err(of_store("create_token"))?;
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
        let caller = self.caller(&request, ADMIN).await?;
        let token: TokenId = parse::field("token_id", &request.into_inner().token_id)?;
        self.store
            .revoke_token(token, self.clock.now())
            .await
            .map_err(of_store("revoke_token"))?;
        tracing::info!(%token, by = %caller.token, "a token was revoked");
        Ok(Response::new(v1::RevokeTokenResponse {}))
    }

    async fn set_chain_state(
        &self,
        request: Request<v1::SetChainStateRequest>,
    ) -> Answered<v1::SetChainStateResponse> {
        let caller = self.caller(&request, ADMIN).await?;
        let asked = request.into_inner();
        let note = parse::words(&asked.reason);
        let change = match asked.state() {
            v1::ChainState::Active => ChainChange::Resume,
            v1::ChainState::Paused => ChainChange::Pause(note),
            v1::ChainState::Cancelled => ChainChange::Cancel(note),
            _ => return Err(bad_request("state", "must be ACTIVE, PAUSED or CANCELLED")),
        };
        let id: ChainId = parse::field("chain_id", &asked.chain_id)?;
        let now = self.clock.now();
        let chain = self
            .store
            .change_chain(id, change, now)
            .await
            .map_err(of_store("set_chain_state"))?;
        tracing::info!(chain = %id, state = chain.state.name(), by = %caller.token, "a chain's state was changed");
        Ok(Response::new(v1::SetChainStateResponse {
            chain: Some(convert::chain(&chain, now)),
        }))
    }

    async fn requeue_hop(
        &self,
        request: Request<v1::RequeueHopRequest>,
    ) -> Answered<v1::RequeueHopResponse> {
        let caller = self.caller(&request, ADMIN).await?;
        let asked = request.into_inner();
        let id: ChainId = parse::field("chain_id", &asked.chain_id)?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let done = self
            .store
            .requeue(id, asked.hop, note, now)
            .await
            .map_err(of_store("requeue_hop"))?;
        tracing::info!(chain = %id, hop = asked.hop, by = %caller.token, "a hop was requeued");
        Ok(Response::new(v1::RequeueHopResponse {
            hop_state: convert::hop_state(done.hop_state).into(),
        }))
    }

    async fn quarantine_device(
        &self,
        request: Request<v1::QuarantineDeviceRequest>,
    ) -> Answered<v1::QuarantineDeviceResponse> {
        let caller = self.caller(&request, ADMIN).await?;
        let asked = request.into_inner();
        let device: DeviceId = parse::field("device_id", &asked.device_id)?;
        let note = parse::words(&asked.reason);
        let now = self.clock.now();
        let row = self
            .store
            .quarantine(device, asked.lift, note, now)
            .await
            .map_err(of_store("quarantine_device"))?;
        tracing::info!(%device, state = row.state.name(), by = %caller.token, "a device's quarantine was changed");
        Ok(Response::new(v1::QuarantineDeviceResponse {}))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Answered<v1::ListDevicesResponse> {
        self.caller(&request, ADMIN).await?;
        let now = self.clock.now();
        let devices = self
            .store
            .devices()
            .await
            .map_err(of_store("list_devices"))?;
        Ok(Response::new(v1::ListDevicesResponse {
            devices: devices.iter().map(|d| convert::device(d, now)).collect(),
        }))
    }
}
