//! Texts: prompts, sampling, stopping, embeddings, perplexity.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embed;
pub(crate) mod generation;
pub(crate) mod options;
pub(crate) mod perplexity;
pub(crate) mod probabilities;
pub(crate) mod reasoning;
pub(crate) mod rules;
pub(crate) mod stop;
