//! Result of a text: tokens, reason of the end, durations.

use std::sync::Arc;

use crate::text::probabilities::TokenProbs;

/// Result of a generation.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Completion {
    /// Text, without the stop string.
    pub text: String,
    /// Generated tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Probabilities of each token, if `n_probs > 0`.
    pub probs: Vec<TokenProbs>,
    /// Probabilities of each token of the prompt but the first, if they were asked for.
    pub prompt_probs: Arc<[TokenProbs]>,
    /// Probabilities of the end token that ended the text, if `n_probs > 0`.
    pub end_probs: Option<TokenProbs>,
    /// Reason of the end.
    pub finish: Finish,
    /// End token that ended the text.
    pub end_token: Option<u32>,
    /// Stop string that ended the text.
    pub stop: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt found in the KV cache.
    pub cached_tokens: usize,
    /// Tokens of the drafts of speculative decoding.
    pub drafts: DraftCounts,
    /// Times that it lost its KV pages to another request of a batch.
    pub preemptions: usize,
    /// Seed of the sampler.
    pub seed: u64,
    /// Durations.
    pub timings: Timings,
}

/// Reason of the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Finish {
    /// An end-of-generation token was sampled.
    EndOfText,
    /// The text reached a stop string.
    StopString,
    /// The text has `n_predict` tokens.
    Length,
    /// The context is full.
    ContextFull,
    /// The grammar is complete and allows no more text.
    GrammarEnd,
    /// The time of a request in a [`Scheduler`](crate::Scheduler) has passed.
    TimeLimit,
    /// The caller cancelled.
    #[default]
    Cancelled,
}

impl Finish {
    /// Whether the text is complete: the model has ended it, or it reached a stop string or the end of its grammar.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Self::EndOfText | Self::StopString | Self::GrammarEnd)
    }

    /// Name, for example `end_of_text`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "end_of_text",
            Self::StopString => "stop",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::GrammarEnd => "grammar_end",
            Self::TimeLimit => "time_limit",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Durations of a generation, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Timings {
    /// Time in the queue of a batch.
    pub queue_ms: f64,
    /// Prompt processing.
    pub prompt_ms: f64,
    /// Decoding.
    pub decode_ms: f64,
}

/// Numbers of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftCounts {
    /// Drafts.
    pub drafts: usize,
    /// Tokens proposed.
    pub proposed: usize,
    /// Tokens of these that were sampled.
    pub accepted: usize,
}
