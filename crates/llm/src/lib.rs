//! Large language models.
//!
//! One forward pass runs every architecture, directed by a row of switches ([`Architecture`]) and the
//! sizes in the file ([`Config`]). Not here: kernels and samplers (both below), user interfaces.
//!
//! | file | holds |
//! |---|---|
//! | `arch`, `config`, `hugging_face` | switches, sizes, names of tensors |
//! | `source`, `weights` | tensors: look-up, checks of shapes, upload |
//! | `rope` | rotary embedding: frequencies, RoPE scaling |
//! | `model`, `state` | a loaded model; sequences, KV pages and the plan of a step |
//! | `runner`, `stage`, `forward` | a model on its devices: pools and buffers, the forward pass |
//! | `outputs` | logits, top-k and hidden states of a step |
//! | `devices`, `placement` | one device or a pipeline of two; layers that fit a device |
//! | `vocabulary`, `chat` | tokenizer and chat template of a file, prompts of conversations |
//! | `generation`, `stop`, `probabilities` | one text in the making, without a device |
//! | `session`, `generate`, `prompt_cache` | a loop over one text, with a cached prefix in memory and in files |
//! | `scheduler`, `scheduler_slots`, `scheduler_ends`, `request` | a loop over any number of texts and embeddings in one batch |
//! | `speculation`, `draft_model`, `draft_gate` | drafts: n-grams, a smaller model; whether they pay |
//! | `prefix_cache`, `page_store` | pages of earlier prompts, in the pool and beside it |
//! | `embed` | embeddings |
//! | `beam`, `perplexity` | beam search, perplexity |
//! | `quantize` | quantizing a GGUF file |
#![forbid(unsafe_code)]

mod arch;
mod beam;
mod chat;
mod config;
mod devices;
mod draft_gate;
mod draft_model;
mod embed;
mod error;
mod forward;
mod generate;
mod generation;
mod hugging_face;
mod model;
mod outputs;
mod page_store;
mod perplexity;
mod placement;
mod prefix_cache;
mod probabilities;
mod prompt_cache;
mod quantize;
mod request;
mod rope;
mod scheduler;
mod scheduler_ends;
mod scheduler_slots;
mod scheduler_steps;
mod session;
mod source;
mod speculation;
mod stage;
mod state;
mod stop;
mod vocabulary;
mod weights;

pub use arch::{ARCHITECTURES, Architecture, FeedForward, NormKind, Positions, Residual};
pub use beam::{Beam, BeamOptions};
pub use chat::ChatFormat;
pub use config::{Config, ExpertsConfig, RopeConfig, RopeScaling};
pub use devices::Devices;
pub use draft_model::ModelDrafter;
pub use embed::{Embedding, Norm, Pooling, normalize};
pub use error::Error;
pub use generate::{
    Completion, Event, Finish, GenerateOptions, Guidance, OnEvent, OnFull, Timings,
};
pub use generation::{Accepted, AcceptedToken, DraftCounts, Generation, GenerationScratch};
pub use model::{Model, ModelInfo, ModelSummary};
pub use outputs::{OutputRequest, OutputRow, Outputs};
pub use page_store::{MemoryStore, PageName, PageStore};
pub use perplexity::{Perplexity, PerplexityOptions, WindowReport, perplexity};
pub use placement::{Placement, bytes_of_layers, layers_that_fit};
pub use prefix_cache::PrefixCache;
pub use probabilities::{TokenProb, TokenProbs};
pub use quantize::{quantize, quantized_dtype};
pub use request::{Request, RequestEvent, RequestId, Work};
pub use scheduler::{OnRequestEvent, Scheduler, SchedulerOptions, StepReport};
pub use scheduler_slots::{SavedText, SlotInfo};
pub use session::{Session, SessionOptions};
pub use speculation::{DraftLength, Drafter, NGramMod, NGramSimple};
pub use state::{BatchPlan, State, StateOptions, Ticket};
pub use stonechat_nn::{KvFull, Prefix, Slot};
pub use vocabulary::{chat_template, same_vocabulary, tokenizer};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
