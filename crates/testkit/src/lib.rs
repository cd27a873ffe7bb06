//! What the tests of the workspace share; nothing here is part of the product.
//!
//! [`Reference`] is a backend in f64 with obvious loops: the oracle of the conformance suite and,
//! since it is a backend, of whole models. [`TinyWhisper`] makes a random model of real structure.
//! `wgpu` opens the GPU that tests run on.
//! [`suite`] runs every op of a backend against the oracle. [`Lcg`] makes the same pseudo-random values everywhere.
#![forbid(unsafe_code)]

mod lcg;
mod random_weights;
mod reference;
pub mod suite;
mod tiny_whisper;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use lcg::Lcg;
pub use random_weights::random_weights;
pub use reference::{Reference, ReferenceBuffer, ReferenceKv, ReferenceMatrix};
pub use tiny_whisper::TinyWhisper;

/// The folder of installed models that `cargo xtask test` names in `STONECHAT_MODELS`; tests that
/// need one are skipped by name without it.
#[must_use]
pub fn models_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("STONECHAT_MODELS").map(std::path::PathBuf::from)
}
