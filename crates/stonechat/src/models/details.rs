//! Properties of a model, from its headers.

use stonechat_formats::ModelFile;
use stonechat_llm::Pooling;

use super::{Installed, ModelKind};
use crate::Error;

/// Kind, architecture and sizes of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// Task.
    pub kind: ModelKind,
    /// Architecture, `whisper` or a name of [`stonechat_llm::ARCHITECTURES`].
    pub architecture: &'static str,
    /// Weight type with the most bytes.
    pub weights: &'static str,
    /// Number of weights.
    pub n_parameters: u64,
    /// Context size of the training in tokens.
    pub n_ctx: usize,
    /// Layers; of Whisper, of encoder and decoder together.
    pub n_layers: usize,
    /// Width of the hidden state.
    pub width: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Pooling that the file names: a model of embeddings.
    pub pooling: Option<Pooling>,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// Bytes of the weights and, in f16, of the KV cache of 4,096 tokens or one window of speech.
    pub memory_bytes: u64,
}

/// Tokens of the KV cache in [`Details::memory_bytes`].
pub(super) const MEMORY_TOKENS: usize = 4096;

/// Bytes of keys and values in f16.
pub(super) const fn kv_bytes(n_layers: usize, width: usize, n_tokens: usize) -> usize {
    4 * n_layers * width * n_tokens
}

impl Details {
    /// Reads the headers of `file`.
    ///
    /// # Errors
    /// If the model is of no known architecture.
    pub fn of(file: &ModelFile) -> Result<Self, Error> {
        let summary = file.summary();
        let weights = file.dtypes().first().map_or("", |dtype| dtype.name());
        let (n_parameters, bytes) = (summary.n_parameters as u64, summary.tensor_bytes as u64);
        if let Ok(config) = stonechat_whisper::Config::from_file(file) {
            let n_layers = config.n_audio_layers + config.n_text_layers;
            // Keys and values of text and of 1,500 audio positions, in f16.
            let positions = config.n_text_ctx + config.n_audio_ctx;
            let kv_bytes = kv_bytes(config.n_text_layers, config.d_model, positions);
            return Ok(Self {
                kind: ModelKind::Speech,
                architecture: "whisper",
                weights,
                n_parameters,
                n_ctx: config.n_text_ctx,
                n_layers,
                width: config.d_model,
                vocab_size: config.vocab_size,
                pooling: None,
                chat_template: None,
                memory_bytes: bytes + kv_bytes as u64,
            });
        }
        let config = stonechat_llm::Config::from_file(file)?;
        let n_tokens = MEMORY_TOKENS.min(config.n_ctx_train);
        let kv_width = config.layers.iter().map(|layer| config.kv_width(layer)).sum();
        let kv_bytes = kv_bytes(1, kv_width, n_tokens);
        Ok(Self {
            kind: ModelKind::Language,
            architecture: config.architecture.name,
            weights,
            n_parameters,
            n_ctx: config.n_ctx_train,
            n_layers: config.n_layers(),
            width: config.d_model,
            vocab_size: config.vocab_size,
            pooling: config.pooling,
            chat_template: stonechat_llm::chat_template(file),
            memory_bytes: bytes + kv_bytes as u64,
        })
    }
}

impl Installed {
    /// Reads the headers of the model.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, or the model is of no known architecture.
    pub fn details(&self) -> Result<Details, Error> {
        Details::of(&ModelFile::open(&self.path)?)
    }
}
