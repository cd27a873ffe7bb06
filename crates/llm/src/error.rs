//! Errors of loading and running a language model.

use stonechat_nn::PlanError;

/// Error of loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read or parsed.
    #[error(transparent)]
    Format(#[from] stonechat_formats::Error),
    /// A device operation failed.
    #[error(transparent)]
    Backend(#[from] stonechat_nn::Error),
    /// A sampling option is out of range, or a grammar cannot be used.
    #[error(transparent)]
    Sampling(#[from] stonechat_sampling::Error),
    /// A weight could not be dequantized or quantized.
    #[error(transparent)]
    Quant(#[from] stonechat_quant::Error),
    /// The tokenizer or the chat template could not be read.
    #[error(transparent)]
    Text(#[from] stonechat_text::Error),
    /// The architecture of the file is not supported.
    #[error("architecture `{got}` cannot run here: expected one of {expected}")]
    Architecture {
        /// Architecture of the file.
        got: String,
        /// Supported architectures.
        expected: String,
    },
    /// An entry of the file's configuration is missing or invalid.
    #[error("config: `{key}` {problem}")]
    Config {
        /// Key in the file.
        key: String,
        /// Description of the problem.
        problem: String,
    },
    /// A tensor is missing.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Name in the file's own convention.
        name: String,
    },
    /// A tensor that the forward pass of the architecture does not use: the output would be wrong without it.
    #[error("tensor `{name}`: expected none of this name in architecture `{architecture}`")]
    UnknownTensor {
        /// Name in the file's own convention.
        name: String,
        /// Name of the architecture.
        architecture: &'static str,
    },
    /// A tensor has an unexpected shape.
    #[error("tensor `{name}`: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Name in the file's own convention.
        name: String,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        got: Vec<usize>,
    },
    /// The tokens do not fit the context.
    #[error(
        "{tokens} tokens do not fit the context of {n_ctx}: shorten the prompt or raise the context size"
    )]
    ContextFull {
        /// Tokens of the prompt, or of the sequence after the batch.
        tokens: usize,
        /// Size of the context.
        n_ctx: usize,
    },
    /// More KV pages are needed than are free.
    #[error(transparent)]
    KvFull(stonechat_nn::KvFull),
    /// A token id is outside the vocabulary.
    #[error("token id: expected 0 to {}, got {token}", vocab_size.saturating_sub(1))]
    UnknownToken {
        /// The token id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// The prompt has no tokens.
    #[error("prompt: expected at least one token, got none")]
    EmptyPrompt,
    /// The text is too short to measure its perplexity.
    #[error("text: expected at least {needed} tokens, two windows of the context, got {tokens}")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of two windows.
        needed: usize,
    },
    /// The vocabulary has no fill-in-the-middle tokens.
    #[error("infill: expected a model whose vocabulary has fill-in-the-middle tokens, got {model}")]
    NoInfill {
        /// Name of the model.
        model: String,
    },
    /// Only GGUF files can be quantized.
    #[error("model to quantize: expected a GGUF file, got {format}")]
    NotGguf {
        /// Format of the file.
        format: stonechat_formats::Format,
    },
    /// An option is out of range.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option.
        option: &'static str,
        /// The range.
        expected: String,
        /// The value.
        got: String,
    },
    /// The schema of a tool cannot be a grammar.
    #[error("tool `{tool}`: expected `parameters` that a grammar can enforce: {problem}")]
    ToolSchema {
        /// Name of the tool.
        tool: String,
        /// Message of the compiler.
        problem: String,
    },
    /// The deadline of a request has passed before its first token.
    #[error("the time of the request passed before its first token")]
    DeadlinePassed,
    /// A step of several requests has failed on a device.
    #[error("a step of the batch has failed: {message}")]
    Step {
        /// Message of the device.
        message: String,
    },
    /// A prompt cache cannot be written or read.
    #[error("prompt cache {path}: {problem}")]
    PromptCache {
        /// The file.
        path: String,
        /// Why.
        problem: String,
    },
}

impl Error {
    pub(crate) fn config(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { key: key.into(), problem: problem.into() }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::ContextFull { tokens, n_ctx } => Self::ContextFull { tokens, n_ctx },
            PlanError::KvFull(full) => Self::KvFull(full),
        }
    }
}
