//! Errors of loading and running a model.

use stonechat_compute::DType;

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
    /// The tokenizer could not be read.
    #[error(transparent)]
    Tokenizer(#[from] stonechat_text::Error),
    /// Speech could not be told from silence as asked.
    #[error(transparent)]
    Audio(#[from] stonechat_audio::Error),
    /// The file holds another kind of model.
    #[error("not a Whisper model: {reason}")]
    NotWhisper {
        /// What was found or is missing.
        reason: String,
    },
    /// A tensor is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Name in the file's own convention.
        name: String,
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
    /// A tensor's type cannot be used where it stands.
    #[error("tensor `{name}`: type {dtype} cannot be used here, expected {expected}")]
    TensorType {
        /// Name in the file's own convention.
        name: String,
        /// What is stored.
        dtype: DType,
        /// What would work.
        expected: &'static str,
    },
    /// A size in the config is absent or impossible.
    #[error("config: `{key}` {problem}")]
    Config {
        /// The entry.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No Whisper vocabulary has this size.
    #[error("vocabulary of {got} tokens: expected 51864 (.en), 51865 or 51866 (large-v3)")]
    VocabSize {
        /// Tokens found.
        got: usize,
    },
    /// The file has no vocabulary and no tokenizer lies beside it.
    #[error("no tokenizer: expected tokenizer.json or vocabulary.txt beside the model")]
    NoTokenizer,
    /// A language that this model does not have.
    #[error("language `{got}`: expected {expected}")]
    Language {
        /// What was asked for.
        got: String,
        /// What this model has.
        expected: &'static str,
    },
    /// An option outside its range.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option.
        option: &'static str,
        /// The range.
        expected: &'static str,
        /// The value.
        got: String,
    },
}
