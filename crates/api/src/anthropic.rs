//! Anthropic's messages: `/v1/messages` and `/v1/messages/count_tokens`.
//!
//! | module | holds |
//! |---|---|
//! | `input` | the body, rewritten to that of a chat |
//! | `content` | content blocks of messages |
//! | `answer` | events of a stream, and the whole message |
//!
//! Fields without an effect: `metadata`, `service_tier`, `cache_control` (the prefix cache needs no marks), `thinking.display`,
//! tools that Anthropic's servers run, and every unknown field.

mod answer;
mod content;
mod input;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stonechat::LlmInfo;

use crate::chat_answer::{Chat, ChatContext, ChatDialect, ChatWriter};
use crate::chat_body::ChatBody;
use crate::json::{JsonFields, ParseBody};
use crate::{ApiError, ApiResult, Defaults};

use answer::MessageObjects;

/// Body of `/v1/messages`.
pub type Messages = Chat<MessagesFields>;

/// Fields that messages have alone: none is left after [`adapt`](ChatDialect::adapt).
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct MessagesFields {}

impl ChatDialect for MessagesFields {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
        match body.get("max_tokens") {
            None | Some(Value::Null) => {
                return Err(ApiError::field("max_tokens", "a whole number", "nothing"));
            }
            Some(_) => {}
        }
        input::adapt(body)
    }

    fn ignores_unknown() -> bool {
        true
    }

    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>> {
        let ChatContext { model, fields, .. } = *context;
        Ok(Box::new(MessageObjects::new(model.name, fields.stop_strings())))
    }
}

/// Body of `/v1/messages/count_tokens`.
#[derive(Debug)]
pub struct CountTokensBody {
    model: Option<String>,
    chat: ChatBody,
}

/// Answer of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = MessageTokens))]
pub struct MessageTokens {
    /// Tokens of the prompt.
    input_tokens: usize,
}

/// Field of the body that names the model.
#[derive(Debug, Deserialize)]
struct ModelField {
    model: Option<String>,
}

impl ParseBody for CountTokensBody {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let mut body = JsonFields::parse(body, defaults.max_choices, input::adapt)?;
        let (ModelField { model }, chat) = (body.take()?, body.take::<ChatBody>()?);
        chat.check_answer()?;
        Ok(Self { model, chat })
    }
}

impl CountTokensBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Number of tokens of the prompt.
    ///
    /// # Errors
    /// 400 if a message is invalid, or the template refuses it.
    pub fn answer(self, model: &LlmInfo, defaults: &Defaults<'_>) -> ApiResult<MessageTokens> {
        Ok(MessageTokens { input_tokens: self.chat.n_tokens(model, defaults.chat)? })
    }
}

#[cfg(test)]
mod tests;
