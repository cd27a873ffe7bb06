//! Lines of Ollama's answers.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use serde_json::Value;
use stonechat::Completion;
use stonechat::llm::chat::{ChatEvent, ToolCall};
use stonechat::llm::{ModelInfo, TokenProbs};
use web_time::{Instant, SystemTime, UNIX_EPOCH};

use crate::ApiError;
use crate::chat_answer::{ChatAnswer, ChatStep, ChatWriter};
use crate::error_shape::OllamaError;
use crate::generation::{ProbFields, RequestStats, TokenEntry, token_entries};
use crate::json::arguments;
use crate::text::{Frame, Framing, Model};

/// Route whose form a line has.
#[derive(Debug)]
pub(super) enum Route {
    /// `/api/chat`.
    Chat,
    /// `/api/generate`.
    Generate {
        /// Tokens of the prompt, which a later request may continue; `None` without a template.
        context: Option<Vec<u32>>,
    },
}

/// Writer of lines.
#[derive(Debug)]
pub(super) struct Lines {
    model: String,
    route: Route,
    start: Instant,
    /// Call that is being written: its number in the answer.
    open: Option<(usize, ToolCall)>,
    /// Form of the log-probabilities, if they were asked for.
    probs: Option<(Arc<ModelInfo>, ProbFields)>,
    /// Tokens since the last line, if their log-probabilities were asked for.
    pending: Vec<TokenProbs>,
}

/// Line of a stream, or the whole answer.
#[derive(Debug, Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    part: Part<'a>,
    done: bool,
    /// Tokens of the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenEntry>>,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Part<'a> {
    Chat {
        message: Message<'a>,
    },
    Generate {
        response: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        thinking: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<Vec<u32>>,
    },
}

#[derive(Debug, Default, Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Debug, Serialize)]
struct Call<'a> {
    id: &'a str,
    function: Function<'a>,
}

#[derive(Debug, Serialize)]
struct Function<'a> {
    index: usize,
    name: &'a str,
    /// An object, unlike OpenAI's.
    arguments: Value,
}

/// Counts and nanoseconds of an answer.
#[derive(Debug, Serialize)]
struct End {
    done_reason: &'static str,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

/// Answer to the load or unload of a model.
#[derive(Debug, Serialize)]
pub struct LoadedLine<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    part: Part<'a>,
    done: bool,
    done_reason: &'static str,
}

impl<'a> LoadedLine<'a> {
    /// Line of `/api/chat`, else of `/api/generate`.
    #[must_use]
    pub fn new(model: &'a str, is_chat: bool, is_unloaded: bool) -> Self {
        let part = match is_chat {
            true => Part::Chat { message: Message { role: "assistant", ..Message::default() } },
            false => Part::Generate { response: "", thinking: "", context: None },
        };
        let done_reason = if is_unloaded { "unload" } else { "load" };
        Self { model, created_at: now(), part, done: true, done_reason }
    }
}

/// Time of day in UTC, RFC 3339 with nanoseconds.
#[must_use]
pub fn now() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(time.as_secs()).unwrap_or_default();
    let time = DateTime::from_timestamp(seconds, time.subsec_nanos()).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Nanos, true)
}

/// Whole nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole nanoseconds of milliseconds.
fn of_ms(ms: f64) -> u64 {
    nanoseconds(Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default())
}

fn call(index: usize, call: &ToolCall) -> Option<Call<'_>> {
    let arguments = arguments(&call.arguments)?;
    let id = call.id.as_deref().unwrap_or_default();
    Some(Call { id, function: Function { index, name: &call.name, arguments } })
}

impl Lines {
    pub(super) fn new(model: &str, route: Route) -> Self {
        Self {
            model: model.to_owned(),
            route,
            start: Instant::now(),
            open: None,
            probs: None,
            pending: Vec::new(),
        }
    }

    /// Adds log-probabilities to the lines, if `fields` are there.
    pub(super) fn with_probs(self, model: Model<'_>, fields: Option<ProbFields>) -> Self {
        let probs = fields.map(|fields| (Arc::clone(&model.llm.info().model), fields));
        Self { probs, ..self }
    }

    fn line(&mut self, content: &str, thinking: &str, tool_calls: Vec<Call<'_>>) -> Frame {
        let message = Message { role: "assistant", content, thinking, tool_calls };
        let logprobs = self.take_logprobs();
        Frame::new(&Line { logprobs, ..self.with(message, None, None) })
    }

    /// Log-probabilities of the tokens since the last line.
    fn take_logprobs(&mut self) -> Option<Vec<TokenEntry>> {
        let probs = std::mem::take(&mut self.pending);
        if probs.is_empty() { None } else { self.logprobs(&probs) }
    }

    /// Log-probabilities of tokens, if they were asked for.
    fn logprobs(&self, probs: &[TokenProbs]) -> Option<Vec<TokenEntry>> {
        let (model, fields) = self.probs.as_ref()?;
        Some(token_entries(model.tokenizer(), probs, *fields))
    }

    /// Line in the form of the route.
    fn with<'a>(
        &'a self,
        message: Message<'a>,
        context: Option<Vec<u32>>,
        end: Option<End>,
    ) -> Line<'a> {
        let part = match self.route {
            Route::Chat => Part::Chat { message },
            Route::Generate { .. } => {
                Part::Generate { response: message.content, thinking: message.thinking, context }
            }
        };
        let (created_at, done) = (now(), end.is_some());
        Line { model: &self.model, created_at, part, done, logprobs: None, end }
    }

    /// Ends the open call: a line with all of it. One whose arguments were cut off is none.
    fn close(&mut self, frames: &mut Vec<Frame>) {
        let Some((index, open)) = self.open.take() else { return };
        if let Some(call) = call(index, &open) {
            let line = self.line("", "", vec![call]);
            frames.push(line);
        }
    }

    fn part(&mut self, event: ChatEvent, frames: &mut Vec<Frame>) {
        if let (ChatEvent::Arguments { index, fragment }, Some((open, call))) =
            (&event, &mut self.open)
            && index == open
        {
            call.arguments.push_str(fragment);
            return;
        }
        self.close(frames);
        match event {
            ChatEvent::Reasoning(text) => frames.push(self.line("", &text, Vec::new())),
            ChatEvent::Content(text) => frames.push(self.line(&text, "", Vec::new())),
            ChatEvent::ToolCall { index, id, name } => {
                self.open = Some((index, ToolCall { id, name, ..ToolCall::default() }));
            }
            _ => {}
        }
    }

    fn end_of(&self, answer: &ChatAnswer) -> End {
        let Completion { finish, prompt_tokens, tokens, timings, .. } = &answer.completion;
        End {
            done_reason: if finish.is_complete() { "stop" } else { "length" },
            total_duration: nanoseconds(self.start.elapsed()),
            load_duration: 0,
            prompt_eval_count: *prompt_tokens,
            prompt_eval_duration: of_ms(timings.prompt_ms),
            eval_count: tokens.len(),
            eval_duration: of_ms(timings.decode_ms),
        }
    }

    /// Tokens of the prompt and the answer, for the next request.
    fn context(&self, answer: &ChatAnswer) -> Option<Vec<u32>> {
        let Route::Generate { context: Some(prompt) } = &self.route else { return None };
        Some([prompt.as_slice(), answer.completion.tokens.as_slice()].concat())
    }
}

impl ChatWriter for Lines {
    fn start(&mut self, stats: &RequestStats) -> Vec<Frame> {
        self.start = stats.queued;
        Vec::new()
    }

    fn step(&mut self, step: ChatStep<'_>) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.probs.is_some() {
            self.pending.extend(step.probs);
        }
        step.events.into_iter().for_each(|event| self.part(event, &mut frames));
        frames
    }

    fn end(&mut self, answers: &[ChatAnswer]) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.close(&mut frames);
        if let Some(answer) = answers.first() {
            let message = Message { role: "assistant", ..Message::default() };
            let (logprobs, end) = (self.take_logprobs(), Some(self.end_of(answer)));
            let line = self.with(message, self.context(answer), end);
            frames.push(Frame::new(&Line { logprobs, ..line }));
        }
        frames
    }

    fn whole(&self, answers: &[ChatAnswer]) -> Frame {
        let Some(answer) = answers.first() else {
            return Frame::new(&OllamaError::new(&ApiError::server("no answer")));
        };
        let calls = answer.message.tool_calls.iter().enumerate();
        let message = Message {
            role: "assistant",
            content: &answer.message.content,
            thinking: &answer.message.reasoning,
            tool_calls: calls.filter_map(|(index, it)| call(index, it)).collect(),
        };
        let logprobs = self.logprobs(&answer.completion.probs);
        let line = self.with(message, self.context(answer), Some(self.end_of(answer)));
        Frame::new(&Line { logprobs, ..line })
    }

    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::new(&OllamaError::new(error))]
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }
}
