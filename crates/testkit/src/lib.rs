//! Shared test code; a dev-dependency only.
//!
//! | item | is |
//! |---|---|
//! | [`Reference`] | a device in f64 with naive loops: the oracle of single ops and of whole models |
//! | [`ReferenceGroup`] | a group of such devices with tensor parallelism |
//! | [`ReferenceLogMel`] | log-mel powers in f64 |
//! | [`Adapted`] | a device with kernels of another: the oracle without fusion, a device that runs ahead |
//! | [`GoldenModel`] | tiny language models of every architecture with references |
//! | [`check_snapshot`] | comparison of a text with its file under `test-data/golden` |
//! | [`suite`] | the conformance suite: every op of a device against the oracle, integer products of every format |
//! | [`device_tests`] | tests of GPUs beyond it |
//! | [`TinyWhisper`] | a tiny Whisper model with random weights |
//! | [`random_weights`], [`Lcg`] | reproducible random weights and values |
//! | [`Bomb`] | a panic after a number of calls |
//! | [`CountingAllocator`] | an allocator for tests of code that must not allocate |
//! | `wgpu`, `cuda` | the GPU of the test machine |
#![deny(unsafe_code)]

mod adapted;
mod bomb;
mod counting_allocator;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device_tests;
mod exchanged_tokens;
mod golden_model;
mod lcg;
mod random_weights;
mod reference;
mod snapshot;
pub mod suite;
mod tiny_whisper;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use adapted::{Adapted, LogMelOutcome};
pub use bomb::Bomb;
pub use counting_allocator::CountingAllocator;
pub use exchanged_tokens::exchanged_tokens;
pub use golden_model::{GoldenModel, golden_folder};
pub use lcg::Lcg;
pub use random_weights::random_weights;
pub use reference::{Reference, ReferenceGroup, ReferenceLogMel};
pub use snapshot::check_snapshot;
pub use tiny_whisper::TinyWhisper;

/// Whether slow variants run, too: every instruction set and kernel variant, long clips. `cargo xtask test --all` sets
/// `STONECHAT_TEST_ALL`; without it a test keeps one pass over every op, format and verb.
#[must_use]
pub fn runs_all() -> bool {
    std::env::var_os("STONECHAT_TEST_ALL").is_some_and(|value| !value.is_empty())
}

/// The elements of `all` that a test runs: every one, or the last without `cargo xtask test --all`.
#[must_use]
pub fn variants<T>(mut all: Vec<T>) -> Vec<T> {
    if !runs_all() && all.len() > 1 {
        all.drain(..all.len() - 1);
    }
    all
}

/// Folder of installed models, from `STONECHAT_MODELS`, which `cargo xtask test` sets. Tests that need a model are
/// skipped without it.
#[must_use]
pub fn models_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("STONECHAT_MODELS").map(std::path::PathBuf::from)
}
