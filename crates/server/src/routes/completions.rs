//! `/v1/completions`: OpenAI's text completions.

use std::collections::VecDeque;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::Completion;
use stonechat::llm::TokenProbs;

use super::chat::{finish_reason, unix_time};
use super::completion;
use crate::generation::{
    Parsed, ProbFields, Step, StreamedAnswer, TextRun, Timings, completion_logprobs, prompts,
    respond,
};
use crate::limits::{MAX_TEXTS, check_items, check_texts};
use crate::otlp::RequestTrace;
use crate::{ApiError, ApiResult, AppState, Json, new_id};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/completions", post(completions))
}

/// Fields of a completion beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct CompletionFields {
    /// A text, a list of texts, token ids, or lists of them.
    #[cfg_attr(test, schema(value_type = Object))]
    prompt: Value,
    /// Whether the text begins with the prompt.
    #[serde(default)]
    echo: Option<bool>,
    /// Text after the completion: only `/infill` has it.
    #[serde(default)]
    suffix: Option<String>,
}

/// Body of a completion, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct CompletionRequest {
    #[serde(flatten)]
    own: CompletionFields,
    #[serde(flatten)]
    generation: crate::generation::GenerationFields,
}

/// Common fields of the objects of an answer.
struct Answer {
    id: String,
    created: u64,
    model: String,
    /// Texts of the prompts, if they are repeated.
    echoes: Vec<String>,
    n_choices: usize,
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<completion::Answer>,
    includes_usage: bool,
}

/// Completes prompts
#[cfg_attr(test, utoipa::path(post, path = "/v1/completions", tag = "text", request_body = CompletionRequest, responses(
    (status = 200, body = Object, description = "`text_completion`, or a stream of them"),
    (status = 400, description = "A field is invalid, or a prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn completions(
    State(state): State<AppState>,
    trace: RequestTrace,
    Json(body): Json<Value>,
) -> ApiResult<Response> {
    let Parsed { own, fields } = Parsed::<CompletionFields>::from_body(body, state.options())?;
    if own.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "none: `/infill` has one", "a text"));
    }
    check_items("prompt", &own.prompt, MAX_TEXTS)?;
    let model = state.language_by(fields.model.as_deref(), fields.deadline).await?;
    let prompts = prompts(&own.prompt, &model.llm.info().model)?;
    check_texts(prompts.len(), fields.n_choices()?)?;
    let n_probs = fields.completion_probs()?;
    let options = fields.options(state.options(), &model, n_probs.map_or(0, |n| n.max(1)))?;
    if own.echo == Some(true) && n_probs.is_some() {
        // Logits of prompts are not computed.
        let expected = "none beside `echo`: tokens of the prompt have no log-probabilities";
        return Err(ApiError::field("logprobs", expected, "both"));
    }
    let echo = |tokens: &Vec<u32>| model.llm.info().model.tokenizer().decode(tokens);
    let echoes =
        if own.echo == Some(true) { prompts.iter().map(echo).collect() } else { Vec::new() };
    let native = fields.verbose == Some(true);
    let native = native.then(|| completion::Answer::new(&fields, &model, &prompts, &options));
    let answer = Answer {
        id: new_id("cmpl-"),
        created: unix_time(),
        model: model.name_for(fields.model.as_deref()),
        echoes,
        n_choices: fields.n_choices()?,
        probs: n_probs.map(|n| fields.prob_fields(n)),
        native: native.transpose()?,
        includes_usage: fields.includes_usage(),
    };
    drop(model);
    let mut runs = VecDeque::new();
    for prompt in prompts {
        let model = state.language_by(fields.model.as_deref(), fields.deadline).await?;
        let request = fields.request(prompt, options.clone())?;
        runs.push_back(TextRun::start(&state, model, request, trace.clone()));
    }
    if !fields.is_stream() {
        return Ok(Json(answer.whole(runs).await?).into_response());
    }
    let (lengths, timings) = (vec![None; answer.n_choices], Timings::default());
    let stream = CompletionStream { lengths, answer, timings };
    respond(runs, stream, fields.ping(state.options())?).await
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
        self.probs.map(|fields| completion_logprobs(tokenizer, probs, fields, offset))
    }

    /// Chunk of a choice of a prompt.
    fn chunk(
        &self,
        (prompt, choice): (usize, usize),
        text: &str,
        logprobs: Option<Value>,
        finish: Option<&str>,
    ) -> Value {
        self.object(json!([{
            "index": prompt * self.n_choices + choice,
            "text": text,
            "finish_reason": finish,
            "logprobs": logprobs,
        }]))
    }

    /// Answer of `/completion`, if it was asked for.
    fn verbose(
        &self,
        run: &TextRun,
        (prompt, choice): (usize, usize),
        completions: &[Completion],
        is_whole: bool,
    ) -> Option<Value> {
        let tokenizer = run.model().llm.info().model.tokenizer();
        let native = self.native.as_ref()?;
        Some(native.last(tokenizer, prompt, choice, completions, is_whole))
    }

    async fn whole(&self, runs: VecDeque<TextRun>) -> ApiResult<Value> {
        let (mut choices, mut timings) = (Vec::new(), Timings::default());
        let mut verbose = None;
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
            if prompt == 0 {
                verbose = self.verbose(&run, (prompt, 0), &completions, true);
            }
        }
        let mut object = self.object(choices.into());
        if let Some(verbose) = verbose {
            object["__verbose"] = verbose;
        }
        object["usage"] = timings.usage();
        object["timings"] = timings.to_json();
        Ok(object)
    }
}

/// Chunks of a streamed answer.
struct CompletionStream {
    answer: Answer,
    /// Characters sent of each text of the prompt; `None` before the first.
    lengths: Vec<Option<usize>>,
    timings: Timings,
}

impl StreamedAnswer for CompletionStream {
    const ENDS_WITH_DONE: bool = true;

    fn take(&mut self, run: &TextRun, prompt: usize, step: Step, events: &mut VecDeque<Value>) {
        let echo = self.answer.echo(prompt);
        match step {
            Step::Text { choice, tokens, text } => {
                let (text, offset) = match self.lengths[choice] {
                    Some(length) => (text, length),
                    None => (format!("{echo}{text}"), echo.chars().count()),
                };
                if text.is_empty() && (self.answer.probs.is_none() || tokens.is_empty()) {
                    return;
                }
                let before = self.lengths[choice].unwrap_or(0);
                self.lengths[choice] = Some(before + text.chars().count());
                let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
                let logprobs = self.answer.logprobs(run, &probs, offset);
                events.push_back(self.answer.chunk((prompt, choice), &text, logprobs, None));
            }
            Step::Ended(completions) => {
                self.timings = self.timings.sum(Timings::of(&completions));
                for (choice, completion) in completions.iter().enumerate() {
                    // A text without a token repeats the prompt here.
                    let echo = if self.lengths[choice].is_none() { echo } else { "" };
                    let finish = Some(finish_reason(completion.finish));
                    let mut chunk = self.answer.chunk((prompt, choice), echo, None, finish);
                    let text = (prompt, choice);
                    if let Some(verbose) = self.answer.verbose(run, text, &completions, false) {
                        chunk["__verbose"] = verbose;
                    }
                    events.push_back(chunk);
                }
                self.lengths.fill(None);
            }
            Step::Started | Step::Prompt => {}
        }
    }

    fn finish(&mut self, events: &mut VecDeque<Value>) {
        if self.answer.includes_usage {
            let mut chunk = self.answer.object(json!([]));
            chunk["usage"] = self.timings.usage();
            chunk["timings"] = self.timings.to_json();
            events.push_back(chunk);
        }
    }
}
