//! Errors of requests as responses.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::ApiError;

/// An error as a response.
#[derive(Debug)]
pub(crate) struct ErrorResponse(pub(crate) ApiError);

/// Result of a handler.
pub(crate) type HandlerResult<T> = Result<T, ErrorResponse>;

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let mut response = Response::new(Body::from(error.to_json().to_string()));
        *response.status_mut() =
            StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = error.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // For the log, and for the form of the API that the path belongs to.
        response.extensions_mut().insert(error);
        response
    }
}

impl From<ApiError> for ErrorResponse {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<stonechat::Error> for ErrorResponse {
    fn from(error: stonechat::Error) -> Self {
        Self(error.into())
    }
}

impl From<QueryRejection> for ErrorResponse {
    fn from(rejection: QueryRejection) -> Self {
        Self(ApiError::bad_request(format!("query: {}", rejection.body_text())))
    }
}

impl From<PathRejection> for ErrorResponse {
    fn from(rejection: PathRejection) -> Self {
        Self(ApiError::bad_request(format!("path: {}", rejection.body_text())))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::RETRY_AFTER;
    use axum::response::IntoResponse;

    use super::{ApiError, ErrorResponse};

    #[test]
    fn an_overload_says_when_to_retry() {
        let response = ErrorResponse(ApiError::overloaded("full")).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()["content-type"], "application/json");
        let response = ErrorResponse(ApiError::timed_out("late")).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
