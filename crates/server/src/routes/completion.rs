//! `/completion` and `/infill`: llama-server's own routes of generated text.

use std::collections::VecDeque;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stonechat::llm::{GenerateOptions, TokenProbs};
use stonechat::text::Tokenizer;
use stonechat::{Completion, Finish, Llm, RequestEvent};

use super::props::params;
use crate::generation::{
    Body, GenerationFields, ProbFields, StreamedAnswer, TextRun, Usage, native_probabilities,
    prompts, respond,
};
use crate::limits::{MAX_TEXTS, check_items, check_texts};
use crate::otlp::RequestTrace;
use crate::{ApiResult, AppState, Json, LanguageGuard};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/completion", post(completion))
        .route("/completions", post(completion))
        .route("/infill", post(infill))
}

/// Fields of `/completion` beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct PromptFields {
    /// A text, token ids, both in turn, or a list of such prompts.
    #[cfg_attr(test, schema(value_type = Object))]
    prompt: Value,
    /// Fields of the answer to return; a field inside another is `outer/inner`.
    #[serde(default)]
    response_fields: Option<Vec<String>>,
}

/// Fields of `/infill` beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct InfillFields {
    /// Text before the gap.
    input_prefix: String,
    /// Text after the gap.
    input_suffix: String,
    /// Other files, which come before.
    #[serde(default)]
    input_extra: Vec<ExtraFile>,
    /// Start of the text in the gap.
    #[serde(default)]
    prompt: String,
    /// Fields of the answer to return.
    #[serde(default)]
    response_fields: Option<Vec<String>>,
}

/// Another file of an infill.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ExtraFile {
    /// Name.
    #[serde(default)]
    filename: String,
    /// Content.
    text: String,
}

/// Body of `/completion`, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct NativeRequest {
    #[serde(flatten)]
    own: PromptFields,
    #[serde(flatten)]
    generation: GenerationFields,
}

/// Completes prompts, with llama-server's fields
#[cfg_attr(test, utoipa::path(post, path = "/completion", tag = "text", request_body = NativeRequest, responses(
    (status = 200, body = Object, description = "An object, a list of them for several texts, or a stream"),
    (status = 400, description = "A field is invalid, or a prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn completion(
    State(state): State<AppState>,
    trace: RequestTrace,
    Body { own, fields }: Body<PromptFields>,
) -> ApiResult<Response> {
    check_items("prompt", &own.prompt, MAX_TEXTS)?;
    let model = state.open::<Llm>(fields.model.as_deref(), fields.deadline).await?;
    let prompts = prompts(&own.prompt, &model.info().model)?;
    answer(&state, trace, model, prompts, fields, own.response_fields).await
}

/// Fills the gap between two texts
#[cfg_attr(test, utoipa::path(post, path = "/infill", tag = "text", request_body = InfillFields, responses(
    (status = 200, body = Object, description = "As of `/completion`"),
    (status = 501, description = "The vocabulary has no tokens for it"),
)))]
pub(crate) async fn infill(
    State(state): State<AppState>,
    trace: RequestTrace,
    Body { own, fields }: Body<InfillFields>,
) -> ApiResult<Response> {
    let model = state.open::<Llm>(fields.model.as_deref(), fields.deadline).await?;
    let info = &model.info().model;
    let mut prefix = String::new();
    for file in &own.input_extra {
        prefix += &format!("{}\n{}\n", file.filename, file.text);
    }
    prefix += &own.input_prefix;
    let mut prompt = info.infill(&prefix, &own.input_suffix)?;
    prompt.extend(info.tokenizer().tokenize(&own.prompt, false, true));
    answer(&state, trace, model, vec![prompt], fields, own.response_fields).await
}

/// Common fields of the objects of an answer.
pub(super) struct NativeAnswer {
    model: String,
    options: GenerateOptions,
    /// Texts of the prompts.
    prompts: Vec<String>,
    n_choices: usize,
    probs: ProbFields,
    id_slot: i64,
    returns_tokens: bool,
    has_progress: bool,
    has_timings_per_token: bool,
    /// Fields to return; all if there are none.
    selection: Vec<String>,
}

async fn answer(
    state: &AppState,
    trace: RequestTrace,
    model: LanguageGuard,
    prompts: Vec<Vec<u32>>,
    fields: GenerationFields,
    response_fields: Option<Vec<String>>,
) -> ApiResult<Response> {
    check_texts(prompts.len(), fields.n_choices())?;
    let options = fields.options(state.options(), &model, fields.n_probs())?;
    let mut answer = NativeAnswer::new(&fields, &model, &prompts, &options);
    answer.selection = response_fields.unwrap_or_default();
    drop(model);
    let runs = TextRun::start_all(state, &trace, &fields, prompts, &options).await?;
    if fields.is_stream() {
        return respond(runs, answer, fields.ping(state.options())).await;
    }
    let mut answers = Vec::new();
    for (prompt, mut run) in runs.into_iter().enumerate() {
        run.finish().await?;
        let (completions, tokenizer) = (run.completions(), run.tokenizer());
        answers.extend((0..completions.len()).map(|choice| {
            let object = answer.last(tokenizer, (prompt, choice), completions, true);
            answer.selected(object)
        }));
    }
    // One text is an object, several are a list.
    let answer = if answers.len() == 1 { answers.swap_remove(0) } else { answers.into() };
    Ok(Json(answer).into_response())
}

impl NativeAnswer {
    /// Common fields of the answer to a request.
    pub(super) fn new(
        fields: &GenerationFields,
        model: &LanguageGuard,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
    ) -> Self {
        let tokenizer = model.info().model.tokenizer();
        Self {
            model: model.spec().id().to_owned(),
            prompts: prompts.iter().map(|tokens| tokenizer.decode_with_special(tokens)).collect(),
            n_choices: fields.n_choices(),
            probs: fields.prob_fields(options.n_probs),
            id_slot: fields.id_slot.unwrap_or(-1),
            returns_tokens: fields.return_tokens.unwrap_or(false),
            has_progress: fields.return_progress.unwrap_or(false),
            has_timings_per_token: fields.timings_per_token.unwrap_or(false),
            selection: Vec::new(),
            options: options.clone(),
        }
    }

    /// `generation_settings` of an ended text.
    fn settings(&self, tokenizer: &Tokenizer, completion: &Completion) -> Value {
        let Self { options, probs, .. } = self;
        let mut sampling = options.sampling.clone();
        if options.ignore_eos {
            let ends = tokenizer.ends_of_generation();
            sampling.logit_bias.extend(ends.map(|token| (token, f32::NEG_INFINITY)));
        }
        let mut settings = params(&sampling, options.n_predict);
        settings["seed"] = completion.seed.into();
        settings["stop"] = json!(options.stop);
        settings["ignore_eos"] = options.ignore_eos.into();
        settings["n_probs"] = probs.n.into();
        settings["post_sampling_probs"] = probs.is_post_sampling.into();
        settings["timings_per_token"] = self.has_timings_per_token.into();
        settings
    }

    /// The object of an ended text, with or without its content.
    pub(super) fn last(
        &self,
        tokenizer: &Tokenizer,
        (prompt, choice): (usize, usize),
        completions: &[Completion],
        is_whole: bool,
    ) -> Value {
        let completion = &completions[choice];
        let (stop_type, word) = match completion.finish {
            Finish::EndOfText | Finish::GrammarEnd => ("eos", ""),
            Finish::StopString => ("word", completion.stop.as_deref().unwrap_or_default()),
            _ => ("limit", ""),
        };
        let usage = Usage::of(&completions[choice..=choice]);
        let mut settings = self.settings(tokenizer, completion);
        settings["stream"] = (!is_whole).into();
        let mut object = json!({
            "index": prompt * self.n_choices + choice,
            "content": if is_whole { completion.text.as_str() } else { "" },
            "tokens": if is_whole && self.returns_tokens { json!(completion.tokens) } else { json!([]) },
            "id_slot": self.id_slot,
            "stop": true,
            "model": self.model,
            "tokens_predicted": completion.tokens.len(),
            "tokens_evaluated": completion.prompt_tokens,
            "generation_settings": settings,
            "prompt": self.prompts[prompt],
            "has_new_line": completion.text.contains('\n'),
            "truncated": completion.finish == Finish::ContextFull,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_cached": completion.prompt_tokens + completion.tokens.len().saturating_sub(1),
            "timings": usage.timings(),
        });
        if is_whole && self.probs.n > 0 {
            object["completion_probabilities"] =
                native_probabilities(tokenizer, &completion.probs, self.probs);
        }
        object
    }

    /// The fields that the client asked for.
    fn selected(&self, object: Value) -> Value {
        if self.selection.is_empty() {
            return object;
        }
        let mut selected = Map::new();
        for field in &self.selection {
            let found = field.split('/').try_fold(&object, |value, key| value.get(key));
            if let Some(value) = found {
                selected.insert(field.clone(), value.clone());
            }
        }
        selected.into()
    }

    /// Object of a step of the text with this index.
    fn partial(&self, run: &TextRun, index: usize, text: &str, tokens: &[u32]) -> Value {
        let usage = run.usage();
        json!({
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": false,
            "id_slot": self.id_slot,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt_tokens,
        })
    }
}

impl StreamedAnswer for NativeAnswer {
    const ENDS_WITH_DONE: bool = false;

    fn take(
        &mut self,
        run: &TextRun,
        prompt: usize,
        event: RequestEvent,
        objects: &mut VecDeque<Value>,
    ) {
        let first = prompt * self.n_choices;
        match event {
            RequestEvent::Started { .. } | RequestEvent::Prompt { .. } if self.has_progress => {
                let mut object = self.partial(run, first, "", &[]);
                object["prompt_progress"] = run.progress();
                object["timings"] = run.usage().timings();
                objects.push_back(object);
            }
            RequestEvent::Text { choice, tokens, text } => {
                if text.is_empty() && tokens.is_empty() {
                    return;
                }
                let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
                let mut object = self.partial(run, first + choice, &text, &ids);
                if self.probs.n > 0 {
                    let probs: Vec<TokenProbs> =
                        tokens.into_iter().filter_map(|token| token.probs).collect();
                    object["completion_probabilities"] =
                        native_probabilities(run.tokenizer(), &probs, self.probs);
                }
                if self.has_timings_per_token {
                    object["timings"] = run.usage().timings();
                }
                objects.push_back(object);
            }
            _ => {}
        }
    }

    fn end(&mut self, run: &TextRun, prompt: usize, objects: &mut VecDeque<Value>) {
        let (completions, tokenizer) = (run.completions(), run.tokenizer());
        let object = |choice| self.last(tokenizer, (prompt, choice), completions, false);
        objects.extend((0..completions.len()).map(object));
    }
}
