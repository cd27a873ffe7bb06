//! Errors of requests: `{"error": {"code", "message", "type"}}` with the codes and types of llama-server.

mod engine;

use serde::Serialize;
use serde_json::Value;

/// Seconds after which a client may repeat a request that met a full queue, or waited too long.
const RETRY_SECONDS: u64 = 1;

/// Error of a request, with its HTTP status.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: u16,
    kind: &'static str,
    message: String,
    details: Box<Details>,
    retry_after: Option<u64>,
    code: Option<&'static str>,
}

/// Further fields of the error object.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Details {
    /// Field of the request that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<String>,
    #[serde(flatten)]
    overflow: Option<Overflow>,
}

/// Tokens of a prompt that exceeds the context, and of the context.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Overflow {
    n_prompt_tokens: usize,
    n_ctx: usize,
}

/// Body of an error.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    code: u16,
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    details: &'a Details,
}

/// Result of a request.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            details: Box::default(),
            retry_after: None,
            code: None,
        }
    }

    /// Error of an HTTP status, with the type that llama-server gives it.
    #[must_use]
    pub fn of_status(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            501 => "not_supported_error",
            503 => "unavailable_error",
            500..=599 => "server_error",
            _ => "invalid_request_error",
        };
        Self::new(status, kind, message)
    }

    /// 400 `invalid_request_error`.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "invalid_request_error", message)
    }

    /// 400 of one field of the body: what was expected and what was found.
    #[must_use]
    pub fn field(name: &str, expected: &str, got: impl std::fmt::Display) -> Self {
        let error = Self::bad_request(format!("`{name}`: expected {expected}, got {got}"));
        error.with_param(name)
    }

    /// 400 `exceed_context_size_error` with both counts.
    #[must_use]
    pub fn context_overflow(n_prompt_tokens: usize, n_ctx: usize) -> Self {
        let message = format!(
            "request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        );
        let mut error = Self::new(400, "exceed_context_size_error", message);
        error.details.overflow = Some(Overflow { n_prompt_tokens, n_ctx });
        error
    }

    /// 401 `authentication_error`.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "authentication_error", "Invalid API Key")
    }

    /// 403 `permission_error`.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "permission_error", message)
    }

    /// 404 `not_found_error`.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "not_found_error", message)
    }

    /// 413 `invalid_request_error`: the body has more than `limit` bytes.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is too large: expected at most {limit} bytes");
        Self::new(413, "invalid_request_error", message)
    }

    /// 415 `invalid_request_error`.
    #[must_use]
    pub fn media_type(expected: &str, got: &str) -> Self {
        let message = format!("`Content-Type`: expected {expected}, got `{got}`");
        Self::new(415, "invalid_request_error", message)
    }

    /// 415 `invalid_request_error` of a compressed body.
    #[must_use]
    pub fn content_encoding(got: &str) -> Self {
        let message = format!("`Content-Encoding`: expected none, got `{got}`");
        Self::new(415, "invalid_request_error", message)
    }

    /// 408 `invalid_request_error`.
    #[must_use]
    pub fn body_timed_out() -> Self {
        let message = "the body of the request did not arrive in time";
        Self::new(408, "invalid_request_error", message)
    }

    /// 429 `rate_limit_error` with `Retry-After`.
    #[must_use]
    pub fn overloaded(message: impl Into<String>) -> Self {
        let error = Self::new(429, "rate_limit_error", message);
        Self { retry_after: Some(RETRY_SECONDS), ..error }
    }

    /// 500 `server_error`.
    #[must_use]
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(500, "server_error", message)
    }

    /// 501 `not_supported_error`: a feature that is switched off, or missing in the model.
    #[must_use]
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(501, "not_supported_error", message)
    }

    /// 503 `unavailable_error`.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "unavailable_error", message)
    }

    /// 503 `unavailable_error` with `Retry-After`: the time of the request passed while it waited.
    #[must_use]
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self { retry_after: Some(RETRY_SECONDS), ..Self::unavailable(message) }
    }

    /// Names the field of the request that is invalid.
    #[must_use]
    pub fn with_param(mut self, name: impl Into<String>) -> Self {
        self.details.param = Some(name.into());
        self
    }

    /// Sets the code of the event `error` of live sessions.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Code of the event `error` of live sessions.
    #[must_use]
    pub fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Seconds after which a client may repeat the request, if that may help.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }

    /// Type of the error, as in the body.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Text for the client.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Field of the request that is invalid, as in the body.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        self.details.param.as_deref()
    }

    /// Tokens of the prompt and of the context, if the prompt exceeds it.
    pub(crate) fn overflow(&self) -> Option<(usize, usize)> {
        self.details.overflow.map(|it| (it.n_prompt_tokens, it.n_ctx))
    }

    /// The body, which a stream sends after `data: ` if the status is already on its way.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let error = ErrorObject {
            code: self.status,
            message: &self.message,
            kind: self.kind,
            details: &self.details,
        };
        // Texts and numbers are always JSON.
        serde_json::to_value(ErrorBody { error }).unwrap_or_default()
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ApiError;

    #[test]
    fn bodies_have_the_shape_of_llama_server() {
        let error = ApiError::unauthorized().to_json();
        let expected = json!({"error": {
            "message": "Invalid API Key", "type": "authentication_error", "code": 401,
        }});
        assert_eq!(error, expected);
        let error = ApiError::context_overflow(9000, 4096).to_json();
        let expected = json!({"error": {
            "code": 400,
            "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9000,
            "n_ctx": 4096,
        }});
        assert_eq!(error, expected);
    }

    #[test]
    fn an_overload_says_when_to_retry() {
        let (full, late) = (ApiError::overloaded("full"), ApiError::timed_out("late"));
        assert_eq!((full.status(), full.retry_after()), (429, Some(1)));
        assert_eq!((late.status(), late.retry_after()), (503, Some(1)));
        assert_eq!(ApiError::unavailable("later").retry_after(), None);
    }

    #[test]
    fn an_error_of_a_field_names_it() {
        let error = ApiError::field("n", "1", 2);
        assert_eq!(
            (error.param(), error.to_json()["error"]["param"].as_str()),
            (Some("n"), Some("n"))
        );
        assert_eq!(ApiError::unauthorized().param(), None);
    }

    #[test]
    fn a_status_has_a_type() {
        for (status, kind) in [
            (401, "authentication_error"),
            (413, "invalid_request_error"),
            (418, "invalid_request_error"),
            (429, "rate_limit_error"),
            (503, "unavailable_error"),
            (504, "server_error"),
        ] {
            let error = ApiError::of_status(status, "no");
            assert_eq!((error.status(), error.kind()), (status, kind));
        }
    }
}
