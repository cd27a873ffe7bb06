//! Shared parts of the routes of generated text: fields of a body, the running request, its usage, probabilities, streams.

mod fields;
mod logit_bias;
mod probabilities;
mod prompt;
mod run;
mod stream;
mod usage;

pub(crate) use fields::{Body, GenerationFields};
pub(crate) use probabilities::{
    ProbFields, chat_logprobs, completion_logprobs, native_probabilities,
};
pub(crate) use prompt::prompts;
pub(crate) use run::TextRun;
pub(crate) use stream::{StreamedAnswer, respond};
pub(crate) use usage::Usage;
