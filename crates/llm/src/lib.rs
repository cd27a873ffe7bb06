//! Large language models.
//!
//! One forward pass runs every architecture: a row of switches ([`Architecture`]) and the sizes
//! that a file states ([`Config`]) decide what it does. Not here: kernels, sampling (both below)
//! and anything that talks to a user.
//!
//! | file | holds |
//! |---|---|
//! | `arch`, `config`, `hugging_face` | switches, sizes, names of tensors |
//! | `source`, `weights` | reading and checking a file's tensors |
//! | `rope` | rotary frequencies and their stretching |
//! | `state`, `forward`, `model` | KV pages and buffers, the pass, both behind one type |
//! | `devices`, `placement` | where layers are: on one device or two, and what fits one |
//! | `vocabulary` | a file's tokenizer and chat template |
//! | `session`, `prompt_cache` | a text that grows, with its prefix kept, in memory or in a file |
//! | `generate`, `stop`, `probabilities` | drawing tokens until something ends the text |
//! | `beam`, `perplexity` | searching for and measuring texts |
//! | `quantize` | writing a model with another weight type |
#![forbid(unsafe_code)]

mod arch;
mod beam;
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
pub use config::{Config, ExpertsConfig, RopeConfig, RopeScaling};
pub use devices::{Devices, Split};
pub use error::Error;
pub use generate::{
    Completion, Event, Finish, GenerateOptions, GrammarText, Guidance, OnFull, Timings,
};
pub use model::{Model, ModelSummary, PLAIN_STOP};
pub use perplexity::{Perplexity, PerplexityOptions, WindowReport, perplexity};
pub use placement::{Placement, layers_that_fit};
pub use probabilities::{TokenProb, TokenProbs};
pub use quantize::{quantize, quantized_dtype};
pub use session::{Session, SessionOptions};
pub use state::{Batch, State, StateOptions};
pub use vocabulary::tokenizer;
