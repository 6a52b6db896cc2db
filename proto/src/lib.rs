//! The wire contract of coordinator, worker and owner: generated gRPC code.

/// Package `cipherhop.v1`, generated from `proto/cipherhop/v1/*.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("cipherhop.v1");
}
