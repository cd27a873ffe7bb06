//! Properties of models, read from their headers.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use stonechat::formats::ModelFile;
use stonechat::llm::ChatFormat;
use stonechat::{Details, ModelKind, Models};

use super::draft::DraftHeaders;
use super::loader::EngineLoader;
use super::memory::Memory;
use super::registry::Registry;
use super::spec::ModelSpec;
use crate::ServerOptions;

/// Reader of the properties of models. Clones share the GPU's memory.
#[derive(Debug, Clone)]
pub(super) struct SpecReader {
    options: Arc<ServerOptions>,
    draft: Option<Arc<DraftHeaders>>,
    registry: Registry<EngineLoader>,
    /// GPU memory in bytes for models, measured before the first load; `None` if the GPU does not report it.
    gpu_memory: Arc<OnceLock<Option<u64>>>,
}

impl SpecReader {
    /// Reader for the models of `registry`, whose budget of a GPU it sets.
    pub(super) fn new(
        options: Arc<ServerOptions>,
        draft: Option<Arc<DraftHeaders>>,
        registry: Registry<EngineLoader>,
    ) -> Self {
        Self { options, draft, registry, gpu_memory: Arc::default() }
    }

    /// Headers of the draft model, if there is one.
    pub(super) fn draft(&self) -> Option<&DraftHeaders> {
        self.draft.as_deref()
    }

    /// Properties of a model from its headers.
    pub(super) fn read(&self, name: &str, path: PathBuf) -> Result<ModelSpec, String> {
        let file = ModelFile::open(&path).map_err(|error| error.to_string())?;
        let details = Details::of(&file).map_err(|error| error.to_string())?;
        let size = file.weight_bytes();
        let window_bytes = match details.kind {
            ModelKind::Language => 0,
            _ => details.memory_bytes.saturating_sub(size),
        };
        let kv_bytes = match details.kind {
            ModelKind::Language => self.options.engine.kv_bytes(&file).unwrap_or_default(),
            // Caches of text and of the windows of a batch.
            _ => window_bytes * self.options.engine.audio_windows as u64,
        };
        let is_language = details.kind == ModelKind::Language;
        let n_ctx = if is_language { self.options.engine.n_ctx_of(&file) } else { None };
        let draft = self.draft.as_ref().filter(|_| details.kind == ModelKind::Language);
        let draft_bytes = draft.and_then(|draft| draft.bytes_for(&file, &self.options.engine));
        if draft.is_some() && draft_bytes.is_none() {
            tracing::warn!(model = name, "has another vocabulary than the draft model: no drafts");
        }
        let bytes = size + kv_bytes + draft_bytes.unwrap_or_default();
        let memory = self.memory(&file, details.kind, bytes);
        let file_bytes = Models::bytes_at(&path, &file);
        let created = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
        let template = self.options.engine.chat_template.clone().filter(|_| is_language);
        let template = template.or(details.chat_template);
        let (supports_tools, supports_reasoning) =
            template.as_deref().map_or((false, false), ChatFormat::supports);
        let infill = ["fim_pre_token_id", "prefix_token_id"];
        let infill = infill.map(|key| file.metadata().get(&format!("tokenizer.ggml.{key}")));
        let created = created.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(ModelSpec {
            name: name.to_owned(),
            aliases: Vec::new(),
            tags: Vec::new(),
            path,
            kind: details.kind,
            architecture: details.architecture,
            format: file.format(),
            weights: details.weights.to_owned(),
            n_params: details.n_parameters,
            n_ctx_train: details.n_ctx,
            n_ctx: n_ctx.unwrap_or(details.n_ctx),
            n_embd: details.width,
            n_vocab: details.vocab_size,
            size,
            file_bytes,
            memory_bytes: memory.host,
            gpu_memory_bytes: memory.gpu,
            window_bytes,
            created: created.map_or(0, |time| time.as_secs()),
            is_preset: false,
            chat_template: template,
            supports_tools,
            supports_reasoning,
            is_embedder: details.pooling.is_some(),
            supports_infill: infill.iter().any(Option::is_some),
            has_draft: draft_bytes.is_some(),
        })
    }

    /// Memory of a model with `bytes` bytes of weights and caches, by the device on which it would be opened.
    fn memory(&self, file: &ModelFile, kind: ModelKind, bytes: u64) -> Memory {
        let placement = self.options.engine.placement(file, kind);
        let Some((device, gpu_share)) = placement.filter(|(_, share)| *share > 0.0) else {
            return Memory::of_model(bytes, 0.0);
        };
        let budget = *self.gpu_memory.get_or_init(|| {
            let budget = device.memory_for_models();
            match budget {
                Some(n) => tracing::info!("{device}: {n} bytes of its memory are for models"),
                None => {
                    tracing::warn!(
                        "{device}: its memory is unknown: no model makes room for another"
                    );
                }
            }
            self.registry.set_gpu_budget(budget.unwrap_or(u64::MAX));
            budget
        });
        let memory = Memory::of_model(bytes, gpu_share);
        match (budget, kind) {
            (Some(budget), ModelKind::Language) if self.options.engine.fits_layers() => {
                memory.split_at(budget)
            }
            _ => memory,
        }
    }
}
