//! What the server reads in foreign bytes by itself before they count: ciphertexts and programs.

use cipherhop_ckks::{CkksError, Params, ScaleId, ciphertext_size, inspect};
use cipherhop_proto::status::{bad_request, status};
use cipherhop_proto::{Digest, Reason};
use tonic::Status;

use super::Core;
use super::error::of_blob;
use crate::blobs::read_all;
use crate::domain::chain::ChainSpec;

/// Program formats this coordinator hands out.
pub(super) const PROGRAM_FORMATS: &[&str] = &["cipherhop-program/1"];

/// Largest program, bytes: a guard for the parser.
const MAX_PROGRAM_BYTES: u64 = 64 << 20;

/// A ciphertext that may not cross a hop boundary.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unsound {
    /// One of the `OUTPUT_*` reasons.
    pub reason: Reason,
    /// Words for the sender.
    pub detail: String,
}

/// Checks the bytes of a ciphertext at a hop boundary: parameter set, level, scale, components, every residue, size.
pub(super) fn check_ciphertext(params: &Params, level: u32, bytes: &[u8]) -> Result<(), Unsound> {
    let unsound = |reason, detail: String| Unsound { reason, detail };
    let info = inspect(params, bytes).map_err(|error| {
        let reason = match &error {
            CkksError::ForeignParams => Reason::OutputWrongParameters,
            CkksError::ResidueOutOfRange { .. } => Reason::OutputResidueRange,
            CkksError::Truncated { .. } | CkksError::Oversize { .. } => Reason::OutputWrongSize,
            CkksError::BadHeader("components" | "scale" | "level") => Reason::OutputWrongShape,
            _ => Reason::OutputMalformed,
        };
        unsound(reason, error.to_string())
    })?;
    if info.level != level as usize || info.scale != ScaleId::Message || info.components != 2 {
        let detail = format!(
            "level {}, scale {:?}, {} components; a hop boundary has level {level}, scale Message, 2 components",
            info.level, info.scale, info.components
        );
        return Err(unsound(Reason::OutputWrongShape, detail));
    }
    Ok(())
}

/// The parameter set of that name and digest, with the level and size of its boundary checked.
pub(super) fn check_parameters(
    name: &str,
    digest: Digest,
    level: u32,
    bytes: u64,
    allow_insecure: bool,
) -> Result<Params, Status> {
    let params =
        Params::by_name(name).map_err(|e| status(Reason::ParametersUnknown, e.to_string()))?;
    if params.digest() != *digest.as_bytes() {
        return Err(status(
            Reason::ParametersUnknown,
            format!("parameter set {name} has another digest here"),
        ));
    }
    if params.is_insecure() && !allow_insecure {
        return Err(status(
            Reason::InsecureNotAllowed,
            format!("parameter set {name} is below 128 bits"),
        ));
    }
    if level as usize > params.boot_out_level() {
        return Err(bad_request(
            "boundary_level",
            format!("must be at most {}", params.boot_out_level()),
        ));
    }
    let size = ciphertext_size(&params, level as usize) as u64;
    if bytes != size {
        return Err(bad_request(
            "boundary_bytes",
            format!("a ciphertext of {name} at level {level} has {size} bytes"),
        ));
    }
    Ok(params)
}

impl Core {
    /// Reads a stored ciphertext and checks it. The outer error is a fault of storage.
    pub(super) async fn check_stored_ciphertext(
        &self,
        spec: &ChainSpec,
        digest: Digest,
    ) -> Result<Result<(), Unsound>, Status> {
        let params = Params::by_name(&spec.parameter_set)
            .map_err(|e| status(Reason::ParametersUnknown, e.to_string()))?;
        let level = spec.boundary_level;
        let size = self.blobs.stat(digest).await.map_err(of_blob)?;
        if size.is_some_and(|size| size != spec.boundary_bytes) {
            let detail = format!(
                "{} bytes; the chain's ciphertexts have {}",
                size.unwrap_or(0),
                spec.boundary_bytes
            );
            return Ok(Err(Unsound {
                reason: Reason::OutputWrongSize,
                detail,
            }));
        }
        let bytes = read_all(&*self.blobs, digest, spec.boundary_bytes)
            .await
            .map_err(of_blob)?;
        let checked =
            tokio::task::spawn_blocking(move || check_ciphertext(&params, level, &bytes)).await;
        checked.map_err(|error| {
            tracing::error!(%digest, %error, "checking a ciphertext failed");
            status(Reason::Internal, "")
        })
    }

    /// The program must be of a format this coordinator knows.
    pub(super) async fn check_program(&self, digest: Digest) -> Result<(), Status> {
        #[derive(serde::Deserialize)]
        struct Program {
            format: String,
        }
        let bytes = read_all(&*self.blobs, digest, MAX_PROGRAM_BYTES)
            .await
            .map_err(of_blob)?;
        let unknown =
            |why: String| status(Reason::ProgramUnknown, format!("program {digest}: {why}"));
        let program: Program =
            serde_json::from_slice(&bytes).map_err(|e| unknown(e.to_string()))?;
        if !PROGRAM_FORMATS.contains(&program.format.as_str()) {
            let format: String = program.format.chars().take(64).collect();
            return Err(unknown(format!("unknown format {format:?}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros are a well-formed ciphertext; the header is as the wire format says.
    fn zeros(params: &Params, level: usize) -> Vec<u8> {
        let mut bytes = vec![0; ciphertext_size(params, level)];
        bytes[..4].copy_from_slice(b"CHCT");
        bytes[4] = 2;
        bytes[6] = 1;
        bytes[7] = 2;
        bytes[8] = level as u8;
        bytes[9] = ScaleId::Message as u8;
        bytes[12..44].copy_from_slice(&params.digest());
        bytes
    }

    #[test]
    fn each_fault_of_a_ciphertext_has_its_own_reason() {
        let params = Params::by_name("n10-INSECURE").unwrap();
        let good = zeros(&params, 18);
        assert_eq!(check_ciphertext(&params, 18, &good), Ok(()));
        let reason =
            |level, bytes: &[u8]| check_ciphertext(&params, level, bytes).unwrap_err().reason;
        assert_eq!(reason(17, &good), Reason::OutputWrongShape);
        assert_eq!(reason(18, &good[..good.len() - 1]), Reason::OutputWrongSize);
        assert_eq!(
            reason(18, &[&good[..], &[0]].concat()),
            Reason::OutputWrongSize
        );
        assert_eq!(reason(18, b"not a ciphertext"), Reason::OutputMalformed);
        assert_eq!(reason(18, &[]), Reason::OutputWrongSize);
        let foreign = zeros(&Params::by_name("n11-INSECURE").unwrap(), 18);
        assert_eq!(reason(18, &foreign), Reason::OutputWrongParameters);
        let mut residue = good.clone();
        let at = residue.len() - 6;
        residue[at..].fill(0xff);
        assert_eq!(reason(18, &residue), Reason::OutputResidueRange);
        let mut three = good;
        three[7] = 3;
        assert_eq!(reason(18, &three), Reason::OutputWrongShape);
    }

    #[test]
    fn parameters_must_be_known_secure_and_consistent() {
        let params = Params::by_name("n11-INSECURE").unwrap();
        let digest = Digest::from_bytes(params.digest());
        let size = ciphertext_size(&params, 18) as u64;
        let reason = |r: Result<Params, Status>| {
            cipherhop_proto::status::reason_of(&r.err().unwrap()).unwrap()
        };
        assert!(check_parameters("n11-INSECURE", digest, 18, size, true).is_ok());
        assert_eq!(
            reason(check_parameters("n11-INSECURE", digest, 18, size, false)),
            Reason::InsecureNotAllowed
        );
        assert_eq!(
            reason(check_parameters("n11", digest, 18, size, true)),
            Reason::ParametersUnknown
        );
        let other = Digest::of(b"");
        assert_eq!(
            reason(check_parameters("n11-INSECURE", other, 18, size, true)),
            Reason::ParametersUnknown
        );
        assert_eq!(
            reason(check_parameters("n11-INSECURE", digest, 19, size, true)),
            Reason::BadRequest
        );
        assert_eq!(
            reason(check_parameters("n11-INSECURE", digest, 18, size + 1, true)),
            Reason::BadRequest
        );
    }
}
