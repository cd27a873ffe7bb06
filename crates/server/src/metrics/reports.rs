//! Reports of requests that have ended.

use stonechat::llm::DraftCounts;

use crate::ApiError;

/// End of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestEnd {
    /// End token or stop string.
    #[default]
    Stop,
    /// Limit of tokens, or a full context.
    Length,
    /// The client went away, or a deadline passed.
    Abort,
    /// An error.
    Error,
}

impl RequestEnd {
    /// Label of the metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// A request of a language model that has ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestReport {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt that have run, and cached ones.
    pub prompt_tokens: usize,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: usize,
    /// Generated tokens of all choices.
    pub generated_tokens: usize,
    /// Seconds in the queue.
    pub queue_seconds: f64,
    /// Seconds of the prompt.
    pub prefill_seconds: f64,
    /// Seconds of the generation, from the first token on.
    pub decode_seconds: f64,
    /// Seconds from the arrival to the end.
    pub e2e_seconds: f64,
    /// Seconds from the arrival to the first token; `None` if there was none.
    pub time_to_first_token: Option<f64>,
    /// Seconds between tokens.
    pub token_gaps: Vec<f64>,
    /// End.
    pub finish: RequestEnd,
    /// Cause of [`RequestEnd::Error`].
    pub error: Option<ApiError>,
    /// Parameter `n`.
    pub n_choices: usize,
    /// Parameter `max_tokens`.
    pub max_tokens: Option<usize>,
    /// Parameter `temperature`.
    pub temperature: f32,
    /// Parameter `top_p`.
    pub top_p: f32,
    /// Preemptions.
    pub n_preemptions: usize,
    /// Tokens of the drafts of speculative decoding.
    pub drafts: DraftCounts,
}

/// A recording that has ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AudioReport {
    /// Name of the model.
    pub model: String,
    /// Seconds of the recording.
    pub audio_seconds: f64,
    /// Seconds in the queue.
    pub queue_seconds: f64,
    /// Seconds of transcription.
    pub work_seconds: f64,
    /// End.
    pub finish: RequestEnd,
    /// Cause of [`RequestEnd::Error`].
    pub error: Option<ApiError>,
}
