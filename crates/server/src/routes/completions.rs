//! `/v1/completions`: OpenAI's text completions.

use std::collections::VecDeque;

use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::Completion;
use stonechat::llm::TokenProbs;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::chat::{finish_reason, unix_time};
use crate::generation::{
    EventSource, GenerationFields, Parsed, Step, TextRun, Timings, completion_logprobs, prompts,
    respond,
};
use crate::{ApiError, ApiResult, AppState, Json, new_id};

pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(completions))
}

/// Fields of a completion beside those of generation.
#[derive(Debug, Deserialize, ToSchema)]
struct CompletionFields {
    /// A text, a list of texts, token ids, or lists of them.
    #[schema(value_type = Object)]
    prompt: Value,
    /// Whether the text begins with the prompt.
    #[serde(default)]
    echo: Option<bool>,
    /// Text after the completion: only `/infill` has it.
    #[serde(default)]
    suffix: Option<String>,
}

/// Body of a completion, for the document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct CompletionRequest {
    #[serde(flatten)]
    own: CompletionFields,
    #[serde(flatten)]
    generation: GenerationFields,
}

/// Common fields of the objects of an answer.
#[derive(Debug)]
struct Answer {
    id: String,
    created: u64,
    model: String,
    /// Texts of the prompts, if they are repeated.
    echoes: Vec<String>,
    n_choices: usize,
    n_probs: Option<usize>,
    includes_usage: bool,
}

/// Completes prompts
#[utoipa::path(post, path = "/v1/completions", tag = "text", request_body = CompletionRequest, responses(
    (status = 200, body = Object, description = "`text_completion`, or a stream of them"),
    (status = 400, description = "A field is invalid, or a prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
))]
async fn completions(
    State(state): State<AppState>,
    Json(body): Json<Value>,
) -> ApiResult<Response> {
    let Parsed { own, fields } = Parsed::<CompletionFields>::from_body(&body)?;
    if own.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "none: `/infill` has one", "a text"));
    }
    let model = state.language(fields.model.as_deref()).await?;
    let prompts = prompts(&own.prompt, &model.llm.info().model)?;
    let n_probs = fields.completion_probs()?;
    let options = fields.options(state.options(), &model, n_probs.map_or(0, |n| n.max(1)))?;
    let echo = |tokens: &Vec<u32>| model.llm.info().model.tokenizer().decode(tokens);
    let echoes =
        if own.echo == Some(true) { prompts.iter().map(echo).collect() } else { Vec::new() };
    let answer = Answer {
        id: new_id("cmpl-"),
        created: unix_time(),
        model: fields.model.clone().unwrap_or_else(|| model.spec().name.clone()),
        echoes,
        n_choices: fields.n_choices()?,
        n_probs,
        includes_usage: fields.includes_usage(),
    };
    drop(model);
    let mut runs = VecDeque::new();
    for prompt in prompts {
        let model = state.language(fields.model.as_deref()).await?;
        let request = fields.request(prompt, options.clone())?;
        runs.push_back(TextRun::start(&state, model, request, fields.t_max_predict_ms));
    }
    if !fields.is_stream() {
        return Ok(Json(answer.whole(runs).await?).into_response());
    }
    let ping = fields.ping(state.options())?;
    if let Some(run) = runs.front_mut() {
        run.begin(ping).await?;
    }
    let stream = CompletionStream {
        lengths: vec![None; answer.n_choices],
        answer,
        runs,
        index: 0,
        events: VecDeque::new(),
        timings: Timings::default(),
    };
    Ok(respond(stream, ping))
}

impl Answer {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("stonechat-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    fn echo(&self, prompt: usize) -> &str {
        self.echoes.get(prompt).map_or("", String::as_str)
    }

    fn logprobs(&self, run: &TextRun, probs: &[TokenProbs], offset: usize) -> Option<Value> {
        let tokenizer = run.model().llm.info().model.tokenizer();
        self.n_probs.map(|n| completion_logprobs(tokenizer, probs, n, offset))
    }

    async fn whole(&self, runs: VecDeque<TextRun>) -> ApiResult<Value> {
        let (mut choices, mut timings) = (Vec::new(), Timings::default());
        for (prompt, mut run) in runs.into_iter().enumerate() {
            let echo = self.echo(prompt);
            let completions = run.finish().await?;
            for (choice, completion) in completions.iter().enumerate() {
                let logprobs = self.logprobs(&run, &completion.probs, echo.chars().count());
                choices.push(json!({
                    "index": prompt * self.n_choices + choice,
                    "text": format!("{echo}{}", completion.text),
                    "finish_reason": finish_reason(completion.finish),
                    "logprobs": logprobs,
                }));
            }
            timings = timings.sum(Timings::of(&completions));
        }
        let mut object = self.object(choices.into());
        object["usage"] = timings.usage();
        object["timings"] = timings.to_json();
        Ok(object)
    }
}

/// Chunks of a streamed answer. The prompts run side by side; the events of one follow those of the one before.
struct CompletionStream {
    answer: Answer,
    runs: VecDeque<TextRun>,
    /// Index of the first prompt of `runs`.
    index: usize,
    /// Characters sent of each text; `None` before the first.
    lengths: Vec<Option<usize>>,
    events: VecDeque<Value>,
    timings: Timings,
}

impl EventSource for CompletionStream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(match event {
                    Value::Null => Event::default().data("[DONE]"),
                    event => Event::default().data(event.to_string()),
                });
            }
            match self.runs.front_mut()?.next().await {
                Ok(step) => self.take(step),
                Err(error) => {
                    self.runs.clear();
                    self.events.extend([error.to_json(), Value::Null]);
                }
            }
        }
    }
}

impl CompletionStream {
    fn chunk(
        &self,
        choice: usize,
        text: &str,
        logprobs: Option<Value>,
        finish: Option<&str>,
    ) -> Value {
        self.answer.object(json!([{
            "index": self.index * self.answer.n_choices + choice,
            "text": text,
            "finish_reason": finish,
            "logprobs": logprobs,
        }]))
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Text { choice, tokens, text } => {
                let echo = self.answer.echo(self.index);
                let (text, offset) = match self.lengths[choice] {
                    Some(length) => (text, length),
                    None => (format!("{echo}{text}"), echo.chars().count()),
                };
                if text.is_empty() && (self.answer.n_probs.is_none() || tokens.is_empty()) {
                    return;
                }
                let before = self.lengths[choice].unwrap_or(0);
                self.lengths[choice] = Some(before + text.chars().count());
                let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
                let logprobs =
                    self.runs.front().and_then(|run| self.answer.logprobs(run, &probs, offset));
                self.events.push_back(self.chunk(choice, &text, logprobs, None));
            }
            Step::Ended(completions) => self.end(&completions),
            Step::Started { .. } | Step::Prompt { .. } => {}
        }
    }

    /// Chunks after the texts of a prompt, and of all prompts.
    fn end(&mut self, completions: &[Completion]) {
        self.timings = self.timings.sum(Timings::of(completions));
        for (choice, completion) in completions.iter().enumerate() {
            // A text without a token repeats the prompt here.
            let echo =
                if self.lengths[choice].is_none() { self.answer.echo(self.index) } else { "" };
            let chunk = self.chunk(choice, echo, None, Some(finish_reason(completion.finish)));
            self.events.push_back(chunk);
        }
        self.lengths.fill(None);
        self.index += 1;
        self.runs.pop_front();
        if self.runs.is_empty() {
            if self.answer.includes_usage {
                let mut chunk = self.answer.object(json!([]));
                chunk["usage"] = self.timings.usage();
                chunk["timings"] = self.timings.to_json();
                self.events.push_back(chunk);
            }
            self.events.push_back(Value::Null);
        }
    }
}
