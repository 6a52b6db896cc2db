//! Accounts, tokens and devices.

use cipherhop_proto::signing::PublicKey;
use cipherhop_proto::{AccountId, ChainId, DeviceId, Digest, Reason};

use super::Work;
use crate::domain::chain::MAX_TEXT_BYTES;
use crate::domain::command::Refusal;
use crate::domain::time::Timestamp;
use crate::domain::trust::{Device, DeviceState};
use crate::store::tx::TokenRow;
use crate::store::types::{Enrolment, Identity, NewToken, Result, Role};

/// Longest account or device name, bytes.
const MAX_NAME_BYTES: usize = 128;

/// Names are 1 to 128 bytes without control characters.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let detail = format!("{what} must be 1 to {MAX_NAME_BYTES} bytes, no control characters");
        return Err(Refusal::new(Reason::BadRequest, detail).into());
    }
    Ok(())
}

impl Work {
    pub(super) async fn create_token(
        &mut self,
        token: NewToken,
        scope: Option<ChainId>,
        now: Timestamp,
    ) -> Result<Identity> {
        check_name("account", &token.account_name)?;
        if token.role == Role::Volunteer {
            let detail = "volunteer tokens come from enrolment";
            return Err(Refusal::new(Reason::BadRequest, detail).into());
        }
        let account = match self.tx.account_by_name(&token.account_name).await? {
            Some(account) => account,
            None => {
                let account = AccountId::generate();
                self.tx
                    .insert_account(account, &token.account_name, now)
                    .await?;
                account
            }
        };
        let identity = Identity {
            token: token.id,
            role: token.role,
            account,
            account_name: token.account_name,
            device: None,
            scope,
        };
        self.insert_token(token.hash, &identity, now).await?;
        Ok(identity)
    }

    async fn insert_token(
        &mut self,
        hash: Digest,
        identity: &Identity,
        now: Timestamp,
    ) -> Result<()> {
        let row = TokenRow {
            hash,
            identity: identity.clone(),
            revoked: false,
        };
        self.tx.insert_token(&row, now).await
    }

    pub(super) async fn revoke_token(
        &mut self,
        token: cipherhop_proto::TokenId,
        now: Timestamp,
    ) -> Result<()> {
        match self.tx.revoke_token(token, now).await? {
            true => Ok(()),
            false => Err(Reason::TokenInvalid.into()),
        }
    }

    pub(super) async fn identify(&mut self, hash: Digest) -> Result<Identity> {
        match self.tx.token_by_hash(hash).await? {
            Some(token) if token.revoked => Err(Reason::TokenRevoked.into()),
            Some(token) => Ok(token.identity),
            None => Err(Reason::TokenInvalid.into()),
        }
    }

    pub(super) async fn enroll(
        &mut self,
        new: Enrolment,
        key: Option<PublicKey>,
        now: Timestamp,
    ) -> Result<Identity> {
        check_name("display name", &new.display_name)?;
        let invite = self.tx.token_by_hash(new.invite).await?;
        let invite = invite.filter(|token| !token.revoked && token.identity.role == Role::Invite);
        let account = invite.ok_or(Reason::InviteInvalid)?.identity;
        let known = self.tx.device_by_nonce(account.account, new.nonce).await?;
        let device = match known {
            Some(device) => {
                // Locks it: of two enrolments at once the later one's token stays.
                self.device(device).await?;
                self.tx.revoke_device_tokens(device, now).await?;
                device
            }
            None => {
                let device = Device {
                    id: new.device,
                    account: account.account,
                    account_name: account.account_name.clone(),
                    display_name: new.display_name,
                    state: DeviceState::New,
                    consecutive_valid: 0,
                    consecutive_invalid: 0,
                    proven: None,
                    pace: None,
                    referee: false,
                    note: String::new(),
                    created: now,
                    last_seen: now,
                };
                self.tx.insert_device(&device, new.nonce).await?;
                device.id
            }
        };
        let identity = Identity {
            token: new.token,
            role: Role::Volunteer,
            account: account.account,
            account_name: account.account_name,
            device: Some(device),
            scope: account.scope,
        };
        cipherhop_failpoint::at("enroll.commit.before");
        if let Some(key) = key {
            self.bind_key(device, key, now).await?;
        }
        self.insert_token(new.token_hash, &identity, now).await?;
        Ok(identity)
    }

    /// A device that may be known; refuses as if the token were wrong.
    pub(super) async fn device(&mut self, id: DeviceId) -> Result<Device> {
        Ok(self.tx.device(id).await?.ok_or(Reason::TokenInvalid)?)
    }

    pub(super) async fn set_referee(&mut self, id: DeviceId, referee: bool) -> Result<Device> {
        let unknown = || Refusal::new(Reason::DeviceNotFound, format!("no device {id}"));
        let mut device = self.tx.device(id).await?.ok_or_else(unknown)?;
        device.referee = referee;
        self.tx.update_device(&device).await?;
        Ok(device)
    }

    pub(super) async fn quarantine(
        &mut self,
        id: DeviceId,
        lift: bool,
        note: String,
        now: Timestamp,
    ) -> Result<Device> {
        if note.len() > MAX_TEXT_BYTES {
            let detail = format!("a reason has at most {MAX_TEXT_BYTES} bytes");
            return Err(Refusal::new(Reason::BadRequest, detail).into());
        }
        let unknown = || Refusal::new(Reason::DeviceNotFound, format!("no device {id}"));
        let mut device = self.tx.device(id).await?.ok_or_else(unknown)?;
        if lift {
            device.state = DeviceState::Probation;
            device.consecutive_valid = 0;
            device.consecutive_invalid = 0;
        } else {
            device.state = DeviceState::Quarantined;
            self.evict(id, now).await?;
            self.doubt(&device, now).await?;
        }
        device.note = note;
        self.tx.update_device(&device).await?;
        Ok(device)
    }
}
