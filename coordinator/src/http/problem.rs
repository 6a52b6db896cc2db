//! Why there is no page: as a page for people, as JSON under /api/v1, as a line for probes.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cipherhop_proto::Reason;
use serde_json::json;

use super::pages;
use crate::store::StoreError;

/// Why there is no page.
pub(super) enum Problem {
    NoPage,
    NoChain,
    BadQuery,
    OnlyRead,
    Database(StoreError),
    /// The database failed for another request, which said so in the log.
    Unavailable,
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::Refused(_) => Problem::NoChain,
            error => Problem::Database(error),
        }
    }
}

impl Problem {
    /// Status, reason as in docs/errors.md, and words. What failed goes to the log: the pages are for everybody.
    fn told(self) -> (StatusCode, Reason, &'static str) {
        match self {
            Problem::NoPage => (
                StatusCode::NOT_FOUND,
                Reason::BadRequest,
                "there is no such page",
            ),
            Problem::NoChain => (
                StatusCode::NOT_FOUND,
                Reason::ChainNotFound,
                "there is no chain of this name",
            ),
            Problem::BadQuery => (
                StatusCode::BAD_REQUEST,
                Reason::BadRequest,
                "the address after the question mark cannot be read: start again from the list of chains",
            ),
            Problem::OnlyRead => (
                StatusCode::METHOD_NOT_ALLOWED,
                Reason::BadRequest,
                "the pages can only be read: use GET",
            ),
            Problem::Database(error) => {
                tracing::error!(%error, "the database does not answer");
                Problem::Unavailable.told()
            }
            Problem::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                Reason::StoreUnavailable,
                "the database does not answer",
            ),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (code, _, text) = self.told();
        (code, pages::problem(text)).into_response()
    }
}

/// The same to programs: `{"error": {"reason": "CHAIN_NOT_FOUND", "message": "..."}}`.
pub(super) enum ApiProblem {
    Of(Problem),
    /// Status and words of a request that cannot be read.
    Request(StatusCode, String),
}

impl<E: Into<Problem>> From<E> for ApiProblem {
    fn from(error: E) -> ApiProblem {
        ApiProblem::Of(error.into())
    }
}

impl From<QueryRejection> for ApiProblem {
    fn from(error: QueryRejection) -> ApiProblem {
        ApiProblem::Request(error.status(), error.body_text())
    }
}

impl From<PathRejection> for ApiProblem {
    fn from(error: PathRejection) -> ApiProblem {
        ApiProblem::Request(error.status(), error.body_text())
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let (code, reason, message) = match self {
            ApiProblem::Of(problem) => {
                let (code, reason, text) = problem.told();
                (code, reason, text.to_owned())
            }
            ApiProblem::Request(code, text) => (code, Reason::BadRequest, text),
        };
        let error = json!({ "reason": reason.as_str(), "message": message });
        (code, Json(json!({ "error": error }))).into_response()
    }
}

/// The same to probes: the words alone.
pub(super) fn line(problem: Problem) -> Response {
    let (code, _, text) = problem.told();
    (code, format!("{text}\n")).into_response()
}
