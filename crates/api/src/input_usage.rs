//! `usage` of an answer without generated text.

use serde::Serialize;

/// Tokens of the inputs of a request.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct InputUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl InputUsage {
    /// Usage of a request of `n` tokens.
    #[must_use]
    pub(crate) fn new(n: usize) -> Self {
        Self { prompt_tokens: n, total_tokens: n }
    }
}
