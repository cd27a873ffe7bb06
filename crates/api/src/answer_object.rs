//! Objects of the answers of OpenAI's chat completions and completions: what both have.

use serde::Serialize;
use stonechat::Finish;

use crate::chat_answer::FinishReason;
use crate::completion::NativeObject;
use crate::generation::{Counts, Progress, Timings};
use crate::ids::{new_id, unix_seconds};
use crate::text::Model;

/// Fields that all objects of an answer of OpenAI have.
#[derive(Debug, Clone)]
pub(crate) struct AnswerHead {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// Object of an answer, whole or a chunk.
#[derive(Debug, Serialize)]
pub(crate) struct AnswerObject<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    pub(crate) choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_progress: Option<Progress>,
    #[serde(rename = "__verbose", skip_serializing_if = "Option::is_none")]
    pub(crate) verbose: Option<NativeObject<'a>>,
}

impl AnswerHead {
    /// Fields of an answer of this moment.
    pub(crate) fn new(prefix: &str, model: Model<'_>) -> Self {
        Self { id: new_id(prefix), created: unix_seconds(), model: model.name.to_owned() }
    }

    /// An object with the given kind and choices.
    pub(crate) fn object<C>(&self, object: &'static str, choices: Vec<C>) -> AnswerObject<'_, C> {
        AnswerObject {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: concat!("stonechat-", env!("CARGO_PKG_VERSION")),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
            verbose: None,
        }
    }
}

/// `finish_reason` of OpenAI for a text without tool calls.
pub(crate) fn finish_reason(finish: Finish) -> FinishReason {
    if finish.is_complete() { FinishReason::Stop } else { FinishReason::Length }
}
