//! The prompt of a chat request, and its length: `/apply-template` and `/v1/chat/completions/input_tokens`.

use serde::{Deserialize, Serialize};
use stonechat::LlmInfo;

use crate::chat_body::ChatBody;
use crate::{ApiResult, Defaults};

/// Body of a chat request.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PromptBody {
    /// Name of the model.
    model: Option<String>,
    #[serde(flatten)]
    chat: ChatBody,
}

/// Answer of `/apply-template`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Prompt {
    /// Rendered text.
    prompt: String,
}

/// Answer of `/v1/chat/completions/input_tokens`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InputTokens {
    /// `response.input_tokens`.
    object: &'static str,
    /// Tokens of the prompt.
    input_tokens: usize,
}

impl InputTokens {
    /// Number of tokens of a prompt.
    pub(crate) fn new(input_tokens: usize) -> Self {
        Self { object: "response.input_tokens", input_tokens }
    }
}

impl PromptBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The rendered prompt.
    ///
    /// # Errors
    /// 400 if a message is invalid, or the template refuses it.
    pub fn prompt(self, model: &LlmInfo, defaults: &Defaults<'_>) -> ApiResult<Prompt> {
        let chat = self.chat.request(defaults.chat, false)?;
        Ok(Prompt { prompt: model.chat_prompt(&chat)?.text() })
    }

    /// Number of its tokens.
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt).
    pub fn input_tokens(self, model: &LlmInfo, defaults: &Defaults<'_>) -> ApiResult<InputTokens> {
        Ok(InputTokens::new(self.chat.n_tokens(model, defaults.chat)?))
    }
}
