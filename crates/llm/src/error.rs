//! Errors of loading and running a language model.

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read or parsed.
    #[error(transparent)]
    Format(#[from] stonechat_formats::Error),
    /// A device operation failed.
    #[error(transparent)]
    Backend(#[from] stonechat_nn::Error),
    /// A weight could not be unpacked or packed.
    #[error(transparent)]
    Quant(#[from] stonechat_quant::Error),
    /// The tokenizer or the chat template could not be read.
    #[error(transparent)]
    Text(#[from] stonechat_text::Error),
    /// The file holds a model of another kind.
    #[error("architecture `{got}` cannot run here: expected one of {expected}")]
    Architecture {
        /// What the file says.
        got: String,
        /// What runs.
        expected: String,
    },
    /// An entry of the file's configuration is absent or impossible.
    #[error("config: `{key}` {problem}")]
    Config {
        /// The entry, as the file spells it.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Name in the file's own convention.
        name: String,
    },
    /// A tensor that the architecture does not use here, so that the model would not be itself.
    #[error("tensor `{name}`: expected none of this name in architecture `{architecture}`")]
    UnknownTensor {
        /// Name in the file's own convention.
        name: String,
        /// The architecture's name.
        architecture: &'static str,
    },
    /// A tensor has an unexpected shape.
    #[error("tensor `{name}`: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Name in the file's own convention.
        name: String,
        /// What the config asks for.
        expected: Vec<usize>,
        /// What is stored.
        got: Vec<usize>,
    },
    /// The tokens do not fit the context.
    #[error(
        "{tokens} tokens do not fit the context of {n_ctx}: shorten the prompt, raise the context size, or shift the context"
    )]
    ContextFull {
        /// Tokens that were to be held.
        tokens: usize,
        /// The most that the context holds.
        n_ctx: usize,
    },
    /// An option or request outside its range.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option.
        option: &'static str,
        /// The range.
        expected: String,
        /// The value.
        got: String,
    },
    /// A saved prompt cannot be used.
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
