//! A language model in a loop of its own.

#[cfg(not(target_arch = "wasm32"))]
mod slot_files;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stonechat_llm::chat::{AnswerOptions, AnswerParser, ChatEvent, Tool};
use stonechat_llm::{
    ChatFormat, Completion, Config, Embedding, GenerateOptions, ModelInfo, ModelSummary, PageStore,
    Pooling, Request, RequestEvent, Scheduler, SchedulerOptions, SessionOptions, SlotInfo,
    StateOptions, StepReport, Task,
};
use stonechat_nn::{KvDType, PAGE_LEN};
use stonechat_text::MarkedText;

use crate::chat::{ChatAnswer, PreparedChat, ReasoningOptions};
use crate::device::DeviceNeeds;
use crate::drafts::DraftModel;
use crate::engine::{CommonOptions, Engine, EngineStart, Load, ModelSource, open_models};
use crate::job::JobSender;
use crate::llm_loop::{self, Call};
use crate::llm_output::{ChatOutput, JobOutput, embeddings, events, pieces};
use crate::{ChatRequest, DraftSource, Error, GpuLayers, Job};

/// A running answer or completion: a stream of pieces of text, with the [`Completion`] at its end.
pub type TextJob = Job<String, Completion>;

/// A language model. Clones share it; requests share steps, and the cached prefixes of earlier ones. Requests beyond
/// [`LlmBuilder::parallel`] wait in the order in which they are made. Dropping the last clone, jobs included, waits for the
/// running step, but not in a browser.
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
    /// Chat template.
    pub chat_format: Arc<ChatFormat>,
    /// Context size in tokens.
    pub n_ctx: usize,
    /// Tokens that the KV cache holds.
    pub kv_tokens: usize,
    /// Slots: maximum requests in a batch.
    pub n_parallel: usize,
}

/// Builder of an [`Llm`].
pub struct LlmBuilder {
    common: CommonOptions,
    gpu_layers: Option<GpuLayers>,
    /// Context, batch, KV type and number of sequences.
    sizes: SessionOptions,
    kv_tokens: Option<usize>,
    max_gap: Duration,
    drafts: Option<DraftSource>,
    stores: Vec<Box<dyn PageStore>>,
    chat_template: Option<String>,
    on_step: Option<OnStep>,
}

impl fmt::Debug for LlmBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmBuilder")
            .field("common", &self.common)
            .field("gpu_layers", &self.gpu_layers)
            .field("sizes", &self.sizes)
            .field("kv_tokens", &self.kv_tokens)
            .finish_non_exhaustive()
    }
}

/// Callback for the counts of each step.
type OnStep = Box<dyn FnMut(&StepReport) + Send>;

/// Default number of slots.
const N_PARALLEL: usize = 16;
/// Least rows of logits of a step: prompts whose tokens' probabilities are asked for run in chunks of as many, in which
/// quantized weights are multiplied as in decoding.
const PROMPT_ROWS: usize = 16;
/// Default time that a prompt may delay a token of other texts.
const MAX_GAP: Duration = Duration::from_millis(140);

impl Default for LlmBuilder {
    fn default() -> Self {
        Self {
            common: CommonOptions::default(),
            gpu_layers: None,
            sizes: SessionOptions { n_sequences: N_PARALLEL, ..SessionOptions::default() },
            kv_tokens: None,
            max_gap: MAX_GAP,
            drafts: None,
            stores: Vec::new(),
            chat_template: None,
            on_step: None,
        }
    }
}

impl Llm {
    /// Starts a builder.
    #[must_use]
    pub fn builder() -> LlmBuilder {
        LlmBuilder::default()
    }

    /// Answers the last message of a conversation with its content; [`chat_events`](Self::chat_events) has the reasoning and
    /// the tool calls, too. The tokens that the conversation shares with an earlier one are not run again.
    pub fn chat(&self, chat: impl Into<ChatRequest>) -> TextJob {
        self.answer(chat.into(), ChatOutput::content)
    }

    /// Continues a text, without a chat template. A grammar is compiled by [`LlmInfo::model`]. Guidance needs
    /// [`kv_tokens`](LlmBuilder::kv_tokens) for two contexts.
    pub fn complete(&self, prompt: impl Into<String>, options: GenerateOptions) -> TextJob {
        let prompt = self.info.model.tokenize_prompt(&prompt.into());
        self.text(Ok(Request::new(prompt, options)))
    }

    /// Answers the last message of a conversation in parts: reasoning, content, tool calls. The output is the whole answer.
    ///
    /// ```no_run
    /// use stonechat::llm::chat::ChatEvent;
    ///
    /// let llm = stonechat::Llm::open("qwen3:0.6b")?;
    /// let mut answer = llm.chat_events("Why is the sky blue?");
    /// for event in answer.items() {
    ///     if let ChatEvent::Content(text) = event? {
    ///         print!("{text}");
    ///     }
    /// }
    /// # Ok::<(), stonechat::Error>(())
    /// ```
    pub fn chat_events(&self, chat: impl Into<ChatRequest>) -> Job<ChatEvent, ChatAnswer> {
        self.answer(chat.into(), ChatOutput::events)
    }

    /// Runs a chat with the output that `output` makes for its parser.
    fn answer<I: Send + 'static, O: Send + 'static>(
        &self,
        chat: ChatRequest,
        output: impl FnOnce(JobSender<I, O>, AnswerParser) -> ChatOutput<I, O>,
    ) -> Job<I, O> {
        let prepared = self.prepare_chat(chat).and_then(|PreparedChat { request, parser }| {
            Ok((request.prepare(&self.info.model)?, parser))
        });
        match prepared {
            Ok((task, parser)) => {
                self.run(Ok(vec![task]), |sender, _| Box::new(output(sender, parser)))
            }
            Err(error) => Job::failed(self.engine.clone(), error),
        }
    }

    /// Request for the answer of a chat, and its parser: the prompt by the chat template, the grammar compiled.
    ///
    /// # Errors
    /// If the template refuses the conversation, or a grammar or the schema of a tool is invalid.
    pub fn prepare_chat(&self, chat: ChatRequest) -> Result<PreparedChat, Error> {
        self.info.prepare_chat(chat)
    }

    /// Runs a request for one text.
    fn text(&self, request: Result<Request, Error>) -> TextJob {
        let task = request.and_then(|request| Ok(request.prepare(&self.info.model)?));
        self.run(task.map(|task| vec![task]), |sender, _| Box::new(pieces(sender)))
    }

    /// Continues the tokens of a prompt. The items are the events of each step, the output is the texts.
    pub fn generate(&self, request: Request) -> Job<RequestEvent, Vec<Completion>> {
        let n_choices = request.n_choices;
        let tasks = request.prepare(&self.info.model).map(|task| vec![task]);
        self.run(tasks.map_err(Error::from), |sender, _| Box::new(events(sender, n_choices)))
    }

    /// Embeds token sequences beside the texts of other requests: one vector `[D]` a sequence, without pooling `[T, D]`.
    /// The vectors are not normalized; see [`normalize`](crate::llm::normalize).
    pub fn embed(&self, texts: Vec<Vec<u32>>, pooling: Pooling) -> Job<(), Vec<Vec<f32>>> {
        let task = |tokens| Ok(Task::from(Embedding::new(tokens, pooling)?));
        let tasks = texts.into_iter().map(task).collect::<Result<Vec<_>, Error>>();
        self.run(tasks, |sender, n_texts| Box::new(embeddings(sender, n_texts)))
    }

    /// Queues the tasks of a job with the output that `output` makes for their number.
    fn run<I, O>(
        &self,
        tasks: Result<Vec<Task>, Error>,
        output: impl FnOnce(JobSender<I, O>, usize) -> Box<dyn JobOutput>,
    ) -> Job<I, O> {
        match tasks {
            Ok(tasks) => self.engine.submit(|sender| {
                let output = output(sender, tasks.len());
                Box::new(move |jobs, scheduler| jobs.start(scheduler, tasks, output))
            }),
            Err(error) => Job::failed(self.engine.clone(), error),
        }
    }

    /// State of the slots: sequences that requests run in.
    pub fn slots(&self) -> Job<(), Vec<SlotInfo>> {
        self.control(|scheduler| Ok(scheduler.slots()))
    }

    /// Removes the last text of a slot from the prefix cache; the output is its length.
    pub fn erase_slot(&self, slot: usize) -> Job<(), usize> {
        self.control(move |scheduler| scheduler.erase_slot(slot))
    }

    /// Runs `control` between two steps.
    fn control<R: Send + 'static>(
        &self,
        control: impl FnOnce(&mut Scheduler) -> Result<R, stonechat_llm::Error> + Send + 'static,
    ) -> Job<(), R> {
        self.engine.submit(|sender| {
            Box::new(move |_, scheduler| sender.end(control(scheduler).map_err(Error::from)))
        })
    }

    /// Properties of the model.
    #[must_use]
    pub fn info(&self) -> &LlmInfo {
        &self.info
    }
}

impl LlmInfo {
    /// Prompt of a chat by its template.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn chat_prompt(&self, chat: &ChatRequest) -> Result<MarkedText, Error> {
        let mut conversation = chat.conversation.clone();
        let ReasoningOptions { enabled, effort, .. } = &chat.reasoning;
        let variables = &mut conversation.variables;
        if let Some(enabled) = enabled {
            variables.entry("enable_thinking").or_insert((*enabled).into());
        }
        if let Some(effort) = effort {
            variables.entry("reasoning_effort").or_insert(effort.as_str().into());
        }
        Ok(self.chat_format.prompt(conversation)?)
    }

    /// [`Llm::prepare_chat`].
    fn prepare_chat(&self, chat: ChatRequest) -> Result<PreparedChat, Error> {
        let prompt = self.chat_prompt(&chat)?;
        let Self { model, chat_format, .. } = self;
        let ChatRequest { mut options, grammar, .. } = chat;
        if grammar.is_some() {
            options.grammar = None;
        }
        let tools = chat.conversation.tools.as_ref().map(Tool::of_definitions).unwrap_or_default();
        let format = chat_format.answer_format(
            model,
            &prompt,
            &AnswerOptions {
                tools: &tools,
                choice: &chat.tool_choice,
                parallel: chat.parallel_tool_calls,
                splits_reasoning: chat.reasoning.is_split,
                content: grammar.as_ref(),
            },
        )?;
        let parser = format.apply(model, &mut options, chat.reasoning.budget)?;
        options.stop.extend(chat_format.stop().map(str::to_owned));
        let request = Request::new(model.tokenize_marked_chat(&prompt), options);
        Ok(PreparedChat { request, parser })
    }
}

impl LlmBuilder {
    /// Sets the layers on a GPU, with [`Device::Auto`](crate::Device::Auto) the best one of any kind, or all layers on the CPU
    /// if there is none; default: all on a GPU that is named, else as many as fit.
    #[must_use]
    pub fn gpu_layers(mut self, layers: GpuLayers) -> Self {
        self.gpu_layers = Some(layers);
        self
    }

    /// Sets the context size in tokens; default: that of training, at most 16,384.
    #[must_use]
    pub fn n_ctx(mut self, n: usize) -> Self {
        self.sizes.n_ctx = Some(n);
        self
    }

    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, dtype: KvDType) -> Self {
        self.sizes.kv_dtype = dtype;
        self
    }

    /// Sets the number of slots, the maximum requests in a batch; default 16.
    #[must_use]
    pub fn parallel(mut self, n: usize) -> Self {
        self.sizes.n_sequences = n;
        self
    }

    /// Sets the maximum tokens of a step; default 512.
    #[must_use]
    pub fn n_batch(mut self, n: usize) -> Self {
        self.sizes.n_batch = n;
        self
    }

    /// Sets the tokens that the KV cache holds, for all requests and the prefixes of earlier ones; default: the context size.
    #[must_use]
    pub fn kv_tokens(mut self, n: usize) -> Self {
        self.kv_tokens = Some(n);
        self
    }

    /// Sets the time by which prompts may delay the tokens of other texts; default 140 ms. Prompts are cut into chunks of at
    /// least 128 tokens, 64 from the 2,049th token on.
    #[must_use]
    pub fn max_gap(mut self, gap: Duration) -> Self {
        self.max_gap = gap;
        self
    }

    /// Sets the source of drafts for speculative decoding. The texts are the same as without it.
    #[must_use]
    pub fn drafts(mut self, drafts: DraftSource) -> Self {
        self.drafts = Some(drafts);
        self
    }

    /// Adds a store for KV pages that the prefix cache drops; the fastest one comes first.
    #[must_use]
    pub fn page_store(mut self, store: Box<dyn PageStore>) -> Self {
        self.stores.push(store);
        self
    }

    /// Sets a callback that gets the counts of each step, and those of the model without requests, on its thread.
    #[must_use]
    pub fn on_step(mut self, on_step: impl FnMut(&StepReport) + Send + 'static) -> Self {
        self.on_step = Some(Box::new(on_step));
        self
    }

    /// Replaces the chat template of the model: Jinja, or the name of a built-in one such as `chatml`.
    #[must_use]
    pub fn chat_template(mut self, template: impl Into<String>) -> Self {
        self.chat_template = Some(template.into());
        self
    }

    async fn start(self, model: ModelSource) -> Result<Llm, Error> {
        let (engine, info) = Engine::start(self, model).await?;
        Ok(Llm { engine: Arc::new(engine), info: Arc::new(info) })
    }
}

open_models!(LlmBuilder, Llm);

impl Load for LlmBuilder {
    type Message = Call;
    type Info = LlmInfo;

    const THREAD: &'static str = "stonechat-llm";

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn needs(&self, weight_bytes: u64) -> DeviceNeeds {
        DeviceNeeds::layers(weight_bytes, self.gpu_layers)
    }

    async fn run(mut self, mut start: EngineStart<'_, Self>) -> Result<(), Error> {
        let (file, device) = (&start.file, &mut start.device);
        let config = Config::from_file(file)?;
        let state = self.state(&config);
        let layers = self.gpu_layers.unwrap_or(GpuLayers::default_on(self.common.device));
        let draft = self.drafts.as_ref().and_then(DraftSource::model);
        let draft =
            draft.map(|draft| DraftModel::open(draft, state, device, layers)).transpose()?;
        let beside = draft.as_ref().map_or(0, |draft| draft.gpu_bytes);
        let n_gpu = device.n_gpu_layers(layers, file, &config, &state, beside)?;
        let model = self.common.with_progress(|common, on_progress| {
            device.load_language_model(file, n_gpu, || common.open_cpu(), on_progress)
        })?;
        let chat_format = ChatFormat::new(&model, self.chat_template.as_deref())?;
        let drafter = match draft {
            Some(draft) => Some(draft.load(&model, device, &self.common)?),
            None => self.drafts.as_ref().and_then(DraftSource::n_grams),
        };
        let options =
            SchedulerOptions { state, max_gap: self.max_gap, drafter, stores: self.stores };
        let scheduler = Scheduler::new(&model, options)?;
        device.check_allocations().await?;
        let info = LlmInfo {
            model: model.info().clone(),
            summary: model.summary().clone(),
            device: model.describe(),
            chat_format: Arc::new(chat_format),
            n_ctx: state.n_ctx,
            kv_tokens: scheduler.n_pages() * PAGE_LEN,
            n_parallel: state.n_sequences,
        };
        let on_step = self.on_step.unwrap_or_else(|| Box::new(|_| {}));
        let on_panic = self.common.on_panic;
        llm_loop::run(scheduler, &model, start.open(info), on_step, on_panic).await
    }
}

impl LlmBuilder {
    /// Sizes of the state.
    fn state(&self, config: &Config) -> StateOptions {
        let n_draft = self.drafts.as_ref().map_or(0, |drafts| drafts.length().max);
        let state = SessionOptions { n_draft, ..self.sizes }.state(config);
        let kv_tokens = self.kv_tokens.unwrap_or(state.n_ctx);
        StateOptions {
            n_pages: Some(kv_tokens.div_ceil(PAGE_LEN)),
            n_outputs: (state.n_sequences + n_draft).max(PROMPT_ROWS.min(state.n_batch)),
            n_hidden: state.n_batch,
            ..state
        }
    }
}
