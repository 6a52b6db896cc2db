//! Admin commands: each is one or two calls to the running coordinator.

use cipherhop_proto::client::{
    AuthChannel, BearerToken, ClientError, ConnectOptions, Connection, UNARY_DEADLINE, unary,
};
use cipherhop_proto::v1::admin_service_client::AdminServiceClient;
use cipherhop_proto::v1::{self, ChainState};
use cipherhop_proto::{ChainId, DeviceId, TokenId};

use crate::present::hop_state;

use super::{
    AuditArgs, ChainCommand, Connect, DeviceCommand, Failure, HopCommand, RoleArg, ScrubArgs,
    TokenCommand, output,
};

/// A connection to the running coordinator with the operator's token.
pub(super) struct Session {
    url: String,
    pub(super) connection: Connection,
}

impl Session {
    pub(super) fn open(connect: Connect) -> Result<Session, Failure> {
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
            ca: connect.ca,
            allow_plaintext: connect.allow_plaintext,
        };
        let url = connect.coordinator;
        let connection = Connection::lazy(&options).map_err(|e| Failure::client(&url, &e))?;
        Ok(Session { url, connection })
    }

    /// Waits for a call and maps its failure.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Failure> {
        let answer: Result<T, ClientError> = unary(UNARY_DEADLINE, call).await;
        answer.map_err(|e| Failure::client(&self.url, &e))
    }

    pub(super) fn admin(&self) -> AdminServiceClient<AuthChannel> {
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
        let chain = self.find_id(chain).await?;
        let changed = self.change(&chain, state, reason).await?;
        output::chains(&changed.into_iter().collect::<Vec<_>>(), json)
    }

    /// The chain after the change.
    pub(super) async fn change(
        &self,
        chain: &[u8],
        state: ChainState,
        reason: String,
    ) -> Result<Option<v1::Chain>, Failure> {
        let request = v1::SetChainStateRequest {
            chain_id: chain.to_vec(),
            state: state.into(),
            reason,
        };
        let answer = self.ask(self.admin().set_chain_state(request)).await?;
        Ok(answer.chain)
    }

    pub(super) async fn chains(&self) -> Result<Vec<v1::Chain>, Failure> {
        let request = v1::ListChainsRequest::default();
        let answer = self
            .ask(self.connection.chain().list_chains(request))
            .await?;
        Ok(answer.chains)
    }
}

pub(super) async fn token(command: TokenCommand, json: bool) -> Result<(), Failure> {
    match command {
        TokenCommand::Create {
            connect,
            role,
            account,
            chain,
        } => {
            let role = match role {
                RoleArg::Invite => v1::TokenRole::Invite,
                RoleArg::Owner => v1::TokenRole::Owner,
                RoleArg::Admin => v1::TokenRole::Admin,
                RoleArg::Observer => v1::TokenRole::Observer,
            };
            let session = Session::open(connect)?;
            let chain_id = match &chain {
                None => Vec::new(),
                Some(text) => match text.parse::<ChainId>() {
                    // It may not exist yet.
                    Ok(id) => id.to_vec(),
                    Err(_) => session.find_id(text).await?,
                },
            };
            let request = v1::CreateTokenRequest {
                role: role.into(),
                account,
                chain_id,
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
            output::chains(&Session::open(connect)?.chains().await?, json)
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
    match command {
        HopCommand::Requeue {
            connect,
            chain,
            hop,
            reason,
        } => {
            let session = Session::open(connect)?;
            let request = v1::RequeueHopRequest {
                chain_id: session.find_id(&chain).await?,
                hop,
                reason,
            };
            let answer = session.ask(session.admin().requeue_hop(request)).await?;
            let state = hop_state(answer.hop_state);
            output::done("requeued", &format!("hop {hop}: {state}"), json)
        }
        HopCommand::DropArchived {
            connect,
            chain,
            hop,
            reason,
        } => {
            let session = Session::open(connect)?;
            let request = v1::DropArchivedRequest {
                chain_id: session.find_id(&chain).await?,
                hop,
                reason,
            };
            let mut chains = session.connection.chain();
            let answer = session.ask(chains.drop_archived(request)).await?;
            let state = hop_state(answer.hop_state);
            output::done("dropped", &format!("hop {hop}: {state}"), json)
        }
        HopCommand::Invalidate {
            connect,
            chain,
            hop,
            reason,
        } => {
            let session = Session::open(connect)?;
            let request = v1::InvalidateHopRequest {
                chain_id: session.find_id(&chain).await?,
                hop,
                reason,
            };
            let mut chains = session.connection.chain();
            let answer = session.ask(chains.invalidate_hop(request)).await?;
            output::chains(&answer.chain.into_iter().collect::<Vec<_>>(), json)
        }
    }
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
        DeviceCommand::Referee {
            connect,
            device,
            off,
        } => {
            let id: DeviceId = device
                .parse()
                .map_err(|e| Failure::other(format!("{device:?}: {e}")))?;
            let session = Session::open(connect)?;
            let request = v1::SetRefereeRequest {
                device_id: id.to_vec(),
                referee: !off,
            };
            session.ask(session.admin().set_referee(request)).await?;
            let done = if off { "no referee" } else { "referee" };
            return output::done(done, &id.to_string(), json);
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

pub(super) async fn audit(args: AuditArgs, json: bool) -> Result<(), Failure> {
    let session = Session::open(args.connect)?;
    let request = v1::ListAuditRequest {
        before: args.before,
        limit: args.limit,
    };
    let answer = session.ask(session.admin().list_audit(request)).await?;
    output::audit(&answer.entries, json)
}

pub(super) async fn scrub(args: ScrubArgs, json: bool) -> Result<(), Failure> {
    let session = Session::open(args.connect)?;
    let mut answers = session
        .ask(session.admin().scrub(v1::ScrubRequest {}))
        .await?;
    let mut last = v1::ScrubResponse::default();
    let mut damaged = Vec::new();
    // No deadline: terabytes take hours.
    while let Some(report) = answers
        .message()
        .await
        .map_err(|e| Failure::client(&session.url, &e.into()))?
    {
        if !report.damaged_digest.is_empty() {
            damaged.push(report.clone());
        }
        last = report;
    }
    output::scrub(&last, &damaged, json)?;
    match damaged.len() {
        0 => Ok(()),
        count => Err(Failure::other(format!(
            "{count} damaged: put the right bytes back from a backup; in a local folder a blob lies at \
             DIR/blobs/sha256/, the first two digits of its digest, the rest"
        ))),
    }
}
