//! Writer of OpenAI's Responses. Each part of an answer is an output item. Items follow one another; an item has one
//! identifier in all of its events.
//!
//! ```text
//! created, in_progress
//!   output_item.added, content_part.added, output_text.delta …, output_text.done, content_part.done, output_item.done
//!   output_item.added, function_call_arguments.delta …, function_call_arguments.done, output_item.done
//! completed (always the last one), or failed
//! ```

use std::collections::HashMap;

use stonechat::llm::chat::ChatEvent;

use super::items::{Item, ItemKind};
use super::objects::{Event, EventCounter, Head, Response, Status};
use super::{Keeper, KeptResponse};
use crate::ApiError;
use crate::chat_answer::{ChatAnswer, ChatStep, ChatWriter};
use crate::generation::RequestStats;
use crate::ids::new_id;
use crate::text::{Frame, Framing};

/// Writer of responses.
#[derive(Debug)]
pub(super) struct ResponseWriter {
    pub(super) head: Head,
    /// Namespace and own name of functions by their joined names.
    pub(super) namespaces: HashMap<String, [String; 2]>,
    /// Receiver of the response, and the messages before it.
    pub(super) kept: Option<(Keeper, String)>,
    items: Vec<Item>,
    events: EventCounter,
}

impl ResponseWriter {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            namespaces: HashMap::new(),
            kept: None,
            items: Vec::new(),
            events: EventCounter::default(),
        }
    }

    /// Kind of the items of reasoning.
    fn reasoning(&self) -> ItemKind {
        let has_summary = self.head.echo.reasoning.summary.is_some();
        if has_summary { ItemKind::Summary } else { ItemKind::Reasoning }
    }

    /// Kind of the item of a call.
    fn call(&self, id: Option<&str>, name: &str) -> ItemKind {
        let id = id.map_or_else(|| new_id("call_"), str::to_owned);
        ItemKind::call(&self.namespaces, id, name)
    }

    /// Begins an item.
    fn open(&mut self, kind: ItemKind, frames: &mut Vec<Frame>) {
        let (index, item) = (self.items.len(), Item::new(kind));
        frames.push(self.events.frame(item.whole_event("response.output_item.added", index)));
        if let Some([added, _]) = item.kind.events().part {
            let event = Event { part: item.part(), ..item.event(added, index) };
            frames.push(self.events.frame(event));
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
        frames.push(self.events.frame(item.done_event(index)));
        if let Some([_, done]) = item.kind.events().part {
            let event = Event { part: item.part(), ..item.event(done, index) };
            frames.push(self.events.frame(event));
        }
        frames.push(self.events.frame(item.whole_event("response.output_item.done", index)));
    }

    /// Appends to the item at the end.
    fn append(&mut self, text: &str, frames: &mut Vec<Frame>) {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|_| !text.is_empty()) else { return };
        item.text.push_str(text);
        let event = item.event(item.kind.events().delta, index);
        frames.push(self.events.frame(Event { delta: Some(text), ..event }));
    }

    /// Appends to an item of this kind, which follows the others.
    fn append_to(&mut self, kind: ItemKind, text: &str, frames: &mut Vec<Frame>) {
        if text.is_empty() {
            return;
        }
        let is_open = |item: &Item| item.status == Status::InProgress && item.kind == kind;
        if !self.items.last().is_some_and(is_open) {
            self.close(Status::Completed, frames);
            self.open(kind, frames);
        }
        self.append(text, frames);
    }

    /// Adds a part of the answer.
    fn push(&mut self, event: &ChatEvent, frames: &mut Vec<Frame>) {
        match event {
            ChatEvent::Reasoning(text) => self.append_to(self.reasoning(), text, frames),
            ChatEvent::Content(text) => self.append_to(ItemKind::Message, text, frames),
            ChatEvent::ToolCall { id, name, .. } => {
                self.close(Status::Completed, frames);
                self.open(self.call(id.as_deref(), name), frames);
            }
            ChatEvent::Arguments { fragment, .. } => self.append(fragment, frames),
            _ => {}
        }
    }

    /// Items of a whole answer.
    fn items(&self, answer: &ChatAnswer) -> Vec<Item> {
        let message = &answer.message;
        let mut parts = Vec::with_capacity(message.tool_calls.len() + 2);
        if !message.reasoning.is_empty() {
            parts.push((self.reasoning(), &message.reasoning));
        }
        if !message.content.is_empty() || parts.len() + message.tool_calls.len() == 0 {
            parts.push((ItemKind::Message, &message.content));
        }
        for call in &message.tool_calls {
            parts.push((self.call(call.id.as_deref(), &call.name), &call.arguments));
        }
        let item = |(kind, text): (ItemKind, &String)| Item {
            status: Status::Completed,
            text: text.clone(),
            ..Item::new(kind)
        };
        let mut items: Vec<Item> = parts.into_iter().map(item).collect();
        if let Some(last) = items.last_mut() {
            last.status = Status::of(answer);
        }
        items
    }

    /// Hands the response to its receiver.
    fn keep(&self, response: &Response<'_>, items: &[Item]) {
        if let Some((keeper, messages)) = &self.kept {
            (keeper.keep)(KeptResponse {
                id: self.head.id.clone(),
                body: Frame::new(response).data,
                messages: messages.clone(),
                items: items.iter().map(|item| item.id.clone()).collect(),
            });
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

impl ChatWriter for ResponseWriter {
    fn start(&mut self, _stats: &RequestStats) -> Vec<Frame> {
        self.begin()
    }

    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        step.events.iter().for_each(|event| self.push(event, &mut frames));
        frames
    }

    /// Ends with `response.completed`, also if the answer was cut off: Codex waits for it.
    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame> {
        let mut frames = Vec::new();
        let Some(answer) = answers.first() else { return frames };
        if self.items.is_empty() {
            self.open(ItemKind::Message, &mut frames);
        }
        self.close(Status::of(answer), &mut frames);
        let mut events = std::mem::take(&mut self.events);
        let response = self.head.ended(answer, &self.items);
        let kind = "response.completed";
        frames.push(events.frame(Event { kind, response: Some(&response), ..Event::default() }));
        self.keep(&response, &self.items);
        frames
    }

    fn whole(&self, answers: &[ChatAnswer]) -> Frame {
        let Some(answer) = answers.first() else {
            return Frame::new(&self.head.failed(&ApiError::server("no answer"), &[]));
        };
        let items = self.items(answer);
        let response = self.head.ended(answer, &items);
        self.keep(&response, &items);
        Frame::new(&response)
    }

    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        // The first event of a stream is `response.created`.
        let mut frames = if self.events.is_start() { self.begin() } else { Vec::new() };
        // An item without its end has no event: agents run the calls that have one.
        for item in self.items.iter_mut().filter(|item| item.status == Status::InProgress) {
            item.status = Status::Incomplete;
        }
        let response = self.head.failed(error, &self.items);
        let kind = "response.failed";
        let event = Event { kind, response: Some(&response), ..Event::default() };
        frames.push(self.events.frame(event));
        frames
    }

    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: false }
    }
}
