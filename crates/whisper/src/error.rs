//! Errors of loading and running a model.

use stonechat_compute::DType;
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
    /// The tokens of a window do not fit the decoder's context.
    #[error("{tokens} tokens do not fit the context of {n_ctx}: shorten the prompt")]
    ContextFull {
        /// Tokens of the sequence after the step.
        tokens: usize,
        /// Context size.
        n_ctx: usize,
    },
    /// More KV pages are needed than are free.
    #[error(transparent)]
    KvFull(stonechat_nn::KvFull),
    /// The tokenizer could not be read.
    #[error(transparent)]
    Tokenizer(#[from] stonechat_text::Error),
    /// Voice activity detection failed.
    #[error(transparent)]
    Audio(#[from] stonechat_audio::Error),
    /// The file holds no Whisper model.
    #[error("not a Whisper model: {reason}")]
    NotWhisper {
        /// Missing or unexpected content.
        reason: String,
    },
    /// A tensor is missing.
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
        /// Shape by the config.
        expected: Vec<usize>,
        /// Shape in the file.
        got: Vec<usize>,
    },
    /// A tensor's type is not supported for this tensor.
    #[error("tensor `{name}`: expected {expected}, got type {dtype}")]
    TensorType {
        /// Name in the file's own convention.
        name: String,
        /// Type in the file, or to convert to.
        dtype: DType,
        /// Supported types.
        expected: &'static str,
    },
    /// A config entry is missing or invalid.
    #[error("config: `{key}` {problem}")]
    Config {
        /// Entry.
        key: &'static str,
        /// Problem.
        problem: String,
    },
    /// The vocabulary size is not one of a Whisper model.
    #[error("vocabulary of {got} tokens: expected 51864 (.en), 51865 or 51866 (large-v3)")]
    VocabSize {
        /// Tokens found.
        got: usize,
    },
    /// Neither the file nor its folder holds a vocabulary.
    #[error("no tokenizer: expected tokenizer.json or vocabulary.txt beside the model")]
    NoTokenizer,
    /// The model does not support the language.
    #[error("language `{got}`: expected {expected}")]
    Language {
        /// Language given.
        got: String,
        /// Languages of the model.
        expected: &'static str,
    },
    /// The sample ranges of speech are not ascending, disjoint and within the recording.
    #[error(
        "speech: expected ascending sample ranges of the recording, got {start}..{end} after {previous_end}, of {n_samples} samples"
    )]
    SpeechRange {
        /// First sample of the range.
        start: usize,
        /// Sample after the range.
        end: usize,
        /// End of the range before it.
        previous_end: usize,
        /// Samples of the recording.
        n_samples: usize,
    },
    /// An option is out of its range.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// Option.
        option: &'static str,
        /// Range.
        expected: &'static str,
        /// Value.
        got: String,
    },
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::ContextFull { tokens, n_ctx } => Self::ContextFull { tokens, n_ctx },
            PlanError::KvFull(full) => Self::KvFull(full),
        }
    }
}
