//! The object `response` of OpenAI's Responses, and the events of its stream.
//!
//! Each part of an answer is an output item. Items follow one another; an item has one identifier in all of its events.
//!
//! ```text
//! created, in_progress
//!   output_item.added, content_part.added, output_text.delta …, output_text.done, content_part.done, output_item.done
//!   output_item.added, function_call_arguments.delta …, function_call_arguments.done, output_item.done
//! completed (always the last one), or failed
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use stonechat::llm::ModelInfo;
use stonechat::llm::chat::ChatEvent;

use super::{Echo, Keeper, KeptResponse};
use crate::ApiError;
use crate::chat_answer::{ChatAnswer, ChatStep, ChatWriter, FinishReason};
use crate::error_shape::responses_code;
use crate::generation::{RequestStats, Usage};
use crate::ids::{new_id, unix_seconds};
use crate::text::{Frame, Framing};

/// Fields that a response has from its start.
#[derive(Debug, Clone)]
pub(super) struct Head {
    id: String,
    created_at: u64,
    model: String,
    pub(super) echo: Echo,
}

/// Writer of responses.
#[derive(Debug)]
pub(super) struct ResponseObjects {
    pub(super) head: Head,
    /// Model, for the number of tokens of reasoning.
    pub(super) model: Option<Arc<ModelInfo>>,
    /// Namespace and own name of functions by their joined names.
    pub(super) namespaces: HashMap<String, [String; 2]>,
    /// Receiver of the response, and the messages before it.
    pub(super) kept: Option<(Keeper, String)>,
    items: Vec<Item>,
    events: EventCounter,
}

/// Number of the next event.
#[derive(Debug, Default)]
struct EventCounter(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Output item.
#[derive(Debug)]
struct Item {
    id: String,
    status: Status,
    kind: ItemKind,
    /// Text, or arguments of a call.
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Message,
    Call { call_id: String, name: String, namespace: Option<String> },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ItemObject<'a> {
    Reasoning {
        id: &'a str,
        status: Status,
        summary: [(); 0],
        content: Vec<Part<'a>>,
    },
    Message {
        id: &'a str,
        status: Status,
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    FunctionCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        arguments: &'a str,
    },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    ReasoningText { text: &'a str },
    OutputText { text: &'a str, annotations: [(); 0], logprobs: [(); 0] },
}

#[derive(Debug, Serialize)]
struct Response<'a> {
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
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a Response<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<ItemObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

impl EventCounter {
    fn frame(&mut self, event: Event<'_>) -> Frame {
        let frame = Frame::named(event.kind, &Event { sequence_number: self.0, ..event });
        self.0 += 1;
        frame
    }
}

impl Head {
    /// Fields of a response of this moment.
    pub(super) fn new(id: Option<String>, model: &str, echo: Echo) -> Self {
        let id = id.unwrap_or_else(|| new_id("resp_"));
        Self { id, created_at: unix_seconds(), model: model.to_owned(), echo }
    }

    fn response<'a>(&'a self, status: Status, items: &'a [Item]) -> Response<'a> {
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
}

impl Item {
    fn new(kind: ItemKind) -> Self {
        let prefix = match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        };
        Self { id: new_id(prefix), status: Status::InProgress, kind, text: String::new() }
    }

    fn object(&self) -> ItemObject<'_> {
        let (id, status) = (self.id.as_str(), self.status);
        // An item that begins has no content.
        let has_content = status != Status::InProgress || !self.text.is_empty();
        let content = || self.part().filter(|_| has_content).into_iter().collect();
        match &self.kind {
            ItemKind::Reasoning => {
                ItemObject::Reasoning { id, status, summary: [], content: content() }
            }
            ItemKind::Message => {
                ItemObject::Message { id, status, role: "assistant", content: content() }
            }
            ItemKind::Call { call_id, name, namespace } => ItemObject::FunctionCall {
                id,
                status,
                call_id,
                name,
                namespace: namespace.as_deref(),
                arguments: &self.text,
            },
        }
    }

    /// Part of the content; calls have none.
    fn part(&self) -> Option<Part<'_>> {
        let text = self.text.as_str();
        match self.kind {
            ItemKind::Reasoning => Some(Part::ReasoningText { text }),
            ItemKind::Message => Some(Part::OutputText { text, annotations: [], logprobs: [] }),
            ItemKind::Call { .. } => None,
        }
    }

    /// Event of this item, which is the output `index`.
    fn event(&self, kind: &'static str, index: usize) -> Event<'_> {
        let has_content = !matches!(self.kind, ItemKind::Call { .. });
        Event {
            kind,
            item_id: Some(&self.id),
            output_index: Some(index),
            content_index: has_content.then_some(0),
            logprobs: kind.starts_with("response.output_text").then_some([]),
            ..Event::default()
        }
    }

    /// Event of the whole item.
    fn whole_event(&self, kind: &'static str, index: usize) -> Event<'_> {
        let output_index = Some(index);
        Event { kind, output_index, item: Some(self.object()), ..Event::default() }
    }
}

impl ResponseObjects {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            model: None,
            namespaces: HashMap::new(),
            kept: None,
            items: Vec::new(),
            events: EventCounter::default(),
        }
    }

    /// Kind of the item of a call.
    fn call(&self, call_id: String, name: String) -> ItemKind {
        // Codex finds the tools of MCP servers by namespace and own name (codex 36942).
        match self.namespaces.get(&name) {
            Some([namespace, own]) => {
                let (name, namespace) = (own.clone(), Some(namespace.clone()));
                ItemKind::Call { call_id, name, namespace }
            }
            None => ItemKind::Call { call_id, name, namespace: None },
        }
    }

    /// Begins an item.
    fn open(&mut self, kind: ItemKind, frames: &mut Vec<Frame>) {
        let (index, item) = (self.items.len(), Item::new(kind));
        frames.push(self.events.frame(item.whole_event("response.output_item.added", index)));
        if let Some(part) = item.part() {
            let event = item.event("response.content_part.added", index);
            frames.push(self.events.frame(Event { part: Some(part), ..event }));
        }
        self.items.push(item);
    }

    /// Ends the item at the end, if one is open.
    fn close(&mut self, status: Status, frames: &mut Vec<Frame>) {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|item| item.status == Status::InProgress)
        else {
            return;
        };
        item.status = status;
        let item = &*item;
        let text = Some(item.text.as_str());
        let done = match &item.kind {
            ItemKind::Reasoning => {
                Event { text, ..item.event("response.reasoning_text.done", index) }
            }
            ItemKind::Message => Event { text, ..item.event("response.output_text.done", index) },
            ItemKind::Call { name, .. } => {
                let event = item.event("response.function_call_arguments.done", index);
                Event { name: Some(name), arguments: text, ..event }
            }
        };
        frames.push(self.events.frame(done));
        if let Some(part) = item.part() {
            let event = item.event("response.content_part.done", index);
            frames.push(self.events.frame(Event { part: Some(part), ..event }));
        }
        frames.push(self.events.frame(item.whole_event("response.output_item.done", index)));
    }

    /// Appends to the item at the end.
    fn append(&mut self, kind: &'static str, text: &str, frames: &mut Vec<Frame>) {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|_| !text.is_empty()) else { return };
        item.text.push_str(text);
        let event = item.event(kind, index);
        frames.push(self.events.frame(Event { delta: Some(text), ..event }));
    }

    /// Adds a part of the answer.
    fn push(&mut self, event: ChatEvent, frames: &mut Vec<Frame>) {
        let (kind, text, name) = match event {
            ChatEvent::Reasoning(text) => {
                (ItemKind::Reasoning, text, "response.reasoning_text.delta")
            }
            ChatEvent::Content(text) => (ItemKind::Message, text, "response.output_text.delta"),
            ChatEvent::ToolCall { id, name, .. } => {
                self.close(Status::Completed, frames);
                let kind = self.call(id.unwrap_or_else(|| new_id("call_")), name);
                return self.open(kind, frames);
            }
            ChatEvent::Arguments { fragment, .. } => {
                let name = "response.function_call_arguments.delta";
                return self.append(name, &fragment, frames);
            }
            _ => return,
        };
        if text.is_empty() {
            return;
        }
        let is_open = |item: &Item| item.status == Status::InProgress && item.kind == kind;
        if !self.items.last().is_some_and(is_open) {
            self.close(Status::Completed, frames);
            self.open(kind, frames);
        }
        self.append(name, &text, frames);
    }

    /// The object of an answer that has ended.
    fn ended<'a>(&'a self, answer: &ChatAnswer, items: &'a [Item]) -> Response<'a> {
        let is_cut = answer.finish_reason() == FinishReason::Length;
        let status = if is_cut { Status::Incomplete } else { Status::Completed };
        let mut response = self.head.response(status, items);
        let reason = "max_output_tokens";
        response.incomplete_details = is_cut.then_some(IncompleteDetails { reason });
        let Usage { prompt_tokens, cached_tokens, generated, .. } = Usage::of([&answer.completion]);
        let reasoning = self.model.as_ref().map_or(0, |model| {
            model.tokenizer().encode(&answer.message.reasoning).len().min(generated)
        });
        response.usage = Some(TokenCounts {
            input_tokens: prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: generated,
            output_tokens_details: OutputDetails { reasoning_tokens: reasoning },
            total_tokens: prompt_tokens + generated,
        });
        response
    }

    /// Hands the response to its receiver.
    fn keep(&self, response: &Response<'_>) {
        if let Some((keeper, messages)) = &self.kept {
            let body = Frame::new(response).data;
            let id = self.head.id.clone();
            (keeper.keep)(KeptResponse { id, body, messages: messages.clone() });
        }
    }

    /// Events of a stream that begins.
    fn begin(&mut self) -> Vec<Frame> {
        let response = self.head.response(Status::InProgress, &[]);
        let kinds = ["response.created", "response.in_progress"];
        let event = |kind| Event { kind, response: Some(&response), ..Event::default() };
        kinds.map(|kind| self.events.frame(event(kind))).into()
    }
}

impl ChatWriter for ResponseObjects {
    fn start(&mut self, _stats: &RequestStats) -> Vec<Frame> {
        self.begin()
    }

    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        step.events.into_iter().for_each(|event| self.push(event, &mut frames));
        frames
    }

    /// Ends with `response.completed`, also if the answer was cut off: Codex waits for it.
    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame> {
        let mut frames = Vec::new();
        let Some(answer) = answers.first() else { return frames };
        if self.items.is_empty() {
            self.open(ItemKind::Message, &mut frames);
        }
        let is_cut = answer.finish_reason() == FinishReason::Length;
        self.close(if is_cut { Status::Incomplete } else { Status::Completed }, &mut frames);
        let mut events = std::mem::take(&mut self.events);
        let response = self.ended(answer, &self.items);
        let kind = "response.completed";
        frames.push(events.frame(Event { kind, response: Some(&response), ..Event::default() }));
        self.keep(&response);
        frames
    }

    fn whole(&self, answers: &[ChatAnswer]) -> Frame {
        let Some(answer) = answers.first() else {
            return Frame::new(&self.head.response(Status::Failed, &[]));
        };
        let message = &answer.message;
        let mut parts = Vec::with_capacity(message.tool_calls.len() + 2);
        if !message.reasoning.is_empty() {
            parts.push((ItemKind::Reasoning, &message.reasoning));
        }
        if !message.content.is_empty() || parts.len() + message.tool_calls.len() == 0 {
            parts.push((ItemKind::Message, &message.content));
        }
        for call in &message.tool_calls {
            let id = call.id.clone().unwrap_or_else(|| new_id("call_"));
            parts.push((self.call(id, call.name.clone()), &call.arguments));
        }
        let n_parts = parts.len();
        let is_cut = answer.finish_reason() == FinishReason::Length;
        let item = |(index, (kind, text)): (usize, (ItemKind, &String))| {
            let is_cut = is_cut && index + 1 == n_parts;
            let status = if is_cut { Status::Incomplete } else { Status::Completed };
            Item { status, text: text.clone(), ..Item::new(kind) }
        };
        let items: Vec<Item> = parts.into_iter().enumerate().map(item).collect();
        let response = self.ended(answer, &items);
        self.keep(&response);
        Frame::new(&response)
    }

    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        // The first event of a stream is `response.created`.
        let mut frames = if self.events.0 == 0 { self.begin() } else { Vec::new() };
        let mut response = self.head.response(Status::Failed, &self.items);
        let message = match error.retry_after() {
            // Codex reads the time from the text.
            Some(seconds) => format!("{}. Please try again in {seconds}s.", error.message()),
            None => error.message().to_owned(),
        };
        response.error = Some(ErrorObject { code: responses_code(error), message });
        let kind = "response.failed";
        let event = Event { kind, response: Some(&response), ..Event::default() };
        frames.push(self.events.frame(event));
        frames
    }

    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: false }
    }
}
