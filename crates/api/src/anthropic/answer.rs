//! Answers in Anthropic's form: events of contiguous content blocks, or a message with all of them.

use serde::Serialize;
use serde_json::{Map, Value};
use stonechat::llm::chat::ChatEvent;
use stonechat::{Completion, Finish};

use crate::ApiError;
use crate::chat_answer::{ChatAnswer, ChatStep, ChatWriter, FinishReason};
use crate::error_shape::AnthropicError;
use crate::generation::RequestStats;
use crate::ids::new_id;
use crate::json::arguments;
use crate::text::{Frame, Framing};

/// Signature of reasoning. Clients send it back and some drop reasoning without one; nothing verifies it.
pub(super) const SIGNATURE: &str = "c3RvbmVjaGF0";

/// Writer of messages.
#[derive(Debug)]
pub(super) struct MessageObjects {
    id: String,
    model: String,
    /// Stop strings of the request; a template may have further ones.
    stops: Vec<String>,
    open: Option<OpenBlock>,
    /// Blocks so far, the open one included.
    n_blocks: usize,
    input: InputTokens,
}

/// Kind of the block that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Text,
    Thinking,
    /// Call of this number.
    ToolUse(usize),
}

/// Counts of the prompt.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct InputTokens {
    /// Tokens that were not cached.
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Usage {
    #[serde(flatten)]
    input: InputTokens,
    output_tokens: usize,
}

/// Message, whole or at the start of a stream.
#[derive(Debug, Serialize)]
struct Message<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Content<'a>>,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum StopReason {
    EndTurn,
    MaxTokens,
    ToolUse,
    StopSequence,
}

/// Content block.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Thinking { thinking: &'a str, signature: &'a str },
    Text { text: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: Value },
}

/// Event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: Content<'a> },
    ContentBlockDelta { index: usize, delta: Delta<'a> },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End<'a>, usage: Usage },
    MessageStop,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are those of the API")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    ThinkingDelta { thinking: &'a str },
    SignatureDelta { signature: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

#[derive(Debug, Serialize)]
struct End<'a> {
    stop_reason: StopReason,
    stop_sequence: Option<&'a str>,
}

impl From<Event<'_>> for Frame {
    fn from(event: Event<'_>) -> Self {
        let name = match event {
            Event::MessageStart { .. } => "message_start",
            Event::Ping => "ping",
            Event::ContentBlockStart { .. } => "content_block_start",
            Event::ContentBlockDelta { .. } => "content_block_delta",
            Event::ContentBlockStop { .. } => "content_block_stop",
            Event::MessageDelta { .. } => "message_delta",
            Event::MessageStop => "message_stop",
        };
        Self::named(name, &event)
    }
}

impl InputTokens {
    fn new(prompt_tokens: usize, cached_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
        }
    }

    fn of(completion: &Completion) -> Self {
        Self::new(completion.prompt_tokens, completion.cached_tokens)
    }
}

impl MessageObjects {
    pub(super) fn new(model: &str, stops: Vec<String>) -> Self {
        Self {
            id: new_id("msg_"),
            model: model.to_owned(),
            stops,
            open: None,
            n_blocks: 0,
            input: InputTokens::default(),
        }
    }

    fn message<'a>(&'a self, content: Vec<Content<'a>>, usage: Usage) -> Message<'a> {
        Message {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content,
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }

    /// Number of the open block.
    fn index(&self) -> usize {
        self.n_blocks.saturating_sub(1)
    }

    fn delta(&self, delta: Delta<'_>) -> Frame {
        Event::ContentBlockDelta { index: self.index(), delta }.into()
    }

    /// Ends the open block.
    fn close(&mut self, frames: &mut Vec<Frame>) {
        let Some(open) = self.open.take() else { return };
        if open == OpenBlock::Thinking {
            frames.push(self.delta(Delta::SignatureDelta { signature: SIGNATURE }));
        }
        frames.push(Event::ContentBlockStop { index: self.index() }.into());
    }

    /// Begins a block, unless it is the open one.
    fn open(&mut self, block: OpenBlock, content: Content<'_>, frames: &mut Vec<Frame>) {
        if self.open == Some(block) {
            return;
        }
        self.close(frames);
        self.open = Some(block);
        self.n_blocks += 1;
        let start = Event::ContentBlockStart { index: self.index(), content_block: content };
        frames.push(start.into());
    }

    fn part(&mut self, event: &ChatEvent, frames: &mut Vec<Frame>) {
        match event {
            ChatEvent::Reasoning(text) => {
                let content = Content::Thinking { thinking: "", signature: "" };
                self.open(OpenBlock::Thinking, content, frames);
                frames.push(self.delta(Delta::ThinkingDelta { thinking: text }));
            }
            ChatEvent::Content(text) => {
                self.open(OpenBlock::Text, Content::Text { text: "" }, frames);
                frames.push(self.delta(Delta::TextDelta { text }));
            }
            ChatEvent::ToolCall { index, id, name } => {
                let id = id.as_deref().unwrap_or_default();
                let content = Content::ToolUse { id, name, input: Value::Object(Map::new()) };
                self.open(OpenBlock::ToolUse(*index), content, frames);
            }
            ChatEvent::Arguments { index, fragment }
                if self.open == Some(OpenBlock::ToolUse(*index)) =>
            {
                frames.push(self.delta(Delta::InputJsonDelta { partial_json: fragment }));
            }
            _ => {}
        }
    }

    /// Reason of the end of an answer: length, then calls, then stop strings.
    fn end_of<'a>(&self, answer: &'a ChatAnswer) -> End<'a> {
        let completion = &answer.completion;
        let stop = completion.stop.as_deref().filter(|_| completion.finish == Finish::StopString);
        let stop = stop.filter(|stop| self.stops.iter().any(|known| known == stop));
        let stop_reason = match (answer.finish_reason(), stop) {
            (FinishReason::Length, _) => StopReason::MaxTokens,
            (FinishReason::ToolCalls, _) => StopReason::ToolUse,
            (FinishReason::Stop, Some(_)) => StopReason::StopSequence,
            (FinishReason::Stop, None) => StopReason::EndTurn,
        };
        End { stop_reason, stop_sequence: stop }
    }
}

/// Blocks of a whole answer. A call whose arguments were cut off cannot be written.
fn content(answer: &ChatAnswer) -> Vec<Content<'_>> {
    let message = &answer.message;
    let mut content = Vec::with_capacity(message.tool_calls.len() + 2);
    if !message.reasoning.is_empty() {
        content.push(Content::Thinking { thinking: &message.reasoning, signature: SIGNATURE });
    }
    if !message.content.is_empty() {
        content.push(Content::Text { text: &message.content });
    }
    content.extend(message.tool_calls.iter().filter_map(|call| {
        let input = arguments(&call.arguments)?;
        let id = call.id.as_deref().unwrap_or_default();
        Some(Content::ToolUse { id, name: &call.name, input })
    }));
    content
}

impl ChatWriter for MessageObjects {
    fn start(&mut self, stats: &RequestStats) -> Vec<Frame> {
        self.input = InputTokens::new(stats.prompt_tokens, stats.cached_tokens);
        let usage = Usage { input: self.input, output_tokens: 0 };
        let message = self.message(Vec::new(), usage);
        vec![Event::MessageStart { message }.into(), Event::Ping.into()]
    }

    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        step.events.iter().for_each(|event| self.part(event, &mut frames));
        frames
    }

    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.close(&mut frames);
        if let Some(answer) = answers.first() {
            let output_tokens = answer.completion.tokens.len();
            let usage = Usage { input: InputTokens::of(&answer.completion), output_tokens };
            frames.push(Event::MessageDelta { delta: self.end_of(answer), usage }.into());
        }
        frames.push(Event::MessageStop.into());
        frames
    }

    fn whole(&self, answers: &[ChatAnswer]) -> Frame {
        let Some(answer) = answers.first() else {
            return Frame::new(&AnthropicError::new(&ApiError::server("no answer")));
        };
        let output_tokens = answer.completion.tokens.len();
        let usage = Usage { input: InputTokens::of(&answer.completion), output_tokens };
        let End { stop_reason, stop_sequence } = self.end_of(answer);
        let stop_reason = Some(stop_reason);
        let message = self.message(content(answer), usage);
        Frame::new(&Message { stop_reason, stop_sequence, ..message })
    }

    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::named("error", &AnthropicError::new(error))]
    }

    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: false }
    }

    fn call_prefix(&self) -> &'static str {
        "toolu_"
    }
}
