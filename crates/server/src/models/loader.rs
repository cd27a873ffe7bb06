//! Opening engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stonechat::device::{ChosenDevice, DeviceNeeds};
use stonechat::formats::ModelFile;
use stonechat::llm::{
    Config, MemoryStore, ModelDrafter, PageName, PageStore, SessionOptions, StateOptions,
};
use stonechat::nn::{Cpu, PAGE_LEN};
use stonechat::whisper::Options;
use stonechat::{GpuLayers, Llm, ModelKind, Whisper};

use super::ModelSpec;
use super::registry::Loader;
use crate::{EngineOptions, Metrics};

/// An open model of either kind.
#[derive(Debug)]
pub(crate) enum OpenModel {
    Language(Llm),
    Speech(Whisper),
}

/// Model that requests use.
pub(crate) trait Served: Clone {
    /// Kind of the model.
    const KIND: ModelKind;

    /// The model, if it is of this kind.
    fn of(model: &OpenModel) -> Option<&Self>;
}

impl Served for Llm {
    const KIND: ModelKind = ModelKind::Language;

    fn of(model: &OpenModel) -> Option<&Self> {
        if let OpenModel::Language(model) = model { Some(model) } else { None }
    }
}

impl Served for Whisper {
    const KIND: ModelKind = ModelKind::Speech;

    fn of(model: &OpenModel) -> Option<&Self> {
        if let OpenModel::Speech(model) = model { Some(model) } else { None }
    }
}

/// Pages in memory that all models share: their names tell those of different models apart.
#[derive(Debug, Clone)]
struct SharedStore(Arc<Mutex<MemoryStore>>);

impl SharedStore {
    fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(MemoryStore::new(limit))))
    }

    fn lock(&self) -> MutexGuard<'_, MemoryStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageStore for SharedStore {
    fn read(&mut self, name: PageName, read: &mut dyn FnMut(&[u8])) -> bool {
        self.lock().read(name, read)
    }

    fn contains(&mut self, name: PageName) -> bool {
        self.lock().contains(name)
    }

    fn put(&mut self, name: PageName, bytes: &Arc<Vec<u8>>) {
        self.lock().put(name, bytes);
    }
}

/// Opens models with the options of the server.
#[derive(Debug)]
pub(crate) struct EngineLoader {
    options: EngineOptions,
    metrics: Arc<Metrics>,
    /// CPU that all models share; opened for the first one.
    cpu: Mutex<Option<Cpu>>,
    /// Dropped pages of all models: [`EngineOptions::cache_ram`] is their sum.
    dropped_pages: SharedStore,
}

impl EngineLoader {
    pub(crate) fn new(options: EngineOptions, metrics: Arc<Metrics>) -> Self {
        let dropped_pages = SharedStore::new(options.cache_ram);
        Self { options, metrics, cpu: Mutex::default(), dropped_pages }
    }

    fn cpu(&self) -> Result<Cpu, stonechat::Error> {
        let mut cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        if cpu.is_none() {
            *cpu = Some(Cpu::new(self.options.n_threads)?);
        }
        Ok(cpu.clone().expect("it was opened"))
    }

    async fn open_language(&self, spec: &ModelSpec) -> Result<Llm, stonechat::Error> {
        let options = &self.options;
        let (metrics, model) = (Arc::clone(&self.metrics), spec.name.clone());
        let (panics, panicked) = (Arc::clone(&self.metrics), spec.name.clone());
        let on_step = options.on_step.clone();
        let mut builder = Llm::builder()
            .device(options.device)
            .cpu(self.cpu()?)
            .kv_dtype(options.kv_dtype)
            .parallel(options.n_parallel)
            .n_batch(options.n_batch)
            .on_panic(move |_| panics.engine_panicked(&panicked))
            .on_step(move |report| {
                metrics.step(&model, report);
                on_step.iter().for_each(|on_step| on_step.call(&model));
            });
        if let Some(drafts) = spec.drafts(options) {
            builder = builder.drafts(drafts.clone());
        }
        if options.cache_ram > 0 {
            builder = builder.page_store(Box::new(self.dropped_pages.clone()));
        }
        if let Some(file) = &options.page_file {
            builder = builder.page_store(Box::new(file.clone()));
        }
        if let Some(n) = options.kv_tokens {
            builder = builder.kv_tokens(n);
        }
        if let Some(layers) = options.gpu_layers {
            builder = builder.gpu_layers(layers);
        }
        if let Some(n_ctx) = options.n_ctx(spec.n_ctx_train) {
            builder = builder.n_ctx(n_ctx);
        }
        if let Some(template) = &options.chat_template {
            builder = builder.chat_template(template);
        }
        builder.open_async(&spec.path).await
    }

    async fn open_speech(&self, spec: &ModelSpec) -> Result<Whisper, stonechat::Error> {
        let (metrics, name) = (Arc::clone(&self.metrics), spec.name.clone());
        let (panics, panicked) = (Arc::clone(&self.metrics), spec.name.clone());
        let on_step = self.options.on_step.clone();
        // Requests for word times do not wait for a larger state.
        let reserved = Options { word_timestamps: true, ..Options::default() };
        let builder = Whisper::builder()
            .device(self.options.device)
            .cpu(self.cpu()?)
            .parallel(self.options.audio_windows)
            // Tokens of a chat are read while they come; a transcription is read at its end.
            .background(true)
            .reserve_for(reserved)
            .on_panic(move |_| panics.engine_panicked(&panicked))
            .on_step(move |step| {
                metrics.audio_queued(&name, step.waiting, step.waiting_seconds);
                on_step.iter().for_each(|on_step| on_step.call(&name));
            });
        builder.open_async(&spec.path).await
    }
}

impl Loader for EngineLoader {
    type Spec = ModelSpec;
    type Model = OpenModel;

    async fn load(&self, spec: &ModelSpec) -> Result<OpenModel, String> {
        let (bytes, gpu_bytes) = (spec.memory_bytes, spec.gpu_memory_bytes);
        tracing::info!(model = spec.name, bytes, gpu_bytes, "loading");
        let opened = match spec.kind {
            ModelKind::Language => self.open_language(spec).await.map(OpenModel::Language),
            _ => self.open_speech(spec).await.map(OpenModel::Speech),
        };
        opened.map_err(|error| error.to_string())
    }

    fn is_running(&self, model: &OpenModel) -> bool {
        match model {
            OpenModel::Language(model) => model.is_running(),
            OpenModel::Speech(model) => model.is_running(),
        }
    }
}

impl EngineOptions {
    /// Context size in tokens: 0 is that of training, as at llama-server; `None` the default of the engine.
    fn n_ctx(&self, n_ctx_train: usize) -> Option<usize> {
        self.n_ctx.map(|n| if n == 0 { n_ctx_train } else { n })
    }

    /// Context size in tokens of the language model in `file` while it is open.
    pub(crate) fn n_ctx_of(&self, file: &ModelFile) -> Option<usize> {
        Some(self.state(&Config::from_file(file).ok()?).n_ctx)
    }

    /// Device on which the model in `file` would be opened, if it is a GPU, and the part of the model there.
    pub(super) fn placement(
        &self,
        file: &ModelFile,
        kind: ModelKind,
    ) -> Option<(ChosenDevice, f64)> {
        let needs = match kind {
            ModelKind::Language => DeviceNeeds::layers(file.weight_bytes(), self.gpu_layers),
            _ => DeviceNeeds::whole(file.weight_bytes()),
        };
        // An error is one of opening the model.
        let device = self.device.choose(needs).ok()?;
        let share = match self.gpu_layers {
            Some(GpuLayers::Last(n)) if kind == ModelKind::Language => {
                let total = GpuLayers::total(&Config::from_file(file).ok()?);
                n.min(total) as f64 / total as f64
            }
            _ => 1.0,
        };
        device.is_gpu().then_some((device, share))
    }

    /// Whether as many layers as fit are on a GPU.
    pub(super) fn fits_layers(&self) -> bool {
        let layers = self.gpu_layers.unwrap_or(GpuLayers::default_on(self.device));
        layers == GpuLayers::Auto
    }

    /// Bytes of the KV cache of the language model in `file`.
    pub(crate) fn kv_bytes(&self, file: &ModelFile) -> Option<u64> {
        let config = Config::from_file(file).ok()?;
        Some(self.state(&config).kv_bytes(&config))
    }

    /// Bytes of the KV cache of a draft model.
    pub(super) fn draft_kv_bytes(&self, target: &Config, draft: &Config) -> u64 {
        ModelDrafter::state_options(self.state(target), draft).kv_bytes(draft)
    }

    /// Sizes of the KV cache of a language model.
    fn state(&self, config: &Config) -> StateOptions {
        let (n_ctx, kv_dtype) = (self.n_ctx(config.n_ctx_train), self.kv_dtype);
        let state = SessionOptions { n_ctx, kv_dtype, ..SessionOptions::default() }.state(config);
        let n_pages = self.kv_tokens.unwrap_or(state.n_ctx).div_ceil(PAGE_LEN);
        StateOptions { n_pages: Some(n_pages), ..state }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stonechat::llm::{PageName, PageStore};

    use super::SharedStore;

    #[test]
    fn models_share_the_memory_of_dropped_pages() {
        let (mut first, page) = (SharedStore::new(100), Arc::new(vec![0; 40]));
        let mut second = first.clone();
        let names = [1, 2, 3].map(|n| PageName([n; 32]));
        first.put(names[0], &page);
        second.put(names[1], &page);
        assert!(second.contains(names[0]) && first.read(names[1], &mut |_| {}));
        first.put(names[2], &page);
        assert_eq!(second.lock().n_bytes(), 80);
        // The least recently used page of any model is dropped.
        assert_eq!(names.map(|name| second.contains(name)), [true, false, true]);
    }
}
