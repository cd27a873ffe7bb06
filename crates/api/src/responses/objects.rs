//! The object `response` of OpenAI's Responses, and the events of a stream.

use serde::Serialize;

use super::fields::Echo;
use super::items::{Item, ItemObject, Part};
use crate::ApiError;
use crate::chat_answer::{ChatAnswer, FinishReason};
use crate::error_shape::responses_code;
use crate::generation::Usage;
use crate::ids::{new_id, unix_seconds};
use crate::text::Frame;

/// Fields that a response has from its start.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) id: String,
    created_at: u64,
    model: String,
    pub(super) echo: Echo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Debug, Serialize)]
pub(super) struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: Status,
    error: Option<ErrorObject>,
    incomplete_details: Option<IncompleteDetails>,
    model: &'a str,
    output: Vec<ItemObject<'a>>,
    usage: Option<TokenCounts>,
    #[serde(flatten)]
    echo: &'a Echo,
}

#[derive(Debug, Serialize)]
struct ErrorObject {
    code: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
struct IncompleteDetails {
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct TokenCounts {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Serialize)]
struct InputDetails {
    cached_tokens: usize,
    cache_write_tokens: usize,
}

#[derive(Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

/// Event of a stream, with the fields of its type.
#[derive(Debug, Default, Serialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response: Option<&'a Response<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) summary_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item: Option<ItemObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logprobs: Option<[(); 0]>,
}

/// Number of the next event.
#[derive(Debug, Default)]
pub(super) struct EventCounter(u64);

impl EventCounter {
    pub(super) fn frame(&mut self, event: Event<'_>) -> Frame {
        let frame = Frame::named(event.kind, &Event { sequence_number: self.0, ..event });
        self.0 += 1;
        frame
    }

    /// Whether no event was written.
    pub(super) fn is_start(&self) -> bool {
        self.0 == 0
    }
}

impl Head {
    /// Fields of a response of this moment.
    pub(super) fn new(id: Option<String>, model: &str, echo: Echo) -> Self {
        let id = id.unwrap_or_else(|| new_id("resp_"));
        Self { id, created_at: unix_seconds(), model: model.to_owned(), echo }
    }

    pub(super) fn response<'a>(&'a self, status: Status, items: &'a [Item]) -> Response<'a> {
        Response {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            completed_at: (status == Status::Completed).then(unix_seconds),
            status,
            error: None,
            incomplete_details: None,
            model: &self.model,
            output: items.iter().map(Item::object).collect(),
            usage: None,
            echo: &self.echo,
        }
    }

    /// Response of an answer that has ended.
    pub(super) fn ended<'a>(&'a self, answer: &ChatAnswer, items: &'a [Item]) -> Response<'a> {
        let status = Status::of(answer);
        let is_cut = status == Status::Incomplete;
        let reason = "max_output_tokens";
        let Usage { prompt_tokens, cached_tokens, generated, .. } = Usage::of([&answer.completion]);
        let reasoning_tokens = answer.reasoning_tokens;
        Response {
            incomplete_details: is_cut.then_some(IncompleteDetails { reason }),
            usage: Some(TokenCounts {
                input_tokens: prompt_tokens,
                input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
                output_tokens: generated,
                output_tokens_details: OutputDetails { reasoning_tokens },
                total_tokens: prompt_tokens + generated,
            }),
            ..self.response(status, items)
        }
    }

    /// Response of an answer that has failed.
    pub(super) fn failed<'a>(&'a self, error: &ApiError, items: &'a [Item]) -> Response<'a> {
        let message = match error.retry_after() {
            // Codex reads the time from the text.
            Some(seconds) => format!("{}. Please try again in {seconds}s.", error.message()),
            None => error.message().to_owned(),
        };
        let error = Some(ErrorObject { code: responses_code(error), message });
        Response { error, ..self.response(Status::Failed, items) }
    }
}

impl Status {
    /// Status of an answer that has ended, and of its last item.
    pub(super) fn of(answer: &ChatAnswer) -> Self {
        let is_cut = answer.finish_reason() == FinishReason::Length;
        if is_cut { Self::Incomplete } else { Self::Completed }
    }
}
