//! OpenAI's chat completions: `chat.completion` and `chat.completion.chunk`.
//!
//! The order of a stream is OpenAI's: the role in the first chunk of a choice alone, its parts, a chunk of its own with the
//! reason of the end, the counts last in a chunk without choices.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stonechat::llm::ModelInfo;
use stonechat::llm::chat::{ChatEvent, ToolCall};

use crate::ApiResult;
use crate::answer_object::{AnswerHead, AnswerObject};
use crate::chat_answer::{
    ChatAnswer, ChatContext, ChatDialect, ChatStep, ChatWriter, FinishReason,
};
use crate::completion::NativeAnswer;
use crate::generation::{ChatLogprobs, Counts, ProbFields, RequestStats, Usage};
use crate::text::Frame;

pub use crate::chat_answer::Chat;
pub use crate::chat_body::{ChatBody, ReasoningFields};

/// Body of OpenAI's chat completions, all of whose fields [`ChatBody`] and
/// [`GenerationFields`](crate::generation::GenerationFields) have.
pub type ChatCompletions = Chat<ChatFields>;

/// Fields that chat completions have alone: none.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct ChatFields {}

/// Writer of chat completions.
#[derive(Debug)]
struct ChatObjects {
    head: AnswerHead,
    model: Arc<ModelInfo>,
    /// Form of the log-probabilities, if they were asked for.
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<NativeAnswer>,
    n_choices: usize,
    has_timings_per_token: bool,
    has_progress: bool,
    includes_usage: bool,
}

/// Choice of a chunk.
#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    finish_reason: Option<FinishReason>,
    logprobs: Option<ChatLogprobs>,
}

/// Part of a message. The reasoning has two names: that of `DeepSeek` and llama-server, and that of vLLM and `OpenRouter`.
#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// Null beside the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

/// Part of a tool call: identifier, type and name come once.
#[derive(Debug, Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// Choice of a whole answer.
#[derive(Debug, Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: Message<'a>,
    finish_reason: FinishReason,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Debug, Serialize)]
struct Message<'a> {
    role: &'static str,
    /// Null of a message that only calls tools.
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

/// Tool call of a message.
#[derive(Debug, Serialize)]
pub(crate) struct Call<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Debug, Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: Cow<'a, str>,
}

impl<'a> Call<'a> {
    /// Call of the function `name`.
    pub(crate) fn new(
        id: &'a str,
        name: impl Into<Cow<'a, str>>,
        arguments: impl Into<Cow<'a, str>>,
    ) -> Self {
        let function = Function { name: name.into(), arguments: arguments.into() };
        Self { id, kind: "function", function }
    }
}

impl ChatDialect for ChatFields {
    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>> {
        let ChatContext { model, fields, request } = *context;
        let native = || {
            let prompts = std::slice::from_ref(&request.prompt);
            NativeAnswer::new(fields, model, prompts, &request.options)
        };
        Ok(Box::new(ChatObjects {
            head: AnswerHead::new("chatcmpl-", model),
            model: Arc::clone(&model.llm.info().model),
            probs: fields.chat_probs()?.map(|n| fields.prob_fields(n)),
            native: (fields.verbose == Some(true)).then(native),
            n_choices: request.n_choices,
            has_timings_per_token: fields.timings_per_token.unwrap_or(false),
            has_progress: fields.return_progress.unwrap_or(false),
            includes_usage: fields.includes_usage(),
        }))
    }
}

impl From<ChatEvent> for Delta {
    fn from(event: ChatEvent) -> Self {
        let call = |index, id: Option<String>, name: Option<String>, arguments| {
            let kind = id.is_some().then_some("function");
            Some([CallDelta { index, id, kind, function: FunctionDelta { name, arguments } }])
        };
        match event {
            ChatEvent::Content(text) => Self { content: Some(Some(text)), ..Self::default() },
            ChatEvent::Reasoning(text) => {
                let reasoning = Some(text.clone());
                Self { reasoning_content: Some(text), reasoning, ..Self::default() }
            }
            ChatEvent::ToolCall { index, id, name } => {
                let tool_calls = call(index, id, Some(name), String::new());
                Self { tool_calls, ..Self::default() }
            }
            ChatEvent::Arguments { index, fragment } => {
                Self { tool_calls: call(index, None, None, fragment), ..Self::default() }
            }
            _ => Self::default(),
        }
    }
}

impl ChatObjects {
    fn chunk(
        &self,
        index: usize,
        delta: Delta,
        finish_reason: Option<FinishReason>,
    ) -> AnswerObject<'_, ChunkChoice> {
        let choice = ChunkChoice { index, delta, finish_reason, logprobs: None };
        self.head.object("chat.completion.chunk", vec![choice])
    }

    /// Chunk with the progress of the prompt, if it was asked for.
    fn progress(&self, stats: &RequestStats) -> Option<Frame> {
        let mut chunk = self.has_progress.then(|| self.chunk(0, Delta::default(), None))?;
        chunk.prompt_progress = Some(stats.progress());
        chunk.timings = Some(stats.usage().timings());
        Some(Frame::new(&chunk))
    }

    fn whole_choice<'a>(&self, (index, answer): (usize, &'a ChatAnswer)) -> WholeChoice<'a> {
        let ChatAnswer { message, completion, .. } = answer;
        let call = |call: &'a ToolCall| {
            Call::new(call.id.as_deref().unwrap_or_default(), &call.name, &call.arguments)
        };
        let tool_calls: Vec<Call<'_>> = message.tool_calls.iter().map(call).collect();
        let reasoning = Some(message.reasoning.as_str()).filter(|text| !text.is_empty());
        let is_null = message.content.is_empty() && !tool_calls.is_empty();
        let probs = |fields| ChatLogprobs::new(self.model.tokenizer(), &completion.probs, fields);
        WholeChoice {
            index,
            message: Message {
                role: "assistant",
                content: (!is_null).then_some(message.content.as_str()),
                reasoning_content: reasoning,
                reasoning,
                tool_calls,
            },
            finish_reason: answer.finish_reason(),
            logprobs: self.probs.map(probs),
        }
    }
}

impl ChatWriter for ChatObjects {
    fn id(&self) -> Option<&str> {
        Some(&self.head.id)
    }

    fn start(&mut self, stats: &RequestStats) -> Vec<Frame> {
        let first = || Delta { role: Some("assistant"), content: Some(None), ..Delta::default() };
        let firsts = (0..self.n_choices).map(|index| Frame::new(&self.chunk(index, first(), None)));
        firsts.chain(self.progress(stats)).collect()
    }

    fn prompt(&mut self, stats: &RequestStats) -> Vec<Frame> {
        self.progress(stats).into_iter().collect()
    }

    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame> {
        let ChatStep { choice, mut events, probs, stats } = step;
        if events.is_empty() {
            // Log-probabilities of tokens whose text is held back.
            events.push(ChatEvent::Content(String::new()));
        }
        let mut logprobs = self.probs.filter(|_| !probs.is_empty());
        let chunk = |event: ChatEvent| {
            let mut chunk = self.chunk(choice, event.into(), None);
            if let Some(fields) = logprobs.take() {
                let probs = ChatLogprobs::new(self.model.tokenizer(), &probs, fields);
                chunk.choices[0].logprobs = Some(probs);
            }
            chunk.timings = self.has_timings_per_token.then(|| stats.usage().timings());
            Frame::new(&chunk)
        };
        events.into_iter().map(chunk).collect()
    }

    /// The reasons of the end, and the counts.
    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame> {
        let usage = usage(answers);
        let mut frames = Vec::with_capacity(answers.len() + 1);
        for (index, answer) in answers.iter().enumerate() {
            let mut chunk = self.chunk(index, Delta::default(), Some(answer.finish_reason()));
            chunk.timings = (index + 1 == answers.len()).then(|| usage.timings());
            let native = self.native.as_ref();
            chunk.verbose = native.map(|native| native.last((0, index), &answer.completion, false));
            frames.push(Frame::new(&chunk));
        }
        if self.includes_usage {
            let mut chunk = self.head.object::<ChunkChoice>("chat.completion.chunk", Vec::new());
            chunk.usage = Some(counts(answers));
            chunk.timings = Some(usage.timings());
            frames.push(Frame::new(&chunk));
        }
        frames
    }

    /// `chat.completion`.
    fn whole(&self, answers: &[ChatAnswer]) -> Frame {
        let choices = answers.iter().enumerate().map(|choice| self.whole_choice(choice)).collect();
        let mut object = self.head.object("chat.completion", choices);
        let usage = usage(answers);
        object.usage = Some(counts(answers));
        object.timings = Some(usage.timings());
        let native = self.native.as_ref().zip(answers.first());
        object.verbose = native.map(|(native, it)| native.last((0, 0), &it.completion, true));
        Frame::new(&object)
    }
}

/// Counts and durations of all choices.
fn usage(answers: &[ChatAnswer]) -> Usage {
    Usage::of(answers.iter().map(|answer| &answer.completion))
}

/// `usage` of all choices.
fn counts(answers: &[ChatAnswer]) -> Counts {
    let reasoning = answers.iter().map(|answer| answer.reasoning_tokens).sum();
    usage(answers).counts().with_reasoning(reasoning)
}

#[cfg(test)]
mod tests;
