//! A language model on a thread of its own.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use stonechat_formats::ModelFile;
use stonechat_llm::{
    ChatFormat, Completion, Config, Devices, Event, GenerateOptions, Model, ModelSummary, Session,
    SessionOptions, Split,
};
use stonechat_nn::{Backend, Cpu, KvDType};

use crate::device::{Kernels, Work};
use crate::engine::{Engine, EngineOptions, Requests, with_file};
use crate::job::JobSender;
use crate::{Chat, Device, DeviceNeeds, Error, GpuLayers, Job};

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
    engine: Arc<Engine<Request>>,
    info: Arc<LlmInfo>,
}

/// Properties of an open language model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LlmInfo {
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
        let Chat { messages, variables, options } = chat.into();
        self.send(Input::Messages(messages, variables), options)
    }

    /// Continues a text, without a chat template. Guidance needs a [`Session`](crate::llm::Session).
    pub fn complete(&self, prompt: impl Into<String>, options: GenerateOptions) -> Generation {
        self.send(Input::Text(prompt.into()), options)
    }

    fn send(&self, input: Input, options: GenerateOptions) -> Generation {
        let (job, sender) = Job::new(self.engine.clone());
        self.engine.send(Request { input, options, sender });
        job
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
        let model = model.as_ref().to_owned();
        let run = move |requests: &mut _| {
            let device = self.device_for_layers()?;
            with_file(&model, |file| {
                let needs = DeviceNeeds { weight_bytes: file.weight_bytes(), can_split: true };
                let n_threads = self.engine.n_threads;
                device.open(n_threads, needs, Loader { builder: self, file, requests })
            })
        };
        let (engine, info) = Engine::start("stonechat-llm", run).await?;
        Ok(Llm { engine: Arc::new(engine), info: Arc::new(info) })
    }

    /// Device for the layers that were asked for.
    fn device_for_layers(&self) -> Result<Device, Error> {
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
}

/// Text to continue.
#[derive(Debug)]
enum Input {
    /// Messages, and variables of the chat template.
    Messages(Vec<Value>, Map<String, Value>),
    Text(String),
}

#[derive(Debug)]
struct Request {
    input: Input,
    options: GenerateOptions,
    sender: JobSender<String, Completion>,
}

/// Loads the model on its devices, then serves requests.
struct Loader<'a> {
    builder: LlmBuilder,
    file: ModelFile,
    requests: &'a mut Requests<LlmInfo, Request>,
}

impl Work for Loader<'_> {
    type Output = ();

    fn run_on_cpu(self, cpu: Cpu) -> Result<(), Error> {
        self.serve(cpu, None)
    }

    fn run_on_gpu<B: Backend>(self, gpu: B, kernels: Kernels) -> Result<(), Error> {
        let LlmBuilder { gpu_layers, session, ref engine, .. } = self.builder;
        let default = if engine.device == Device::Auto { GpuLayers::Auto } else { GpuLayers::All };
        let config = Config::from_file(&self.file)?;
        let layers = gpu_layers.unwrap_or(default);
        let n_gpu = layers.count(&gpu, &self.file, &session.state(&config))?;
        let n_cpu = GpuLayers::total(&config) - n_gpu;
        if n_cpu == 0 {
            return self.serve(gpu, Some(kernels));
        }
        let cpu = Cpu::new(engine.n_threads)?;
        if n_gpu == 0 {
            drop((kernels, gpu));
            return self.serve(cpu, None);
        }
        self.serve(Split::new(cpu, gpu, n_cpu), Some(kernels))
    }
}

impl Loader<'_> {
    fn serve<D: Devices>(self, devices: D, kernels: Option<Kernels>) -> Result<(), Error> {
        let Self { builder, file, requests } = self;
        let LlmBuilder { session, chat_template, engine, .. } = builder;
        let mut on_progress = engine.on_progress.unwrap_or_else(|| Box::new(|_| {}));
        let model = Model::load(devices, &file, &mut on_progress)?;
        // The mapped pages count as memory of this process; the callback may hold a channel open.
        drop((file, on_progress));
        let format = ChatFormat::new(&model, chat_template.as_deref())?;
        let mut session = Session::new(&model, session)?;
        let (summary, device) = (model.summary().clone(), model.describe());
        requests.opened(LlmInfo { summary, device, n_ctx: session.n_ctx() });
        if let Some(kernels) = &kernels {
            kernels.save();
        }
        while let Some(Request { input, options, sender }) = requests.next() {
            if sender.is_abandoned() {
                continue;
            }
            let result = answer(&mut session, &format, input, options, &sender);
            sender.end(result);
        }
        Ok(())
    }
}

fn answer<D: Devices>(
    session: &mut Session<'_, D>,
    format: &ChatFormat,
    input: Input,
    mut options: GenerateOptions,
    sender: &JobSender<String, Completion>,
) -> Result<Completion, Error> {
    let model = session.model();
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
