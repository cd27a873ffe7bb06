//! Errors of the engine as errors of requests.

use super::ApiError;

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
    use super::ApiError;

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
