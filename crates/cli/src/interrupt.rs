//! Handling of Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use super::terminal::restore;

/// Exit code after Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;

/// Installs a handler of Ctrl-C that sets the returned flag.
pub(super) fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&flag);
    on_ctrl_c(move || {
        // A second Ctrl-C, before the flag was cleared, ends the process.
        if shared.swap(true, Ordering::Relaxed) {
            restore();
            std::process::exit(INTERRUPTED.into());
        }
    })?;
    Ok(flag)
}

/// Calls `handler` on every Ctrl-C.
pub(super) fn on_ctrl_c(handler: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    ctrlc::set_handler(handler).context("cannot handle Ctrl-C")
}
