//! Calls of tools, their progress and cancellation.

use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stonechat::whisper::{Event, OutputFormat, SubtitleLayout};
use stonechat::{CancelToken, ChatRequest, Llm, ModelKind, Recording, Transcript, Whisper};
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;

use super::files::Files;
use super::tools::{
    self, DEFAULT_TOKENS, Format, GENERATE, GenerateArgs, LIST_MODELS, ListModelsArgs,
    MAX_SCHEMA_BYTES, MAX_TOKENS, TRANSCRIBE, TranscribeArgs,
};
use crate::find_model;

/// Server of the protocol. Models are loaded by the first call that needs them.
#[derive(Debug, Clone)]
pub(super) struct Server {
    models: Arc<Models>,
    files: Arc<Files>,
}

/// Models, once they are loaded, and their names.
#[derive(Debug)]
pub(super) struct Models {
    speech_name: Option<String>,
    language_name: Option<String>,
    speech: OnceCell<Whisper>,
    language: OnceCell<Llm>,
}

/// Installed model of an answer.
#[derive(Debug, Serialize)]
struct ListedModel {
    name: String,
    kind: Option<&'static str>,
    bytes: u64,
}

/// Installed models of an answer.
#[derive(Debug, Serialize)]
struct ListedModels {
    models: Vec<ListedModel>,
}

/// Cancels a job when the call is dropped or cancelled.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Models {
    pub(super) fn new(speech_name: Option<String>, language_name: Option<String>) -> Self {
        let (speech, language) = (OnceCell::new(), OnceCell::new());
        Self { speech_name, language_name, speech, language }
    }

    async fn speech(&self) -> anyhow::Result<&Whisper> {
        let name = self.speech_name.clone();
        let open = move || {
            let models = find_model::models();
            let path = match &name {
                Some(name) => models.find(name)?,
                None => models.find_default()?,
            };
            Ok::<_, anyhow::Error>(Whisper::open(path)?)
        };
        self.speech.get_or_try_init(async || spawn_blocking(open).await?).await
    }

    async fn language(&self) -> anyhow::Result<&Llm> {
        let name = self.language_name.clone().context("no language model: start with --llm")?;
        let open = move || Ok::<_, anyhow::Error>(Llm::open(find_model::models().find(&name)?)?);
        self.language.get_or_try_init(async || spawn_blocking(open).await?).await
    }
}

impl Server {
    pub(super) fn new(models: Models, files: Files) -> Self {
        Self { models: Arc::new(models), files: Arc::new(files) }
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> anyhow::Result<String> {
        let arguments = request.arguments.unwrap_or_default();
        match request.name.as_ref() {
            TRANSCRIBE => self.transcribe(parse(arguments)?, context).await,
            LIST_MODELS => {
                let ListModelsArgs {} = parse(arguments)?;
                spawn_blocking(list_models).await?
            }
            GENERATE => self.generate(parse(arguments)?).await,
            other => bail!("no tool `{other}`"),
        }
    }

    async fn transcribe(
        &self,
        args: TranscribeArgs,
        context: &RequestContext<RoleServer>,
    ) -> anyhow::Result<String> {
        let TranscribeArgs { path, language, format, word_timestamps } = args;
        let (files, given) = (Arc::clone(&self.files), path.clone());
        let found = spawn_blocking(move || files.resolve(&given)).await??;
        let whisper = self.models.speech().await?;
        let mut recording = Recording::file(found).max_bytes(self.files.max_bytes);
        if let Some(language) = language {
            recording = recording.language(language);
        }
        if word_timestamps {
            recording = recording.word_timestamps();
        }
        let (position, mut positions) = watch::channel((0, 0));
        let mut job = whisper.transcribe_with(recording, move |event| {
            if let Event::Position(done, total) = event {
                position.send_replace((done, total));
            }
        });
        let _cancel = CancelOnDrop(job.cancel_token());
        let token = context.meta.get_progress_token();
        let (mut last, mut has_positions) = (0, true);
        let transcript = loop {
            tokio::select! {
                transcript = &mut job => break transcript?,
                changed = positions.changed(), if has_positions => {
                    has_positions = changed.is_ok();
                    let (done, total) = *positions.borrow_and_update();
                    // Progress must grow.
                    if let Some(token) = token.clone().filter(|_| done > last) {
                        last = done;
                        let progress = ProgressNotificationParam::new(token, seconds(done))
                            .with_total(seconds(total));
                        // A client that is gone ends the service.
                        let _ = context.peer.notify_progress(progress).await;
                    }
                }
            }
        };
        ensure!(!transcript.cancelled, "cancelled");
        text_of(&transcript, format)
    }

    async fn generate(&self, args: GenerateArgs) -> anyhow::Result<String> {
        let GenerateArgs { prompt, system, max_tokens, json_schema } = args;
        let n = max_tokens.unwrap_or(DEFAULT_TOKENS);
        ensure!((1..=MAX_TOKENS).contains(&n), "max_tokens: expected 1 to {MAX_TOKENS}, got {n}");
        let llm = self.models.language().await?;
        let mut chat = ChatRequest::new();
        if let Some(system) = system {
            chat = chat.system(system);
        }
        chat = chat.user(prompt).max_tokens(n);
        if let Some(schema) = json_schema {
            let n = schema.to_string().len();
            let expected = format!("expected at most {MAX_SCHEMA_BYTES} bytes");
            ensure!(n <= MAX_SCHEMA_BYTES, "json_schema: {expected}, got {n}");
            chat = chat.thinking(false).json_schema(&schema);
        }
        let llm = llm.clone();
        let job = spawn_blocking(move || llm.chat(chat)).await?;
        let _cancel = CancelOnDrop(job.cancel_token());
        Ok(job.await?.text)
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("stonechat", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let generates = self.models.language_name.is_some();
        Ok(ListToolsResult::with_all_items(tools::all(generates)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let cancelled = context.ct.clone();
        let result = tokio::select! {
            result = self.call(request, &context) => result,
            () = cancelled.cancelled() => Err(anyhow!("cancelled")),
        };
        let result = match result {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(format!("{error:#}"))]),
        };
        Ok(result.into())
    }
}

/// Arguments of a tool.
fn parse<T: DeserializeOwned>(arguments: Map<String, Value>) -> anyhow::Result<T> {
    serde_json::from_value(Value::Object(arguments)).context("invalid arguments")
}

/// Seconds of 16 kHz samples.
fn seconds(samples: usize) -> f64 {
    samples as f64 / 16_000.0
}

fn text_of(transcript: &Transcript, format: Format) -> anyhow::Result<String> {
    let format = match format {
        Format::Text => return Ok(transcript.text.trim().to_owned()),
        Format::Json => return Ok(serde_json::to_string(transcript)?),
        Format::Srt => OutputFormat::Srt,
        Format::Vtt => OutputFormat::Vtt,
    };
    let mut bytes = Vec::new();
    format.write(&mut bytes, transcript, SubtitleLayout::default())?;
    Ok(String::from_utf8(bytes)?)
}

fn list_models() -> anyhow::Result<String> {
    let installed = find_model::models().installed()?.into_iter();
    let models = installed.map(|model| {
        let details = model.details().ok();
        let kind = details.map(|details| match details.kind {
            ModelKind::Speech => "speech",
            ModelKind::Language => "language",
            _ => "other",
        });
        ListedModel { name: model.name, kind, bytes: model.bytes }
    });
    Ok(serde_json::to_string(&ListedModels { models: models.collect() })?)
}
