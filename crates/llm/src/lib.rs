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
//! | `state`, `forward`, `model` | KV cache and activations, the forward pass, both behind one type |
//! | `devices`, `placement` | one device or a pipeline of two; layers that fit a device |
//! | `vocabulary`, `chat` | tokenizer and chat template of a file, prompts of conversations |
//! | `session`, `prompt_cache` | texts with a cached prefix, in memory and in files |
//! | `generate`, `stop`, `probabilities` | sampling until the text ends |
//! | `beam`, `perplexity` | beam search, perplexity |
//! | `quantize` | quantizing a GGUF file |
#![forbid(unsafe_code)]

mod arch;
mod beam;
mod chat;
mod config;
mod devices;
mod error;
mod forward;
mod generate;
mod hugging_face;
mod model;
mod perplexity;
mod placement;
mod probabilities;
mod prompt_cache;
mod quantize;
mod rope;
mod session;
mod source;
mod state;
mod stop;
mod vocabulary;
mod weights;

pub use arch::{ARCHITECTURES, Architecture, FeedForward, NormKind, Positions, Residual};
pub use beam::{Beam, BeamOptions};
pub use chat::ChatFormat;
pub use config::{Config, ExpertsConfig, RopeConfig, RopeScaling};
pub use devices::{Devices, Split};
pub use error::Error;
pub use generate::{Completion, Event, Finish, GenerateOptions, Guidance, OnFull, Timings};
pub use model::{Model, ModelSummary};
pub use perplexity::{Perplexity, PerplexityOptions, WindowReport, perplexity};
pub use placement::{Placement, layers_that_fit};
pub use probabilities::{TokenProb, TokenProbs};
pub use quantize::{quantize, quantized_dtype};
pub use session::{Session, SessionOptions};
pub use state::{State, StateOptions};
pub use stonechat_nn::Batch;
pub use vocabulary::{chat_template, tokenizer};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
