//! Answers of chats in any dialect: the text of the model is parsed here, the dialect writes the parts.
//!
//! ```text
//! body ──► ChatDialect::adapt ──► ChatBody, GenerationFields, own fields ──► request
//! RequestEvent::Text ──► AnswerParser ──► ChatStep ──► ChatWriter ──► objects of a stream
//! texts ──────────────────────────────► ChatAnswer ──► ChatWriter ──► one object
//! ```

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stonechat::llm::chat::{AnswerParser, ChatEvent, ChatMessage};
use stonechat::llm::{ModelInfo, TokenProbs};
use stonechat::text::StreamDecoder;
use stonechat::{ChatRequest, Completion, PreparedChat, Request, RequestEvent};

use crate::chat_body::ChatBody;
use crate::generation::{GenerationFields, RequestStats};
use crate::ids::new_id;
use crate::json::JsonFields;
use crate::text::{Answer, Dialect, Frame, Framing, Model, Prepared};
use crate::{ApiError, ApiResult, Defaults};

/// Dialect of chats: its fields, and the writer of its answers.
pub trait ChatDialect: DeserializeOwned + Send {
    /// Rewrites a body to the names of [`ChatBody`] and [`GenerationFields`]; fields of `Self` stay.
    ///
    /// # Errors
    /// 400 with the field.
    fn adapt(_body: &mut Map<String, Value>) -> ApiResult<()> {
        Ok(())
    }

    /// Whether unknown fields pass that resemble known ones.
    fn ignores_unknown() -> bool {
        false
    }

    /// Writer of the answer to a request.
    ///
    /// # Errors
    /// 400 with a field that the model or the server cannot honour.
    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>>;
}

/// Request of a chat, for the writer of its answer.
#[derive(Debug, Clone, Copy)]
pub struct ChatContext<'a> {
    /// Model that answers.
    pub model: Model<'a>,
    /// Fields of generation.
    pub fields: &'a GenerationFields,
    /// Request of the engine; the prompt included.
    pub request: &'a Request,
}

/// Writer of a dialect's objects.
pub trait ChatWriter: fmt::Debug + Send {
    /// Objects at the start of the answer.
    fn start(&mut self, _stats: &RequestStats) -> Vec<Frame> {
        Vec::new()
    }

    /// Objects of the progress of the prompt.
    fn prompt(&mut self, _stats: &RequestStats) -> Vec<Frame> {
        Vec::new()
    }

    /// Objects of the parts that a step has added to a choice.
    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame>;

    /// Objects at the end of all choices.
    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame>;

    /// The answer in one object.
    fn whole(&self, answers: &[ChatAnswer]) -> Frame;

    /// Objects that end a stream after an error.
    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::new(&error.to_json())]
    }

    /// Framing of a stream.
    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: true }
    }

    /// Identifier of the answer, by which a client controls it.
    fn id(&self) -> Option<&str> {
        None
    }

    /// Prefix of the identifiers of tool calls.
    fn call_prefix(&self) -> &'static str {
        "call_"
    }
}

/// Parts that a step has added to a choice.
#[derive(Debug)]
pub struct ChatStep<'a> {
    /// Number of the choice.
    pub choice: usize,
    /// Parts; none while a marker is incomplete. Every tool call has an identifier.
    pub events: Vec<ChatEvent>,
    /// Probabilities of the tokens of the step, if they were asked for.
    pub probs: Vec<TokenProbs>,
    /// Counts so far.
    pub stats: &'a RequestStats,
}

/// Answer of one choice.
#[derive(Debug, Clone)]
pub struct ChatAnswer {
    /// Parts. Every tool call has an identifier.
    pub message: ChatMessage,
    /// Text with counts and times.
    pub completion: Completion,
    /// Generated tokens of reasoning, its markers included.
    pub reasoning_tokens: usize,
}

impl ChatAnswer {
    /// Reason of the end, by the precedence of OpenAI: length, tool calls, stop.
    #[must_use]
    pub fn finish_reason(&self) -> FinishReason {
        let is_complete = self.completion.finish.is_complete();
        match (is_complete, self.message.tool_calls.is_empty()) {
            (false, _) => FinishReason::Length,
            (true, false) => FinishReason::ToolCalls,
            (true, true) => FinishReason::Stop,
        }
    }
}

/// `finish_reason` of OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model has ended the answer, or a stop string was found.
    Stop,
    /// The answer was cut off.
    Length,
    /// The model calls tools.
    ToolCalls,
}

/// Body of a chat in the dialect `D`.
#[derive(Debug)]
pub struct Chat<D> {
    pub(crate) own: D,
    pub(crate) chat: ChatBody,
}

impl<D: ChatDialect> Dialect for Chat<D> {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
        D::adapt(body)
    }

    fn take(body: &mut JsonFields) -> ApiResult<Self> {
        Ok(Self { own: body.take()?, chat: body.take()? })
    }

    fn ignores_unknown() -> bool {
        D::ignores_unknown()
    }

    fn check(&mut self) -> ApiResult<()> {
        self.chat.check_answer()
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let info = model.llm.info();
        let n_probs = fields.chat_probs()?;
        let options = fields.free_options(info, defaults, n_probs.map_or(0, |n| n.max(1)))?;
        let grammar = fields.grammar_source()?;
        let chat = self.chat.request(defaults.chat, fields.is_stream())?;
        let chat = ChatRequest { options, grammar, ..chat };
        let PreparedChat { request, parser, .. } = model.llm.prepare_chat(chat)?;
        let request = fields.schedule(request);
        let writer = self.own.writer(&ChatContext { model, fields, request: &request })?;
        let control = request.options.reasoning.as_ref().map(|reasoning| reasoning.control.clone());
        let control = writer.id().map(str::to_owned).zip(control);
        Ok(Prepared { control, ..prepared(&info.model, request, parser, writer) })
    }
}

/// A request whose texts are parsed and written by the given ones.
pub(crate) fn prepared(
    model: &Arc<ModelInfo>,
    mut request: Request,
    parser: AnswerParser,
    writer: Box<dyn ChatWriter>,
) -> Prepared {
    let visible = request.options.visible_special.as_slice().into();
    let counter = ReasoningCounter { model: Arc::clone(model), parser: parser.clone(), visible };
    let choice = Choice { parser, message: ChatMessage::default() };
    let answer = ChatAnswers { choices: vec![choice; request.n_choices], counter, writer };
    let prompts = vec![std::mem::take(&mut request.prompt)];
    Prepared::new(prompts, request, answer)
}

/// Parser and parts of one choice.
#[derive(Debug, Clone)]
struct Choice {
    parser: AnswerParser,
    message: ChatMessage,
}

impl Choice {
    /// Collects parts; calls without an identifier get one.
    fn collect(&mut self, mut events: Vec<ChatEvent>, call_prefix: &str) -> Vec<ChatEvent> {
        for event in &mut events {
            if let ChatEvent::ToolCall { id: id @ None, .. } = event {
                *id = Some(new_id(call_prefix));
            }
            self.message.push(event);
        }
        events
    }
}

/// Counter of the tokens of reasoning. The text of the reasoning is tokenized otherwise than the model has written it, so
/// that the tokens of the model are parsed once more, one by one.
#[derive(Debug)]
struct ReasoningCounter {
    model: Arc<ModelInfo>,
    /// Parser before the first token.
    parser: AnswerParser,
    /// Special tokens that the parser reads.
    visible: Arc<[u32]>,
}

impl ReasoningCounter {
    /// Tokens of a text that begin, continue or end its reasoning.
    fn count(&self, tokens: &[u32]) -> usize {
        let decoder = StreamDecoder::continuing(self.model.tokenizer().as_ref());
        let mut decoder = decoder.with_visible(Arc::clone(&self.visible));
        let mut parser = self.parser.clone();
        let is_reasoning = |&&token: &&u32| {
            let was_reasoning = parser.is_reasoning();
            let events = decoder.push(token).map_or_else(Vec::new, |text| parser.push(&text));
            let is_part = |event: &ChatEvent| matches!(event, ChatEvent::Reasoning(_));
            was_reasoning || parser.is_reasoning() || events.iter().any(is_part)
        };
        tokens.iter().filter(is_reasoning).count()
    }

    /// An answer with its count.
    fn answer(&self, message: ChatMessage, completion: &Completion) -> ChatAnswer {
        let has_reasoning = !message.reasoning.is_empty();
        let reasoning_tokens = if has_reasoning { self.count(&completion.tokens) } else { 0 };
        ChatAnswer { message, completion: completion.clone(), reasoning_tokens }
    }
}

/// Answer of a chat: parsers of the choices, and the writer of the dialect.
#[derive(Debug)]
struct ChatAnswers {
    choices: Vec<Choice>,
    counter: ReasoningCounter,
    writer: Box<dyn ChatWriter>,
}

impl Answer for ChatAnswers {
    fn event(&mut self, stats: &RequestStats, event: RequestEvent) -> Vec<Frame> {
        match event {
            RequestEvent::Started { .. } => self.writer.start(stats),
            RequestEvent::Prompt { .. } => self.writer.prompt(stats),
            RequestEvent::Text { choice, tokens, text } => {
                let Some(state) = self.choices.get_mut(choice) else { return Vec::new() };
                let events = state.parser.push(&text);
                let events = state.collect(events, self.writer.call_prefix());
                let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
                if events.is_empty() && probs.is_empty() {
                    return Vec::new();
                }
                self.writer.step(ChatStep { choice, events, probs, stats })
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self, stats: &RequestStats, completions: &[Completion]) -> Vec<Frame> {
        let (mut frames, mut answers) = (Vec::new(), Vec::with_capacity(completions.len()));
        let choices = self.choices.iter_mut().zip(completions);
        for (choice, (state, completion)) in choices.enumerate() {
            let events = state.parser.finish(completion.finish.is_complete());
            let events = state.collect(events, self.writer.call_prefix());
            if !events.is_empty() {
                frames.extend(self.writer.step(ChatStep { choice, events, probs: vec![], stats }));
            }
            let message = std::mem::take(&mut state.message);
            answers.push(self.counter.answer(message, completion));
        }
        frames.extend(self.writer.end(&answers));
        frames
    }

    fn whole(&self, texts: &[Vec<Completion>]) -> Frame {
        let completions = texts.first().map_or(&[][..], Vec::as_slice);
        let answer = |(choice, completion): (&Choice, &Completion)| {
            let mut choice = choice.clone();
            let mut events = choice.parser.push(&completion.text);
            events.extend(choice.parser.finish(completion.finish.is_complete()));
            choice.collect(events, self.writer.call_prefix());
            self.counter.answer(choice.message, completion)
        };
        let answers: Vec<_> = self.choices.iter().zip(completions).map(answer).collect();
        self.writer.whole(&answers)
    }

    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        self.writer.error(error)
    }

    fn framing(&self) -> Framing {
        self.writer.framing()
    }
}
