//! Who calls, and whether the role may.

use cipherhop_proto::status::status;
use cipherhop_proto::{ChainId, DeviceId, Reason};
use tonic::{Request, Status};

use super::Core;
use super::error::of_store;
use crate::auth::{Token, role_name};
use crate::domain::chain::Chain;
use crate::store::{Identity, Role};

/// Roles that may look at chains.
pub(super) const LOOK: &[Role] = &[Role::Volunteer, Role::Owner, Role::Admin, Role::Observer];
/// Roles that act for a key holder.
pub(super) const OWN: &[Role] = &[Role::Owner, Role::Admin];
/// Operators.
pub(super) const ADMIN: &[Role] = &[Role::Admin];

impl Core {
    /// As [`Core::caller`]; counts against the token's rate limit. Operators are not limited: their scripts come in
    /// bursts, and they could lift the limit anyway.
    pub(super) async fn limited<T>(
        &self,
        request: &Request<T>,
        allowed: &[Role],
    ) -> Result<Identity, Status> {
        let identity = self.caller(request, allowed).await?;
        if identity.role != Role::Admin {
            self.limits.token(identity.token)?;
        }
        Ok(identity)
    }

    /// The caller, if its token is good and its role is among `allowed`. Never limited, except for those without a good
    /// token.
    pub(super) async fn caller<T>(
        &self,
        request: &Request<T>,
        allowed: &[Role],
    ) -> Result<Identity, Status> {
        let identity = match self.identity(request).await {
            Ok(identity) => identity,
            Err(unknown) => {
                self.stranger(request)?;
                return Err(unknown);
            }
        };
        if !allowed.contains(&identity.role) {
            let names: Vec<_> = allowed.iter().map(|role| role_name(*role)).collect();
            return Err(status(
                Reason::RoleNotAllowed,
                format!(
                    "a token of role {} may not do this; it takes {}",
                    role_name(identity.role),
                    names.join(" or ")
                ),
            ));
        }
        Ok(identity)
    }

    /// Counts a call without a good token against the caller's address.
    pub(super) fn stranger<T>(&self, request: &Request<T>) -> Result<(), Status> {
        self.limits
            .address(request.remote_addr().map(|address| address.ip()))
    }

    async fn identity<T>(&self, request: &Request<T>) -> Result<Identity, Status> {
        let header = request
            .metadata()
            .get("authorization")
            .ok_or_else(|| status(Reason::TokenMissing, ""))?;
        let token: Token = header
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix("Bearer "))
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                status(
                    Reason::TokenInvalid,
                    "the authorization header is not `Bearer TOKEN`",
                )
            })?;
        self.store
            .identify(token.hash())
            .await
            .map_err(of_store("identify"))
    }

    /// The calling volunteer's device.
    pub(super) async fn volunteer<T>(
        &self,
        request: &Request<T>,
    ) -> Result<(Identity, DeviceId), Status> {
        let identity = self.caller(request, &[Role::Volunteer]).await?;
        match identity.device {
            Some(device) => Ok((identity, device)),
            None => Err(status(
                Reason::TokenInvalid,
                "the token belongs to no device",
            )),
        }
    }
}

/// Only a token of this chain or of every chain.
pub(super) fn in_scope(identity: &Identity, chain: ChainId) -> Result<(), Status> {
    match identity.scope {
        Some(scope) if scope != chain => Err(status(Reason::TokenScope, "")),
        _ => Ok(()),
    }
}

/// Only a chain's own key holder, or an operator.
pub(super) fn own_chain(identity: &Identity, chain: &Chain) -> Result<(), Status> {
    in_scope(identity, chain.id)?;
    if identity.role == Role::Admin || identity.account == chain.owner {
        return Ok(());
    }
    Err(status(
        Reason::RoleNotAllowed,
        "the chain belongs to another key holder",
    ))
}
