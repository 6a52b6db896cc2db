//! From a [`Reason`] to a `tonic::Status` with rich details, and back.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::reason::{Reason, Retry};

/// `ErrorInfo.domain` of every reason in the table.
pub const DOMAIN: &str = "cipherhop.v1";

/// Wait that goes out with a back-off reason where the caller names none.
const DEFAULT_WAIT: Duration = Duration::from_secs(5);

/// A status that carries `reason` as ErrorInfo, RetryInfo where waiting helps, and `detail` for people.
pub fn status(reason: Reason, detail: impl Into<String>) -> Status {
    status_with_retry(reason, detail, None)
}

/// As [`status`], with the wait before the next try.
pub fn status_with_retry(
    reason: Reason,
    detail: impl Into<String>,
    retry_after: Option<Duration>,
) -> Status {
    let mut details = base_details(reason, HashMap::new());
    let wait = match reason.retry() {
        Retry::BackOff => Some(retry_after.unwrap_or(DEFAULT_WAIT)),
        Retry::Same => Some(retry_after.unwrap_or(Duration::ZERO)),
        Retry::NextHop | Retry::AfterChange | Retry::Never => retry_after,
    };
    if let Some(wait) = wait {
        details.set_retry_info(Some(wait));
    }
    Status::with_error_details(reason.code(), message(reason, detail.into()), details)
}

/// [`Reason::BadRequest`] with the field that is wrong and why.
pub fn bad_request(field: impl Into<String>, description: impl Into<String>) -> Status {
    let (field, description) = (field.into(), description.into());
    let text = format!("{field}: {description}");
    let mut details = base_details(Reason::BadRequest, HashMap::new());
    details.add_bad_request_violation(field, description);
    Status::with_error_details(
        Code::InvalidArgument,
        message(Reason::BadRequest, text),
        details,
    )
}

/// As [`status`], with facts for machines, for example the committed offset of an upload.
pub fn status_with_metadata(
    reason: Reason,
    detail: impl Into<String>,
    metadata: impl IntoIterator<Item = (String, String)>,
) -> Status {
    let mut details = base_details(reason, metadata.into_iter().collect());
    if matches!(reason.retry(), Retry::Same) {
        details.set_retry_info(Some(Duration::ZERO));
    }
    Status::with_error_details(reason.code(), message(reason, detail.into()), details)
}

/// The reason a status carries; `None` when it has none or one this version does not know.
pub fn reason_of(status: &Status) -> Option<Reason> {
    let info = status.get_details_error_info()?;
    if info.domain != DOMAIN {
        return None;
    }
    info.reason.parse().ok()
}

/// Facts for machines that came with the reason.
pub fn metadata_of(status: &Status) -> HashMap<String, String> {
    status
        .get_details_error_info()
        .map(|info| info.metadata)
        .unwrap_or_default()
}

/// The wait the server asks for.
pub fn retry_after_of(status: &Status) -> Option<Duration> {
    status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay)
}

/// What a client does about `status`: the reason's class, or a cautious guess from the code where
/// the status has no known reason (a proxy, a newer server).
pub fn retry_of(status: &Status) -> Retry {
    if let Some(reason) = reason_of(status) {
        return reason.retry();
    }
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented => Retry::Never,
        Code::Unauthenticated | Code::PermissionDenied => Retry::AfterChange,
        _ => Retry::BackOff,
    }
}

fn base_details(reason: Reason, metadata: HashMap<String, String>) -> ErrorDetails {
    ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata)
}

fn message(reason: Reason, detail: String) -> String {
    if detail.is_empty() {
        reason.meaning().to_owned()
    } else {
        detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_status() {
        for reason in Reason::ALL {
            let status = status(*reason, "words");
            assert_eq!(reason_of(&status), Some(*reason));
            assert_eq!(status.code(), reason.code());
            assert_eq!(retry_of(&status), reason.retry());
            let waits = matches!(reason.retry(), Retry::BackOff | Retry::Same);
            assert_eq!(retry_after_of(&status).is_some(), waits, "{reason}");
        }
    }

    #[test]
    fn a_foreign_status_has_no_reason_and_a_cautious_class() {
        let status = Status::unavailable("proxy");
        assert_eq!(reason_of(&status), None);
        assert_eq!(retry_of(&status), Retry::BackOff);
    }

    #[test]
    fn a_bad_request_names_its_field() {
        let status = bad_request("nonce", "must be 16 bytes");
        let violation = status
            .get_details_bad_request()
            .unwrap()
            .field_violations
            .remove(0);
        assert_eq!(violation.field, "nonce");
        assert_eq!(reason_of(&status), Some(Reason::BadRequest));
    }

    #[test]
    fn metadata_survives_the_status() {
        let facts = [("committed".to_owned(), "42".to_owned())];
        let status = status_with_metadata(Reason::UploadOffset, "", facts);
        assert_eq!(metadata_of(&status)["committed"], "42");
        assert_eq!(status.message(), Reason::UploadOffset.meaning());
    }
}
