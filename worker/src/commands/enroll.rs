//! `enroll`: an invite becomes a device with a token of its own. Broken off and repeated, it gives the same device.

use std::io::Read as _;

use cipherhop_proto::client::{ConnectOptions, Connection, UNARY_DEADLINE, unary};
use cipherhop_proto::features::WORKER;
use cipherhop_proto::signing::EnrolmentStatement;
use cipherhop_proto::v1::{EnrollRequest, HelloRequest};
use cipherhop_proto::{AccountId, DeviceId, Digest, PROTOCOL_RANGE};
use serde_json::json;

use super::Context;
use crate::cli::Enroll;
use crate::error::WorkerError;
use crate::folder::Identity;

pub(super) async fn enroll(context: &Context, options: Enroll) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    let _lock = folder.lock()?;
    match folder.identity() {
        Ok(identity) if options.if_needed && identity.coordinator == options.coordinator => {
            let text = format!(
                "enrolled already at {} as {} (device {})",
                identity.coordinator, identity.name, identity.device
            );
            context.print(&described(&identity), &text);
            return Ok(());
        }
        Ok(identity) => {
            return Err(WorkerError::AlreadyEnrolled(
                folder.root().to_owned(),
                identity.device.to_string(),
            ));
        }
        Err(WorkerError::NotEnrolled(_)) => {}
        Err(error) => return Err(error),
    }
    let invite = read_invite(options.invite)?;
    let connection = Connection::lazy(&ConnectOptions {
        url: options.coordinator.clone(),
        token: None,
        ca: options.ca.clone(),
        allow_plaintext: options.allow_plaintext,
    })?;
    let hello = HelloRequest {
        protocol_min: PROTOCOL_RANGE.0,
        protocol_max: PROTOCOL_RANGE.1,
        worker_version: env!("CARGO_PKG_VERSION").into(),
        program_formats: crate::agent::PROGRAM_FORMATS.map(str::to_owned).to_vec(),
        held: Vec::new(),
        features: WORKER.iter().map(|f| f.to_string()).collect(),
    };
    unary(UNARY_DEADLINE, connection.volunteer().hello(hello)).await?;
    let nonce = folder.enrolment_nonce(&options.coordinator, &options.name)?;
    let key = folder.enrolment_key()?;
    let statement = EnrolmentStatement {
        nonce,
        invite: Digest::of(invite.as_bytes()),
    };
    let request = EnrollRequest {
        invite,
        display_name: options.name.clone(),
        nonce: nonce.to_vec(),
        worker_version: env!("CARGO_PKG_VERSION").into(),
        public_key: key.public().as_bytes().to_vec(),
        key_signature: key.sign(&statement).to_vec(),
    };
    let answer = unary(UNARY_DEADLINE, connection.volunteer().enroll(request)).await?;
    let wrong = |e: cipherhop_proto::ParseIdError| WorkerError::Answer(e.to_string());
    let ca = options
        .ca
        .map(|path| std::path::absolute(&path).unwrap_or(path));
    let identity = Identity {
        coordinator: options.coordinator,
        name: options.name,
        device: DeviceId::from_slice(&answer.device_id).map_err(wrong)?,
        account: AccountId::from_slice(&answer.account_id).map_err(wrong)?,
        ca,
        allow_plaintext: options.allow_plaintext,
    };
    folder.save_identity(&identity, &answer.token)?;
    let text = format!(
        "enrolled at {} as {} (device {}); next: cipherhop-worker run --data {}",
        identity.coordinator,
        identity.name,
        identity.device,
        folder.root().display()
    );
    context.print(&described(&identity), &text);
    Ok(())
}

fn described(identity: &Identity) -> serde_json::Value {
    json!({ "device": identity.device, "account": identity.account, "name": identity.name })
}

fn read_invite(given: String) -> Result<String, WorkerError> {
    if given != "-" {
        return Ok(given.trim().to_owned());
    }
    let mut text = String::new();
    std::io::stdin()
        .take(4096)
        .read_to_string(&mut text)
        .map_err(WorkerError::file(std::path::Path::new("standard input")))?;
    Ok(text.trim().to_owned())
}
