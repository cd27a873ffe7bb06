//! `/v1/chat/completions`.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use stonechat::{ChatRequest, Completion, Finish, Llm, RequestEvent};

use super::completion::NativeAnswer;
use crate::chat_body::ChatBody;
use crate::generation::{
    Body, GenerationFields, ProbFields, StreamedAnswer, TextRun, Usage, chat_logprobs, respond,
};
use crate::ids::new_id;
use crate::otlp::RequestTrace;
use crate::tasks::blocking;
use crate::{ApiResult, AppState, Json, LanguageGuard};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/chat/completions", post(chat)).route("/chat/completions", post(chat))
}

/// Body of a chat request, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[schema(as = ChatRequest)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct ChatSchema {
    #[serde(flatten)]
    chat: ChatBody,
    #[serde(flatten)]
    generation: GenerationFields,
}

/// Common fields of the objects of an answer.
struct ChatAnswer {
    head: AnswerHead,
    /// Form of the log-probabilities, if they were asked for.
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<NativeAnswer>,
    n_choices: usize,
    has_timings_per_token: bool,
    has_progress: bool,
    includes_usage: bool,
}

/// Answers a conversation
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions", tag = "text", request_body = ChatSchema, responses(
    (status = 200, body = Object, description = "`chat.completion`, or a stream of `chat.completion.chunk`"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn chat(
    State(state): State<AppState>,
    trace: RequestTrace,
    Body { mut own, fields }: Body<ChatBody>,
) -> ApiResult<Response> {
    own.check_answer()?;
    let model = state.open::<Llm>(fields.model.as_deref(), fields.deadline).await?;
    let n_probs = fields.chat_probs()?;
    let options = fields.options(state.options(), &model, n_probs.map_or(0, |n| n.max(1)))?;
    let chat = ChatRequest { options, ..own.request()? };
    let request = fields.schedule(blocking(|| model.request(chat))?);
    let prompts = std::slice::from_ref(&request.prompt);
    let is_verbose = fields.verbose == Some(true);
    let answer = ChatAnswer {
        head: AnswerHead::new("chatcmpl-", &model, &fields),
        probs: n_probs.map(|n| fields.prob_fields(n)),
        native: is_verbose.then(|| NativeAnswer::new(&fields, &model, prompts, &request.options)),
        n_choices: request.n_choices,
        has_timings_per_token: fields.timings_per_token.unwrap_or(false),
        has_progress: fields.return_progress.unwrap_or(false),
        includes_usage: fields.includes_usage(),
    };
    let mut run = TextRun::start(&state, model, request, trace);
    if !fields.is_stream() {
        run.finish().await?;
        return Ok(Json(answer.whole(&run)).into_response());
    }
    respond([run].into(), answer, fields.ping(state.options())).await
}

/// Fields that all objects of an answer of OpenAI have.
pub(super) struct AnswerHead {
    id: String,
    created: u64,
    model: String,
}

impl AnswerHead {
    /// Fields of an answer of this moment.
    pub(super) fn new(prefix: &str, model: &LanguageGuard, fields: &GenerationFields) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            id: new_id(prefix),
            created: time.map_or(0, |time| time.as_secs()),
            model: model.name_for(fields.model.as_deref()),
        }
    }

    /// An object with the given kind and choices.
    pub(super) fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("stonechat-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }
}

/// `finish_reason` of OpenAI.
pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText | Finish::StopString | Finish::GrammarEnd => "stop",
        _ => "length",
    }
}

impl ChatAnswer {
    /// `chat.completion`.
    fn whole(&self, run: &TextRun) -> Value {
        let completions = run.completions();
        let tokenizer = run.tokenizer();
        let choice = |(index, completion): (usize, &Completion)| {
            let logprobs =
                self.probs.map(|fields| chat_logprobs(tokenizer, &completion.probs, fields));
            json!({
                "index": index,
                "message": {"role": "assistant", "content": completion.text},
                "finish_reason": finish_reason(completion.finish),
                "logprobs": logprobs,
            })
        };
        let choices: Vec<Value> = completions.iter().enumerate().map(choice).collect();
        let mut object = self.head.object("chat.completion", choices.into());
        Usage::of(completions).write(&mut object);
        if let Some(native) = &self.native {
            object["__verbose"] = native.last(tokenizer, (0, 0), completions, true);
        }
        object
    }

    /// Chunk with the progress of the prompt, if it was asked for.
    fn progress(&self, run: &TextRun) -> Option<Value> {
        let mut chunk = self.has_progress.then(|| self.chunk(0, json!({}), None))?;
        chunk["prompt_progress"] = run.progress();
        chunk["timings"] = run.usage().timings();
        Some(chunk)
    }

    /// `chat.completion.chunk` of one choice.
    fn chunk(&self, index: usize, delta: Value, finish: Option<Finish>) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "finish_reason": finish.map(finish_reason),
            "logprobs": null,
        });
        self.head.object("chat.completion.chunk", json!([choice]))
    }
}

impl StreamedAnswer for ChatAnswer {
    const ENDS_WITH_DONE: bool = true;

    fn take(&mut self, run: &TextRun, _: usize, event: RequestEvent, chunks: &mut VecDeque<Value>) {
        match event {
            RequestEvent::Started { .. } => {
                for index in 0..self.n_choices {
                    let delta = json!({"role": "assistant", "content": null});
                    chunks.push_back(self.chunk(index, delta, None));
                }
                chunks.extend(self.progress(run));
            }
            RequestEvent::Prompt { .. } => chunks.extend(self.progress(run)),
            RequestEvent::Text { choice, tokens, text } => {
                if text.is_empty() && (self.probs.is_none() || tokens.is_empty()) {
                    return;
                }
                let mut chunk = self.chunk(choice, json!({"content": text}), None);
                if let Some(fields) = self.probs {
                    let probs: Vec<_> =
                        tokens.into_iter().filter_map(|token| token.probs).collect();
                    chunk["choices"][0]["logprobs"] =
                        chat_logprobs(run.tokenizer(), &probs, fields);
                }
                if self.has_timings_per_token {
                    chunk["timings"] = run.usage().timings();
                }
                chunks.push_back(chunk);
            }
            _ => {}
        }
    }

    /// Appends the reasons of the end, and the counts.
    fn end(&mut self, run: &TextRun, _: usize, chunks: &mut VecDeque<Value>) {
        let completions = run.completions();
        let usage = Usage::of(completions);
        for (index, completion) in completions.iter().enumerate() {
            let mut chunk = self.chunk(index, json!({}), Some(completion.finish));
            if index + 1 == completions.len() {
                chunk["timings"] = usage.timings();
            }
            if let Some(native) = &self.native {
                chunk["__verbose"] = native.last(run.tokenizer(), (0, index), completions, false);
            }
            chunks.push_back(chunk);
        }
        if self.includes_usage {
            let mut chunk = self.head.object("chat.completion.chunk", json!([]));
            usage.write(&mut chunk);
            chunks.push_back(chunk);
        }
    }
}
