//! Bodies of errors in the forms of OpenAI's Responses, Anthropic and Ollama; that of llama-server is
//! [`ApiError::to_json`].

use std::borrow::Cow;

use serde::Serialize;

use crate::ApiError;

/// Form of the errors of an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorShape {
    /// OpenAI's Responses: `{"error": {"code": NAME, "message", "param", "type"}}`.
    Responses,
    /// Anthropic's: `{"type": "error", "error": {"type", "message"}}`.
    Anthropic,
    /// Ollama's: `{"error": MESSAGE}`.
    Ollama,
}

/// Error of OpenAI's Responses.
#[derive(Debug, Serialize)]
struct ResponsesError<'a> {
    error: ResponsesDetails<'a>,
}

#[derive(Debug, Serialize)]
struct ResponsesDetails<'a> {
    code: &'static str,
    message: &'a str,
    param: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Error of Anthropic.
#[derive(Debug, Serialize)]
pub(crate) struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicDetails<'a>,
}

#[derive(Debug, Serialize)]
struct AnthropicDetails<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: Cow<'a, str>,
}

/// Error of Ollama.
#[derive(Debug, Serialize)]
pub(crate) struct OllamaError<'a> {
    error: &'a str,
}

impl<'a> AnthropicError<'a> {
    /// Form of an error.
    pub(crate) fn new(error: &'a ApiError) -> Self {
        let kind = match error.status() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            500..=599 => "api_error",
            _ => "invalid_request_error",
        };
        // Claude Code shortens a conversation when it reads these words.
        let message = match error.overflow() {
            Some((n_tokens, n_ctx)) => {
                format!("prompt is too long: {n_tokens} tokens > {n_ctx} maximum").into()
            }
            None => error.message().into(),
        };
        Self { kind: "error", error: AnthropicDetails { kind, message } }
    }
}

impl<'a> OllamaError<'a> {
    /// Form of an error.
    pub(crate) fn new(error: &'a ApiError) -> Self {
        Self { error: error.message() }
    }
}

/// Code of an error in OpenAI's Responses, by which agents decide to shorten a conversation or to try again.
pub(crate) fn responses_code(error: &ApiError) -> &'static str {
    match (error.kind(), error.status()) {
        ("exceed_context_size_error", _) => "context_length_exceeded",
        (_, 429 | 503) => "rate_limit_exceeded",
        (_, 401) => "invalid_api_key",
        (_, 404) if error.param() == Some("previous_response_id") => "previous_response_not_found",
        (_, 404) => "not_found",
        (_, 500..=599) => "server_error",
        _ => "invalid_request_error",
    }
}

impl ErrorShape {
    /// JSON of an error.
    #[must_use]
    pub fn body(self, error: &ApiError) -> String {
        let text = match self {
            Self::Responses => serde_json::to_string(&ResponsesError {
                error: ResponsesDetails {
                    code: responses_code(error),
                    message: error.message(),
                    param: error.param(),
                    kind: error.kind(),
                },
            }),
            Self::Anthropic => serde_json::to_string(&AnthropicError::new(error)),
            Self::Ollama => serde_json::to_string(&OllamaError::new(error)),
        };
        text.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorShape;
    use crate::ApiError;

    #[test]
    fn an_error_has_the_form_of_its_api() {
        let error = ApiError::context_overflow(9, 8);
        let message = error.message();
        for (shape, expected) in [
            (
                ErrorShape::Responses,
                format!(
                    r#"{{"error":{{"code":"context_length_exceeded","message":"{message}","param":null,"type":"exceed_context_size_error"}}}}"#
                ),
            ),
            (
                ErrorShape::Anthropic,
                format!(
                    r#"{{"type":"error","error":{{"type":"invalid_request_error","message":"{}"}}}}"#,
                    "prompt is too long: 9 tokens > 8 maximum"
                ),
            ),
            (ErrorShape::Ollama, format!(r#"{{"error":"{message}"}}"#)),
        ] {
            assert_eq!(shape.body(&error), expected);
        }
    }
}
