//! Shared parts of all dialects of generated text: fields of a body, the running request, its usage, probabilities.

mod completion_logprobs;
mod fields;
mod logit_bias;
mod probabilities;
mod prompt;
mod run;
mod settings;
mod usage;

pub use fields::{GenerationFields, ResponseFormat, Samplers, Stop, StreamOptions};
pub use run::{RequestStats, Run};
pub use settings::Settings;

pub(crate) use completion_logprobs::CompletionLogprobs;
pub(crate) use probabilities::{ChatLogprobs, ProbFields, TokenEntry, token_entries};
pub(crate) use prompt::prompts;
pub(crate) use run::Progress;
pub(crate) use usage::{Counts, Timings, Usage};
