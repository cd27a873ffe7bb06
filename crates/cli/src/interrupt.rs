//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// The exit code of a program that ctrl-C ended.
pub(super) const INTERRUPTED: u8 = 130;

/// A flag that ctrl-C sets.
pub(super) fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&flag);
    on_ctrl_c(move || {
        // The first asks; a second, while the first was not answered, ends the program.
        if shared.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED.into());
        }
    })?;
    Ok(flag)
}

/// Calls `answer` whenever ctrl-C is pressed.
pub(super) fn on_ctrl_c(answer: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    ctrlc::set_handler(answer).context("cannot listen for ctrl-C")
}
