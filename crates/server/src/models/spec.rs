//! Properties of a model, from its headers.

use std::path::PathBuf;

use stonechat::formats::Format;
use stonechat::{DraftSource, ModelKind};

use crate::EngineOptions;

/// Properties of a model, from its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelSpec {
    /// Name.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// File or folder.
    pub path: PathBuf,
    /// Task.
    pub kind: ModelKind,
    /// Architecture.
    pub architecture: &'static str,
    /// Format of the file.
    pub format: Format,
    /// Weight type with the most bytes.
    pub weights: String,
    /// Number of weights.
    pub n_params: u64,
    /// Context in training, in tokens.
    pub n_ctx_train: usize,
    /// Context while it is open, in tokens.
    pub n_ctx: usize,
    /// Width of the hidden state.
    pub n_embd: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Bytes of the weights in memory.
    pub size: u64,
    /// Bytes of the file, or of the files of the folder.
    pub file_bytes: u64,
    /// Estimated bytes of memory of the host while it is open.
    pub memory_bytes: u64,
    /// Estimated bytes of memory of a GPU while it is open.
    pub gpu_memory_bytes: u64,
    /// Estimated bytes of a window of speech in a batch; 0 for a language model.
    pub window_bytes: u64,
    /// Time of the last change of the file, in seconds since 1970.
    pub created: u64,
    /// Whether it was named at the start of the server.
    pub is_preset: bool,
    /// Jinja source or built-in name of its chat template; `None`: a base model.
    pub chat_template: Option<String>,
    /// Whether its template has tools, and answers can call them.
    pub supports_tools: bool,
    /// Whether its template has reasoning.
    pub supports_reasoning: bool,
    /// Whether it is a model of embeddings: its file names a pooling.
    pub is_embedder: bool,
    /// Whether its file names the tokens of an infill.
    pub supports_infill: bool,
    /// Whether the draft model of the server drafts for it.
    pub has_draft: bool,
}

impl ModelSpec {
    /// Source of its drafts.
    pub(crate) fn drafts<'a>(&self, options: &'a EngineOptions) -> Option<&'a DraftSource> {
        options.drafts.as_ref().filter(|drafts| drafts.model().is_none() || self.has_draft)
    }

    /// Name in answers: its first alias, as in llama-server.
    pub(crate) fn id(&self) -> &str {
        self.aliases.first().unwrap_or(&self.name)
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}
