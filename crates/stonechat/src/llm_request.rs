//! Request of tokens to a language model, and its events.

use std::time::{Duration, Instant};

use stonechat_llm::{AcceptedToken, GenerateOptions, ModelInfo, Request, Task};

use crate::Error;

/// Tokens to continue; see [`Llm::generate`](crate::Llm::generate).
#[derive(Debug, Clone)]
pub struct LlmRequest {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Options of the text.
    pub options: GenerateOptions,
    /// Number of texts. Text `i` is sampled with the seed plus `i`.
    pub n_choices: usize,
    /// Requests with a smaller value go first.
    pub priority: i32,
    /// Requests with another salt share no cached prefix.
    pub cache_salt: u64,
    /// Whether cached prefixes are used.
    pub reads_cache: bool,
    /// Time at which it ends: with an error before its first token, then with [`Finish::TimeLimit`](crate::Finish::TimeLimit).
    pub deadline: Option<Instant>,
    /// Time after the first token from which a text with a line break ends with
    /// [`Finish::TimeLimit`](crate::Finish::TimeLimit).
    pub max_decode: Option<Duration>,
}

impl LlmRequest {
    /// One text of priority 0.
    #[must_use]
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Self {
        Self {
            prompt,
            options,
            n_choices: 1,
            priority: 0,
            cache_salt: 0,
            reads_cache: true,
            deadline: None,
            max_decode: None,
        }
    }

    /// Task of a scheduler.
    pub(crate) fn schedule(self, model: &std::sync::Arc<ModelInfo>) -> Result<Task, Error> {
        let Self { n_choices, priority, cache_salt, reads_cache, deadline, max_decode, .. } = self;
        let request = Request {
            n_choices,
            priority,
            cache_salt,
            reads_cache,
            deadline,
            max_decode,
            ..Request::new(self.prompt, self.options)
        };
        Ok(request.prepare(model)?)
    }
}

/// Event of a request to a language model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LlmEvent {
    /// It has left the queue.
    Started {
        /// Tokens of the prompt that the prefix cache had.
        cached_tokens: usize,
    },
    /// A chunk of the prompt has run.
    Prompt {
        /// Tokens cached or run.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Tokens of a step.
    Text {
        /// Index of the text.
        choice: usize,
        /// Tokens, each with its range of `text`.
        tokens: Vec<AcceptedToken>,
        /// Text in whole code points; at the end also what was held back.
        text: String,
    },
}
