//! `cargo xtask setup`: what the tests need beyond the source tree.

use anyhow::Result;

use crate::models;

/// Models that the tests run.
const TEST_MODELS: [&str; 4] = ["tiny.en", "base", "smollm2-135m", "gemma3-270m"];

/// Installs the models that the tests run (555 MB of downloads, once).
pub(crate) fn run() -> Result<()> {
    println!("$ cargo xtask models {}", TEST_MODELS.join(" "));
    models::install(&TEST_MODELS)
}
