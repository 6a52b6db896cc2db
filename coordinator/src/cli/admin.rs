//! Admin commands: each is one or two calls to the running coordinator.

use cipherhop_proto::client::{
    AuthChannel, BearerToken, ClientError, ConnectOptions, Connection, UNARY_DEADLINE, unary,
};
use cipherhop_proto::v1::admin_service_client::AdminServiceClient;
use cipherhop_proto::v1::{self, ChainState};
use cipherhop_proto::{ChainId, DeviceId, TokenId};

use super::{
    ChainCommand, Connect, DeviceCommand, Failure, HopCommand, RoleArg, TokenCommand, output,
};

/// A connection to the running coordinator with the operator's token.
struct Session {
    url: String,
    connection: Connection,
}

impl Session {
    fn open(connect: Connect) -> Result<Session, Failure> {
        let token = match (connect.token, connect.data) {
            (Some(token), _) => token,
            (None, Some(data)) => {
                let path = data.join("admin.token");
                std::fs::read_to_string(&path)
                    .map_err(|e| Failure::token(format!("cannot read {}: {e}", path.display())))?
            }
            (None, None) => return Err(Failure::token("no token given")),
        };
        let options = ConnectOptions {
            url: connect.coordinator.clone(),
            token: Some(BearerToken::new(&token)),
            ca: None,
            allow_plaintext: false,
        };
        let url = connect.coordinator;
        let connection = Connection::lazy(&options).map_err(|e| Failure::client(&url, &e))?;
        Ok(Session { url, connection })
    }

    /// Waits for a call and maps its failure.
    async fn ask<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Failure> {
        let answer: Result<T, ClientError> = unary(UNARY_DEADLINE, call).await;
        answer.map_err(|e| Failure::client(&self.url, &e))
    }

    fn admin(&self) -> AdminServiceClient<AuthChannel> {
        self.connection.admin()
    }

    /// A chain by id (UUID) or name.
    async fn find(&self, chain: &str) -> Result<v1::GetChainResponse, Failure> {
        let request = match chain.parse::<ChainId>() {
            Ok(id) => v1::GetChainRequest {
                chain_id: id.to_vec(),
                name: String::new(),
            },
            Err(_) => v1::GetChainRequest {
                chain_id: Vec::new(),
                name: chain.to_owned(),
            },
        };
        self.ask(self.connection.chain().get_chain(request)).await
    }

    async fn find_id(&self, chain: &str) -> Result<Vec<u8>, Failure> {
        Ok(self.find(chain).await?.chain.unwrap_or_default().chain_id)
    }

    async fn set_state(
        &self,
        chain: &str,
        state: ChainState,
        reason: String,
        json: bool,
    ) -> Result<(), Failure> {
        let chain_id = self.find_id(chain).await?;
        let request = v1::SetChainStateRequest {
            chain_id,
            state: state.into(),
            reason,
        };
        let answer = self.ask(self.admin().set_chain_state(request)).await?;
        output::chains(&answer.chain.into_iter().collect::<Vec<_>>(), json)
    }
}

pub(super) async fn token(command: TokenCommand, json: bool) -> Result<(), Failure> {
    match command {
        TokenCommand::Create {
            connect,
            role,
            account,
        } => {
            let role = match role {
                RoleArg::Invite => v1::TokenRole::Invite,
                RoleArg::Owner => v1::TokenRole::Owner,
                RoleArg::Admin => v1::TokenRole::Admin,
                RoleArg::Observer => v1::TokenRole::Observer,
            };
            let session = Session::open(connect)?;
            let request = v1::CreateTokenRequest {
                role: role.into(),
                account,
            };
            let answer = session.ask(session.admin().create_token(request)).await?;
            output::token(&answer, json)
        }
        TokenCommand::Revoke { connect, token_id } => {
            let id: TokenId = token_id
                .parse()
                .map_err(|e| Failure::other(format!("{token_id:?}: {e}")))?;
            let session = Session::open(connect)?;
            let request = v1::RevokeTokenRequest {
                token_id: id.to_vec(),
            };
            session.ask(session.admin().revoke_token(request)).await?;
            output::done("revoked", &id.to_string(), json)
        }
    }
}

pub(super) async fn chain(command: ChainCommand, json: bool) -> Result<(), Failure> {
    match command {
        ChainCommand::List { connect } => {
            let session = Session::open(connect)?;
            let answer = session
                .ask(
                    session
                        .connection
                        .chain()
                        .list_chains(v1::ListChainsRequest {}),
                )
                .await?;
            output::chains(&answer.chains, json)
        }
        ChainCommand::Show { connect, chain } => {
            let answer = Session::open(connect)?.find(&chain).await?;
            output::chain(&answer, json)
        }
        ChainCommand::Pause {
            connect,
            chain,
            reason,
        } => {
            Session::open(connect)?
                .set_state(&chain, ChainState::Paused, reason, json)
                .await
        }
        ChainCommand::Resume { connect, chain } => {
            Session::open(connect)?
                .set_state(&chain, ChainState::Active, String::new(), json)
                .await
        }
        ChainCommand::Cancel {
            connect,
            chain,
            reason,
        } => {
            Session::open(connect)?
                .set_state(&chain, ChainState::Cancelled, reason, json)
                .await
        }
    }
}

pub(super) async fn hop(command: HopCommand, json: bool) -> Result<(), Failure> {
    let HopCommand::Requeue {
        connect,
        chain,
        hop,
        reason,
    } = command;
    let session = Session::open(connect)?;
    let chain_id = session.find_id(&chain).await?;
    let request = v1::RequeueHopRequest {
        chain_id,
        hop,
        reason,
    };
    let answer = session.ask(session.admin().requeue_hop(request)).await?;
    output::done(
        "requeued",
        &format!("hop {hop}: {}", output::hop_state(answer.hop_state)),
        json,
    )
}

pub(super) async fn device(command: DeviceCommand, json: bool) -> Result<(), Failure> {
    let (connect, device, reason, lift) = match command {
        DeviceCommand::List { connect } => {
            let session = Session::open(connect)?;
            let answer = session
                .ask(session.admin().list_devices(v1::ListDevicesRequest {}))
                .await?;
            return output::devices(&answer.devices, json);
        }
        DeviceCommand::Quarantine {
            connect,
            device,
            reason,
        } => (connect, device, reason, false),
        DeviceCommand::Unquarantine {
            connect,
            device,
            reason,
        } => (connect, device, reason, true),
    };
    let id: DeviceId = device
        .parse()
        .map_err(|e| Failure::other(format!("{device:?}: {e}")))?;
    let session = Session::open(connect)?;
    let request = v1::QuarantineDeviceRequest {
        device_id: id.to_vec(),
        reason,
        lift,
    };
    session
        .ask(session.admin().quarantine_device(request))
        .await?;
    output::done(
        if lift { "unquarantined" } else { "quarantined" },
        &id.to_string(),
        json,
    )
}
