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
    on_ctrl_c(move || shared.swap(true, Ordering::Relaxed))?;
    Ok(flag)
}

/// Calls `interrupt` on every Ctrl-C; ends the process if that returns true, since an earlier Ctrl-C has had no effect yet.
pub(super) fn on_ctrl_c(
    mut interrupt: impl FnMut() -> bool + Send + 'static,
) -> anyhow::Result<()> {
    let handler = move || {
        if interrupt() {
            restore();
            std::process::exit(INTERRUPTED.into());
        }
    };
    ctrlc::set_handler(handler).context("cannot handle Ctrl-C")
}
