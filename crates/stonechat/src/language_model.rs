//! A language model on a thread of its own.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use stonechat_formats::ModelFile;
use stonechat_llm::{
    ChatFormat, Completion, Config, Event, GenerateOptions, ModelInfo, ModelSummary, Session,
    SessionOptions,
};
use stonechat_nn::sample::GrammarSource;
use stonechat_nn::{Cpu, KvDType};

use crate::engine::{Engine, EngineOptions, Load, ModelSource, Server};
use crate::job::JobSender;
use crate::{Chat, Device, Error, GpuLayers, Job};

/// A running answer or completion: a stream of pieces of text, with the [`Completion`] at its end.
pub type Generation = Job<String, Completion>;

/// A language model. Clones share it; requests run one after the other, in the order in which they are made. Dropping
/// the last clone, jobs included, waits for the running step.
///
/// ```no_run
/// let llm = stonechat::Llm::open("qwen3:0.6b")?;
/// println!("{}", llm.chat("Why is the sky blue?").wait()?.text);
/// # Ok::<(), stonechat::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Llm {
    engine: Arc<Engine<LlmBuilder>>,
    info: Arc<LlmInfo>,
}

/// Properties of an open language model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LlmInfo {
    /// Configuration and tokenizer; compiles grammars.
    pub model: Arc<ModelInfo>,
    /// Name, weight type, counts.
    pub summary: ModelSummary,
    /// Devices and kernels.
    pub device: String,
    /// Context size in tokens.
    pub n_ctx: usize,
}

/// Builder of an [`Llm`].
#[derive(Debug, Default)]
pub struct LlmBuilder {
    engine: EngineOptions,
    gpu_layers: Option<GpuLayers>,
    session: SessionOptions,
    chat_template: Option<String>,
}

impl Llm {
    /// Opens a GGUF file, a Hugging Face folder or an installed model by its name, on [`Device::Auto`].
    ///
    /// # Errors
    /// If there is no such model, it is damaged or of an unknown architecture, or the device is out of memory.
    pub fn open(model: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open(model)
    }

    /// As [`open`](Self::open), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(model: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open_async(model).await
    }

    /// Starts a builder.
    #[must_use]
    pub fn builder() -> LlmBuilder {
        LlmBuilder::default()
    }

    /// Answers the last message of a conversation. The tokens that the conversation shares with the one before are
    /// not run again.
    pub fn chat(&self, chat: impl Into<Chat>) -> Generation {
        let Chat { messages, variables, options, grammar } = chat.into();
        self.engine.submit(Query { input: Input::Messages(messages, variables), options, grammar })
    }

    /// Continues a text, without a chat template. A grammar is compiled by [`LlmInfo::model`]. Guidance needs a [`Session`](crate::llm::Session).
    pub fn complete(&self, prompt: impl Into<String>, options: GenerateOptions) -> Generation {
        let input = Input::Text(prompt.into());
        self.engine.submit(Query { input, options, grammar: None })
    }

    /// Properties of the model.
    #[must_use]
    pub fn info(&self) -> &LlmInfo {
        &self.info
    }
}

impl LlmBuilder {
    /// Sets the device; default [`Device::Auto`].
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.engine.device = device;
        self
    }

    /// Sets the number of CPU threads; default 0 for one per physical core.
    #[must_use]
    pub fn threads(mut self, n: usize) -> Self {
        self.engine.n_threads = n;
        self
    }

    /// Sets the layers on a GPU, the best one of any kind with [`Device::Auto`]; default: all on a GPU that is named, else
    /// as many as fit.
    #[must_use]
    pub fn gpu_layers(mut self, layers: GpuLayers) -> Self {
        self.gpu_layers = Some(layers);
        self
    }

    /// Sets the context size in tokens; default: that of training, at most 16,384.
    #[must_use]
    pub fn n_ctx(mut self, n: usize) -> Self {
        self.session.n_ctx = Some(n);
        self
    }

    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, dtype: KvDType) -> Self {
        self.session.kv_dtype = dtype;
        self
    }

    /// Replaces the chat template of the model: Jinja, or the name of a built-in one such as `chatml`.
    #[must_use]
    pub fn chat_template(mut self, template: impl Into<String>) -> Self {
        self.chat_template = Some(template.into());
        self
    }

    /// Sets a callback that gets the fraction loaded, 0 to 1.
    #[must_use]
    pub fn on_progress(mut self, on_progress: impl FnMut(f32) + Send + 'static) -> Self {
        self.engine.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Opens a model; see [`Llm::open`].
    ///
    /// # Errors
    /// As [`Llm::open`]; also if an option is out of range or the device does not exist.
    pub fn open(self, model: impl AsRef<Path>) -> Result<Llm, Error> {
        pollster::block_on(self.open_async(model))
    }

    /// As [`open`](Self::open), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_async(self, model: impl AsRef<Path>) -> Result<Llm, Error> {
        self.start(ModelSource::Path(model.as_ref().to_owned())).await
    }

    /// Opens the model in `file`, which may be made from a reader ([`ModelFile::from_reader`]).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(self, file: ModelFile) -> Result<Llm, Error> {
        pollster::block_on(self.open_file_async(file))
    }

    /// As [`open_file`](Self::open_file), without blocking.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_file_async(self, file: ModelFile) -> Result<Llm, Error> {
        self.start(ModelSource::File(Box::new(file))).await
    }

    async fn start(self, model: ModelSource) -> Result<Llm, Error> {
        let (engine, info) = Engine::start(self, model).await?;
        Ok(Llm { engine: Arc::new(engine), info: Arc::new(info) })
    }
}

/// Text to continue, with the options of the continuation.
#[derive(Debug)]
pub(crate) struct Query {
    input: Input,
    options: GenerateOptions,
    grammar: Option<GrammarSource>,
}

#[derive(Debug)]
enum Input {
    /// Messages, and variables of the chat template.
    Messages(Vec<Value>, Map<String, Value>),
    Text(String),
}

impl Load for LlmBuilder {
    type Query = Query;
    type Item = String;
    type Output = Completion;
    type Info = LlmInfo;

    const THREAD: &'static str = "stonechat-llm";
    const CAN_SPLIT: bool = true;

    fn engine(&self) -> &EngineOptions {
        &self.engine
    }

    /// Device for the layers that were asked for.
    fn device(&self) -> Result<Device, Error> {
        match (self.engine.device, self.gpu_layers) {
            (device, None) => Ok(device),
            (_, Some(GpuLayers::Last(0))) => Ok(Device::Cpu),
            (Device::Auto, Some(_)) => Ok(Device::Wgpu(None)),
            (Device::Cpu, Some(_)) => {
                let (expected, got) = ("a GPU".to_owned(), "cpu".to_owned());
                Err(stonechat_llm::Error::Option { option: "gpu_layers", expected, got }.into())
            }
            (device, Some(_)) => Ok(device),
        }
    }

    fn run(self, mut server: Server<'_, Self>) -> Result<(), Error> {
        let Self { engine, gpu_layers, session, chat_template } = self;
        let (file, device) = (&server.file, &mut server.device);
        let config = Config::from_file(file)?;
        let layers = gpu_layers.unwrap_or(GpuLayers::default_on(engine.device));
        let n_gpu = device.n_gpu_layers(layers, file, &config, &session.state(&config))?;
        let open_cpu = || Cpu::new(engine.n_threads);
        let model = match engine.on_progress {
            Some(on_progress) => device.load_language_model(file, n_gpu, open_cpu, on_progress)?,
            None => device.load_language_model(file, n_gpu, open_cpu, |_| {})?,
        };
        let format = ChatFormat::new(&model, chat_template.as_deref())?;
        let mut session = Session::new(&model, session)?;
        let (summary, device) = (model.summary().clone(), model.describe());
        let info = LlmInfo { model: model.info().clone(), summary, device, n_ctx: session.n_ctx() };
        server.serve(info, |query, sender| answer(&mut session, &format, query, sender));
        Ok(())
    }
}

fn answer(
    session: &mut Session,
    format: &ChatFormat,
    query: Query,
    sender: &JobSender<String, Completion>,
) -> Result<Completion, Error> {
    let Query { input, mut options, grammar } = query;
    let model = session.model();
    if let Some(source) = &grammar {
        options.grammar = Some(Arc::new(model.compile_grammar(source)?));
    }
    let is_chat = matches!(input, Input::Messages(..));
    let prompt = match input {
        Input::Messages(messages, variables) => {
            options.stop.extend(format.stop().map(str::to_owned));
            format.tokenize(model, &messages, variables)?
        }
        Input::Text(text) => model.tokenize_prompt(&text),
    };
    // Some models begin an answer with a blank.
    let mut is_at_start = is_chat;
    let mut on_event = |event: Event<'_>| {
        if let Event::Text(text) = event {
            let text = if is_at_start { text.trim_start() } else { text };
            if !text.is_empty() {
                is_at_start = false;
                sender.send(text.to_owned());
            }
        }
        let is_cancelled = sender.cancel_token().is_cancelled();
        if is_cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut completion = pollster::block_on(session.generate(&prompt, &options, &mut on_event))?;
    if is_chat {
        completion.text = completion.text.trim_start().to_owned();
    }
    Ok(completion)
}
