//! A coordinator's answers as its clients read them.

use cipherhop_proto::client::ClientError;
use cipherhop_proto::v1;
use cipherhop_worker::journal::Lease;
use prost::Message as _;
use tonic::codegen::Bytes;

/// Messages from a coordinator. The first byte says which.
pub fn answers(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    match kind % 8 {
        0 => {
            if let Ok(given) = v1::Assignment::decode(rest)
                && let Ok(lease) = Lease::from_wire(given)
            {
                assert!(lease.blob(v1::BlobRole::Input).is_some());
            }
        }
        1 => {
            let status = tonic::Status::with_details(
                tonic::Code::from(i32::from(rest.first().copied().unwrap_or(0))),
                "refused",
                Bytes::copy_from_slice(rest.get(1..).unwrap_or_default()),
            );
            let error = ClientError::from(status);
            let _ = (
                error.to_string(),
                error.retry(),
                error.retry_after(),
                error.advice(),
            );
        }
        2 => drop(v1::HelloResponse::decode(rest)),
        3 => drop(v1::GetChainResponse::decode(rest)),
        4 => drop(v1::WatchChainResponse::decode(rest)),
        5 => drop(v1::ReadResponse::decode(rest)),
        6 => drop(v1::ListWantedInputsResponse::decode(rest)),
        _ => drop(v1::AcquireStepResponse::decode(rest)),
    }
    bytes.len()
}
