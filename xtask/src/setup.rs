//! `cargo xtask setup`: what the tests need beyond the source tree.

use anyhow::Result;

use crate::models;

/// Models that the tests run.
const TEST_MODELS: [&str; 2] = ["tiny.en", "base"];

/// Installs the models that the tests run (204 MB of downloads, once).
pub(crate) fn run() -> Result<()> {
    println!("$ cargo xtask models {}", TEST_MODELS.join(" "));
    models::install(&TEST_MODELS)
}
