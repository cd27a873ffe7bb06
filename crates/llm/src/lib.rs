//! Large language models.
//!
//! One forward pass runs every architecture, directed by a row of switches ([`Architecture`]) and the
//! sizes in the file ([`Config`]). Not here: kernels and samplers (both below), user interfaces.
//!
//! | folder | holds |
//! |---|---|
//! | `model` | the file: configuration, architectures, names and shapes of tensors, vocabulary; a loaded model |
//! | `step` | the forward pass on devices, sequences and KV pages, outputs, placement of layers |
//! | `text` | one text: sampling, stopping, embeddings, perplexity, chat prompts |
//! | [`chat`] | answers: reasoning, content and tool calls in generated text |
//! | `drafts` | speculative decoding: n-grams, a smaller model, the gate |
//! | `cache` | KV pages of earlier prompts: in the pool, in stores, in files |
//! | `scheduler` | requests in one batch: admission, plan of a step, ends |
//! | `session` | one caller: a text at a time, beam search, embeddings |
#![forbid(unsafe_code)]

mod cache;
pub mod chat;
mod drafts;
mod error;
mod model;
mod scheduler;
mod session;
mod step;
mod text;

pub use cache::page_store::{MemoryStore, PageName, PageStore};
pub use cache::prefix_cache::PrefixCache;
pub use drafts::draft::DraftLength;
pub use drafts::drafter::Drafter;
pub use drafts::model::ModelDrafter;
pub use drafts::n_gram::{NGramMod, NGramSimple};
pub use error::Error;
pub use model::Model;
pub use model::arch::{
    ARCHITECTURES, Architecture, FeedForward, LocalRope, Multipliers, NormKind, Positions, QkNorm,
    Residual, RopeLayers,
};
pub use model::config::Config;
pub use model::info::{ModelInfo, ModelSummary};
pub use model::layer::{ExpertsConfig, FfnConfig, KvGroup, LayerConfig};
pub use model::pooling::Pooling;
pub use model::quantize::{quantize, quantized_dtype};
pub use model::rope::{RopeConfig, RopeScaling, Temperature};
pub use model::vocabulary::{chat_template, same_vocabulary, tokenizer};
pub use scheduler::event::{RequestEvent, RequestId};
pub use scheduler::request::Request;
pub use scheduler::slots::{SavedText, SlotInfo};
pub use scheduler::task::Task;
pub use scheduler::{OnRequestEvent, Scheduler, SchedulerOptions, StepReport};
pub use session::beam::{Beam, BeamOptions};

pub use session::{Event, OnEvent, Session, SessionOptions};
pub use step::devices::Devices;
pub use step::options::StateOptions;
pub use step::outputs::{OutputRequest, OutputRow, Outputs};
pub use step::placement::{Placement, bytes_of_layers, layers_that_fit};
pub use step::state::{BatchPlan, State, Ticket};
pub use stonechat_nn::{KvFull, Prefix, Slot};
pub use text::chat::ChatFormat;
pub use text::completion::{Completion, DraftCounts, Finish, Timings};
pub use text::embed::{Embedding, Norm, normalize};
pub use text::generation::{Accepted, AcceptedToken, Generation, GenerationScratch};
pub use text::options::{GenerateOptions, Guidance, OnFull};
pub use text::perplexity::{Perplexity, PerplexityOptions, WindowReport, perplexity};
pub use text::probabilities::{TokenProb, TokenProbs};
pub use text::reasoning::{ReasoningBudget, ReasoningControl};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
