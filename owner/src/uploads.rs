//! Sends blobs to the coordinator.

use cipherhop_proto::{
    Digest,
    client::{ClientError, Connection, Source, TransferPolicy, UNARY_DEADLINE, unary, upload},
    v1::{BlobRef, BlobRole, StatRequest},
};

/// Sends blobs of one chain.
#[derive(Clone)]
pub struct Uploader {
    connection: Connection,
    policy: TransferPolicy,
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// SHA-256.
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
}

impl Uploader {
    /// Over this connection.
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            policy: TransferPolicy::default(),
        }
    }

    /// Whether the coordinator has the blob already.
    pub async fn has(&self, digest: Digest) -> Result<bool, ClientError> {
        let request = StatRequest {
            digest: digest.to_vec(),
        };
        match unary(UNARY_DEADLINE, self.connection.blob().stat(request)).await {
            Ok(answer) => Ok(answer.complete),
            Err(ClientError::Refused(refusal)) if refusal.code == tonic::Code::NotFound => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the bytes, or what is missing of them.
    pub async fn send(
        &self,
        role: BlobRole,
        name: &str,
        bytes: &[u8],
    ) -> Result<Sent, ClientError> {
        let sent = Sent {
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
        };
        let blob = BlobRef {
            digest: sent.digest.to_vec(),
            size: sent.size,
            role: role.into(),
            name: name.into(),
        };
        upload(
            &self.connection,
            &blob,
            Source::Bytes(bytes),
            None,
            &self.policy,
            &|_| {},
        )
        .await?;
        Ok(sent)
    }
}
