//! Reports of engines and routes.

use crate::ApiError;

/// End of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinishReason {
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

impl FinishReason {
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

/// Speculative decoding of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftReport {
    /// Drafts.
    pub n_drafts: u64,
    /// Tokens of the drafts.
    pub n_tokens: u64,
    /// Accepted tokens.
    pub n_accepted: u64,
    /// Accepted tokens at each position of a draft.
    pub accepted_by_position: Vec<u64>,
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
    pub finish: FinishReason,
    /// Cause of [`FinishReason::Error`].
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
    /// Speculative decoding.
    pub drafts: DraftReport,
}

/// A step of the engine of a language model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// Name of the model.
    pub model: String,
    /// Prompt tokens of the step.
    pub prompt_tokens: usize,
    /// Rows of the step that continue a generation, drafts included.
    pub decoded_tokens: usize,
    /// Requests that decoded in the step.
    pub n_decoding: usize,
    /// Requests of the batch.
    pub n_running: usize,
    /// Requests in the queue.
    pub n_waiting: usize,
    /// KV pages in use by requests alone.
    pub kv_pages_used: usize,
    /// KV pages of the prefix cache.
    pub kv_pages_cached: usize,
    /// KV pages.
    pub kv_pages_total: usize,
    /// Requests that lost their pages to an older one.
    pub n_preempted: usize,
    /// Seconds of the step.
    pub seconds: f64,
}

impl StepReport {
    /// Report of the engine of a model.
    pub(crate) fn of_engine(model: &str, report: &stonechat::llm::StepReport) -> Self {
        Self {
            model: model.to_owned(),
            prompt_tokens: report.prompt_tokens,
            decoded_tokens: report.text_tokens,
            n_decoding: report.n_decoding,
            n_running: report.n_running,
            n_waiting: report.n_waiting,
            // Pages that only the prefix cache has are free for requests.
            kv_pages_used: report.used_pages.saturating_sub(report.cached_pages),
            kv_pages_cached: report.cached_pages,
            kv_pages_total: report.n_pages,
            n_preempted: report.n_preempted,
            seconds: report.seconds,
        }
    }
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
    pub finish: FinishReason,
    /// Cause of [`FinishReason::Error`].
    pub error: Option<ApiError>,
}
