//! The wire contract of coordinator, worker and owner: generated gRPC code, identifiers, digests
//! and the one table of error reasons.

#[cfg(feature = "client")]
pub mod client;
pub mod digest;
pub mod features;
pub mod ids;
pub mod ledger;
pub mod manifest;
pub mod reason;
pub mod signing;
pub mod status;

pub use digest::{Digest, Hasher};
pub use ids::{AccountId, AttemptId, ChainId, DeviceId, Nonce, ParseIdError, TokenId, UploadId};
pub use reason::{Reason, Retry};

/// Package `cipherhop.v1`, generated from `proto/cipherhop/v1/*.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("cipherhop.v1");
}

/// The contract as an encoded FileDescriptorSet, for gRPC server reflection.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v1.binpb"));

/// Protocol versions this build speaks, lowest and highest.
pub const PROTOCOL_RANGE: (u32, u32) = (1, 1);

/// Bytes of data in one blob frame (1 MiB).
pub const FRAME_BYTES: usize = 1 << 20;

/// Bytes of a chunk whose digest a coordinator tells (4 MiB): what is sent again when one byte is wrong.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// Bytes of one HTTP/2 frame either side takes (256 KiB): blobs go in few pieces.
pub const HTTP2_FRAME_BYTES: u32 = 256 << 10;

/// Largest gRPC message either side accepts, bytes (4 MiB).
pub const MESSAGE_CAP_BYTES: usize = 4 << 20;
