//! Values of fields that a body leaves out.

use std::sync::LazyLock;
use std::time::Duration;

use stonechat::llm::Pooling;
use stonechat::sampling::SamplingOptions;

use crate::reasoning::ChatDefaults;

static NO_CHAT_DEFAULTS: LazyLock<ChatDefaults> = LazyLock::new(ChatDefaults::default);

/// Values of fields that a body leaves out, and the maximum of `n`.
#[derive(Debug, Clone, Copy)]
pub struct Defaults<'a> {
    /// Sampling.
    pub sampling: &'a SamplingOptions,
    /// Maximum tokens of a text; `None`: up to the context.
    pub n_predict: Option<usize>,
    /// Pooling of embeddings; `None`: that of the model, else the mean.
    pub pooling: Option<Pooling>,
    /// Reasoning and variables of chats.
    pub chat: &'a ChatDefaults,
    /// Whether a text whose context is full continues after a context shift.
    pub context_shift: bool,
    /// Time in which a request must end.
    pub timeout: Option<Duration>,
    /// Maximum texts after one prompt, the field `n`.
    pub max_choices: usize,
}

impl<'a> Defaults<'a> {
    /// Defaults of llama-server with this sampling: no limits of tokens and time, and one text after a prompt.
    #[must_use]
    pub fn new(sampling: &'a SamplingOptions) -> Self {
        Self {
            sampling,
            n_predict: None,
            pooling: None,
            chat: &NO_CHAT_DEFAULTS,
            context_shift: false,
            timeout: None,
            max_choices: 1,
        }
    }
}
