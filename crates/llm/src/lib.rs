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
#![forbid(unsafe_code)]

mod arch;
mod config;
mod error;
mod forward;
mod hugging_face;
mod model;
mod rope;
mod source;
mod state;
mod weights;

pub use arch::{ARCHITECTURES, Architecture, FeedForward, NormKind, Positions, Residual};
pub use config::{Config, ExpertsConfig, RopeConfig, RopeScaling};
pub use error::Error;
pub use model::Model;
pub use state::{Batch, State, StateOptions};
