//! Requests to a language model.

use js_sys::Function;
use serde_json::{Value, json};
use stonechat::Llm;
use stonechat::formats::ModelFile;
use stonechat::sampling::SamplingOptions;
use stonechat_api::chat::ChatCompletions;
use stonechat_api::completion::PromptFields;
use stonechat_api::completions::CompletionFields;
use stonechat_api::embeddings::EmbeddingsBody;
use stonechat_api::generation::Run;
use stonechat_api::json::ParseBody;
use stonechat_api::template::PromptBody;
use stonechat_api::text::{Body, Dialect, Frame, Model};
use stonechat_api::tokenize::{DetokenizeBody, TokenizeBody};
use stonechat_api::{ApiError, ApiResult, Defaults, json as body_json};

use crate::job::{Cancel, Events, Job};
use crate::listener::Listener;
use crate::model::{Call, OpenModel, Opening};

/// Maximum tokens of a step: a request is cancelled after the running one.
const N_BATCH: usize = 128;

/// Names of the requests.
const METHODS: &str =
    "chat, completion, native_completion, embeddings, tokenize, detokenize or apply_template";

/// Opens a language model.
///
/// # Errors
/// If the model cannot be loaded.
pub(crate) async fn open(file: ModelFile, opening: Opening) -> ApiResult<Box<dyn OpenModel>> {
    let Opening { device, cpu, kv_dtype, n_ctx, n_parallel, chat_template, on_progress } = opening;
    let mut builder = Llm::builder().device(device).cpu(cpu).kv_dtype(kv_dtype);
    builder = builder.parallel(n_parallel).n_batch(N_BATCH).on_progress(on_progress);
    if let Some(n_ctx) = n_ctx {
        builder = builder.n_ctx(n_ctx);
    }
    if let Some(template) = chat_template {
        builder = builder.chat_template(template);
    }
    Ok(Box::new(builder.open_file_async(file).await?))
}

impl OpenModel for Llm {
    fn device(&self) -> &str {
        &self.info().device
    }

    fn info(&self) -> Value {
        let info = Self::info(self);
        json!({
            "n_ctx": info.n_ctx,
            "n_parallel": info.n_parallel,
            "vocab": info.model.config().vocab_size,
        })
    }

    fn request(&self, name: &str, call: Call, on_event: Function) -> Job {
        let (llm, name) = (self.clone(), name.to_owned());
        Job::start(on_event, move |events, cancel| answer(llm, name, call, events, cancel))
    }

    fn listen(&self, _options: &str, _on_event: Function) -> ApiResult<Listener> {
        Err(ApiError::bad_request("expected a speech model, got a language model"))
    }
}

/// Answers a request by the name of its method.
async fn answer(
    llm: Llm,
    name: String,
    call: Call,
    events: Events,
    cancel: Cancel,
) -> ApiResult<String> {
    let (request, body) =
        (Request { llm: &llm, name: &name, events, cancel }, call.body.as_bytes());
    match call.method.as_str() {
        "chat" => request.text::<ChatCompletions>(body).await,
        "completion" => request.text::<CompletionFields>(body).await,
        "native_completion" => request.text::<PromptFields>(body).await,
        "embeddings" => request.embed(body).await,
        "tokenize" => {
            let body: TokenizeBody = body_json::from_bytes(body)?;
            json_of(&body.answer(&llm.info().model)?)
        }
        "detokenize" => {
            let body: DetokenizeBody = body_json::from_bytes(body)?;
            json_of(&body.answer(&llm.info().model)?)
        }
        "apply_template" => {
            let body: PromptBody = body_json::from_bytes(body)?;
            let sampling = SamplingOptions::default();
            json_of(&body.prompt(llm.info(), &Defaults::new(&sampling))?)
        }
        other => Err(ApiError::field("method", METHODS, format!("`{other}`"))),
    }
}

/// A request to one model.
struct Request<'a> {
    llm: &'a Llm,
    name: &'a str,
    events: Events,
    cancel: Cancel,
}

impl Request<'_> {
    /// Generates the texts of a body, prompt by prompt. A stream sends its objects as events.
    async fn text<T: Dialect>(&self, body: &[u8]) -> ApiResult<String> {
        let sampling = SamplingOptions::default();
        let defaults =
            Defaults { max_choices: self.llm.info().n_parallel, ..Defaults::new(&sampling) };
        let body = Body::<T>::parse(body, &defaults)?;
        let is_stream = body.fields().is_stream();
        let model = Model { llm: self.llm, id: self.name, name: self.name };
        let mut prepared = body.prepare(model, &defaults)?;
        let send = |frames: Vec<Frame>| {
            frames.iter().filter(|_| is_stream).for_each(|frame| self.events.send(&frame.data));
        };
        let mut texts = Vec::with_capacity(prepared.requests.len());
        for request in prepared.requests {
            let mut run = Run::start(self.llm, request);
            self.cancel.add(run.cancel_token());
            while let Some(event) = run.next().await? {
                send(prepared.answer.event(run.stats(), event));
            }
            send(prepared.answer.end(run.stats(), run.completions()));
            texts.push(run.take_completions());
        }
        Ok(prepared.answer.whole(&texts).data)
    }

    /// Embeds the inputs of a body.
    async fn embed(&self, body: &[u8]) -> ApiResult<String> {
        let sampling = SamplingOptions::default();
        let defaults = Defaults::new(&sampling);
        let request = EmbeddingsBody::parse(body, &defaults)?.openai(&defaults)?;
        let prepared = request.prepare(self.llm.info(), self.name, &defaults)?;
        let job = self.llm.embed(prepared.inputs, prepared.pooling);
        self.cancel.add(job.cancel_token());
        Ok(prepared.answer.whole(&job.await?).data)
    }
}

/// JSON of an answer.
fn json_of(answer: &impl serde::Serialize) -> ApiResult<String> {
    serde_json::to_string(answer).map_err(|error| ApiError::server(error.to_string()))
}
