//! Texts: prompts, sampling, stopping, sessions, beam search, embeddings, perplexity.

pub(crate) mod beam;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod generation;
pub(crate) mod options;
pub(crate) mod perplexity;
pub(crate) mod probabilities;
pub(crate) mod session;
pub(crate) mod stop;
