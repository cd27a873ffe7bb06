//! Shared parts of the routes of generated text: fields of a body, the running request, timings, probabilities, events.

mod fields;
mod logit_bias;
mod probabilities;
mod prompt;
mod run;
mod stream;
mod timings;

pub(crate) use fields::{GenerationFields, Parsed, part};
pub(crate) use probabilities::{
    ProbFields, chat_logprobs, completion_logprobs, native_probabilities,
};
pub(crate) use prompt::prompts;
pub(crate) use run::{Step, TextRun};
pub(crate) use stream::{StreamedAnswer, respond};
pub(crate) use timings::Timings;
