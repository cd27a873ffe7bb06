//! Models of the server: names, opening, sharing, eviction by memory.
//!
//! A request gets a guard. The model is loaded if need be, and stays open until the last guard is dropped. A guard must live
//! as long as the jobs of its request.

mod draft;
mod guard;
mod loader;
mod memory;
mod names;
mod reader;
mod registry;
mod scan;
mod spec;
mod table;
mod windows;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stonechat::{DraftSource, Llm, ModelKind, Models};
use tokio::runtime::Handle;

pub use guard::{LanguageGuard, ModelGuard, SpeechGuard};
pub(crate) use loader::Served;
pub(crate) use memory::Memory;
pub use memory::machine_memory;
pub use spec::ModelSpec;
pub use table::ModelStatus;
pub(crate) use windows::WindowMemory;

use crate::trace::note_model;
use crate::{ApiError, Metrics, ServerOptions};
use draft::DraftHeaders;
use loader::EngineLoader;
use memory::default_memory;
use names::kind_name;
use reader::SpecReader;
use registry::{OpenError, Registry};
use scan::{Seen, Stamp};
use table::{ModelId, Refusal};

/// A model with its state, for `/models`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListedModel {
    /// Properties.
    pub spec: Arc<ModelSpec>,
    /// State.
    pub status: ModelStatus,
    /// Reason why the last load failed.
    pub failure: Option<String>,
    /// Requests that use the model.
    pub n_users: usize,
}

/// The models of a server. Clones share them.
#[derive(Debug, Clone)]
pub struct ServerModels {
    registry: Registry<EngineLoader>,
    options: Arc<ServerOptions>,
    reader: SpecReader,
    /// Last scan by path. Held while the folder of installed models is read, so that no model is added twice.
    scan: Arc<Mutex<HashMap<PathBuf, Seen>>>,
}

/// A model named at the start that cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot open `{name}`: {reason}")]
pub struct LoadError {
    /// Name of the model.
    pub name: String,
    /// One line.
    pub reason: String,
}

impl ServerModels {
    /// Reads the headers of the models that the options name. Engines report their steps to `metrics`; tasks run on
    /// `runtime`.
    ///
    /// # Errors
    /// If a model cannot be read, or none of them has the vocabulary of the draft model.
    pub fn new(
        options: Arc<ServerOptions>,
        metrics: Arc<Metrics>,
        runtime: Handle,
    ) -> Result<Self, LoadError> {
        let cache_ram = options.engine.cache_ram as u64;
        let budget = options.models_memory.unwrap_or_else(|| default_memory(cache_ram));
        let loader = EngineLoader::new(options.engine.clone(), metrics);
        // No limit for a GPU until a model is on one.
        let budget = Memory { gpu: u64::MAX, ..Memory::host(budget) };
        let registry = Registry::new(loader, budget, options.max_queue, runtime);
        let draft = options.engine.drafts.as_ref().and_then(DraftSource::model);
        let draft = draft.map(|(path, _)| DraftHeaders::read(path)).transpose()?.map(Arc::new);
        let reader = SpecReader::new(Arc::clone(&options), draft, registry.clone());
        let models = Self { registry, options, reader, scan: Arc::default() };
        for (i, model) in models.options.models.iter().enumerate() {
            let error = |reason| LoadError { name: model.name.clone(), reason };
            let specs = models.registry.specs();
            if specs.iter().any(|(_, spec)| spec.has_name(&model.name)) {
                return Err(error("another model has this name".to_owned()));
            }
            let mut spec = models.reader.read(&model.name, model.path.clone()).map_err(error)?;
            spec.is_preset = true;
            if i == 0 {
                spec.aliases.clone_from(&models.options.aliases);
                spec.tags.clone_from(&models.options.tags);
            }
            models.add(spec);
        }
        models.check_draft()?;
        Ok(models)
    }

    /// Checks that the draft model drafts for a model that was named, or may be installed.
    fn check_draft(&self) -> Result<(), LoadError> {
        let Some(draft) = self.reader.draft() else { return Ok(()) };
        let specs = self.registry.specs();
        let targets = specs.iter().filter(|(_, spec)| spec.kind == ModelKind::Language);
        let mut has_draft = targets.map(|(_, spec)| spec.has_draft).peekable();
        let may_follow = has_draft.peek().is_none() && self.options.installed.is_some();
        if may_follow || has_draft.any(|has_draft| has_draft) {
            return Ok(());
        }
        Err(draft.error("no model has the vocabulary of this draft model"))
    }

    fn add(&self, spec: ModelSpec) -> ModelId {
        let memory = Memory { host: spec.memory_bytes, gpu: spec.gpu_memory_bytes };
        self.registry.add(spec, memory)
    }

    /// Opens the models that were named at the start, one after the other.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub async fn open_presets(&self) -> Result<(), LoadError> {
        for (id, spec) in self.registry.specs() {
            if !spec.is_preset {
                continue;
            }
            match self.registry.open(id, None).await {
                Ok(lease) => drop(lease),
                Err(OpenError::Full | OpenError::TimedOut) => {}
                Err(OpenError::Failed(reason)) => {
                    return Err(LoadError { name: spec.name.clone(), reason });
                }
            }
        }
        Ok(())
    }

    /// A model by the `model` field of a request, opened if need be; the request waits for it until `deadline`.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 for a model of another kind, 429 if the queue is full, 500 if the load fails, 503 if it
    /// takes longer than the deadline or [`ServerOptions::load_timeout`].
    pub(crate) async fn open<M: Served>(
        &self,
        name: Option<&str>,
        deadline: Option<Instant>,
    ) -> Result<ModelGuard<M>, ApiError> {
        let id = self.find(name, M::KIND).await?;
        note_model(&self.registry.spec(id).name);
        let limit =
            self.options.load_timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let until = [deadline, limit].into_iter().flatten().min();
        let lease = self.registry.open(id, until).await.map_err(|error| {
            let name = &self.registry.spec(id).name;
            match error {
                OpenError::Failed(reason) => {
                    ApiError::server(format!("cannot open `{name}`: {reason}"))
                }
                OpenError::TimedOut => ApiError::timed_out(format!(
                    "`{name}` was not open in the time of the request: try again later"
                )),
                OpenError::Full => ApiError::overloaded(format!(
                    "`{name}` has {} requests, the maximum: try again later",
                    self.options.max_queue
                )),
            }
        })?;
        match lease.model().and_then(M::of) {
            Some(model) => Ok(ModelGuard { model: model.clone(), lease }),
            None => Err(ApiError::server(format!("the model is no {}", kind_name(M::KIND)))),
        }
    }

    /// Checks that there is a model for the `model` field of a request, without opening it.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 for a model of another kind.
    pub(crate) async fn check<M: Served>(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.find(name, M::KIND).await.map(|_| ())
    }

    /// Model of a name. A missing or unknown name selects the only model of the kind, else the only one named at the
    /// start.
    async fn find(&self, name: Option<&str>, kind: ModelKind) -> Result<ModelId, ApiError> {
        let name = name.filter(|name| !name.is_empty());
        let exact =
            || name.and_then(|name| names::exact(&self.registry.specs(), name, kind)).transpose();
        if let Some(found) = exact()? {
            return Ok(found);
        }
        // The model may have been installed since.
        self.rescan().await;
        if let Some(found) = exact()? {
            return Ok(found);
        }
        names::default_of(&self.registry.specs(), name, kind)
    }

    /// Adds new installed models, and drops removed or replaced ones, on a thread that may block.
    async fn rescan(&self) {
        let Some(installed) = self.options.installed.clone() else { return };
        let models = self.clone();
        let task = tokio::task::spawn_blocking(move || models.add_installed(&installed));
        if let Err(error) = task.await {
            tracing::error!("reading the models folder failed: {error}");
        }
    }

    fn add_installed(&self, installed: &Models) {
        let mut scan = self.scan.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match installed.installed() {
            Ok(found) => found,
            Err(error) => return tracing::warn!("{error}"),
        };
        scan.retain(|path, seen| {
            let stays = found.iter().any(|model| model.path == *path);
            if let Some(id) = seen.model.filter(|_| !stays) {
                self.registry.remove(id);
            }
            stays
        });
        for model in found {
            let (stamp, seen) = (Stamp::of(&model), scan.get(&model.path));
            if seen.is_some_and(|seen| seen.stamp == stamp) {
                continue;
            }
            let old = seen.and_then(|seen| seen.model);
            let is_other = |(id, spec): &(ModelId, Arc<ModelSpec>)| {
                Some(*id) != old && (spec.path == model.path || spec.has_name(&model.name))
            };
            if self.registry.specs().iter().any(is_other) {
                continue;
            }
            let id = match self.reader.read(&model.name, model.path.clone()) {
                Ok(spec) => {
                    old.into_iter().for_each(|old| self.registry.remove(old));
                    Some(self.add(spec))
                }
                Err(reason) => {
                    tracing::debug!(model = model.name, reason, "is no model");
                    old
                }
            };
            scan.insert(model.path, Seen { stamp, model: id });
        }
    }

    /// Lists all models; installed ones included.
    pub async fn list(&self) -> Vec<ListedModel> {
        self.rescan().await;
        let listed = |(id, spec)| ListedModel {
            spec,
            status: self.registry.status(id),
            failure: self.registry.failure(id),
            n_users: self.registry.n_users(id),
        };
        self.registry.specs().into_iter().map(listed).collect()
    }

    /// Names of the open models whose engine has stopped.
    pub(crate) fn stopped(&self) -> Vec<String> {
        self.registry.stopped(|spec| spec.name.clone())
    }

    /// Model by its name alone, whatever its kind.
    async fn find_any(&self, name: &str) -> Result<(ModelId, Arc<ModelSpec>), ApiError> {
        self.rescan().await;
        names::any(&self.registry.specs(), name)
    }

    /// Properties of a model by its name as Ollama's clients write it, with or without the tag `latest`.
    ///
    /// # Errors
    /// 404 for an unknown name.
    pub(crate) async fn named(&self, name: &str) -> Result<Arc<ModelSpec>, ApiError> {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        for name in [name, bare] {
            let specs = self.registry.specs();
            if let Some((_, spec)) = specs.iter().find(|(_, spec)| spec.has_name(name)) {
                return Ok(Arc::clone(spec));
            }
        }
        let found = match self.find_any(name).await {
            Err(_) => self.find_any(bare).await,
            found => found,
        };
        let name: String = name.chars().take(200).collect();
        found
            .map(|(_, spec)| spec)
            .map_err(|_| ApiError::not_found(format!("model '{name}' not found")))
    }

    /// Unloads a model by its name; one that is not loaded is no error.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 if it is in use.
    pub(crate) async fn release(&self, name: &str) -> Result<(), ApiError> {
        let (id, _) = self.find_any(name).await?;
        match self.registry.unload(id) {
            Ok(()) | Err(Refusal::NotLoaded) => Ok(()),
            Err(Refusal::Busy) => Err(Self::busy(name)),
        }
    }

    fn busy(name: &str) -> ApiError {
        ApiError::bad_request(format!("model `{name}` is in use by running requests"))
    }

    /// Starts to load a model by its name.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 if it is loaded already.
    pub async fn load(&self, name: &str) -> Result<(), ApiError> {
        let (id, _) = self.find_any(name).await?;
        self.registry.check_running(id);
        match self.registry.status(id) {
            ModelStatus::Loaded => {
                Err(ApiError::bad_request(format!("model `{name}` is already loaded")))
            }
            _ => {
                self.registry.start_loading(id);
                Ok(())
            }
        }
    }

    /// Unloads a model by its name.
    ///
    /// # Errors
    /// 404 for an unknown name, 400 if it is not loaded or in use.
    pub async fn unload(&self, name: &str) -> Result<(), ApiError> {
        let (id, _) = self.find_any(name).await?;
        self.registry.unload(id).map_err(|refusal| match refusal {
            Refusal::NotLoaded => ApiError::bad_request(format!("model `{name}` is not loaded")),
            Refusal::Busy => Self::busy(name),
        })
    }

    /// The language model that a `GET` is about, if it is open: without loading it or keeping it awake.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for the load.
    pub(crate) async fn peek_language<R>(
        &self,
        name: Option<&str>,
        read: impl FnOnce(&ModelSpec, ModelStatus, Option<&Llm>) -> R,
    ) -> Result<R, ApiError> {
        let id = self.find(name, ModelKind::Language).await?;
        let (spec, status) = (self.registry.spec(id), self.registry.status(id));
        let open = self.registry.peek(id, |model| Llm::of(model).cloned());
        Ok(read(&spec, status, open.flatten().as_ref()))
    }

    /// Unloads the models that were idle for `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        self.registry.sleep(timeout);
    }

    /// Sets the gauges of the models.
    pub(crate) fn record(&self, metrics: &Metrics) {
        metrics.models(self.registry.n_waiters(), self.registry.memory());
    }
}

impl fmt::Display for ModelStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
