//! `/v1/completions`: OpenAI's text completions.

use std::collections::VecDeque;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::llm::TokenProbs;
use stonechat::{Llm, RequestEvent};

use super::chat::{AnswerHead, finish_reason};
use super::completion::NativeAnswer;
use crate::generation::{
    Body, ProbFields, StreamedAnswer, TextRun, Usage, completion_logprobs, prompts, respond,
};
use crate::limits::{MAX_TEXTS, check_items, check_texts};
use crate::otlp::RequestTrace;
use crate::{ApiError, ApiResult, AppState, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/completions", post(completions))
}

/// Fields of a completion beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct CompletionFields {
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
struct CompletionAnswer {
    head: AnswerHead,
    /// Texts of the prompts, if they are repeated.
    echoes: Vec<String>,
    n_choices: usize,
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<NativeAnswer>,
    includes_usage: bool,
    /// Characters of each text of the prompt that were sent; `None` before the first.
    lengths: Vec<Option<usize>>,
    /// Counts of the prompts that have ended.
    usage: Usage,
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
    Body { own, fields }: Body<CompletionFields>,
) -> ApiResult<Response> {
    if own.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "none: `/infill` has one", "a text"));
    }
    check_items("prompt", &own.prompt, MAX_TEXTS)?;
    let model = state.open::<Llm>(fields.model.as_deref(), fields.deadline).await?;
    let prompts = prompts(&own.prompt, &model.info().model)?;
    let n_choices = fields.n_choices();
    check_texts(prompts.len(), n_choices)?;
    let n_probs = fields.completion_probs()?;
    let options = fields.options(state.options(), &model, n_probs.map_or(0, |n| n.max(1)))?;
    if own.echo == Some(true) && n_probs.is_some() {
        // Logits of prompts are not computed.
        let expected = "none beside `echo`: tokens of the prompt have no log-probabilities";
        return Err(ApiError::field("logprobs", expected, "both"));
    }
    let echo = |tokens: &Vec<u32>| model.info().model.tokenizer().decode(tokens);
    let echoes =
        if own.echo == Some(true) { prompts.iter().map(echo).collect() } else { Vec::new() };
    let is_verbose = fields.verbose == Some(true);
    let answer = CompletionAnswer {
        head: AnswerHead::new("cmpl-", &model, &fields),
        echoes,
        n_choices,
        probs: n_probs.map(|n| fields.prob_fields(n)),
        native: is_verbose.then(|| NativeAnswer::new(&fields, &model, &prompts, &options)),
        includes_usage: fields.includes_usage(),
        lengths: vec![None; n_choices],
        usage: Usage::default(),
    };
    drop(model);
    let runs = TextRun::start_all(&state, &trace, &fields, prompts, &options).await?;
    if !fields.is_stream() {
        return Ok(Json(answer.whole(runs).await?).into_response());
    }
    respond(runs, answer, fields.ping(state.options())).await
}

impl CompletionAnswer {
    fn object(&self, choices: Value) -> Value {
        self.head.object("text_completion", choices)
    }

    fn echo(&self, prompt: usize) -> &str {
        self.echoes.get(prompt).map_or("", String::as_str)
    }

    fn logprobs(&self, run: &TextRun, probs: &[TokenProbs], offset: usize) -> Option<Value> {
        self.probs.map(|fields| completion_logprobs(run.tokenizer(), probs, fields, offset))
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
    fn verbose(&self, run: &TextRun, text: (usize, usize), is_whole: bool) -> Option<Value> {
        Some(self.native.as_ref()?.last(run.tokenizer(), text, run.completions(), is_whole))
    }

    /// `text_completion` of all prompts.
    async fn whole(&self, runs: VecDeque<TextRun>) -> ApiResult<Value> {
        let (mut choices, mut usage) = (Vec::new(), Usage::default());
        let mut verbose = None;
        for (prompt, mut run) in runs.into_iter().enumerate() {
            let echo = self.echo(prompt);
            run.finish().await?;
            for (choice, completion) in run.completions().iter().enumerate() {
                let logprobs = self.logprobs(&run, &completion.probs, echo.chars().count());
                choices.push(json!({
                    "index": prompt * self.n_choices + choice,
                    "text": format!("{echo}{}", completion.text),
                    "finish_reason": finish_reason(completion.finish),
                    "logprobs": logprobs,
                }));
            }
            usage = usage.sum(Usage::of(run.completions()));
            if prompt == 0 {
                verbose = self.verbose(&run, (prompt, 0), true);
            }
        }
        let mut object = self.object(choices.into());
        if let Some(verbose) = verbose {
            object["__verbose"] = verbose;
        }
        usage.write(&mut object);
        Ok(object)
    }
}

impl StreamedAnswer for CompletionAnswer {
    const ENDS_WITH_DONE: bool = true;

    fn take(
        &mut self,
        run: &TextRun,
        prompt: usize,
        event: RequestEvent,
        chunks: &mut VecDeque<Value>,
    ) {
        let RequestEvent::Text { choice, tokens, text } = event else { return };
        let echo = self.echo(prompt);
        let (text, offset) = match self.lengths[choice] {
            Some(length) => (text, length),
            None => (format!("{echo}{text}"), echo.chars().count()),
        };
        if text.is_empty() && (self.probs.is_none() || tokens.is_empty()) {
            return;
        }
        let before = self.lengths[choice].unwrap_or(0);
        self.lengths[choice] = Some(before + text.chars().count());
        let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
        let logprobs = self.logprobs(run, &probs, offset);
        chunks.push_back(self.chunk((prompt, choice), &text, logprobs, None));
    }

    fn end(&mut self, run: &TextRun, prompt: usize, chunks: &mut VecDeque<Value>) {
        self.usage = self.usage.sum(Usage::of(run.completions()));
        for (choice, completion) in run.completions().iter().enumerate() {
            // A text without a token repeats the prompt here.
            let echo = if self.lengths[choice].is_none() { self.echo(prompt) } else { "" };
            let finish = Some(finish_reason(completion.finish));
            let mut chunk = self.chunk((prompt, choice), echo, None, finish);
            if let Some(verbose) = self.verbose(run, (prompt, choice), false) {
                chunk["__verbose"] = verbose;
            }
            chunks.push_back(chunk);
        }
        self.lengths.fill(None);
    }

    fn finish(&mut self, chunks: &mut VecDeque<Value>) {
        if self.includes_usage {
            let mut chunk = self.object(json!([]));
            self.usage.write(&mut chunk);
            chunks.push_back(chunk);
        }
    }
}
