//! Sampling tokens from logits: llama.cpp's sampler chain, in its order and with its defaults.
//!
//! Not here: beam search, stop strings and tokenization.
//!
//! ```text
//! logits [V] -> logit bias -> penalties -> dry -> top_n_sigma -> top_k -> … -> temperature -> softmax -> draw
//!               '---------------- Candidates: logits [V], later a list ----------------'
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `error.rs` | [`Error`] |
//! | `options.rs`, `kind.rs` | [`SamplingOptions`]; [`SamplerKind`]: names and default order |
//! | `sampler.rs` | [`Sampler`]: the chain and the draw; [`SampleScratch`]: memory of a draw |
//! | `candidates.rs`, `token_values.rs` | the candidates of the chain, dense or a list; numbers by token |
//! | `penalties.rs`, `dry.rs`, `breakers.rs` | repetition penalties |
//! | `top_n_sigma.rs`, `top_k.rs`, `top_p.rs`, `min_p.rs` | truncation by logit or probability |
//! | `typical.rs`, `tail_free.rs`, `eta.rs`, `xtc.rs` | truncation by the shape of the distribution |
//! | `temperature.rs`, `mirostat.rs`, `adaptive_p.rs` | temperature; feedback on the probability of drawn tokens |
//! | `entropy.rs`, `logits.rs` | entropy; log-sum-exp and maximum |
//! | `healing.rs` | [`PrefixConstraint`]: token healing |
//! | `grammar.rs`, `gbnf.rs` | [`CompiledGrammar`], [`Grammar`]: constrained decoding by token masks (feature `grammar`) |
//! | `lazy.rs`, `grammar_start.rs`, `object_start.rs` | [`LazyGrammar`]: a grammar that starts at a [`Trigger`] |
//! | `text_match.rs` | [`TextMatch`]: search for a text in a stream of tokens |
//! | `grammar_source.rs`, `no_grammar.rs` | [`GrammarSource`]; the same API without the feature |
//! | `mt19937.rs` | the seeded generator of the draws, that of llama.cpp |
//! | `rng.rs` | [`Rng`]: the seeded generator of speech |
#![forbid(unsafe_code)]

mod adaptive_p;
mod breakers;
mod candidates;
mod dry;
mod entropy;
mod error;
mod eta;
#[cfg(feature = "grammar")]
mod gbnf;
#[cfg(feature = "grammar")]
mod grammar;
mod grammar_source;
mod grammar_start;
mod healing;
mod kind;
#[cfg(feature = "grammar")]
mod lazy;
mod logits;
mod min_p;
mod mirostat;
mod mt19937;
#[cfg(not(feature = "grammar"))]
mod no_grammar;
#[cfg(feature = "grammar")]
mod object_start;
mod options;
mod penalties;
mod rng;
mod sampler;
mod tail_free;
mod temperature;
#[cfg(test)]
mod testing;
mod text_match;
mod token_values;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use breakers::DryBreakers;
pub use candidates::Candidate;
pub use error::Error;
pub use grammar::{CompiledGrammar, Grammar, TokenTable, embedded_schema};
pub use grammar_source::{GrammarSource, TokenText};
pub use grammar_start::{GrammarStart, Trigger};
pub use healing::PrefixConstraint;
pub use kind::SamplerKind;
pub use lazy::LazyGrammar;
pub use logits::{log_sum_exp, max};
pub use options::SamplingOptions;
pub use rng::Rng;
pub use sampler::{SampleScratch, Sampler};
pub use text_match::TextMatch;

#[cfg(not(feature = "grammar"))]
use no_grammar as grammar;
#[cfg(not(feature = "grammar"))]
use no_grammar as lazy;
