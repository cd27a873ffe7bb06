//! Errors of requests: `{"error": {"code", "message", "type"}}` with the codes and types of llama-server.

use serde_json::{Map, Value, json};

/// Seconds after which a client may repeat a request that met a full queue, or waited too long.
const RETRY_SECONDS: u64 = 1;

/// Error of a request, with its HTTP status.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    status: u16,
    kind: &'static str,
    message: String,
    /// Further fields of the error object.
    fields: Box<Map<String, Value>>,
    retry_after: Option<u64>,
}

/// Result of a request.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), fields: Box::default(), retry_after: None }
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
        error.with_field("param", json!(name))
    }

    /// 400 `exceed_context_size_error` with both counts.
    #[must_use]
    pub fn context_overflow(n_prompt_tokens: usize, n_ctx: usize) -> Self {
        let message = format!(
            "request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        );
        Self::new(400, "exceed_context_size_error", message)
            .with_field("n_prompt_tokens", json!(n_prompt_tokens))
            .with_field("n_ctx", json!(n_ctx))
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

    /// Adds a field to the error object.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: Value) -> Self {
        self.fields.insert(name.to_owned(), value);
        self
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
        self.fields.get("param").and_then(Value::as_str)
    }

    /// Tokens of the prompt and of the context, if the prompt exceeds it.
    pub(crate) fn overflow(&self) -> Option<(u64, u64)> {
        let count = |name| self.fields.get(name)?.as_u64();
        count("n_prompt_tokens").zip(count("n_ctx"))
    }

    /// The body, which a stream sends after `data: ` if the status is already on its way.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "code": self.status,
            "message": self.message,
            "type": self.kind,
        });
        if let Some(object) = error.as_object_mut() {
            object.extend((*self.fields).clone());
        }
        json!({ "error": error })
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// Errors of requests, not those of loading a model.
impl From<stonechat::Error> for ApiError {
    fn from(error: stonechat::Error) -> Self {
        use stonechat::Error;
        match error {
            Error::Llm(error) => error.into(),
            Error::Whisper(error) => error.into(),
            // Files of uploads.
            Error::Audio(_) => Self::bad_request(error.to_string()),
            Error::ModelNotFound { .. } => Self::not_found(error.to_string()),
            _ => Self::server(error.to_string()),
        }
    }
}

impl From<stonechat::llm::Error> for ApiError {
    fn from(error: stonechat::llm::Error) -> Self {
        use stonechat::llm::Error;
        match error {
            Error::ContextFull { tokens, n_ctx } => Self::context_overflow(tokens, n_ctx),
            Error::KvFull(_) => Self::overloaded(error.to_string()),
            Error::DeadlinePassed => Self::timed_out(error.to_string()),
            Error::NoInfill { .. } => Self::not_supported(error.to_string()),
            Error::Text(_)
            | Error::Sampling(_)
            | Error::UnknownToken { .. }
            | Error::EmptyPrompt
            | Error::Option { .. } => Self::bad_request(error.to_string()),
            _ => Self::server(error.to_string()),
        }
    }
}

impl From<stonechat::whisper::Error> for ApiError {
    fn from(error: stonechat::whisper::Error) -> Self {
        use stonechat::whisper::Error;
        match error {
            Error::KvFull(_) => Self::overloaded(error.to_string()),
            Error::ContextFull { .. }
            | Error::Audio(_)
            | Error::Language { .. }
            | Error::SpeechRange { .. }
            | Error::Option { .. } => Self::bad_request(error.to_string()),
            _ => Self::server(error.to_string()),
        }
    }
}

impl From<stonechat::sampling::Error> for ApiError {
    fn from(error: stonechat::sampling::Error) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<stonechat::text::Error> for ApiError {
    fn from(error: stonechat::text::Error) -> Self {
        Self::bad_request(error.to_string())
    }
}

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

    #[test]
    fn errors_of_the_engine_have_the_status_of_their_cause() {
        use stonechat::llm::Error;
        let cases = [
            (Error::ContextFull { tokens: 9, n_ctx: 8 }, 400),
            (Error::EmptyPrompt, 400),
            (Error::NoInfill { model: "m".to_owned() }, 501),
            (Error::DeadlinePassed, 503),
            (Error::MissingTensor { name: "t".to_owned() }, 500),
        ];
        for (error, status) in cases {
            let text = error.to_string();
            assert_eq!(ApiError::from(error).status(), status, "{text}");
        }
    }
}
