//! `/v1/chat/completions`.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use stonechat::{Completion, Finish};

use super::completion;
use crate::generation::{
    Parsed, ProbFields, Step, StreamedAnswer, TextRun, Timings, chat_logprobs, respond,
};
use crate::limits::check_chat;
use crate::otlp::RequestTrace;
use crate::{ApiResult, AppState, ChatBody, ChatPrompt, Json, new_id};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/chat/completions", post(chat)).route("/chat/completions", post(chat))
}

/// Body of a chat request, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct ChatRequest {
    #[serde(flatten)]
    chat: ChatBody,
    #[serde(flatten)]
    generation: crate::generation::GenerationFields,
}

/// Common fields of the objects of an answer.
struct Answer {
    id: String,
    created: u64,
    model: String,
    /// Form of the log-probabilities, if they were asked for.
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<completion::Answer>,
    has_timings_per_token: bool,
    has_progress: bool,
    includes_usage: bool,
}

/// Answers a conversation
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions", tag = "text", request_body = ChatRequest, responses(
    (status = 200, body = Object, description = "`chat.completion`, or a stream of `chat.completion.chunk`"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn chat(
    State(state): State<AppState>,
    trace: RequestTrace,
    Json(body): Json<Value>,
) -> ApiResult<Response> {
    check_chat(&body)?;
    let Parsed { mut own, fields } = Parsed::<ChatBody>::from_body(body, state.options())?;
    // The template writes no tools that the answer must not call.
    own.tools = None;
    let model = state.language_by(fields.model.as_deref(), fields.deadline).await?;
    let prompt = ChatPrompt::new(&model, &own)?;
    let n_probs = fields.chat_probs()?;
    let mut options = fields.options(state.options(), &model, n_probs.map_or(0, |n| n.max(1)))?;
    options.stop.extend(model.format.stop().map(str::to_owned));
    let prompts = std::slice::from_ref(&prompt.tokens);
    let native = fields.verbose == Some(true);
    let native = native.then(|| completion::Answer::new(&fields, &model, prompts, &options));
    let request = fields.request(prompt.tokens, options)?;
    let answer = Answer {
        id: new_id("chatcmpl-"),
        created: unix_time(),
        model: model.name_for(fields.model.as_deref()),
        probs: n_probs.map(|n| fields.prob_fields(n)),
        native: native.transpose()?,
        has_timings_per_token: fields.timings_per_token.unwrap_or(false),
        has_progress: fields.return_progress.unwrap_or(false),
        includes_usage: fields.includes_usage(),
    };
    let n_choices = request.n_choices;
    let mut run = TextRun::start(&state, model, request, trace);
    if !fields.is_stream() {
        let completions = run.finish().await?;
        return Ok(Json(answer.whole(&run, &completions)).into_response());
    }
    let stream = ChatStream { answer, n_choices };
    respond([run].into(), stream, fields.ping(state.options())?).await
}

/// Seconds since 1970.
pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `finish_reason` of OpenAI.
pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText | Finish::StopString | Finish::GrammarEnd => "stop",
        _ => "length",
    }
}

impl Answer {
    /// An object with the given kind and choices.
    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("stonechat-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// `chat.completion`.
    fn whole(&self, run: &TextRun, completions: &[Completion]) -> Value {
        let tokenizer = run.model().llm.info().model.tokenizer();
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
        let mut object = self.object("chat.completion", choices.into());
        let timings = Timings::of(completions);
        object["usage"] = timings.usage();
        object["timings"] = timings.to_json();
        if let Some(native) = &self.native {
            object["__verbose"] = native.last(tokenizer, 0, 0, completions, true);
        }
        object
    }

    /// Chunk with the progress of the prompt, if it was asked for.
    fn progress(&self, run: &TextRun) -> Option<Value> {
        let mut chunk = self.has_progress.then(|| self.chunk(0, json!({}), None))?;
        chunk["prompt_progress"] = run.progress();
        chunk["timings"] = run.timings().to_json();
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
        self.object("chat.completion.chunk", json!([choice]))
    }
}

/// Chunks of a streamed answer.
struct ChatStream {
    answer: Answer,
    n_choices: usize,
}

impl StreamedAnswer for ChatStream {
    const ENDS_WITH_DONE: bool = true;

    fn take(&mut self, run: &TextRun, _: usize, step: Step, events: &mut VecDeque<Value>) {
        match step {
            Step::Started => {
                for index in 0..self.n_choices {
                    let delta = json!({"role": "assistant", "content": null});
                    events.push_back(self.answer.chunk(index, delta, None));
                }
                events.extend(self.answer.progress(run));
            }
            Step::Prompt => events.extend(self.answer.progress(run)),
            Step::Text { choice, tokens, text } => {
                if text.is_empty() && (self.answer.probs.is_none() || tokens.is_empty()) {
                    return;
                }
                let mut chunk = self.answer.chunk(choice, json!({"content": text}), None);
                if let Some(fields) = self.answer.probs {
                    let probs: Vec<_> =
                        tokens.into_iter().filter_map(|token| token.probs).collect();
                    let tokenizer = run.model().llm.info().model.tokenizer();
                    chunk["choices"][0]["logprobs"] = chat_logprobs(tokenizer, &probs, fields);
                }
                if self.answer.has_timings_per_token {
                    chunk["timings"] = run.timings().to_json();
                }
                events.push_back(chunk);
            }
            Step::Ended(completions) => self.end(run, &completions, events),
        }
    }
}

impl ChatStream {
    /// Chunks after the texts: reasons of the end, counts.
    fn end(&self, run: &TextRun, completions: &[Completion], events: &mut VecDeque<Value>) {
        let tokenizer = run.model().llm.info().model.tokenizer();
        let timings = Timings::of(completions);
        for (index, completion) in completions.iter().enumerate() {
            let mut chunk = self.answer.chunk(index, json!({}), Some(completion.finish));
            if index + 1 == completions.len() {
                chunk["timings"] = timings.to_json();
            }
            if let Some(native) = &self.answer.native {
                chunk["__verbose"] = native.last(tokenizer, 0, index, completions, false);
            }
            events.push_back(chunk);
        }
        if self.answer.includes_usage {
            let mut chunk = self.answer.object("chat.completion.chunk", json!([]));
            chunk["usage"] = timings.usage();
            chunk["timings"] = timings.to_json();
            events.push_back(chunk);
        }
    }
}
